//! Selection of the RDMA provider.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use nvmeof_rdma::{Address, Provider, WrongKind};

use crate::error::{Error, MachineError};

/// An RDMA provider by name. The features of the crate decide which are available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// Shared memory with a target on this host that offers it; otherwise the RDMA device on
    /// the route to the target; software iWARP without a device. A remote target that does
    /// not serve the protocol of the device is not reached: use [`Iwarp`](Self::Iwarp) then.
    #[default]
    Auto,
    /// Software iWARP over TCP: requires no device, and connects to targets with software
    /// iWARP and with iWARP devices.
    Iwarp,
    /// An RDMA device: InfiniBand, RoCE or iWARP.
    Verbs,
    /// Shared memory with a target on this host.
    Shm,
}

/// Options of transports besides the address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteOptions {
    /// Folder of the sockets where targets on this host listen for shared memory; `None`: the
    /// folders of this user and of the system. The owner of this folder is trusted.
    pub shm_folder: Option<PathBuf>,
    /// Whether data are copied through rings even if the target is a process of this user or
    /// of root. Otherwise such a target accesses the buffers in place, and could read and
    /// write all of them.
    pub shm_copies: bool,
    /// Whether software iWARP requests a CRC on every frame.
    pub crc: bool,
}

/// An unknown provider name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown RDMA provider `{0}`: must be auto, iwarp, verbs or shm")]
pub struct UnknownTransport(String);

/// The provider that a [`Transport`] selects for one target. All connections of one
/// controller use the same.
#[derive(Clone, Debug)]
#[cfg_attr(
    not(feature = "async"),
    allow(dead_code, reason = "only Multipath asks for the device")
)]
pub struct Route(Choice, Device);

/// The device of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// None: the memory of this host.
    Memory,
    /// The network interface on the route to this address.
    Network(SocketAddr),
    /// The RDMA device of this name.
    Rdma(String),
}

#[derive(Clone, Debug)]
enum Choice {
    Iwarp { crc: bool },
    Verbs,
    Shm(shm::Endpoint),
}

impl Transport {
    const ALL: [Self; 4] = [Self::Auto, Self::Iwarp, Self::Verbs, Self::Shm];

    /// Creates a provider for one queue to the target at `addr`. Queries the route from the
    /// kernel, which may block briefly.
    ///
    /// # Errors
    /// When this machine or this build does not have the provider, or the route has no RDMA
    /// device.
    pub fn provider(self, addr: Address) -> Result<Box<dyn Provider>, Error> {
        self.route(addr, &RouteOptions::default())?.provider()
    }

    /// Selects the provider for `addr`. Queries the route from the kernel, and a target on
    /// this host whether it accepts shared memory, which may block briefly.
    ///
    /// # Errors
    /// When this machine or this build does not have the provider, the route has no RDMA
    /// device, or no target on this host listens.
    pub fn route(self, addr: Address, options: &RouteOptions) -> Result<Route, Error> {
        let addr = match addr {
            Address::Ip(addr) => addr,
            Address::Unix(_) => return self.route_to_socket(addr, options),
        };
        let found = match self {
            Self::Shm => Some(shm::find(addr, options).map_err(MachineError::NoLocalTarget)?),
            Self::Auto => shm::find(addr, options)
                .inspect_err(|why| tracing::debug!(%addr, "no shared memory: {why}"))
                .ok(),
            Self::Iwarp | Self::Verbs => None,
        };
        if let Some(place) = found {
            tracing::info!(%addr, "connecting over shared memory: {place}");
            return Ok(Route(Choice::Shm(place), Device::Memory));
        }
        let device = match self {
            Self::Iwarp | Self::Shm => None,
            Self::Verbs => match verbs::towards(addr)? {
                None => return Err(verbs::unavailable(verbs::why_none(addr))),
                device => device,
            },
            Self::Auto => {
                // Connection management would use any device for a loopback address; a target on
                // this machine uses the device that has the address.
                let device = match addr.ip() {
                    ip if ip.is_loopback() => verbs::at(ip),
                    _ => verbs::towards(addr),
                };
                // The user did not request a device. If software iWARP fails as well, there are
                // two messages.
                device.unwrap_or_else(|error| {
                    let cause = error.cause();
                    tracing::warn!(
                        %addr,
                        "cannot use RDMA devices, trying software iWARP: {cause}"
                    );
                    None
                })
            }
        };
        let Some(device) = device else {
            tracing::info!(%addr, "connecting over software iWARP");
            let choice = Choice::Iwarp { crc: options.crc };
            return Ok(Route(choice, Device::Network(addr)));
        };
        tracing::info!(%addr, "connecting over verbs: {device}");
        Ok(Route(Choice::Verbs, Device::Rdma(device.name)))
    }

