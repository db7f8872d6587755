//! `nvmeof discover`: the discovery log page, or its changes.

use std::io::{self, Write};

use nvmeof_initiator::discovery::DiscoveryChange;
use nvmeof_initiator::{Address, Discovery, Error, Host};
use nvmeof_wire::log::DiscoveryEntry;
use nvmeof_wire::log::discovery::{EntryFlags, SubsystemType, TransportType, Treq};
use nvmeof_wire::text::{Escaped, Json};
use serde::Serialize;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::args::{self, Format};
use crate::failure::Failure;
use crate::output::{self, Fields};
use crate::remedy::remedy;

/// Prints the discovery log page, or its changes.
pub(crate) async fn run(args: &args::Discover) -> Result<(), Failure> {
    let host = args.target.host()?;
    if args.watch {
        return watch(&host, args).await;
    }
    let (addr, options) = (args.target.addr()?, args.options()?);
    let discovery = host.discover_with(addr, &options).await?;
    match args.target.output_format {
        Format::Normal => output::print(to_text(&discovery).as_bytes()),
        Format::Json => output::json(&to_json(&discovery)),
    }
}

/// Prints each change of the discovery log pages, until standard output is closed.
async fn watch(host: &Host, args: &args::Discover) -> Result<(), Failure> {
    let addr = args.target.addr()?;
    let mut watch = host.watch_discovery(addr, args.options()?).await?;
    while let Some(change) = watch.next().await {
        let Some((verb, subject)) = subject(&change) else {
            continue;
        };
        let line = match args.target.output_format {
            Format::Normal => change_to_text(&now(), verb, &subject),
            Format::Json => change_to_json(&now(), verb, &subject)?,
        };
        if !print_line(&line)? {
            return Ok(());
        }
    }
    Err(Failure::new("all discovery services are given up").beside_result())
}

/// Prints one line. Returns false if standard output is closed: the command would otherwise run
/// without an effect.
fn print_line(line: &str) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{line}").and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            let why = nvmeof_rdma::explain(&error);
            Err(Failure::new(format!("standard output: {why}")))
        }
    }
}

/// The time in the format of the log: RFC 3339, UTC.
fn now() -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

