//! Where a port is, as it is configured: an IP address and a port, or a Unix
//! socket.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use nvmeof_rdma::{Address, UnixPath};
use nvmeof_target_core::{PortBounds, PortSpec};
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use toml::Spanned;

use super::ana::RawAnaGroup;
use super::provider::{Choice, ProviderName, RawProvider, Wrong};
use super::size::Size32;
use super::{Config, DEFAULT_PORT};
use nvmeof_target_address as zone;

/// Where hosts connect. At least one is needed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawPort {
    /// An IPv4 or IPv6 address (`"fe80::1%eth0"` on a link), or a Unix socket such as
    /// `"unix:/run/nvmeof/nvmeof.sock"`.
    pub(crate) traddr: Spanned<RawTraddr>,
    /// Port number; 0 takes any that is free. Not with a Unix socket.
    ///
    /// Default: `4420`
    trsvcid: Option<Spanned<u16>>,
    /// By what it is served: `"auto"`, `"iwarp"`, `"verbs"`, `"shm"`, or a list of the last
    /// three.
    ///
    /// Default: `"auto"`
    pub(crate) provider: Option<Spanned<RawProvider>>,
    /// Data that may travel inside a command (IOCCSZ) of a host that comes by it: a multiple of
    /// 16. Left out, and at most: `limits.in_capsule`.
    in_capsule: Option<Spanned<Size32>>,
    /// Entries of the longest submission queue that a host may ask for that comes by it: 2 to
    /// `limits.queue_depth`. Left out: these.
    queue_depth: Option<Spanned<u32>>,
    /// Its number in discovery entries, which no other port has. Left out: its place in the file.
    id: Option<Spanned<u16>>,
    /// Names (NQN) of the subsystems that hosts reach by it. Left out: all.
    subsystems: Option<Spanned<Vec<Spanned<String>>>>,
    #[serde(default)]
    ana_group: Vec<RawAnaGroup>,
}

/// The value of the key `traddr`.
#[derive(Clone, Debug)]
pub(crate) enum RawTraddr {
    Ip(IpAddr),
    /// On the link of an interface, which may not be there yet.
    Link(Ipv6Addr, String),
    Unix(UnixPath),
}

/// Ports that are Unix sockets, all of them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawUnix {
    /// Permissions of their files: who may write them may connect.
    ///
    /// Default: `0o660`
    mode: Option<Spanned<u32>>,
}

/// Whoever is in the group of the file may connect, and its owner.
const DEFAULT_MODE: u32 = 0o660;

impl RawPort {
    /// As on a command line, with providers by name; none of them stands for
    /// `auto`.
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

    /// `spec`, which is this port, with what is said of it besides.
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
    pub(crate) fn place(&self, key: &str, value: &str) -> Option<usize> {
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
            "ana_group" => RawAnaGroup::place(&self.ana_group, value),
            _ => None,
        }
    }

    /// What is said of commands and queues of hosts that come by it.
    pub(crate) fn bounds(&self) -> PortBounds {
        PortBounds {
            in_capsule: self.in_capsule.as_ref().map(|size| size.get_ref().bytes()),
            queue_depth: self.queue_depth.as_ref().map(|entries| *entries.get_ref()),
        }
    }

    /// Where it is.
    pub(crate) fn address(&self) -> Address {
        let port = self.trsvcid.as_ref().map(|port| *port.get_ref());
        let port = port.unwrap_or(DEFAULT_PORT);
        match self.traddr.get_ref() {
            RawTraddr::Ip(ip) => SocketAddr::new(*ip, port).into(),
            RawTraddr::Link(ip, interface) => zone::located(*ip, interface, port).into(),
            RawTraddr::Unix(path) => (*path).into(),
        }
    }

    /// The address is of this machine alone.
    ///
    /// # Errors
    /// [`Wrong`] says what would be right.
    pub(crate) fn check_address(&self) -> Result<(), Wrong> {
        self.address().check().map_err(|why| Wrong {
            at: Some(self.traddr.span().start),
            what: format!("traddr: {why}"),
        })
    }

    /// A Unix socket has no port number.
    ///
    /// # Errors
    /// [`Wrong`] says what would be right.
    pub(crate) fn check_service(&self) -> Result<(), Wrong> {
        match (self.traddr.get_ref(), &self.trsvcid) {
            (RawTraddr::Unix(_), Some(port)) => Err(Wrong {
                at: Some(port.span().start),
                what: "trsvcid: a Unix socket has no port number; leave this key out".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// What it is to be served by.
    ///
    /// # Errors
    /// [`Wrong`] says what would be right.
    pub(crate) fn choice(&self) -> Result<Choice, Wrong> {
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
            Some(other) => Err(Wrong {
                at: None,
                what: format!(
                    "{other} does not serve Unix sockets such as {}; name \"iwarp\" or leave it \
                     out",
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
    /// [`Wrong`] says what would be right.
    pub(crate) fn check(&self) -> Result<(), Wrong> {
        match &self.mode {
            Some(mode) if *mode.get_ref() > 0o777 => Err(Wrong {
                at: Some(mode.span().start),
                what: format!(
                    "unix.mode = {}: permissions are 0o000 to 0o777; write them in octal, with 0o \
                     before the digits",
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
