//! Subsystems of a saved configuration, their namespaces and hosts.

use nvmeof_target_core::ControllerIds;
use nvmeof_wire::Nqn;
use uuid::Uuid;

use super::disks::{Disks, Geometry};
use super::limits::KERNEL_QUEUES;
use super::ports::no_protection;
use super::report::{Report, quoted};
use super::saved::Object;

/// Highest number of a namespace.
const HIGHEST_NSID: i64 = 1 << 16;
/// Bytes of a serial number and of a model number (NVM Express Base
/// Specification 2.1, Identify Controller, SN and MN).
const SERIAL: usize = 20;
const MODEL: usize = 40;
/// The same of a firmware revision (FR).
const FIRMWARE: usize = 8;

/// A subsystem.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Subsystem {
    /// Where it is in the file.
    pub(super) place: String,
    pub(super) nqn: String,
    pub(super) serial: Option<String>,
    pub(super) model: Option<String>,
    /// Lowest and highest identifier of its controllers, where those are not all.
    pub(super) cntlid_min: Option<u16>,
    pub(super) cntlid_max: Option<u16>,
    pub(super) allow_any_host: bool,
    pub(super) allowed_hosts: Vec<String>,
    /// Queues of one controller that the kernel's target took.
    pub(super) queues: i64,
    pub(super) firmware_revision: Option<String>,
    pub(super) ieee_oui: Option<String>,
    pub(super) namespaces: Vec<Namespace>,
}

/// A namespace.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Namespace {
    pub(super) nsid: u32,
    pub(super) path: String,
    /// What hosts saw; `None` where the device says it.
    pub(super) block_size: Option<u32>,
    pub(super) uuid: Option<Uuid>,
    pub(super) nguid: Option<Uuid>,
    pub(super) ana_group: u32,
    pub(super) enabled: bool,
    /// Names of the hosts that see it; empty: all.
    pub(super) hosts: Vec<String>,
}

/// All subsystems that can be served.
pub(super) fn read(root: &mut Object<'_>, disks: Disks<'_>, report: &mut Report) -> Vec<Subsystem> {
    let mut all: Vec<Subsystem> = Vec::new();
    for mut object in root.objects("subsystems", report) {
        let Some(subsystem) = subsystem(&mut object, disks, report) else {
            continue;
        };
        object.finish(report);
        if all.iter().any(|other| other.nqn == subsystem.nqn) {
            let remedy = "the first one is served";
            report.lost(&subsystem.place, "is there twice", remedy);
            continue;
        }
        all.push(subsystem);
    }
    all
}

/// The name of the discovery subsystem, which the kernel shows whether it is the one that
/// all have or one of its own.
pub(super) fn read_discovery(root: &mut Object<'_>, report: &mut Report) -> Option<Nqn> {
    let mut discovery = root.object("discovery", report);
    let name = discovery.text("nqn", report);
    let place = discovery.place("nqn");
    discovery.finish(report);
    let name = name?;
    match Nqn::new(name.trim()) {
        Ok(nqn) if nqn == Nqn::discovery() => None,
        Ok(nqn) => Some(nqn),
        Err(error) => {
            let what = format!("{} is no name of a subsystem: {error}", quoted(&name));
            report.lost(&place, &what, "hosts ask for the name that all have");
            None
        }
    }
}

fn subsystem(object: &mut Object<'_>, disks: Disks<'_>, report: &mut Report) -> Option<Subsystem> {
    let place = object.own_place().to_owned();
    let nqn = object.text("nqn", report).unwrap_or_default();
    if let Err(error) = Nqn::new(&nqn) {
        let what = format!("{} is no name of a subsystem: {error}", quoted(&nqn));
        report.lost(&object.place("nqn"), &what, "give it one");
        return None;
    }
    let mut attr = object.object("attr", report);
    let allow_any_host = attr.switch("allow_any_host", report).unwrap_or(false);
    let serial = printable(&mut attr, "serial", SERIAL, report);
    let model = printable(&mut attr, "model", MODEL, report);
    let queues = attr.number("qid_max", report).unwrap_or(KERNEL_QUEUES);
    let (cntlid_min, cntlid_max) = controller_ids(&mut attr, report);
    let firmware_revision = firmware_revision(&mut attr, report);
    let ieee_oui = ieee_oui(&mut attr, report);
    attributes(&mut attr, report);
    attr.finish(report);
    let allowed_hosts = hosts(object, report);
    for mut passthru in object.objects("passthru", report) {
        let enabled = passthru.switch("enable", report);
        let path = passthru.object("device", report).text("path", report);
        // nvmetcli does not save whether it is enabled: then it is if it has a device.
        let has_device = path.is_some_and(|path| !["", "(null)"].contains(&path.trim()));
        if enabled.unwrap_or(has_device) {
            let what = "passing commands through to an NVMe controller is not there";
            let remedy = "serve its namespaces as block devices: [[subsystem.namespace]] with path";
            report.lost(passthru.own_place(), what, remedy);
        }
    }
    let namespaces = namespaces(object, disks, report);
    Some(Subsystem {
        place,
        nqn,
        serial,
        model,
        cntlid_min,
        cntlid_max,
        allow_any_host,
        allowed_hosts,
        queues,
        firmware_revision,
        ieee_oui,
        namespaces,
    })
}