    /// The same for a Unix socket, which only software iWARP supports.
    fn route_to_socket(self, addr: Address, options: &RouteOptions) -> Result<Route, Error> {
        match self {
            Self::Auto | Self::Iwarp => {
                tracing::info!(%addr, "connecting over software iWARP");
                let choice = Choice::Iwarp { crc: options.crc };
                Ok(Route(choice, Device::Memory))
            }
            Self::Verbs | Self::Shm => {
                let (name, provider) = (self.name(), self.name());
                let text = WrongKind { addr, provider }.to_string();
                Err(MachineError::Provider { name, text }.into())
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Iwarp => "iwarp",
            Self::Verbs => "verbs",
            Self::Shm => "shm",
        }
    }
}

/// The port of an RDMA device.
#[derive(Clone, Debug)]
struct Port {
    name: String,
    number: u8,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}", self.name, self.number)
    }
}

impl Route {
    /// The name of its provider: `iwarp`, `verbs` or `shm`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match &self.0 {
            Choice::Iwarp { .. } => "iwarp",
            Choice::Verbs => "verbs",
            Choice::Shm(_) => "shm",
        }
    }

    /// Its device.
    #[cfg(feature = "async")]
    pub(crate) fn device(&self) -> &Device {
        &self.1
    }

    /// Creates a provider for one queue.
    ///
    /// # Errors
    /// When the machine lacks resources for it.
    pub fn provider(&self) -> Result<Box<dyn Provider>, Error> {
        match &self.0 {
            Choice::Iwarp { crc } => iwarp(*crc),
            Choice::Verbs => verbs::provider(),
            Choice::Shm(place) => place.provider(),
        }
    }
}

#[cfg(feature = "iwarp")]
fn iwarp(crc: bool) -> Result<Box<dyn Provider>, Error> {
    let provider = nvmeof_rdma_iwarp::new(nvmeof_rdma_iwarp::IwarpConfig {
        crc,
        ..nvmeof_rdma_iwarp::IwarpConfig::default()
    });
    let provider = provider.map_err(|error| MachineError::Provider {
        name: "iwarp",
        text: error.to_string(),
    })?;
    Ok(Box::new(provider))
}

#[cfg(not(feature = "iwarp"))]
fn iwarp(_crc: bool) -> Result<Box<dyn Provider>, Error> {
    Err(MachineError::Provider {
        name: "iwarp",
        text: "this program was built without the feature `iwarp`".to_owned(),
    }
    .into())
}

/// Shared memory with targets on this host. Only this module uses `nvmeof-rdma-shm`.
#[cfg(feature = "shm")]
mod shm {
    use std::fmt;
    use std::net::SocketAddr;
    use std::time::Duration;

    use nvmeof_rdma::Provider;
    use nvmeof_rdma_shm::{ProbeError, ShareMemory, Shm, ShmConfig, probe};

    use super::RouteOptions;
    use crate::error::{Error, MachineError};

    /// Time-out for the response of a target.
    const TIMEOUT: Duration = Duration::from_secs(1);

    /// A socket of a target that accepts this host.
    #[derive(Clone, Debug)]
    pub(super) struct Endpoint(ShmConfig);

