//! Ports of a saved configuration: addresses, ANA states, referrals.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::limits::{KERNEL_ENTRIES, transfer};
use super::report::{Report, quoted};
use super::saved::Object;
use nvmeof_target_address as zone;
use nvmeof_target_config::DEFAULT_PORT;

/// The default of both targets for in-capsule data, in bytes.
pub(super) const IN_CAPSULE: u32 = 4096;

/// An imported port.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Port {
    /// The location in the file.
    pub(super) location: String,
    pub(super) id: u16,
    /// The IP address, with the interface if it is link-local.
    pub(super) traddr: String,
    pub(super) trsvcid: u16,
    /// Bytes of in-capsule data, if not the default.
    pub(super) in_capsule: Option<u32>,
    /// Queue depth of nvmet.
    pub(super) queue_size: i64,
    /// Maximum data bytes of a command of nvmet.
    pub(super) max_transfer: u32,
    /// States of the ANA groups in the file.
    pub(super) ana: BTreeMap<u32, AnaState>,
    /// NQNs of the subsystems of the port.
    pub(super) subsystems: Vec<String>,
}

/// A referral to another discovery service.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Referral {
    pub(super) traddr: IpAddr,
    pub(super) trsvcid: u16,
    /// Port ID of the other service.
    pub(super) port_id: Option<u16>,
}

/// The ANA state of a group on a port (NVM Express Base Specification 2.1, 8.1.1), with the
/// names of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnaState {
    Optimized,
    NonOptimized,
    Inaccessible,
    PersistentLoss,
    Change,
}

impl AnaState {
    const ALL: [Self; 5] = [
        Self::Optimized,
        Self::NonOptimized,
        Self::Inaccessible,
        Self::PersistentLoss,
        Self::Change,
    ];

    /// The name in both formats.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Optimized => "optimized",
            Self::NonOptimized => "non-optimized",
            Self::Inaccessible => "inaccessible",
            Self::PersistentLoss => "persistent-loss",
            Self::Change => "change",
        }
    }

    /// The state in nvmet of a group without an entry on the port: only group 1 exists by
    /// default.
    pub(super) fn unnamed(group: u32) -> Self {
        if group == 1 {
            Self::Optimized
        } else {
            Self::Inaccessible
        }
    }

    fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == word)
    }
}

/// Further parameters of a port.
struct Parameters {
    in_capsule: Option<u32>,
    queue_size: i64,
    max_transfer: u32,
}

/// The address of a port or referral.
struct ParsedAddress {
    traddr: IpAddr,
    /// The interface of a link-local address.
    interface: Option<String>,
    trsvcid: u16,
}

/// Ports that can be imported, and their referrals.
pub(super) fn read(root: &mut Object<'_>, report: &mut Report) -> (Vec<Port>, Vec<Referral>) {
    let (mut ports, mut referrals) = (Vec::<Port>::new(), Vec::new());
    for mut object in root.objects("ports", report) {
        let Some(port) = port(&mut object, report) else {
            continue;
        };
        let twin = ports
            .iter()
            .find(|other| (&other.traddr, other.trsvcid) == (&port.traddr, port.trsvcid));
        if let Some(twin) = twin {
            let what = format!("has the address of {}", twin.location);
            report.lost(&port.location, &what, "one port serves both");
            continue;
        }
        for referral in referrals_of(&mut object, report) {
            if !referrals.contains(&referral) {
                referrals.push(referral);
            }
        }
        object.finish(report);
        ports.push(port);
    }
    number_port_zero(&mut ports, report);
    if ports.len() > 1 && !referrals.is_empty() {
        let what = "every port reports each referral";
        report.note(
            "ports",
            what,
            "use a separate target for each port if that matters",
        );
    }
    (ports, referrals)
}

/// Port IDs of this target start at 1: port 0 gets the first free one.
fn number_port_zero(ports: &mut [Port], report: &mut Report) {
    let is_free = |id: &u16| ports.iter().all(|port| port.id != *id);
    let Some(free) = (1..=u16::MAX).find(is_free) else {
        return;
    };
    // nvmet has one folder for each number, so at most one port is 0.
    if let Some(port) = ports.iter_mut().find(|port| port.id == 0) {
        port.id = free;
        let location = format!("{}.portid", port.location);
        report.note(
            &location,
            &format!("0 is not a port ID of this target; the port becomes {free}"),
            "",
        );
    }
}