/// A text for hosts; `None` where there is none or it cannot be.
fn printable(
    attr: &mut Object<'_>,
    key: &str,
    longest: usize,
    report: &mut Report,
) -> Option<String> {
    let text = attr.text(key, report)?;
    let text = text.trim_end();
    let fits = text.len() <= longest && text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    if !fits {
        let what = format!("{} cannot be told to hosts", quoted(text));
        let remedy = format!("give up to {longest} printable ASCII characters");
        report.lost(&attr.place(key), &what, &remedy);
    }
    (fits && !text.is_empty()).then(|| text.to_owned())
}

/// The firmware revision. Where nobody chose one the kernel tells its own release, cut
/// to eight characters, which says nothing of this target. Releases that show one are 5.17
/// and later; what looks like one of those is not taken for a choice.
fn firmware_revision(attr: &mut Object<'_>, report: &mut Report) -> Option<String> {
    let text = printable(attr, "firmware", FIRMWARE, report)?;
    let (major, rest) = text.split_once('.').unwrap_or((&text, ""));
    let major = major.parse::<u8>().is_ok_and(|major| major >= 5);
    if !major || !rest.starts_with(|first: char| first.is_ascii_digit()) {
        return Some(text);
    }
    let what = format!("{} is taken for the kernel's release", quoted(&text));
    let remedy = "hosts are told this target's: write firmware_revision if you chose the other";
    report.note(&attr.place("firmware"), &what, remedy);
    None
}

/// The vendor, unless it is nobody: the kernel has it as a number, `0x00a0b8`.
fn ieee_oui(attr: &mut Object<'_>, report: &mut Report) -> Option<String> {
    let text = attr.text("ieee_oui", report)?;
    let digits = text.trim();
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    let number = u32::from_str_radix(digits, 16).ok();
    let Some(number) = number.filter(|number| *number < 1 << 24) else {
        let what = format!("{} is no IEEE OUI", quoted(&text));
        report.lost(
            &attr.place("ieee_oui"),
            &what,
            "give six hexadecimal digits",
        );
        return None;
    };
    let [_, high, middle, low] = number.to_be_bytes();
    (number > 0).then(|| format!("{high:02x}-{middle:02x}-{low:02x}"))
}

/// The lowest and the highest identifier of controllers, where they are not the
/// lowest and the highest there are.
fn controller_ids(attr: &mut Object<'_>, report: &mut Report) -> (Option<u16>, Option<u16>) {
    let all = ControllerIds::default();
    let mut one = |key, most: u16| {
        let number = attr.number(key, report)?;
        let fits = u16::try_from(number).ok().filter(|it| all.contains(*it));
        if fits.is_none() {
            let what = format!("{number} is no identifier of a controller");
            let remedy = "where several targets serve this subsystem, give each its own, 1 to \
                          65519: cntlid_min and cntlid_max";
            report.lost(&attr.place(key), &what, remedy);
        }
        fits.filter(|it| *it != most)
    };
    (one("cntlid_min", all.min()), one("cntlid_max", all.max()))
}

/// Attributes that only have a default here.
fn attributes(attr: &mut Object<'_>, report: &mut Report) {
    if attr.switch("pi_enable", report) == Some(true) {
        no_protection(&attr.place("pi_enable"), report);
    }
    // The PCI Vendor IDs of Identify Controller (VID, SSVID), which newer kernels have.
    for key in ["vendor_id", "subsys_vendor_id"] {
        let vendor = attr.text(key, report).unwrap_or_default();
        if !["", "0", "0x0"].contains(&vendor.trim()) {
            let what = format!("{} is not told to hosts", quoted(&vendor));
            let remedy = "there is no PCI device: hosts are told 0, which is none";
            report.lost(&attr.place(key), &what, remedy);
        }
    }
    // Which version of NVMe a target speaks is not configured.
    attr.skip(&["version"]);
}

/// Names of hosts. A name that cannot be one is no host.
fn hosts(object: &mut Object<'_>, report: &mut Report) -> Vec<String> {
    let place = object.place("allowed_hosts");
    let mut names = Vec::new();
    for name in object.texts("allowed_hosts", report) {
        match Nqn::new(&name) {
            Ok(_) if names.contains(&name) => {}
            Ok(_) => names.push(name),
            Err(error) => {
                let what = format!("{} is no name of a host: {error}", quoted(&name));
                report.lost(&place, &what, "correct it in the file");
            }
        }
    }
    names
}

fn namespaces(object: &mut Object<'_>, disks: Disks<'_>, report: &mut Report) -> Vec<Namespace> {
    let mut all: Vec<Namespace> = Vec::new();
    for mut object in object.objects("namespaces", report) {
        let place = object.own_place().to_owned();
        if let Some(namespace) = namespace(&mut object, disks, report) {
            if all.iter().any(|other| other.nsid == namespace.nsid) {
                report.lost(&place, "is there twice", "the first one is served");
            } else {
                all.push(namespace);
            }
        }
        object.finish(report);
    }
    all
}

