//! Which RDMA provider carries the connection.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use nvmeof_rdma::Provider;

use crate::error::{Error, MachineError};

/// An RDMA provider by name. Features of the crate choose which are there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// The RDMA device on the way to the target; software iWARP where there is
    /// none. A target that does not serve what the device speaks is not
    /// reached this way: take [`Iwarp`](Self::Iwarp) then.
    #[default]
    Auto,
    /// Software iWARP over TCP: works everywhere, and reaches targets that
    /// speak iWARP in software or by a device.
    Iwarp,
    /// An RDMA device: InfiniBand, RoCE or iWARP.
    Verbs,
}

/// No provider has that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no RDMA provider `{0}`; there are: auto, iwarp, verbs")]
pub struct UnknownTransport(String);

/// What a [`Transport`] stands for towards one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Iwarp,
    Verbs,
}

impl Transport {
    const ALL: [Self; 3] = [Self::Auto, Self::Iwarp, Self::Verbs];

    /// Makes a provider of its own for one queue to the target at `addr`. Asks
    /// the kernel for the way there, which may block for a short time.
    ///
    /// # Errors
    /// When this machine or this build does not have it, or no RDMA device is
    /// on that way.
    pub fn provider(self, addr: SocketAddr) -> Result<Box<dyn Provider>, Error> {
        self.towards(addr)?.provider()
    }

    /// Finds out what it stands for towards `addr`. May block for a short
    /// time.
    pub(crate) fn towards(self, addr: SocketAddr) -> Result<Way, Error> {
        let device = match self {
            Self::Iwarp => None,
            Self::Verbs => match verbs::towards(addr)? {
                None => return Err(verbs::lacks(verbs::why_none(addr))),
                device => device,
            },
            Self::Auto => {
                // Connection management would go to a loopback address over
                // any device; a target on this machine takes one that has it.
                let device = match addr.ip() {
                    ip if ip.is_loopback() => verbs::at(ip),
                    _ => verbs::towards(addr),
                };
                // Nobody asked for a device. If the target is not reached
                // without one either, there are two messages.
                device.unwrap_or_else(|error| {
                    tracing::warn!(%addr, "trying software iWARP: {}", error.cause());
                    None
                })
            }
        };
        let Some(device) = device else {
            return Ok(Way::Iwarp);
        };
        tracing::info!(%addr, "connecting over verbs: {device}");
        Ok(Way::Verbs)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Iwarp => "iwarp",
            Self::Verbs => "verbs",
        }
    }
}

impl Way {
    pub(crate) fn provider(self) -> Result<Box<dyn Provider>, Error> {
        match self {
            Self::Iwarp => iwarp(),
            Self::Verbs => verbs::provider(),
        }
    }
}

#[cfg(feature = "iwarp")]
fn iwarp() -> Result<Box<dyn Provider>, Error> {
    let provider = nvmeof_rdma_iwarp::new(nvmeof_rdma_iwarp::IwarpConfig::default());
    let provider = provider.map_err(|error| MachineError::Provider {
        name: "iwarp",
        text: error.to_string(),
    })?;
    Ok(Box::new(provider))
}

#[cfg(not(feature = "iwarp"))]
fn iwarp() -> Result<Box<dyn Provider>, Error> {
    Err(MachineError::Provider {
        name: "iwarp",
        text: "this program was built without the feature `iwarp`".to_owned(),
    }
    .into())
}

/// RDMA devices, in words. The one place here that names
/// `nvmeof-rdma-verbs`.
#[cfg(feature = "verbs")]
mod verbs {
    use std::net::{IpAddr, SocketAddr};

    use nvmeof_rdma::Provider;
    use nvmeof_rdma_verbs::{DeviceInfo, VerbsConfig, device_for_local, device_towards, devices};

    use crate::error::{Error, MachineError};

    /// The device on the way to `addr`.
    pub(super) fn towards(addr: SocketAddr) -> Result<Option<String>, Error> {
        Ok(device_towards(addr).map_err(lacks)?.map(words))
    }

    /// The device whose interface has that address.
    pub(super) fn at(ip: IpAddr) -> Result<Option<String>, Error> {
        Ok(device_for_local(ip).map_err(lacks)?.map(words))
    }

    pub(super) fn why_none(addr: SocketAddr) -> String {
        let ip = addr.ip();
        match devices() {
            Err(error) => error.to_string(),
            Ok(_) => format!(
                "no RDMA device is on the way to {ip}; `rdma link` shows the devices there are \
                 and their interfaces, `ip route get {ip}` the way"
            ),
        }
    }

    pub(super) fn provider() -> Result<Box<dyn Provider>, Error> {
        let provider = nvmeof_rdma_verbs::new(VerbsConfig::default()).map_err(lacks)?;
        Ok(Box::new(provider))
    }

    #[allow(clippy::needless_pass_by_value, reason = "for map_err")]
    pub(super) fn lacks(why: impl ToString) -> Error {
        let text = why.to_string();
        MachineError::Provider {
            name: "verbs",
            text,
        }
        .into()
    }

    #[allow(clippy::needless_pass_by_value, reason = "for map")]
    fn words(device: DeviceInfo) -> String {
        format!("{} port {}", device.name, device.port)
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

    use crate::error::{Error, MachineError};

    const WITHOUT: &str = "this program was built without the feature `verbs`";

    pub(super) fn towards(_addr: SocketAddr) -> Result<Option<String>, Error> {
        Ok(None)
    }

    pub(super) fn at(_ip: IpAddr) -> Result<Option<String>, Error> {
        Ok(None)
    }

    pub(super) fn why_none(_addr: SocketAddr) -> String {
        WITHOUT.to_owned()
    }

    pub(super) fn provider() -> Result<Box<dyn Provider>, Error> {
        Err(lacks(WITHOUT.to_owned()))
    }

    pub(super) fn lacks(text: String) -> Error {
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
    use super::*;

    #[test]
    fn transports_have_names() {
        for transport in Transport::ALL {
            assert_eq!(transport.to_string().parse(), Ok(transport));
        }
        let error = "roce".parse::<Transport>().unwrap_err().to_string();
        assert!(error.contains("roce") && error.contains("verbs"), "{error}");
    }

    #[cfg(feature = "iwarp")]
    #[test]
    fn software_is_taken_where_it_is_named() {
        let addr = "127.0.0.1:4420".parse().unwrap();
        assert_eq!(Transport::Iwarp.towards(addr).unwrap(), Way::Iwarp);
        let provider = Transport::Iwarp.provider(addr).unwrap();
        assert_eq!(provider.name(), "iwarp");
    }

    #[test]
    fn a_build_without_devices_takes_software_and_says_so() {
        if cfg!(feature = "verbs") {
            return;
        }
        let addr = "127.0.0.1:4420".parse().unwrap();
        assert_eq!(Transport::Auto.towards(addr).unwrap(), Way::Iwarp);
        let error = Transport::Verbs.towards(addr).unwrap_err().to_string();
        assert!(error.contains("feature `verbs`"), "{error}");
        assert!(error.contains("--provider iwarp"), "{error}");
    }
}