fn port(object: &mut Object<'_>, report: &mut Report) -> Option<Port> {
    let location = object.own_location().to_owned();
    let subsystems = object.texts("subsystems", report);
    let mut addr = object.object("addr", report);
    let reached = reached(&mut addr, report);
    addr.skip(&["portid"]);
    addr.finish(report);
    let ParsedAddress {
        traddr,
        interface,
        trsvcid,
    } = reached?;
    let traddr = match interface {
        Some(interface) => format!("{traddr}%{interface}"),
        None => traddr.to_string(),
    };
    if subsystems.is_empty() {
        let what = "has no subsystem, so nvmet does not listen there";
        report.note(&location, what, "the port is left out");
        return None;
    }
    let id = port_id(object, report);
    let Parameters {
        in_capsule,
        queue_size,
        max_transfer,
    } = parameters(object, report);
    Some(Port {
        id: id?,
        traddr,
        trsvcid,
        in_capsule,
        queue_size,
        max_transfer,
        ana: ana_groups(object, report),
        subsystems,
        location,
    })
}

fn port_id(object: &mut Object<'_>, report: &mut Report) -> Option<u16> {
    let id = object.number("portid", report);
    let checked = id.and_then(|id| u16::try_from(id).ok());
    if checked.is_none() {
        let location = object.location("portid");
        report.lost(&location, "is not a port ID", "set a port ID of 0 to 65535");
    }
    checked
}

/// The address of a port or a referral; `None`, and a remark, if it cannot be used with
/// RDMA.
fn reached(addr: &mut Object<'_>, report: &mut Report) -> Option<ParsedAddress> {
    let trtype = addr.text("trtype", report).unwrap_or_default();
    let adrfam = addr.text("adrfam", report).unwrap_or_default();
    let traddr = addr.text("traddr", report).unwrap_or_default();
    let trsvcid = addr.text("trsvcid", report).unwrap_or_default();
    let treq = addr.text("treq", report).unwrap_or_default();
    addr.skip(&["tsas"]);
    if !trtype.eq_ignore_ascii_case("rdma") {
        let what = format!(
            "transport {} is not supported; only rdma is",
            quoted(&trtype)
        );
        let remedy = "a [[port]] at this address serves hosts without RDMA devices too, with \
                      software iWARP; connect them with the transport rdma";
        report.lost(&addr.location("trtype"), &what, remedy);
        return None;
    }
    let adrfam_known = ["ipv4", "ipv6", ""];
    if !adrfam_known
        .iter()
        .any(|known| adrfam.eq_ignore_ascii_case(known))
    {
        let what = format!("address family {} is not supported", quoted(&adrfam));
        let remedy = "give the interface an IP address (IPoIB)";
        report.lost(&addr.location("adrfam"), &what, remedy);
        return None;
    }
    // Brackets as in a URL.
    let bare = traddr
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let traddr = bare.unwrap_or(&traddr);
    let (ip, interface) = match zone::split(traddr) {
        Some((ip, interface)) => (Ok(ip.into()), Some(interface.to_owned())),
        None => (traddr.parse(), None),
    };
    let Ok(ip) = ip else {
        let what = format!("{} is not an IP address", quoted(traddr));
        let remedy = match is_host_name(traddr) {
            true => format!("write its address, which `getent ahosts {traddr}` prints"),
            false => "write an IP address".to_owned(),
        };
        report.lost(&addr.location("traddr"), &what, &remedy);
        return None;
    };
    let service = match trsvcid.as_str() {
        "" | "none" => Some(DEFAULT_PORT),
        text => text.parse().ok().filter(|port| *port != 0),
    };
    let Some(trsvcid) = service else {
        let what = format!("{} is not a port number", quoted(&trsvcid));
        report.lost(
            &addr.location("trsvcid"),
            &what,
            "set a port number of 1 to 65535",
        );
        return None;
    };
    if treq == "required" {
        let what = "secure channels are not supported";
        let remedy = "restrict the network to hosts that may see the data (docs/security.md)";
        report.lost(&addr.location("treq"), what, remedy);
    }
    Some(ParsedAddress {
        traddr: ip,
        interface,
        trsvcid,
    })
}

fn is_host_name(text: &str) -> bool {
    let of_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    text.len() <= 253
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(of_name)
}

