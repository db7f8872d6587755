//! Subsystems of a saved configuration, their namespaces and the hosts that may connect.

use nvmeof_target_core::ControllerIds;
use nvmeof_wire::Nqn;
use uuid::Uuid;

use super::limits::KERNEL_QUEUES;
use super::ports::no_protection;
use super::report::{Report, quoted};
use super::saved::Object;
use super::store_probe::{Geometry, Probe};

/// Highest namespace ID.
const HIGHEST_NSID: i64 = 1 << 16;
/// Bytes of a serial number and of a model number (NVM Express Base Specification 2.1,
/// Identify Controller, SN and MN).
const SERIAL: usize = 20;
const MODEL: usize = 40;
/// Bytes of a firmware revision (FR).
const FIRMWARE: usize = 8;

/// A subsystem.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Subsystem {
    /// The place in the file.
    pub(super) location: String,
    pub(super) nqn: String,
    pub(super) serial: Option<String>,
    pub(super) model: Option<String>,
    /// Lowest and highest controller ID, if not the defaults.
    pub(super) cntlid_min: Option<u16>,
    pub(super) cntlid_max: Option<u16>,
    pub(super) allow_any_host: bool,
    pub(super) allowed_hosts: Vec<String>,
    /// Queues of a controller of nvmet.
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
    /// The block size that hosts saw; `None`: that of the device.
    pub(super) block_size: Option<u32>,
    pub(super) uuid: Option<Uuid>,
    pub(super) nguid: Option<Uuid>,
    pub(super) ana_group: u32,
    pub(super) enabled: bool,
    /// NQNs of the hosts that can access it; empty: all.
    pub(super) hosts: Vec<String>,
}

/// Subsystems that can be imported.
pub(super) fn read(root: &mut Object<'_>, probe: Probe<'_>, report: &mut Report) -> Vec<Subsystem> {
    let mut all: Vec<Subsystem> = Vec::new();
    for mut object in root.objects("subsystems", report) {
        let Some(subsystem) = subsystem(&mut object, probe, report) else {
            continue;
        };
        object.finish(report);
        if all.iter().any(|other| other.nqn == subsystem.nqn) {
            let remedy = "the first one is served";
            report.lost(&subsystem.location, "appears twice", remedy);
            continue;
        }
        all.push(subsystem);
    }
    all
}

/// The NQN of the discovery subsystem, if it is not the well-known one. The kernel shows it
/// in both cases.
pub(super) fn read_discovery(root: &mut Object<'_>, report: &mut Report) -> Option<Nqn> {
    let mut discovery = root.object("discovery", report);
    let name = discovery.text("nqn", report);
    let location = discovery.location("nqn");
    discovery.finish(report);
    let name = name?;
    match Nqn::new(name.trim()) {
        Ok(nqn) if nqn == Nqn::discovery() => None,
        Ok(nqn) => Some(nqn),
        Err(error) => {
            let what = format!("{} is not an NQN: {error}", quoted(&name));
            report.lost(&location, &what, "hosts use the well-known discovery NQN");
            None
        }
    }
}

