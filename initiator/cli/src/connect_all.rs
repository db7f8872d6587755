//! `nvmeof connect-all`: connects to all subsystems that discovery services offer, reports their
//! paths and namespaces, and disconnects.

use nvmeof_initiator::discovery::{
    ConnectAllOptions, ConnectedSubsystem, ConnectedSubsystems, EntryOutcome, SkipReason,
    SubsystemEntry,
};
use nvmeof_initiator::{Cns, ConnectOptions, Controller, Error, Host};
use nvmeof_wire::identify::{DescriptorList, IdentifyNamespace, NamespaceIdentifiers};
use nvmeof_wire::log::DiscoveryEntry;
use nvmeof_wire::text::Lines;
use serde_json::{Value, json};
use uuid::Uuid;
use zerocopy::FromBytes;

use crate::args::{self, Format};
use crate::failure::{Failure, wrapped};
use crate::output;

/// A subsystem with its namespaces.
struct Report<'a> {
    subsystem: &'a ConnectedSubsystem,
    namespaces: Result<Vec<NamespaceReport>, Error>,
}

struct NamespaceReport {
    nsid: u32,
    blocks: u64,
    /// Bytes; `None` if the format is invalid.
    block_size: Option<u64>,
    uuid: Option<Uuid>,
}

/// `nvmeof connect-all`
pub(crate) async fn run(args: &args::ConnectAll) -> Result<(), Failure> {
    let host = args.target.host()?;
    let options = args.options()?;
    let all = host.connect_all(args.target.addr()?, &options).await?;
    let mut reports = Vec::new();
    for subsystem in &all.subsystems {
        reports.push(Report {
            subsystem,
            namespaces: namespaces(&host, subsystem, &options).await,
        });
    }
    let printed = match args.target.output_format {
        Format::Normal => {
            let text = to_text(&reports, &all);
            output::print(Lines(&text).to_string().as_bytes())
        }
        Format::Json => output::json(&to_json(&reports, &all)),
    };
    drop(reports);
    let failure = unconnected(&all.subsystems);
    for subsystem in all.subsystems {
        if let Some(multipath) = subsystem.multipath {
            multipath.disconnect().await;
        }
    }
    printed?;
    failure.map_or(Ok(()), Err)
}

/// The namespaces of a connected subsystem, over a controller of their own: they are listed by
/// admin commands.
async fn namespaces(
    host: &Host,
    subsystem: &ConnectedSubsystem,
    options: &ConnectAllOptions,
) -> Result<Vec<NamespaceReport>, Error> {
    let connected = subsystem
        .entries
        .iter()
        .find_map(|entry| match entry.outcome {
            EntryOutcome::Connected(addr) => Some(addr),
            _ => None,
        });
    let Some(addr) = connected else {
        return Ok(Vec::new());
    };
    let connection = ConnectOptions {
        addr,
        subnqn: subsystem.subnqn,
        io_queues: 0,
        ..options.path.clone()
    };
    let controller = host.connect(connection).await?;
    let listed = list(&controller).await;
    controller.disconnect().await;
    listed
}

async fn list(controller: &Controller) -> Result<Vec<NamespaceReport>, Error> {
    let mut listed = Vec::new();
    for nsid in controller.namespaces().await? {
        let page = controller.identify_page(Cns::NAMESPACE, nsid).await?;
        let Ok(identify) = IdentifyNamespace::read_from_bytes(&page) else {
            continue;
        };
        let uuid = match controller.identify_page(Cns::DESCRIPTORS, nsid).await {
            Ok(page) => DescriptorList::read_from_bytes(&page)
                .ok()
                .and_then(|list| NamespaceIdentifiers::parse(&list).ok())
                .and_then(|identifiers| identifiers.uuid),
            // Controllers before NVMe 1.3 do not have descriptors.
            Err(Error::Command(_)) => None,
            Err(error) => return Err(error),
        };
        let format = identify.format();
        listed.push(NamespaceReport {
            nsid,
            blocks: identify.nsze.get(),
            block_size: format.and_then(|format| format.block_len()).map(u64::from),
            uuid: uuid.map(Uuid::from_bytes),
        });
    }
    Ok(listed)
}