    /// Finds it in the given folder, or in the default folders. The error is that of the first
    /// folder in which a target listens.
    pub(super) fn find(addr: SocketAddr, options: &RouteOptions) -> Result<Endpoint, String> {
        let configs = match &options.shm_folder {
            Some(folder) => vec![ShmConfig::connecting(folder.clone(), true)],
            None => ShmConfig::usual(),
        };
        let mut whys = Vec::new();
        for mut config in configs {
            if options.shm_copies {
                config.share_memory = ShareMemory::Never;
            }
            match probe(addr, &config, TIMEOUT) {
                Ok(()) => return Ok(Endpoint(config)),
                Err(why @ ProbeError::Absent(_)) => whys.push(why.to_string()),
                Err(why) => return Err(why.to_string()),
            }
        }
        Err(whys.join("; "))
    }

    impl Endpoint {
        pub(super) fn provider(&self) -> Result<Box<dyn Provider>, Error> {
            let provider = Shm::new(self.0.clone()).map_err(|error| MachineError::Provider {
                name: "shm",
                text: error.to_string(),
            })?;
            Ok(Box::new(provider))
        }
    }

    impl fmt::Display for Endpoint {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a target on this host, in {}", self.0.folder.display())
        }
    }
}

/// A build without shared memory finds no targets.
#[cfg(not(feature = "shm"))]
mod shm {
    use std::fmt;
    use std::net::SocketAddr;

    use nvmeof_rdma::Provider;

    use super::RouteOptions;
    use crate::error::Error;

    #[derive(Clone, Debug)]
    pub(super) enum Endpoint {}

    pub(super) fn find(_addr: SocketAddr, _options: &RouteOptions) -> Result<Endpoint, String> {
        Err("this program was built without the feature `shm`".to_owned())
    }

    impl Endpoint {
        pub(super) fn provider(&self) -> Result<Box<dyn Provider>, Error> {
            match *self {}
        }
    }

    impl fmt::Display for Endpoint {
        fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match *self {}
        }
    }
}

/// RDMA devices. Only this module uses `nvmeof-rdma-verbs`.
#[cfg(feature = "verbs")]
mod verbs {
    use std::net::{IpAddr, SocketAddr};

    use nvmeof_rdma::Provider;
    use nvmeof_rdma_verbs::{DeviceInfo, VerbsConfig, device_for_local, device_towards, devices};

    use super::Port;
    use crate::error::{Error, MachineError};

    /// The device on the route to `addr`.
    pub(super) fn towards(addr: SocketAddr) -> Result<Option<Port>, Error> {
        Ok(device_towards(addr).map_err(unavailable)?.map(port))
    }

    /// The device whose interface has that address.
    pub(super) fn at(ip: IpAddr) -> Result<Option<Port>, Error> {
        Ok(device_for_local(SocketAddr::new(ip, 0))
            .map_err(unavailable)?
            .map(port))
    }

    pub(super) fn why_none(addr: SocketAddr) -> String {
        let ip = addr.ip();
        match devices() {
            Err(error) => error.to_string(),
            Ok(_) => format!(
                "no RDMA device is on the route to {ip}; `rdma link` lists devices and their \
                 interfaces, `ip route get {ip}` shows the route"
            ),
        }
    }

    pub(super) fn provider() -> Result<Box<dyn Provider>, Error> {
        let provider = nvmeof_rdma_verbs::new(VerbsConfig::default()).map_err(unavailable)?;
        Ok(Box::new(provider))
    }

    #[allow(clippy::needless_pass_by_value, reason = "for map_err")]
    pub(super) fn unavailable(why: impl ToString) -> Error {
        let text = why.to_string();
        MachineError::Provider {
            name: "verbs",
            text,
        }
        .into()
    }

    fn port(device: DeviceInfo) -> Port {
        Port {
            name: device.name,
            number: device.port,
        }
    }
}

/// A build without RDMA devices has none.
#[cfg(not(feature = "verbs"))]
#[allow(
    clippy::unnecessary_wraps,
    reason = "a build with the feature can fail"
)]
mod verbs {
    use std::net::{IpAddr, SocketAddr};

    use nvmeof_rdma::Provider;

