//! `[[port]]` and `[unix]`: the address of a port, which is an IP address with a port number,
//! or a Unix socket.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use nvmeof_rdma::{Address, UnixPath};
use nvmeof_target_core::{PortBounds, PortSpec};
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use toml::Spanned;

use super::ana::RawAnaGroup;
use super::provider::{Choice, ProviderName, RawProvider, ValueError};
use super::size::Size32;
use super::{Config, DEFAULT_PORT};
use nvmeof_target_address as zone;

/// A port that hosts connect to. At least one is required.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawPort {
    /// IPv4 or IPv6 address (link-local: `"fe80::1%eth0"`), or a Unix socket such as
    /// `"unix:/run/nvmeof/nvmeof.sock"`.
    pub(crate) traddr: Spanned<RawTraddr>,
    /// TCP port; 0 selects a free one. Not with a Unix socket.
    ///
    /// Default: `4420`
    trsvcid: Option<Spanned<u16>>,
    /// Providers: `"auto"`, `"iwarp"`, `"verbs"`, `"shm"`, or a list of the last three.
    ///
    /// Default: `"auto"`
    pub(crate) provider: Option<Spanned<RawProvider>>,
    /// In-capsule data of one command (IOCCSZ) through this port: a multiple of 16, at most
    /// `limits.in_capsule`, which is the default.
    in_capsule: Option<Spanned<Size32>>,
    /// Entries of the longest submission queue that a host can create through this port: 2 to
    /// `limits.queue_depth`, which is the default.
    queue_depth: Option<Spanned<u32>>,
    /// Port ID in discovery log entries, unique among the ports. If left out, the position of
    /// the port in the file.
    id: Option<Spanned<u16>>,
    /// NQNs of the subsystems that hosts reach through this port. If left out: all.
    subsystems: Option<Spanned<Vec<Spanned<String>>>>,
    #[serde(default)]
    ana_group: Vec<RawAnaGroup>,
}

/// The value of the key `traddr`.
#[derive(Clone, Debug)]
pub(crate) enum RawTraddr {
    Ip(IpAddr),
    /// A link-local address on an interface, which may not exist yet.
    Link(Ipv6Addr, String),
    Unix(UnixPath),
}

/// All ports that are Unix sockets.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawUnix {
    /// Permissions of the sockets: write permission allows to connect.
    ///
    /// Default: `0o660`
    mode: Option<Spanned<u32>>,
}

/// The owner and the group of the socket may connect.
const DEFAULT_MODE: u32 = 0o660;

impl RawPort {
    /// A port of the command line, with providers by name; no name means `auto`.
    pub(crate) fn at(address: Address, providers: &[String]) -> Self {
        let (traddr, trsvcid) = match address {
            Address::Ip(addr) => {
                let traddr = match zone::of(addr) {
                    Some((ip, interface)) => RawTraddr::Link(ip, interface),
                    None => RawTraddr::Ip(addr.ip()),
                };
                (traddr, Some(addr.port()))
            }
            Address::Unix(path) => (RawTraddr::Unix(path), None),
        };
        let provider = (!providers.is_empty()).then(|| RawProvider::of_names(providers));
        Self {
            traddr: Spanned::new(0..0, traddr),
            trsvcid: trsvcid.map(|port| Spanned::new(0..0, port)),
            provider: provider.map(|raw| Spanned::new(0..0, raw)),
            in_capsule: None,
            queue_depth: None,
            id: None,
            subsystems: None,
            ana_group: Vec::new(),
        }
    }

    /// `spec`, which is this port, with its port ID, ANA groups and subsystems.
    pub(crate) fn complete(&self, spec: PortSpec) -> PortSpec {
        PortSpec {
            id: self.id.as_ref().map(|id| *id.get_ref()),
            ana_groups: self.ana_group.iter().map(RawAnaGroup::group).collect(),
            subsystems: self.subsystems.as_ref().map(|names| {
                let names = names.get_ref().iter();
                names.map(|name| name.get_ref().clone()).collect()
            }),
            ..spec
        }
    }

    /// Where `value` of `key` is in the text.
    pub(crate) fn location(&self, key: &str, value: &str) -> Option<usize> {
        match key {
            "in_capsule" => Some(self.in_capsule.as_ref()?.span().start),
            "queue_depth" => Some(self.queue_depth.as_ref()?.span().start),
            "id" => Some(self.id.as_ref()?.span().start),
            "subsystems" => {
                let names = self.subsystems.as_ref()?;
                let mut each = names.get_ref().iter();
                let one = each.find(|name| name.get_ref() == value);
                Some(one.map_or(names.span(), Spanned::span).start)
            }
            "ana_group" => RawAnaGroup::location(&self.ana_group, value),
            _ => None,
        }
    }

