//! How tests set up devices, plan faults and read counters.

use std::ffi::{CStr, c_char, c_int};
use std::net::IpAddr;
use std::sync::Once;

use crate::calls::int;
use crate::connection;
use crate::counters::Counters;
use crate::device::Device;
use crate::faults::Faults;
use crate::memory::Keys;
use crate::posting::ops;
use crate::profile::Profile;
use crate::raw::{Ptr, ibv_context, ibv_device, ibv_node_type, ibv_transport_type, zeroed};
use crate::signal::Signal;
use crate::world::{World, lock};

/// Marks the library as a stand-in: programs do not look for devices of the kernel then.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "a symbol of C")]
pub(crate) static nvmeof_standin: c_int = 1;

/// Environment variable with the text for [`configure`], read once when the devices are listed
/// or an event channel is created.
pub const VARIABLE: &str = "NVMEOF_VERBS_STANDIN";

/// Changes devices. The text is a list of changes, separated by semicolons: the name of a
/// device and settings of it, separated by spaces.
///
/// ```text
/// roce0 profile=roce addr=10.77.0.1 delay=3; iwarp0 profile=iwarp addr=10.77.1.1
/// roce0 fault=post-send:7 max_sge=1
/// roce0 remove
/// ```
///
/// * `profile=NAME addr=ADDRESS` adds the device. Profiles are `roce`, `no-windows`, `iwarp`
///   and `small`.
/// * `calls=peer`, with `profile`: the functions of the device have names that begin with
///   `peer_call_` instead of `device_call_`, for profilers.
/// * `from=NAME`: connections to this device come from the device of that name.
/// * `links=FOLDER`: the device reaches devices of other processes that have the same setting.
///   Connections through it are sockets in that folder.
/// * `LIMIT=NUMBER` sets a limit or a delay.
/// * `fault=PLACE:N` or `fault=PLACE:N:NUMBER` plans a fault, for the N-th time from now on
///   that the place is reached.
/// * `audit`: memory that is deregistered while posted work uses it counts as misuse.
/// * `remove` removes the device.
///
/// # Errors
/// Names the part of the text that is wrong. Changes before it are done.
pub fn configure(text: &str) -> Result<(), String> {
    let mut world = lock();
    let changes = text.split(';').map(str::trim);
    for change in changes.filter(|change| !change.is_empty()) {
        let mut words = change.split_whitespace();
        let name = words.next().unwrap_or_default();
        let settings: Vec<&str> = words.collect();
        change_device(&mut world, name, &settings)?;
    }
    Ok(())
}

fn change_device(world: &mut World, name: &str, settings: &[&str]) -> Result<(), String> {
    let value = |key: &str| {
        let mut pairs = settings.iter().filter_map(|one| one.split_once('='));
        pairs.find(|(one, _)| *one == key).map(|(_, value)| value)
    };
    if let Some(profile) = value("profile") {
        let profile = Profile::named(profile);
        let profile = profile.ok_or_else(|| format!("{name}: there is no such profile"))?;
        let addr = value("addr").and_then(|text| text.parse().ok());
        let addr = addr.ok_or_else(|| format!("{name}: a device needs addr=ADDRESS"))?;
        let peer = value("calls") == Some("peer");
        add_device(world, name, (profile, peer), addr)?;
    }
    let key = world.device_named(name);
    let key = key.ok_or_else(|| format!("{name}: there is no such device"))?;
    for setting in settings {
        let Some(device) = world.devices.get_mut(key) else {
            break;
        };
        match setting.split_once('=') {
            Some(("profile" | "addr" | "calls", _)) => {}
            Some(("from", from)) => device.from = Some(from.to_owned()),
            Some(("links", folder)) => device.links = Some(folder.into()),
            Some(("fault", fault)) => device.faults.add(fault)?,
            Some((limit, text)) => {
                let number = text.parse();
                let number = number.map_err(|_| format!("{setting}: this is no number"))?;
                device.profile.set(limit, number)?;
                let vectors = int(device.profile.vectors);
                // SAFETY: the structure exists as long as the device.
                unsafe { (*device.context.as_ptr()).num_comp_vectors = vectors };
            }
            None if *setting == "remove" => {
                connection::remove_device(world, key);
                connection::settle(world);
            }
            None if *setting == "audit" => device.audited = true,
            None => return Err(format!("{setting}: this is no setting of a device")),
        }
    }
    Ok(())
}

