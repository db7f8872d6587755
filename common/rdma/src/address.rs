//! Where providers listen and connect: IP addresses and Unix sockets.

use std::ffi::OsStr;
use std::fmt;
use std::net::{AddrParseError, IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

/// Prefix of the text form of a Unix socket address.
const SCHEME: &str = "unix:";

/// An address on which a provider listens or to which it connects. Its text form, which
/// [`FromStr`] parses, is `IP:PORT` (an IPv6 address in brackets) or `unix:/path`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// An IP address and the port of TCP or of the RDMA connection manager.
    Ip(SocketAddr),
    /// A Unix stream socket, for peers on the same host.
    Unix(UnixPath),
}

/// The path of a Unix socket: absolute, without a NUL, and short enough for the kernel. A
/// plain value of fixed size, like an IP address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnixPath {
    /// The path, padded with zeroes.
    bytes: [u8; UnixPath::MAX_LEN],
    len: u8,
}

/// Why a path cannot be the address of a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnixPathError {
    /// The path is empty.
    #[error("the path of a Unix socket is missing; write unix:/run/nvmeof/nvmeof.sock for example")]
    Empty,
    /// The path is relative, so it depends on the working directory of the process.
    #[error("{0:?} is not an absolute path; a Unix socket is named by a path that starts with /")]
    Relative(String),
    /// An abstract socket, which has no file. Any process on the host may connect to it,
    /// because permissions are those of the file.
    #[error(
        "abstract Unix sockets have no permissions and are not supported; name a path that starts \
         with /"
    )]
    Abstract,
    /// The path contains a NUL.
    #[error("the path of a Unix socket contains a NUL; remove it")]
    Nul,
    /// The path names a directory.
    #[error("{0:?} ends with /; a Unix socket is a file: name one in that directory")]
    Folder(String),
    /// Longer than the kernel's `sun_path`.
    #[error(
        "the path of a Unix socket has at most {max} bytes and this one has {len}; choose a \
         directory with a shorter name",
        max = UnixPath::MAX_LEN
    )]
    TooLong {
        /// Bytes of the path.
        len: usize,
    },
}

/// Why a text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not the address of a Unix socket.
    #[error(transparent)]
    Unix(#[from] UnixPathError),
    /// Neither an IP address with a port nor a Unix socket.
    #[error("{text:?} is neither IP:PORT nor unix:/path: {source}")]
    Ip {
        /// What was given.
        text: String,
        /// Why it is not an IP address with a port.
        source: AddrParseError,
    },
}

/// Why an IP address does not identify one host, or is not in its canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableAddress {
    /// An IPv4-mapped IPv6 address (RFC 4291, section 2.5.5.2).
    #[error("{0} is an IPv4-mapped IPv6 address; write {1}")]
    Mapped(Ipv6Addr, Ipv4Addr),
    /// A multicast address.
    #[error("{0} is a multicast address; give the address of one host")]
    Multicast(IpAddr),
    /// The broadcast address.
    #[error("{0} is the broadcast address; give the address of one host")]
    Broadcast(IpAddr),
    /// A link-local address without a zone; every interface has such addresses (RFC 4291,
    /// section 2.5.6).
    #[error("{0} is a link-local address; append its interface, as in {0}%eth0")]
    NoZone(Ipv6Addr),
}

/// The provider does not support this kind of address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the provider {provider} does not support Unix sockets ({addr}); use the provider iwarp")]
pub struct WrongKind {
    /// Address asked for.
    pub addr: Address,
    /// Name of the provider.
    pub provider: &'static str,
}

/// The peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A peer with this address.
    Ip(SocketAddr),
    /// A process on the same host, with the credentials that it had when it connected.
    Process {
        /// Its process ID; 0 for a process in a PID namespace that is not visible from here.
        pid: i32,
        /// Its effective user ID.
        uid: u32,
    },
}

impl Address {
    /// The IP address and port; `None` for a Unix socket.
    #[must_use]
    pub fn socket_addr(self) -> Option<SocketAddr> {
        match self {
            Self::Ip(addr) => Some(addr),
            Self::Unix(_) => None,
        }
    }