fn subsystem(object: &mut Object<'_>, probe: Probe<'_>, report: &mut Report) -> Option<Subsystem> {
    let location = object.own_location().to_owned();
    let nqn = object.text("nqn", report).unwrap_or_default();
    if let Err(error) = Nqn::new(&nqn) {
        let what = format!("{} is not an NQN: {error}", quoted(&nqn));
        report.lost(
            &object.location("nqn"),
            &what,
            "set the NQN of the subsystem",
        );
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
        // nvmetcli does not save whether it is enabled: assume so if it has a device.
        let has_device = path.is_some_and(|path| !["", "(null)"].contains(&path.trim()));
        if enabled.unwrap_or(has_device) {
            let what = "NVMe passthrough is not supported";
            let remedy = "serve its namespaces as block devices: [[subsystem.namespace]] with path";
            report.lost(passthru.own_location(), what, remedy);
        }
    }
    let namespaces = namespaces(object, probe, report);
    Some(Subsystem {
        location,
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

/// A text that hosts see; `None` if it is absent or invalid.
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
        let what = format!("{} is not valid", quoted(text));
        let remedy = format!("use up to {longest} printable ASCII characters");
        report.lost(&attr.location(key), &what, &remedy);
    }
    (fits && !text.is_empty()).then(|| text.to_owned())
}

/// The firmware revision. By default the kernel reports its own release, cut to eight
/// characters, which does not apply to this target. The attribute exists since Linux 5.17; a
/// value that looks like such a release is not imported.
fn firmware_revision(attr: &mut Object<'_>, report: &mut Report) -> Option<String> {
    let text = printable(attr, "firmware", FIRMWARE, report)?;
    let (major, rest) = text.split_once('.').unwrap_or((&text, ""));
    let major = major.parse::<u8>().is_ok_and(|major| major >= 5);
    if !major || !rest.starts_with(|first: char| first.is_ascii_digit()) {
        return Some(text);
    }
    let what = format!("{} looks like the release of the kernel", quoted(&text));
    let remedy = "this target reports its own version; set firmware_revision to change it";
    report.note(&attr.location("firmware"), &what, remedy);
    None
}

/// The IEEE OUI, unless it is 0. The kernel shows it as a number, `0x00a0b8`.
fn ieee_oui(attr: &mut Object<'_>, report: &mut Report) -> Option<String> {
    let text = attr.text("ieee_oui", report)?;
    let digits = text.trim();
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    let number = u32::from_str_radix(digits, 16).ok();
    let Some(number) = number.filter(|number| *number < 1 << 24) else {
        let what = format!("{} is not an IEEE OUI", quoted(&text));
        report.lost(
            &attr.location("ieee_oui"),
            &what,
            "use six hexadecimal digits",
        );
        return None;
    };
    let [_, high, middle, low] = number.to_be_bytes();
    (number > 0).then(|| format!("{high:02x}-{middle:02x}-{low:02x}"))
}

/// The lowest and the highest controller ID, if they are not the defaults.
fn controller_ids(attr: &mut Object<'_>, report: &mut Report) -> (Option<u16>, Option<u16>) {
    let all = ControllerIds::default();
    let mut one = |key, most: u16| {
        let number = attr.number(key, report)?;
        let fits = u16::try_from(number).ok().filter(|it| all.contains(*it));
        if fits.is_none() {
            let what = format!("{number} is not a controller ID");
            let remedy = "if several targets serve this subsystem, give each its own range within \
                          1 to 65519 (cntlid_min, cntlid_max)";
            report.lost(&attr.location(key), &what, remedy);
        }
        fits.filter(|it| *it != most)
    };
    (one("cntlid_min", all.min()), one("cntlid_max", all.max()))
}

/// Attributes that are not configurable in this target.
fn attributes(attr: &mut Object<'_>, report: &mut Report) {
    if attr.switch("pi_enable", report) == Some(true) {
        no_protection(&attr.location("pi_enable"), report);
    }
    // The PCI Vendor IDs of Identify Controller (VID, SSVID), which newer kernels have.
    for key in ["vendor_id", "subsys_vendor_id"] {
        let vendor = attr.text(key, report).unwrap_or_default();
        if !["", "0", "0x0"].contains(&vendor.trim()) {
            let what = format!("{} is not reported to hosts", quoted(&vendor));
            let remedy = "this target is not a PCI device and reports 0";
            report.lost(&attr.location(key), &what, remedy);
        }
    }
    // The NVMe version of this target is not configurable.
    attr.skip(&["version"]);
}

/// NQNs of hosts. Invalid ones are ignored.
fn hosts(object: &mut Object<'_>, report: &mut Report) -> Vec<String> {
    let location = object.location("allowed_hosts");
    let mut names = Vec::new();
    for name in object.texts("allowed_hosts", report) {
        match Nqn::new(&name) {
            Ok(_) if names.contains(&name) => {}
            Ok(_) => names.push(name),
            Err(error) => {
                let what = format!("{} is not an NQN: {error}", quoted(&name));
                report.lost(&location, &what, "correct it in the file");
            }
        }
    }
    names
}

fn namespaces(object: &mut Object<'_>, probe: Probe<'_>, report: &mut Report) -> Vec<Namespace> {
    let mut all: Vec<Namespace> = Vec::new();
    for mut object in object.objects("namespaces", report) {
        let location = object.own_location().to_owned();
        if let Some(namespace) = namespace(&mut object, probe, report) {
            if all.iter().any(|other| other.nsid == namespace.nsid) {
                report.lost(&location, "appears twice", "the first one is served");
            } else {
                all.push(namespace);
            }
        }
        object.finish(report);
    }
    all
}

fn namespace(object: &mut Object<'_>, probe: Probe<'_>, report: &mut Report) -> Option<Namespace> {
    let nsid = object.number("nsid", report);
    let enabled = object.switch("enable", report).unwrap_or(false);
    let group = group(object, report);
    let hosts = hosts(object, report);
    let mut device = object.object("device", report);
    let path = device.text("path", report).unwrap_or_default();
    let uuid = identifier(&mut device, "uuid", report);
    let nguid = identifier(&mut device, "nguid", report);
    if uuid.is_none() {
        let what = "has no UUID; this target generates one";
        let remedy = "hosts that used it without a UUID treat it as another namespace";
        report.note(device.own_location(), what, remedy);
    }
    let at_path = device.location("path");
    device.finish(report);
    for key in ["buffered_io", "p2pmem"] {
        let wanted = object.text(key, report).unwrap_or_default();
        if !["", "0"].contains(&wanted.as_str()) {
            let what = "has no equivalent: this target chooses caching and memory itself";
            report.note(&object.location(key), what, "");
        }
    }
    let mut reservations = object.object("resv", report);
    if reservations.switch("enable", report) == Some(true) {
        let what = "permits reservations, as this target does for every namespace";
        let remedy = "they require a state file: set control.state";
        report.note(reservations.own_location(), what, remedy);
    }
    reservations.finish(report);
    let nsid = nsid.filter(|nsid| (1..=HIGHEST_NSID).contains(nsid));
    let Some(nsid) = nsid.and_then(|nsid| u32::try_from(nsid).ok()) else {
        let location = object.location("nsid");
        report.lost(
            &location,
            "is not a namespace ID",
            "set a namespace ID of 1 to 65536",
        );
        return None;
    };
    if !path.starts_with('/') {
        let what = format!("{} is not a file or device", quoted(&path));
        report.lost(&at_path, &what, "set an absolute path");
        return None;
    }
    let Geometry { block_size, rest } = probe.geometry(&at_path, &path, report);
    if let (Some(block), 1..) = (block_size, rest) {
        let what = format!(
            "{} is not a whole number of blocks of {block} bytes; the namespace is disabled",
            quoted(&path)
        );
        // Rounded up: no data is cut off.
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

/// The ANA group, which nvmetcli saves under one of two keys; 0: none.
fn group(object: &mut Object<'_>, report: &mut Report) -> u32 {
    let location = object.location("ana_grpid");
    let plain = object.number("ana_grpid", report);
    let mut ana = object.object("ana", report);
    let grouped = ana.number("grpid", report);
    ana.finish(report);
    let Some(group) = plain.or(grouped) else {
        return 0;
    };
    u32::try_from(group).unwrap_or_else(|_| {
        let what = format!("{group} is not an ANA group ID");
        report.lost(&location, &what, "the namespace is in group 1");
        1
    })
}

/// An identifier; all zeroes mean none.
fn identifier(device: &mut Object<'_>, key: &str, report: &mut Report) -> Option<Uuid> {
    let text = device.text(key, report)?;
    match Uuid::parse_str(text.trim()) {
        Ok(identifier) => (!identifier.is_nil()).then_some(identifier),
        Err(_) => {
            let what = format!("{} is not a {}", quoted(&text), key.to_uppercase());
            let remedy = "this target reports another one, and hosts see another namespace";
            report.lost(&device.location(key), &what, remedy);
            None
        }
    }
}