fn add_device(
    world: &mut World,
    name: &str,
    (profile, peer): (Profile, bool),
    addr: IpAddr,
) -> Result<(), String> {
    let signal = Signal::new().map_err(|error| format!("{name}: {error}"))?;
    // SAFETY: numbers, pointers and optional functions.
    let mut device: ibv_device = unsafe { zeroed() };
    device.node_type = ibv_node_type::IBV_NODE_CA;
    device.transport_type = ibv_transport_type::IBV_TRANSPORT_IB;
    if profile.is_iwarp() {
        device.node_type = ibv_node_type::IBV_NODE_RNIC;
        device.transport_type = ibv_transport_type::IBV_TRANSPORT_IWARP;
    }
    let room = device.name.len() - 1;
    for (place, byte) in device.name.iter_mut().zip(name.bytes().take(room)) {
        *place = c_char::from_ne_bytes([byte]);
    }
    // SAFETY: numbers, pointers and optional functions.
    let mut context: ibv_context = unsafe { zeroed() };
    context.device = Ptr::new(device).as_ptr();
    context.ops = ops(peer);
    context.cmd_fd = -1;
    context.async_fd = signal.raw_fd();
    context.num_comp_vectors = int(profile.vectors);
    world.devices.push(Device {
        name: name.to_owned(),
        addr,
        from: None,
        links: None,
        profile,
        context: Ptr::new(context),
        signal,
        events: std::collections::VecDeque::new(),
        keys: Keys::default(),
        regions: 0,
        windows: 0,
        counters: Counters::default(),
        faults: Faults::default(),
        time: 0,
        active: std::collections::BTreeSet::new(),
        removed: false,
        audited: false,
    });
    Ok(())
}

/// Adds the devices of the environment variable, once.
pub(crate) fn read_environment() {
    static READ: Once = Once::new();
    READ.call_once(|| {
        let Ok(text) = std::env::var(VARIABLE) else {
            return;
        };
        if let Err(error) = configure(&text) {
            eprintln!("verbs stand-in: {VARIABLE}: {error}");
        }
    });
}

/// What was done with a device so far. `None` if there is none of this name.
#[must_use]
pub fn counters(device: &str) -> Option<Counters> {
    let world = lock();
    let device = world.devices.iter().rfind(|one| one.name == device)?;
    Some(device.counters)
}

/// Faults of a device that were planned and did not happen yet.
#[must_use]
pub fn planned(device: &str) -> usize {
    let world = lock();
    let mut named = world.devices.iter().filter(|one| one.name == device);
    named.by_ref().map(|one| one.faults.planned()).sum()
}

/// Misuse of the libraries so far, in words.
#[must_use]
pub fn violations() -> Vec<String> {
    lock().violations.clone()
}

/// [`configure`] for C: 0, or -1 after an error, which is on standard error.
///
/// # Safety
/// A string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmeof_standin_configure(text: *const c_char) -> c_int {
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(text) };
    match configure(&text.to_string_lossy()) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("verbs stand-in: {error}");
            -1
        }
    }
}

/// [`counters`] for C: 0, or -1 if there is no such device.
///
/// # Safety
/// A string, and a place for the counters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmeof_standin_counters(
    device: *const c_char,
    to: *mut Counters,
) -> c_int {
    // SAFETY: as the caller promises.
    let device = unsafe { CStr::from_ptr(device) };
    let Some(counters) = counters(&device.to_string_lossy()) else {
        return -1;
    };
    // SAFETY: as above.
    unsafe { to.write(counters) };
    0
}

/// The number of [`violations`] for C.
#[unsafe(no_mangle)]
pub extern "C" fn nvmeof_standin_violations() -> c_int {
    c_int::try_from(lock().violations.len()).unwrap_or(c_int::MAX)
}
