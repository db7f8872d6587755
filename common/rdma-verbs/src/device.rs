//! Which RDMA devices the machine has, and which of them serves an address.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::VerbsError;
use crate::machine::{CLASS, contexts};
use crate::sys::{CmEventKind, CmId, Context, EventChannel, PortAttr, set_nonblocking};

/// What a device speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// InfiniBand.
    InfiniBand,
    /// RDMA over Converged Ethernet, straight on Ethernet.
    RoceV1,
    /// RDMA over Converged Ethernet, over UDP.
    RoceV2,
    /// RDMA over TCP.
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
    /// What it speaks.
    pub kind: DeviceKind,
    /// Whether the port is up.
    pub active: bool,
    /// The network interface behind it, where that is known.
    pub interface: Option<String>,
}

/// The device that serves an address of this machine, whatever the port number; for the
/// address that stands for all of them any device that is up. `None` when no device does,
/// and when this machine cannot use any: [`devices`] says why.
///
/// # Errors
/// [`VerbsError`] when the address is on no interface, or its device has no
/// usable GID for it.
pub fn device_for_local(addr: SocketAddr) -> Result<Option<DeviceInfo>, VerbsError> {
    let Ok(all) = devices() else {
        return Ok(None);
    };
    let ip = addr.ip();
    if ip.is_unspecified() {
        return Ok(all.into_iter().find(|one| one.active));
    }
    let channel = EventChannel::new().map_err(call("opening the RDMA connection manager"))?;
    let id = CmId::new(&channel, 0).map_err(call("making an RDMA connection identifier"))?;
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

/// The device on the way to `addr`. `None` when there is none, and when this
/// machine cannot use any: [`devices`] says why. Asks the kernel for the route
/// and the next hop, which takes two seconds at most.
///
/// # Errors
/// [`VerbsError`] when it cannot be found out.
pub fn device_towards(addr: SocketAddr) -> Result<Option<DeviceInfo>, VerbsError> {
    if contexts().is_err() {
        return Ok(None);
    }
    let channel = EventChannel::new().map_err(call("opening the RDMA connection manager"))?;
    set_nonblocking(channel.fd()).map_err(call("opening the RDMA connection manager"))?;
    let id = CmId::new(&channel, 0).map_err(call("making an RDMA connection identifier"))?;
    if let Err(error) = id.resolve_addr(addr, ROUTE_MS) {
        tracing::debug!(%addr, "no RDMA device on the way: {error}");
        return Ok(None);
    }
    let end = Instant::now() + Duration::from_millis(u64::from(ROUTE_MS.unsigned_abs()));
    loop {
        #[allow(unsafe_code, reason = "the channel's events are taken here alone")]
        // SAFETY: nobody else has this channel.
        let event = unsafe { channel.take() }.map_err(call("resolving an address"))?;
        match event.map(|event| (event.kind, event.status)) {
            Some((CmEventKind::AddrResolved, _)) => return of_id(&id),
            Some((_, status)) => {
                tracing::debug!(%addr, status, "no RDMA device on the way");
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

/// Patience with the route and the next hop, in milliseconds.
const ROUTE_MS: i32 = 2000;

/// All ports of all devices.
///
/// # Errors
/// [`VerbsError`] when this machine cannot use any device: what is missing.
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

const ASKING: &str = "asking an RDMA device what it is";

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
    // Connection management takes version 2 where the port has it.
    if types.peek().is_none() || types.any(|one| one == "RoCE v2") {
        DeviceKind::RoceV2
    } else {
        DeviceKind::RoceV1
    }
}

/// What the files of a folder of GID attributes say, each read when it is asked
/// for. There are a thousand, named by number; those of unused entries cannot be
/// read, and the used ones mostly come first.
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
        // Devices in software say it themselves.
        let parent = fs::read_to_string(format!("{CLASS}/{name}/parent")).ok()?;
        Some(parent.trim().to_owned())
    })
}

/// No device serves `addr`: perhaps because the one of its interface does not
/// know the address.
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