    /// The IP address; `None` for a Unix socket.
    #[must_use]
    pub fn ip(self) -> Option<IpAddr> {
        self.socket_addr().map(|addr| addr.ip())
    }

    /// The IP address and port, for a `provider` of that name that supports nothing else.
    ///
    /// # Errors
    /// [`WrongKind`].
    pub fn ip_only(self, provider: &'static str) -> Result<SocketAddr, WrongKind> {
        let addr = self;
        addr.socket_addr().ok_or(WrongKind { addr, provider })
    }

    /// Checks that the address identifies one host or stands for all addresses of this host.
    /// For other addresses the kernel reports only an invalid argument.
    ///
    /// # Errors
    /// [`UnusableAddress`] names the remedy.
    pub fn check(self) -> Result<(), UnusableAddress> {
        match self.socket_addr() {
            Some(addr) if addr.ip().is_multicast() => Err(UnusableAddress::Multicast(addr.ip())),
            Some(SocketAddr::V4(addr)) if addr.ip().is_broadcast() => {
                Err(UnusableAddress::Broadcast((*addr.ip()).into()))
            }
            Some(SocketAddr::V6(addr)) => match addr.ip().to_ipv4_mapped() {
                Some(v4) => Err(UnusableAddress::Mapped(*addr.ip(), v4)),
                None if addr.ip().is_unicast_link_local() && addr.scope_id() == 0 => {
                    Err(UnusableAddress::NoZone(*addr.ip()))
                }
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// The port number. 0 stands for any free port; a Unix socket has none.
    #[must_use]
    pub fn port(self) -> Option<u16> {
        self.socket_addr().map(|addr| addr.port())
    }

    /// Whether a text has the prefix of a Unix socket, valid or not.
    #[must_use]
    pub fn is_unix_text(text: &str) -> bool {
        text.starts_with(SCHEME)
    }
}

impl Peer {
    /// The IP address; `None` for a process.
    #[must_use]
    pub fn ip(self) -> Option<IpAddr> {
        match self {
            Self::Ip(addr) => Some(addr.ip()),
            Self::Process { .. } => None,
        }
    }
}

impl UnixPath {
    /// Bytes of the longest path: `sun_path` has 108, of which the last is a
    /// NUL (unix(7)).
    pub const MAX_LEN: usize = 107;

    /// Checks a path.
    ///
    /// # Errors
    /// [`UnixPathError`].
    pub fn new(path: &Path) -> Result<Self, UnixPathError> {
        let given = path.as_os_str().as_bytes();
        let shown = || path.display().to_string();
        match given {
            [] => return Err(UnixPathError::Empty),
            // A leading NUL is the form of the kernel; `@` is the one in which users write
            // it.
            [0 | b'@', ..] => return Err(UnixPathError::Abstract),
            [b'/', .., b'/'] | [b'/'] => return Err(UnixPathError::Folder(shown())),
            [b'/', ..] => {}
            _ => return Err(UnixPathError::Relative(shown())),
        }
        if given.contains(&0) {
            return Err(UnixPathError::Nul);
        }
        let too_long = UnixPathError::TooLong { len: given.len() };
        let mut bytes = [0; Self::MAX_LEN];
        let Some(place) = bytes.get_mut(..given.len()) else {
            return Err(too_long);
        };
        place.copy_from_slice(given);
        let len = u8::try_from(given.len()).map_err(|_| too_long)?;
        Ok(Self { bytes, len })
    }

    /// The path.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        let bytes = self.bytes.get(..self.len.into()).unwrap_or_default();
        Path::new(OsStr::from_bytes(bytes))
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Self {
        Self::Ip(addr)
    }
}

impl<I: Into<IpAddr>> From<(I, u16)> for Address {
    fn from(parts: (I, u16)) -> Self {
        Self::Ip(parts.into())
    }
}

impl From<UnixPath> for Address {
    fn from(path: UnixPath) -> Self {
        Self::Unix(path)
    }
}

impl From<SocketAddr> for Peer {
    fn from(addr: SocketAddr) -> Self {
        Self::Ip(addr)
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix(SCHEME) {
            return Ok(Self::Unix(UnixPath::new(Path::new(path))?));
        }
        let addr = text.parse().map_err(|source| AddressError::Ip {
            text: text.to_owned(),
            source,
        })?;
        Ok(Self::Ip(addr))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(addr) => addr.fmt(f),
            Self::Unix(path) => write!(f, "{SCHEME}{}", path.as_path().display()),
        }
    }
}

impl fmt::Debug for UnixPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_path().fmt(f)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(addr) => addr.fmt(f),
            Self::Process { pid: 0, uid } => write!(f, "a process of user {uid}"),
            Self::Process { pid, uid } => write!(f, "process {pid} of user {uid}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_display_and_parse_round_trip() {
        for text in [
            "127.0.0.1:4420",
            "[fd00::1]:0",
            "[fe80::1%3]:4420",
            "unix:/run/nvmeof/nvmeof.sock",
            "unix:/with space/ä",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let unix: Address = "unix:/a".parse().unwrap();
        assert_eq!((unix.socket_addr(), unix.port()), (None, None));
        let ip: Address = "[fd00::1]:7".parse().unwrap();
        assert_eq!((ip.ip(), ip.port()), ("fd00::1".parse().ok(), Some(7)));
        assert_eq!(ip.ip_only("verbs"), Ok("[fd00::1]:7".parse().unwrap()));
    }

    #[test]
    fn unusable_address_is_refused_with_remedy() {
        for (text, words) in [
            ("[::ffff:10.0.0.1]:1", "write 10.0.0.1"),
            ("224.0.0.1:1", "multicast"),
            ("[ff02::1]:1", "multicast"),
            ("255.255.255.255:1", "broadcast"),
            ("[fe80::1]:1", "fe80::1%eth0"),
        ] {
            let why = text.parse::<Address>().unwrap().check().unwrap_err();
            assert!(why.to_string().contains(words), "{why}");
        }
        for text in [
            "10.0.0.1:1",
            "0.0.0.0:1",
            "[::]:1",
            "[fe80::1%3]:1",
            "unix:/a",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().check(), Ok(()), "{text}");
        }
    }

    #[test]
    fn invalid_unix_path_is_refused_with_reason() {
        let longest = format!("unix:/{}", "x".repeat(106));
        assert!(longest.parse::<Address>().is_ok());
        let longer = format!("{longest}x");
        for (text, word) in [
            ("unix:", "missing"),
            ("unix:run/sock", "not an absolute path"),
            ("unix:@nvmeof", "abstract"),
            ("unix:\0nvmeof", "abstract"),
            ("unix:/a\0b", "NUL"),
            ("unix:/", "ends with /"),
            ("unix:/run/", "ends with /"),
            (longer.as_str(), "108"),
            ("/run/sock", "neither IP:PORT nor unix:/path"),
            ("127.0.0.1", "neither IP:PORT nor unix:/path"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(word), "{text:?}: {error}");
        }
    }

    #[test]
    fn unix_address_for_ip_provider_is_refused_with_remedy() {
        let unix: Address = "unix:/run/a.sock".parse().unwrap();
        let wrong = unix.ip_only("verbs").unwrap_err().to_string();
        for word in ["verbs", "unix:/run/a.sock", "iwarp"] {
            assert!(wrong.contains(word), "{wrong}");
        }
    }

    #[test]
    fn peer_display_names_address_or_process() {
        let ip: SocketAddr = "10.0.0.1:1".parse().unwrap();
        assert_eq!(Peer::from(ip).to_string(), "10.0.0.1:1");
        let process = |pid| Peer::Process { pid, uid: 7 }.to_string();
        assert_eq!(process(12), "process 12 of user 7");
        assert_eq!(process(0), "a process of user 7");
    }
}
