//! RDMA devices of this machine, and the one for an address.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::VerbsError;
use crate::machine::{CLASS, contexts};
use crate::sys::{CmEventKind, CmId, Context, EventChannel, PortAttr, set_nonblocking};

/// Protocol of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// InfiniBand.
    InfiniBand,
    /// RDMA over Converged Ethernet, version 1 (directly on Ethernet).
    RoceV1,
    /// RDMA over Converged Ethernet, version 2 (over UDP).
    RoceV2,
    /// iWARP (RDMA over TCP).
    Iwarp,
}

/// One port of one RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Name of the device, as `rdma link` shows it.
    pub name: String,
    /// Number of the port, from 1.
    pub port: u8,
    /// Protocol.
    pub kind: DeviceKind,
    /// Whether the port is up.
    pub active: bool,
    /// Its network interface, if known.
    pub interface: Option<String>,
}

/// The device of an address of this machine, for any port number; for the unspecified address
/// any device that is up. `None` if there is none, or if this machine cannot use RDMA
/// devices: then [`devices`] returns the reason.
///
/// # Errors
/// [`VerbsError`] if the address is not assigned to an interface, or its device has no usable
/// GID for it.
pub fn device_for_local(addr: SocketAddr) -> Result<Option<DeviceInfo>, VerbsError> {
    let Ok(all) = devices() else {
        return Ok(None);
    };
    let ip = addr.ip();
    if ip.is_unspecified() {
        return Ok(all.into_iter().find(|one| one.active));
    }
    let channel = EventChannel::new().map_err(call("opening the RDMA connection manager"))?;
    let id = CmId::new(&channel, 0).map_err(call("creating an RDMA connection identifier"))?;
    let mut any_port = addr;
    any_port.set_port(0);
    match id.bind(any_port) {
        Ok(()) => of_id(&id),
        Err(error) => match error.raw_os_error() {
            Some(libc::EADDRNOTAVAIL) => Err(VerbsError::NoSuchAddress { addr: ip }),
            Some(libc::ENODEV) => without_gid(ip, &all),
            _ => Err(call("binding an address of this machine")(error)),
        },
    }
}