/// What a change is about; for a service with the error.
enum Subject<'a> {
    Entry(&'a DiscoveryEntry),
    Service(Address, Option<&'a Error>),
}

fn subject(change: &DiscoveryChange) -> Option<(&'static str, Subject<'_>)> {
    Some(match change {
        DiscoveryChange::Added(entry) => ("added", Subject::Entry(entry)),
        DiscoveryChange::Removed(entry) => ("removed", Subject::Entry(entry)),
        DiscoveryChange::Changed(entry) => ("changed", Subject::Entry(entry)),
        DiscoveryChange::ServiceLost { addr, error } => {
            ("lost", Subject::Service(*addr, Some(error)))
        }
        DiscoveryChange::ServiceRecovered { addr } => ("recovered", Subject::Service(*addr, None)),
        DiscoveryChange::ServiceGivenUp { addr, error } => {
            ("given-up", Subject::Service(*addr, Some(error)))
        }
        _ => return None,
    })
}

fn change_to_text(time: &str, verb: &str, subject: &Subject<'_>) -> String {
    let text = match subject {
        Subject::Entry(entry) => format!(
            "{} {} at {} {} {}{}",
            kind(entry.subtype),
            output::text(&entry.subnqn),
            entry.trtype.name(),
            entry.traddr,
            entry.trsvcid,
            match entry.trtype {
                TransportType::RDMA => format!(" ({})", entry.tsas.prtype.name()),
                _ => String::new(),
            }
        ),
        Subject::Service(addr, None) => format!("service {addr}"),
        Subject::Service(addr, Some(error)) => format!("service {addr}: {}", error.cause()),
    };
    format!("{time} {verb} {}", Escaped(&text))
}

/// A change as a JSON object.
#[derive(Serialize)]
struct Change {
    time: String,
    change: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<Fields>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

fn change_to_json(
    time: &str,
    verb: &'static str,
    subject: &Subject<'_>,
) -> Result<String, Failure> {
    let mut object = Change {
        time: time.to_owned(),
        change: verb,
        entry: None,
        service: None,
        error: None,
        remedy: None,
    };
    match subject {
        Subject::Entry(entry) => object.entry = Some(fields(entry)),
        Subject::Service(addr, error) => {
            object.service = Some(addr.to_string());
            object.error = error.map(Error::cause);
            object.remedy = error.and_then(remedy);
        }
    }
    let text = serde_json::to_string(&object);
    let text = text.map_err(|error| Failure::new(format!("internal error: {error}")))?;
    Ok(Json(&text).to_string())
}

/// A short name of the subsystem type.
fn kind(subtype: SubsystemType) -> &'static str {
    match subtype {
        SubsystemType::NVM => "subsystem",
        SubsystemType::REFERRAL => "referral",
        SubsystemType::CURRENT_DISCOVERY => "discovery",
        other => other.name(),
    }
}

fn to_text(discovery: &Discovery) -> String {
    let count = discovery.entries.len();
    let generation = discovery.generation;
    let mut text = format!("Discovery Log: {count} records, generation counter {generation}\n");
    for (number, entry) in discovery.entries.iter().enumerate() {
        text.push_str(&format!("===== Discovery Log Entry {number} =====\n"));
        text.push_str(&fields(entry).to_text());
    }
    text
}

/// The discovery log as JSON.
#[derive(Serialize)]
struct Log {
    genctr: u64,
    records: Vec<Fields>,
}

fn to_json(discovery: &Discovery) -> Log {
    Log {
        genctr: discovery.generation,
        records: discovery.entries.iter().map(fields).collect(),
    }
}

fn fields(entry: &DiscoveryEntry) -> Fields {
    let mut fields = Fields::default();
    fields
        .add("trtype", entry.trtype.name())
        .add("adrfam", entry.adrfam.name())
        .add("subtype", entry.subtype.name())
        .add("treq", requirements(entry.treq()))
        .add("portid", entry.portid.get())
        .add("trsvcid", entry.trsvcid.to_string())
        .add("subnqn", output::text(&entry.subnqn))
        .add("traddr", entry.traddr.to_string())
        .add("eflags", flags(entry.eflags()));
    if entry.trtype == TransportType::RDMA {
        fields
            .add("rdma_prtype", entry.tsas.prtype.name())
            .add("rdma_qptype", entry.tsas.qptype.name())
            .add("rdma_cms", entry.tsas.cms.name())
            .hex("rdma_pkey", entry.tsas.pkey.get());
    }
    fields
}

/// With the words of nvme-cli.
fn flags(eflags: EntryFlags) -> String {
    let words: Vec<&str> = [
        (EntryFlags::EPCSD, "explicit discovery connections"),
        (EntryFlags::DUPRETINFO, "duplicate discovery information"),
        (EntryFlags::NCC, "no cdc connectivity"),
    ]
    .into_iter()
    .filter_map(|(flag, word)| eflags.contains(flag).then_some(word))
    .collect();
    if words.is_empty() {
        "none".to_owned()
    } else {
        words.join(", ")
    }
}

fn requirements(treq: Treq) -> String {
    let secure = match (
        treq.contains(Treq::SECURE_REQUIRED),
        treq.contains(Treq::SECURE_NOT_REQUIRED),
    ) {
        (true, _) => "required",
        (false, true) => "not required",
        (false, false) => "not specified",
    };
    if treq.contains(Treq::DISABLE_SQFC) {
        format!("{secure}, sq flow control disable supported")
    } else {
        secure.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_initiator::UsageError;
    use nvmeof_wire::Ascii;
    use nvmeof_wire::log::discovery::{AddressFamily, RdmaProviderType, RdmaTsas};

    use super::*;

    fn discovery() -> Discovery {
        let mut entry = DiscoveryEntry::zeroed();
        entry.trtype = TransportType::RDMA;
        entry.adrfam = AddressFamily::IPV4;
        entry.subtype = SubsystemType::NVM;
        entry.portid = 1.into();
        entry.trsvcid = Ascii::new("4420");
        entry.traddr = Ascii::new("127.0.0.1");
        entry.tsas = RdmaTsas::connected(RdmaProviderType::IWARP);
        let name = b"nqn.2026-11.org.example:disk";
        entry.subnqn[..name.len()].copy_from_slice(name);
        Discovery {
            generation: 3,
            entries: vec![entry],
        }
    }

    #[test]
    fn text_has_all_fields() {
        assert_eq!(
            to_text(&discovery()),
            "Discovery Log: 1 records, generation counter 3\n\
             ===== Discovery Log Entry 0 =====\n\
             trtype      : rdma\n\
             adrfam      : ipv4\n\
             subtype     : nvme subsystem\n\
             treq        : not specified\n\
             portid      : 1\n\
             trsvcid     : 4420\n\
             subnqn      : nqn.2026-11.org.example:disk\n\
             traddr      : 127.0.0.1\n\
             eflags      : none\n\
             rdma_prtype : iwarp\n\
             rdma_qptype : connected\n\
             rdma_cms    : rdma-cm\n\
             rdma_pkey   : 0x0\n"
        );
    }

    #[test]
    fn change_is_one_line() {
        let [mut entry] = discovery().entries[..] else {
            panic!("one entry");
        };
        let text = |change: &DiscoveryChange| {
            let (verb, subject) = subject(change).unwrap();
            change_to_text("now", verb, &subject)
        };
        let added = DiscoveryChange::Added(Box::new(entry));
        assert_eq!(
            text(&added),
            "now added subsystem nqn.2026-11.org.example:disk at rdma 127.0.0.1 4420 (iwarp)"
        );
        entry.subtype = SubsystemType::REFERRAL;
        entry.trtype = TransportType::TCP;
        entry.subnqn[..5].copy_from_slice(b"a\x1b[2J");
        let removed = DiscoveryChange::Removed(Box::new(entry));
        let line = text(&removed);
        assert!(line.starts_with("now removed referral a?[2J"), "{line}");
        assert!(line.ends_with(" at tcp 127.0.0.1 4420"), "{line}");
        let recovered = DiscoveryChange::ServiceRecovered {
            addr: "127.0.0.1:4420".parse().unwrap(),
        };
        assert_eq!(text(&recovered), "now recovered service 127.0.0.1:4420");
    }

    #[test]
    fn change_is_a_json_object_in_one_line() {
        let json = |change: &DiscoveryChange| {
            let (verb, subject) = subject(change).unwrap();
            change_to_json("now", verb, &subject).unwrap()
        };
        let addr = "127.0.0.1:4420".parse().unwrap();
        let error = Error::from(UsageError::Other("it is\nover".to_owned()));
        let lost = DiscoveryChange::ServiceLost { addr, error };
        assert_eq!(
            json(&lost),
            r#"{"time":"now","change":"lost","service":"127.0.0.1:4420","error":"it is\nover"}"#
        );
        let added = DiscoveryChange::Added(Box::new(discovery().entries[0]));
        let line = json(&added);
        assert_eq!(line.lines().count(), 1);
        let json: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(json["entry"]["trsvcid"], "4420");
    }

    #[test]
    fn time_is_that_of_the_log() {
        let time = now();
        assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
        assert_eq!(time.find('T'), Some(10), "{time}");
    }

    #[test]
    fn json_has_all_fields() {
        let json = serde_json::to_value(to_json(&discovery())).unwrap();
        assert_eq!(json["genctr"], 3);
        assert_eq!(json["records"][0]["subnqn"], "nqn.2026-11.org.example:disk");
        assert_eq!(json["records"][0]["trsvcid"], "4420");
    }
}