/// In-capsule data in bytes if not the default, queue depth, data bytes of a command. The
/// kernel shows defaults as -1.
fn parameters(object: &mut Object<'_>, report: &mut Report) -> Parameters {
    let mut param = object.object("param", report);
    let in_capsule = in_capsule(&mut param, report);
    let queue = param.number("max_queue_size", report);
    let queue_size = queue.filter(|it| *it >= 0).unwrap_or(KERNEL_ENTRIES);
    let max_transfer = transfer(param.number("mdts", report));
    if param.switch("pi_enable", report) == Some(true) {
        no_protection(&param.location("pi_enable"), report);
    }
    param.finish(report);
    Parameters {
        in_capsule,
        queue_size,
        max_transfer,
    }
}

fn in_capsule(param: &mut Object<'_>, report: &mut Report) -> Option<u32> {
    const DEFAULT: i64 = IN_CAPSULE as i64;
    /// The maximum of this target.
    const MOST: i64 = 64 << 10;
    let location = param.location("inline_data_size");
    let wanted = param.number("inline_data_size", report)?;
    if wanted < 0 || wanted == DEFAULT {
        return None;
    }
    let taken = wanted.min(MOST) / 16 * 16;
    if taken != wanted {
        let what = format!("{wanted} bytes become {taken}");
        report.note(
            &location,
            &what,
            "the size must be a multiple of 16, at most 64 KiB",
        );
    }
    if taken > DEFAULT {
        let what = "with more than 4 KiB of in-capsule data a command has one descriptor only";
        let remedy = "remove in_capsule and max_descriptors if hosts use lists of descriptors";
        report.note(&location, what, remedy);
    }
    u32::try_from(taken).ok()
}

/// Reports protection information, which is not supported.
pub(super) fn no_protection(location: &str, report: &mut Report) {
    let what = "protection information (T10 PI) is not supported";
    let remedy = "format devices without metadata before they are served";
    report.lost(location, what, remedy);
}

fn ana_groups(object: &mut Object<'_>, report: &mut Report) -> BTreeMap<u32, AnaState> {
    let mut groups = BTreeMap::new();
    for mut group in object.objects("ana_groups", report) {
        let id = group.number("grpid", report);
        let mut ana = group.object("ana", report);
        let location = ana.location("state");
        let word = ana.text("state", report).unwrap_or_default();
        ana.finish(report);
        group.finish(report);
        let id = id.and_then(|id| u32::try_from(id).ok());
        match (id.filter(|id| *id > 0), AnaState::named(word.trim())) {
            (Some(id), Some(state)) => {
                groups.insert(id, state);
            }
            (Some(id), None) => {
                // An unknown state must not become accessible.
                groups.insert(id, AnaState::Inaccessible);
                let what = format!("{} is not an ANA state", quoted(&word));
                report.lost(
                    &location,
                    &what,
                    "the group is inaccessible until a state is set",
                );
            }
            (None, _) => report.lost(&location, "has no ANA group", "set a grpid"),
        }
    }
    groups
}

fn referrals_of(object: &mut Object<'_>, report: &mut Report) -> Vec<Referral> {
    let mut found = Vec::new();
    for mut referral in object.objects("referrals", report) {
        let location = referral.own_location().to_owned();
        let enabled = referral.switch("enable", report);
        referral.skip(&["name"]);
        let mut addr = referral.object("addr", report);
        let id_location = addr.location("portid");
        let number = addr.number("portid", report);
        let port_id = number.and_then(|id| u16::try_from(id).ok());
        if number.is_some() && port_id.is_none() {
            let remedy = "set the port_id of the referral, 1 to 65535";
            report.lost(&id_location, "is not a port ID", remedy);
        }
        let reached = reached(&mut addr, report);
        addr.finish(report);
        referral.finish(report);
        match (reached, enabled) {
            (Some(_), Some(false)) => {
                let remedy = "add a [[referral]] to report it to hosts";
                report.note(&location, "is not enabled", remedy);
            }
            (
                Some(ParsedAddress {
                    traddr, trsvcid, ..
                }),
                _,
            ) => found.push(Referral {
                traddr,
                trsvcid,
                port_id: port_id.filter(|id| *id > 0),
            }),
            (None, _) => {}
        }
    }
    found
}