/// The device on the route to `addr`. `None` if there is none, or if this machine cannot use
/// RDMA devices: then [`devices`] returns the reason. Resolves the route and the next hop,
/// which takes two seconds at most.
///
/// # Errors
/// [`VerbsError`] if it cannot be determined.
pub fn device_towards(addr: SocketAddr) -> Result<Option<DeviceInfo>, VerbsError> {
    if contexts().is_err() {
        return Ok(None);
    }
    let channel = EventChannel::new().map_err(call("opening the RDMA connection manager"))?;
    set_nonblocking(channel.fd()).map_err(call("opening the RDMA connection manager"))?;
    let id = CmId::new(&channel, 0).map_err(call("creating an RDMA connection identifier"))?;
    if let Err(error) = id.resolve_addr(addr, ROUTE_MS) {
        tracing::debug!(%addr, "no RDMA device on the route: {error}");
        return Ok(None);
    }
    let end = Instant::now() + Duration::from_millis(u64::from(ROUTE_MS.unsigned_abs()));
    loop {
        #[allow(unsafe_code, reason = "the channel's events are taken here alone")]
        // SAFETY: no other code has this channel.
        let event = unsafe { channel.take() }.map_err(call("resolving an address"))?;
        match event.map(|event| (event.kind, event.status)) {
            Some((CmEventKind::AddrResolved, _)) => return of_id(&id),
            Some((_, status)) => {
                tracing::debug!(%addr, status, "no RDMA device on the route");
                return Ok(None);
            }
            None => {}
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(channel.fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(call("resolving an address")(error.into())),
        }
    }
}

/// Time-out for the route and the next hop, in milliseconds.
const ROUTE_MS: i32 = 2000;

/// All ports of all devices.
///
/// # Errors
/// [`VerbsError`] if this machine cannot use any device: it names what is missing.
pub fn devices() -> Result<Vec<DeviceInfo>, VerbsError> {
    let mut all = Vec::new();
    for context in contexts()? {
        let attr = context.attr().map_err(call(ASKING))?;
        for port in 1..=attr.ports {
            all.push(info(&context, port)?);
        }
    }
    Ok(all)
}

const ASKING: &str = "querying an RDMA device";

fn call(what: &'static str) -> impl Fn(io::Error) -> VerbsError {
    move |source| VerbsError::Call { what, source }
}

fn of_id(id: &CmId) -> Result<Option<DeviceInfo>, VerbsError> {
    let Some(key) = id.context() else {
        return Ok(None);
    };
    let context = Context::of(key).map_err(call(ASKING))?;
    info(&context, id.port()).map(Some)
}

fn info(context: &Context, port: u8) -> Result<DeviceInfo, VerbsError> {
    let name = context.name();
    let iwarp = context.attr().map_err(call(ASKING))?.iwarp;
    let attr = context.port(port).map_err(call(ASKING))?;
    let gids = format!("{CLASS}/{name}/ports/{port}/gid_attrs");
    Ok(DeviceInfo {
        kind: kind(iwarp, attr, &gids),
        interface: interface(&name, &gids),
        active: attr.active,
        name,
        port,
    })
}

fn kind(iwarp: bool, attr: PortAttr, gids: &str) -> DeviceKind {
    if iwarp {
        return DeviceKind::Iwarp;
    }
    if !attr.ethernet {
        return DeviceKind::InfiniBand;
    }
    let mut types = entries(format!("{gids}/types")).peekable();
    // Connection management uses version 2 if the port supports it.
    if types.peek().is_none() || types.any(|one| one == "RoCE v2") {
        DeviceKind::RoceV2
    } else {
        DeviceKind::RoceV1
    }
}

/// Contents of the files in a directory of GID attributes, read lazily. There are a thousand,
/// named by number; those of unused entries cannot be read, and the used ones mostly come
/// first.
fn entries(folder: String) -> impl Iterator<Item = String> {
    let files = fs::read_dir(&folder).into_iter().flatten().flatten();
    let numbers = files.filter_map(|file| file.file_name().to_str()?.parse().ok());
    let mut numbers: Vec<u32> = numbers.collect();
    numbers.sort_unstable();
    let names = numbers
        .into_iter()
        .map(move |number| format!("{folder}/{number}"));
    let texts = names.filter_map(|name| fs::read_to_string(name).ok());
    texts
        .map(|text| text.trim().to_owned())
        .filter(|text| !text.is_empty())
}

fn interface(name: &str, gids: &str) -> Option<String> {
    let by_gid = entries(format!("{gids}/ndevs")).next();
    by_gid.or_else(|| {
        // Software devices have an attribute for it.
        let parent = fs::read_to_string(format!("{CLASS}/{name}/parent")).ok()?;
        Some(parent.trim().to_owned())
    })
}

/// Determines why no device serves `addr`: the device of its interface may not have the
/// address.
fn without_gid(addr: IpAddr, all: &[DeviceInfo]) -> Result<Option<DeviceInfo>, VerbsError> {
    let interfaces = getifaddrs().into_iter().flatten();
    let of_addr: Vec<String> = interfaces
        .filter(|one| {
            let v4 = |it: &nix::sys::socket::SockaddrStorage| {
                it.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()))
            };
            let v6 = |it: &nix::sys::socket::SockaddrStorage| {
                it.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip()))
            };
            let it = one.address.as_ref();
            it.and_then(|it| v4(it).or_else(|| v6(it))) == Some(addr)
        })
        .map(|one| one.interface_name)
        .collect();
    let behind = |one: &&DeviceInfo| {
        let interface = one.interface.as_ref();
        interface.is_some_and(|name| of_addr.contains(name))
    };
    match all.iter().find(behind) {
        Some(device) => Err(VerbsError::NoGid {
            device: device.name.clone(),
            addr,
        }),
        None => Ok(None),
    }
}