/// The failure that names the subsystems without a path.
fn unconnected(subsystems: &[ConnectedSubsystem]) -> Option<Failure> {
    let without = subsystems.iter().filter(|one| one.multipath.is_none());
    let names: Vec<String> = without.map(|one| one.subnqn.to_string()).collect();
    if names.is_empty() {
        return None;
    }
    let cause = format!(
        "{} of {} subsystems have no path: {}",
        names.len(),
        subsystems.len(),
        names.join(", ")
    );
    Some(Failure::new(cause).beside_result())
}

fn to_text(reports: &[Report<'_>], all: &ConnectedSubsystems) -> String {
    let mut text = String::new();
    for report in reports {
        text.push_str(&format!("{}\n", report.subsystem.subnqn));
        for entry in &report.subsystem.entries {
            text.push_str(&line_of_entry(entry));
        }
        match &report.namespaces {
            Ok(namespaces) => text.extend(namespaces.iter().map(line_of_namespace)),
            Err(error) => text.push_str(&wrapped("  namespaces  ", &error.cause())),
        }
    }
    if reports.is_empty() {
        text.push_str("no subsystem is offered to this host\n");
    }
    for (entry, reason) in &all.left_out {
        text.push_str(&line_of_skipped(entry, reason));
    }
    for service in &all.services {
        if let Err(error) = &service.generation {
            let why = format!("{}: {}", service.addr, error.cause());
            text.push_str(&wrapped("discovery service ", &why));
        }
    }
    text
}

fn line_of_entry(entry: &SubsystemEntry) -> String {
    match &entry.outcome {
        EntryOutcome::Connected(addr) => format!("  live       {addr}\n"),
        EntryOutcome::Failed(addr, error) => {
            wrapped("  failed     ", &format!("{addr}: {}", error.cause()))
        }
        EntryOutcome::Skipped(reason) => line_of_skipped(&entry.entry, reason),
    }
}

fn line_of_skipped(entry: &DiscoveryEntry, reason: &SkipReason) -> String {
    let text = format!("{} {}: {reason}", entry.traddr, entry.trsvcid);
    wrapped("  skipped    ", &text)
}

fn line_of_namespace(namespace: &NamespaceReport) -> String {
    let NamespaceReport {
        nsid,
        blocks,
        block_size,
        uuid,
    } = namespace;
    let size = match block_size {
        Some(block_size) => in_binary_units(u128::from(*blocks) * u128::from(*block_size)),
        None => format!("{blocks} blocks"),
    };
    let uuid = uuid.map_or_else(|| "-".to_owned(), |uuid| uuid.to_string());
    format!("  namespace  {nsid:<4} {size:>11}  {uuid}\n")
}

/// Bytes in powers of 1024, rounded down: `1.5 MiB`.
fn in_binary_units(bytes: u128) -> String {
    let mut unit = 1u128;
    let mut name = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if bytes < unit * 1024 {
            break;
        }
        (unit, name) = (unit * 1024, next);
    }
    let tenths = bytes * 10 / unit;
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

fn to_json(reports: &[Report<'_>], all: &ConnectedSubsystems) -> Value {
    let subsystems: Vec<Value> = reports.iter().map(subsystem_json).collect();
    let left_out = all.left_out.iter();
    let left_out = left_out.map(|(entry, reason)| skipped_json(entry, reason));
    let services = all
        .services
        .iter()
        .map(|service| match &service.generation {
            Ok(generation) => json!({ "address": service.addr.to_string(), "genctr": generation }),
            Err(error) => json!({ "address": service.addr.to_string(), "error": error.cause() }),
        });
    json!({
        "subsystems": subsystems,
        "skipped": left_out.collect::<Vec<_>>(),
        "services": services.collect::<Vec<_>>(),
    })
}

fn subsystem_json(report: &Report<'_>) -> Value {
    let paths = report.subsystem.entries.iter().map(entry_json);
    let mut object = json!({
        "subnqn": report.subsystem.subnqn.as_str(),
        "paths": paths.collect::<Vec<_>>(),
    });
    let (key, value) = match &report.namespaces {
        Ok(namespaces) => {
            let all: Vec<Value> = namespaces.iter().map(namespace_json).collect();
            ("namespaces", all.into())
        }
        Err(error) => ("error", error.cause().into()),
    };
    if let Some(object) = object.as_object_mut() {
        object.insert(key.to_owned(), value);
    }
    object
}

fn entry_json(entry: &SubsystemEntry) -> Value {
    match &entry.outcome {
        EntryOutcome::Connected(addr) => json!({ "address": addr.to_string(), "state": "live" }),
        EntryOutcome::Failed(addr, error) => {
            json!({ "address": addr.to_string(), "state": "failed", "error": error.cause() })
        }
        EntryOutcome::Skipped(reason) => skipped_json(&entry.entry, reason),
    }
}

fn skipped_json(entry: &DiscoveryEntry, reason: &SkipReason) -> Value {
    json!({
        "trtype": entry.trtype.name(),
        "traddr": entry.traddr.to_string(),
        "trsvcid": entry.trsvcid.to_string(),
        "state": "skipped",
        "error": reason.to_string(),
    })
}

fn namespace_json(namespace: &NamespaceReport) -> Value {
    json!({
        "nsid": namespace.nsid,
        "nsze": namespace.blocks,
        "block_size": namespace.block_size,
        "uuid": namespace.uuid.map(|uuid| uuid.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use nvmeof_initiator::discovery::ServiceResult;
    use nvmeof_initiator::{Nqn, UsageError};
    use nvmeof_wire::Ascii;
    use nvmeof_wire::log::discovery::TransportType;

    use super::*;

    fn all() -> ConnectedSubsystems {
        let mut entry = DiscoveryEntry::zeroed();
        entry.traddr = Ascii::new("192.0.2.1");
        entry.trsvcid = Ascii::new("4420");
        let entry = Box::new(entry);
        let addr = "192.0.2.1:4420".parse().unwrap();
        let error: Error = UsageError::Other("nothing listens on that port; ".repeat(4)).into();
        let outcomes = [
            EntryOutcome::Failed(addr, error.clone()),
            EntryOutcome::Skipped(SkipReason::Transport(TransportType::TCP)),
        ];
        let entries = outcomes.map(|outcome| SubsystemEntry {
            entry: entry.clone(),
            outcome,
        });
        ConnectedSubsystems {
            subsystems: vec![ConnectedSubsystem {
                subnqn: Nqn::new("nqn.2026-11.org.example:disk").unwrap(),
                multipath: None,
                entries: entries.to_vec(),
            }],
            left_out: vec![(entry, SkipReason::SecureChannel)],
            services: vec![ServiceResult {
                addr,
                generation: Err(error),
            }],
        }
    }

    fn reports(all: &ConnectedSubsystems) -> Vec<Report<'_>> {
        let namespace = |nsid, blocks| NamespaceReport {
            nsid,
            blocks,
            block_size: Some(4096),
            uuid: (nsid == 1).then(|| Uuid::from_bytes([0x11; 16])),
        };
        vec![Report {
            subsystem: &all.subsystems[0],
            namespaces: Ok(vec![namespace(1, 1 << 18), namespace(u32::MAX, u64::MAX)]),
        }]
    }

    #[test]
    fn text_has_paths_and_namespaces_in_eighty_columns() {
        let all = all();
        let text = to_text(&reports(&all), &all);
        for line in [
            "nqn.2026-11.org.example:disk\n",
            "  failed     192.0.2.1:4420: nothing listens on that port;",
            "  skipped    192.0.2.1 4420: transport tcp (3) is not supported",
            "  namespace  1        1.0 GiB  11111111-1111-1111-1111-111111111111\n",
            "  -\n",
            "discovery service 192.0.2.1:4420: nothing listens",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        let failure = unconnected(&all.subsystems).unwrap();
        assert!(format!("{failure:?}").contains("1 of 1 subsystems have no path"));
        assert!(unconnected(&[]).is_none());
    }

    #[test]
    fn json_has_a_state_for_each_entry() {
        let all = all();
        let json = to_json(&reports(&all), &all);
        let subsystem = &json["subsystems"][0];
        assert_eq!(subsystem["paths"][0]["state"], "failed");
        assert_eq!(subsystem["paths"][1]["state"], "skipped");
        assert_eq!(subsystem["namespaces"][0]["block_size"], 4096);
        assert!(subsystem["namespaces"][1]["uuid"].is_null());
        assert!(json["services"][0]["error"].is_string());
        assert_eq!(json["skipped"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn sizes_are_in_powers_of_1024() {
        for (bytes, text) in [
            (0, "0.0 B"),
            (1023, "1023.0 B"),
            (1536, "1.5 KiB"),
            (1 << 30, "1.0 GiB"),
            (5 << 50, "5120.0 TiB"),
        ] {
            assert_eq!(in_binary_units(bytes), text);
        }
    }
}