    /// Bounds of commands and queues through this port.
    pub(crate) fn bounds(&self) -> PortBounds {
        PortBounds {
            in_capsule: self.in_capsule.as_ref().map(|size| size.get_ref().bytes()),
            queue_depth: self.queue_depth.as_ref().map(|entries| *entries.get_ref()),
        }
    }

    /// The address to listen on.
    pub(crate) fn address(&self) -> Address {
        let port = self.trsvcid.as_ref().map(|port| *port.get_ref());
        let port = port.unwrap_or(DEFAULT_PORT);
        match self.traddr.get_ref() {
            RawTraddr::Ip(ip) => SocketAddr::new(*ip, port).into(),
            RawTraddr::Link(ip, interface) => zone::located(*ip, interface, port).into(),
            RawTraddr::Unix(path) => (*path).into(),
        }
    }

    /// Checks the address itself, see [`Address::check`].
    ///
    /// # Errors
    /// [`ValueError`] names the valid values.
    pub(crate) fn check_address(&self) -> Result<(), ValueError> {
        self.address().check().map_err(|why| ValueError {
            at: Some(self.traddr.span().start),
            what: format!("traddr: {why}"),
        })
    }

    /// A Unix socket has no port number.
    ///
    /// # Errors
    /// [`ValueError`] names the valid values.
    pub(crate) fn check_service(&self) -> Result<(), ValueError> {
        match (self.traddr.get_ref(), &self.trsvcid) {
            (RawTraddr::Unix(_), Some(port)) => Err(ValueError {
                at: Some(port.span().start),
                what: "trsvcid: a Unix socket has no port number; omit this key".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// The providers of the port.
    ///
    /// # Errors
    /// [`ValueError`] names the valid values.
    pub(crate) fn choice(&self) -> Result<Choice, ValueError> {
        let given = self.provider.as_ref();
        let choice = given.map_or(Ok(Choice::Auto), |raw| raw.get_ref().choice())?;
        let RawTraddr::Unix(path) = self.traddr.get_ref() else {
            return Ok(choice);
        };
        let other = match &choice {
            Choice::Auto => None,
            Choice::These(names) => names.iter().find(|name| **name != ProviderName::Iwarp),
        };
        match other {
            None => Ok(choice),
            Some(other) => Err(ValueError {
                at: None,
                what: format!(
                    "{other} does not serve Unix sockets such as {}; use \"iwarp\" or omit the key",
                    Address::Unix(*path)
                ),
            }),
        }
    }
}

impl Config {
    /// The address of port number `port` as it was given, without its port number.
    #[must_use]
    pub fn traddr(&self, port: usize) -> String {
        match self
            .raw
            .port
            .get(port)
            .map(|raw| raw.get_ref().traddr.get_ref())
        {
            Some(RawTraddr::Ip(ip)) => ip.to_string(),
            Some(RawTraddr::Link(ip, interface)) => format!("{ip}%{interface}"),
            Some(RawTraddr::Unix(path)) => Address::Unix(*path).to_string(),
            None => String::new(),
        }
    }
}

impl RawUnix {
    /// Permissions of the files.
    pub(crate) fn mode(&self) -> u32 {
        self.mode
            .as_ref()
            .map_or(DEFAULT_MODE, |mode| *mode.get_ref())
    }

    /// # Errors
    /// [`ValueError`] names the valid values.
    pub(crate) fn check(&self) -> Result<(), ValueError> {
        match &self.mode {
            Some(mode) if *mode.get_ref() > 0o777 => Err(ValueError {
                at: Some(mode.span().start),
                what: format!(
                    "unix.mode = {}: must be 0o000 to 0o777; write it in octal, with the prefix 0o",
                    mode.get_ref()
                ),
            }),
            _ => Ok(()),
        }
    }
}

impl<'de> Deserialize<'de> for RawTraddr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IpOrPath;

        impl Visitor<'_> for IpOrPath {
            type Value = RawTraddr;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an IP address, or a Unix socket such as \"unix:/run/nvmeof.sock\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<RawTraddr, E> {
                if let Some((ip, interface)) = zone::split(text) {
                    return Ok(RawTraddr::Link(ip, interface.to_owned()));
                }
                if !Address::is_unix_text(text) {
                    let what = |error| {
                        E::custom(format!(
                            "{text:?}: {error}; give an IP address, or unix:/path for a Unix socket"
                        ))
                    };
                    return text.parse().map(RawTraddr::Ip).map_err(what);
                }
                match text.parse() {
                    Ok(Address::Unix(path)) => Ok(RawTraddr::Unix(path)),
                    Ok(Address::Ip(_)) => Err(E::custom("an IP address has no unix: before it")),
                    Err(error) => Err(E::custom(error)),
                }
            }
        }

        deserializer.deserialize_str(IpOrPath)
    }
}