    use super::Port;
    use crate::error::{Error, MachineError};

    const WITHOUT: &str = "this program was built without the feature `verbs`";

    pub(super) fn towards(_addr: SocketAddr) -> Result<Option<Port>, Error> {
        Ok(None)
    }

    pub(super) fn at(_ip: IpAddr) -> Result<Option<Port>, Error> {
        Ok(None)
    }

    pub(super) fn why_none(_addr: SocketAddr) -> String {
        WITHOUT.to_owned()
    }

    pub(super) fn provider() -> Result<Box<dyn Provider>, Error> {
        Err(unavailable(WITHOUT.to_owned()))
    }

    pub(super) fn unavailable(text: String) -> Error {
        MachineError::Provider {
            name: "verbs",
            text,
        }
        .into()
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Transport {
    type Err = UnknownTransport;

    fn from_str(name: &str) -> Result<Self, UnknownTransport> {
        Self::ALL
            .into_iter()
            .find(|transport| transport.name() == name)
            .ok_or_else(|| UnknownTransport(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn transports_have_names() {
        for transport in Transport::ALL {
            assert_eq!(transport.to_string().parse(), Ok(transport));
        }
        let error = "roce".parse::<Transport>().unwrap_err().to_string();
        assert!(error.contains("roce") && error.contains("verbs"), "{error}");
    }

    /// The name of the provider that a transport stands for, or why there is
    /// none.
    fn chosen(transport: Transport, addr: Address, folder: &Path) -> Result<String, String> {
        let options = RouteOptions {
            shm_folder: Some(folder.to_owned()),
            shm_copies: false,
            crc: false,
        };
        let provider = transport.route(addr, &options);
        let provider = provider.and_then(|route| route.provider());
        let name = provider.map(|provider| provider.name().to_owned());
        name.map_err(|error| error.to_string())
    }

    fn here() -> Address {
        "127.0.0.1:4420".parse().unwrap()
    }

    #[cfg(feature = "iwarp")]
    #[test]
    fn requested_software_iwarp_is_used() {
        let nowhere = Path::new("/nowhere");
        assert_eq!(
            chosen(Transport::Iwarp, here(), nowhere),
            Ok("iwarp".to_owned())
        );
    }

    #[cfg(all(feature = "iwarp", feature = "shm"))]
    #[test]
    fn shared_memory_is_used_while_a_target_listens() {
        use nvmeof_rdma_shm::{Shm, ShmConfig};
        use std::sync::atomic::{AtomicBool, Ordering};
        use std::time::Duration;

        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let mut target = Shm::new(ShmConfig::listening(folder.to_owned(), &[])).unwrap();
        let (_, addr) = target.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    target.poll(Duration::ZERO, &mut Vec::new());
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            for transport in [Transport::Shm, Transport::Auto] {
                assert_eq!(chosen(transport, addr, folder), Ok("shm".to_owned()));
            }
            assert_eq!(
                chosen(Transport::Iwarp, addr, folder),
                Ok("iwarp".to_owned())
            );
            done.store(true, Ordering::Relaxed);
        });
        drop(target);
        assert_eq!(
            chosen(Transport::Auto, addr, folder),
            Ok("iwarp".to_owned())
        );
        let error = chosen(Transport::Shm, addr, folder).unwrap_err();
        for word in [
            "shared memory",
            &addr.to_string(),
            &folder.display().to_string(),
        ] {
            assert!(error.contains(word), "{error}");
        }
        assert!(error.contains("shm.folder"), "{error}");
    }

    #[test]
    fn build_without_devices_uses_software_iwarp() {
        if cfg!(feature = "verbs") {
            return;
        }
        let nowhere = Path::new("/nowhere");
        assert_eq!(
            chosen(Transport::Auto, here(), nowhere),
            Ok("iwarp".to_owned())
        );
        let error = chosen(Transport::Verbs, here(), nowhere).unwrap_err();
        assert!(error.contains("feature `verbs`"), "{error}");
        assert!(error.contains("software iWARP"), "{error}");
    }
}