fn namespace(object: &mut Object<'_>, disks: Disks<'_>, report: &mut Report) -> Option<Namespace> {
    let nsid = object.number("nsid", report);
    let enabled = object.switch("enable", report).unwrap_or(false);
    let group = group(object, report);
    let hosts = hosts(object, report);
    let mut device = object.object("device", report);
    let path = device.text("path", report).unwrap_or_default();
    let uuid = identifier(&mut device, "uuid", report);
    let nguid = identifier(&mut device, "nguid", report);
    if uuid.is_none() {
        let what = "has no uuid, so hosts are told one of this target";
        let remedy = "hosts that knew it without take it for another disk";
        report.note(device.own_place(), what, remedy);
    }
    let at_path = device.place("path");
    device.finish(report);
    for key in ["buffered_io", "p2pmem"] {
        let wanted = object.text(key, report).unwrap_or_default();
        if !["", "0"].contains(&wanted.as_str()) {
            let what = "how data are cached and where they lie is decided here";
            report.note(&object.place(key), what, "");
        }
    }
    let mut reservations = object.object("resv", report);
    if reservations.switch("enable", report) == Some(true) {
        let what = "reservations are not there";
        let remedy = "clusters that fence with them cannot use this namespace";
        report.lost(reservations.own_place(), what, remedy);
    }
    reservations.finish(report);
    let nsid = nsid.filter(|nsid| (1..=HIGHEST_NSID).contains(nsid));
    let Some(nsid) = nsid.and_then(|nsid| u32::try_from(nsid).ok()) else {
        let place = object.place("nsid");
        report.lost(
            &place,
            "is no number of a namespace",
            "give it one, 1 to 65536",
        );
        return None;
    };
    if !path.starts_with('/') {
        let what = format!("{} is no file and no device", quoted(&path));
        report.lost(&at_path, &what, "name one by a path from the root");
        return None;
    }
    let Geometry { block_size, rest } = disks.geometry(&at_path, &path, report);
    if let (Some(block), 1..) = (block_size, rest) {
        let what = format!(
            "{} is not a whole number of blocks of {block} bytes; the namespace is disabled",
            quoted(&path)
        );
        // Rounded up: nothing is cut off.
        let remedy = format!(
            "extend the file with `truncate -s %{block}`, which keeps its data, then remove \
             enabled = false"
        );
        report.lost(&at_path, &what, &remedy);
    }
    Some(Namespace {
        nsid,
        block_size,
        path,
        uuid,
        nguid,
        ana_group: group,
        enabled: enabled && rest == 0,
        hosts,
    })
}

/// The ANA group: nvmetcli has it under two names. 0: there are none.
fn group(object: &mut Object<'_>, report: &mut Report) -> u32 {
    let place = object.place("ana_grpid");
    let plain = object.number("ana_grpid", report);
    let mut ana = object.object("ana", report);
    let grouped = ana.number("grpid", report);
    ana.finish(report);
    let Some(group) = plain.or(grouped) else {
        return 0;
    };
    u32::try_from(group).unwrap_or_else(|_| {
        let what = format!("{group} is no ANA group");
        report.lost(&place, &what, "the namespace is in group 1");
        1
    })
}

/// An identifier; all zero means that there is none.
fn identifier(device: &mut Object<'_>, key: &str, report: &mut Report) -> Option<Uuid> {
    let text = device.text(key, report)?;
    match Uuid::parse_str(text.trim()) {
        Ok(identifier) => (!identifier.is_nil()).then_some(identifier),
        Err(_) => {
            let what = format!("{} is no {key}", quoted(&text));
            let remedy = "hosts are told another one: they take it for another disk";
            report.lost(&device.place(key), &what, remedy);
            None
        }
    }
}

/// Tells of hosts that have to prove who they are. Their secrets are not
/// repeated.
pub(super) fn read_hosts(root: &mut Object<'_>, report: &mut Report) {
    for mut host in root.objects("hosts", report) {
        host.skip(&["nqn"]);
        let mut dhchap = host.object("dhchap", report);
        let secret = |key, dhchap: &mut Object<'_>, report: &mut Report| {
            let text = dhchap.text(key, report);
            text.is_some_and(|text| !text.trim().is_empty())
        };
        let (theirs, ours) = (
            secret("key", &mut dhchap, report),
            secret("ctrl_key", &mut dhchap, report),
        );
        if theirs || ours {
            let what = "in-band authentication (DH-HMAC-CHAP) is not there";
            let remedy = "hosts are known by the name they give alone: keep the network to those \
                          that may connect (docs/security.md)";
            report.lost(dhchap.own_place(), what, remedy);
        }
        dhchap.skip(&["dhgroup", "hash"]);
        dhchap.finish(report);
        host.finish(report);
    }
}
