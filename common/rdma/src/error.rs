//! Errors of providers, each with its cause and remedy.

use std::fmt;
use std::io;

use crate::address::{Address, UnusableAddress, WrongKind};
use crate::explain::{describe, explain, followed_by, remedy};

/// A refused call: the reason, and the argument that it returns.
#[derive(Debug)]
pub struct Refused<T, E = PostError> {
    /// Reason of the refusal.
    pub why: E,
    /// The argument of the call.
    pub back: T,
}

impl<T: fmt::Debug, E: fmt::Display> fmt::Display for Refused<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl<T: fmt::Debug, E: fmt::Display + fmt::Debug> std::error::Error for Refused<T, E> {}

/// Why a work request or a call on a queue pair was refused. All are errors of the caller,
/// except that a queue pair may close at any time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// No such queue pair, or it is closing.
    #[error("the queue pair is closed")]
    Closed,
    /// Not in the state that allows this call.
    #[error("the queue pair is {state}, which does not allow this call")]
    WrongState {
        /// State of the queue pair.
        state: &'static str,
    },
    /// As many work requests are outstanding as the queue pair has entries.
    #[error("the queue is full: all {depth} entries are in use")]
    QueueFull {
        /// Entries of that queue.
        depth: u32,
    },
    /// The buffer's region was not registered with this provider.
    #[error("the buffer lies in a region that is not registered with this provider")]
    NotRegistered,
    /// A message, write or read is longer than allowed, or than the remote
    /// memory it names.
    #[error("a length of {len} bytes is above the maximum of {max} bytes")]
    TooLong {
        /// Bytes asked for.
        len: usize,
        /// Maximum in bytes.
        max: usize,
    },
    /// A number in [`QpConfig`](crate::QpConfig) is 0 where it must not be or
    /// above the provider's limit.
    #[error("{what} is {value}, the provider allows 1 to {max}")]
    Size {
        /// Name of the number.
        what: &'static str,
        /// Value asked for.
        value: u32,
        /// Maximum.
        max: u32,
    },
}

/// Why memory could not be exposed or withdrawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExposeError {
    /// No such queue pair, or it is closing.
    #[error("the queue pair is closed")]
    Closed,
    /// The buffer's region was not registered with this provider.
    #[error("the buffer lies in a region that is not registered with this provider")]
    NotRegistered,
    /// The key table is full.
    #[error("all {max} memory keys are in use")]
    Full {
        /// Size of the key table.
        max: u32,
    },
    /// The RDMA device has no memory window left, or cannot register the memory. The provider
    /// has logged the cause.
    #[error("the RDMA device refused to open the buffer to the peer; the log has the cause")]
    Device,
    /// No memory is exposed by this key.
    #[error("no memory is exposed by this key")]
    UnknownKey,
    /// The peer's RDMA Read of the memory is in progress.
    #[error("the peer is reading this memory; disconnect before withdrawing it")]
    Busy,
}

/// Why listening failed: because of the state of the host or of the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another program listens on the address.
    #[error("address {addr} is in use by another program; {}", in_use(.addr))]
    InUse {
        /// Address asked for.
        addr: Address,
    },
    /// The IP address is not assigned to an interface of this host.
    #[error(
        "address {addr} is not assigned to an interface of this host; \
         `ip address` lists the assigned ones"
    )]
    NoSuchAddress {
        /// Address asked for.
        addr: Address,
    },
    /// The interface of a link-local address does not exist.
    #[error(
        "the interface of {addr} does not exist; `ip link` lists the interfaces and their numbers"
    )]
    NoSuchInterface {
        /// Address asked for.
        addr: Address,
    },
    /// Not the address of one host.
    #[error("cannot listen on {addr}: {why}")]
    Unusable {
        /// Address asked for.
        addr: Address,
        /// The reason and the remedy.
        why: UnusableAddress,
    },
    /// Permission denied.
    #[error("no permission to listen on {addr}; {}", not_permitted(.addr))]
    Permission {
        /// Address asked for.
        addr: Address,
    },
    /// The provider does not support this kind of address.
    #[error(transparent)]
    Kind(#[from] WrongKind),
    /// Anything else.
    #[error("cannot listen on {addr}: {}", explain(.source))]
    Io {
        /// Address asked for.
        addr: Address,
        /// Error of the kernel.
        source: io::Error,
    },
}

impl ListenError {
    /// Classifies an error of the kernel about `addr`.
    #[must_use]
    pub fn new(addr: impl Into<Address>, source: io::Error) -> Self {
        let addr = addr.into();
        if let Err(why) = addr.check() {
            return Self::Unusable { addr, why };
        }
        match source.kind() {
            _ if source.raw_os_error() == Some(ENODEV) => Self::NoSuchInterface { addr },
            io::ErrorKind::AddrInUse => Self::InUse { addr },
            io::ErrorKind::AddrNotAvailable => Self::NoSuchAddress { addr },
            io::ErrorKind::PermissionDenied => Self::Permission { addr },
            _ => Self::Io { addr, source },
        }
    }

    /// Whether listening may succeed later without a change of the address: it is not
    /// assigned yet, or another program uses it. A file where the socket should be and an
    /// invalid path are errors of the configuration.
    #[must_use]
    pub fn may_succeed_later(&self) -> bool {
        match self {
            Self::InUse { .. }
            | Self::NoSuchAddress { .. }
            | Self::NoSuchInterface { .. }
            | Self::Permission { .. } => true,
            Self::Unusable { .. } | Self::Kind(_) => false,
            Self::Io { source, .. } => !matches!(
                source.kind(),
                io::ErrorKind::InvalidInput
                    | io::ErrorKind::InvalidFilename
                    | io::ErrorKind::AlreadyExists
            ),
        }
    }
}

/// Error number for an interface that does not exist (errno(3)).
const ENODEV: i32 = 19;

/// Remedy for an address in use.
fn in_use(addr: &Address) -> &'static str {
    match addr {
        Address::Ip(_) => "stop it or choose another port (`ss -ltnp` shows who listens)",
        Address::Unix(_) => "stop it or choose another path (`ss -lxp` shows who listens)",
    }
}

fn not_permitted(addr: &Address) -> &'static str {
    match addr {
        Address::Ip(_) => "ports below 1024 need CAP_NET_BIND_SERVICE, 4420 does not",
        Address::Unix(_) => "this user needs write permission for the directory of the socket",
    }
}

/// Why a connection could not be attempted.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A size above the limits of the provider.
    #[error(transparent)]
    Config(#[from] PostError),
    /// The provider does not support this kind of address.
    #[error(transparent)]
    Kind(#[from] WrongKind),
    /// The kernel refused.
    #[error("cannot connect to {addr}: {}", explain(.source))]
    Io {
        /// Address asked for.
        addr: Address,
        /// Error of the kernel.
        source: io::Error,
    },
}

impl From<ConnectError> for io::Error {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Io { source, .. } => source,
            other => Self::new(io::ErrorKind::InvalidInput, other.to_string()),
        }
    }
}

/// Why a queue pair closed. Displays as one line that names the cause and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// Closed by a call of this side.
    #[error("closed by this side")]
    Local,
    /// Orderly close by the peer.
    #[error("closed by the peer")]
    Peer,
    /// The peer refused the connection.
    #[error("the peer rejected the connection")]
    Rejected,
    /// A message or response did not arrive in time.
    #[error("timed out waiting for {waiting_for}")]
    Timeout {
        /// The expected message or response.
        waiting_for: &'static str,
    },
    /// The network failed: reset, refused, unreachable.
    #[error("the network connection failed: {}", followed_by(.text.clone(), *.remedy))]
    Network {
        /// Kind of error, for callers that react to it.
        kind: io::ErrorKind,
        /// The operation that failed and the error of the kernel.
        text: String,
        /// Remedy, if `text` does not contain one and one is known.
        remedy: Option<&'static str>,
    },
    /// The peer violated the protocol; the fault as reported to it.
    #[error("the peer violated the protocol: {0}")]
    PeerFault(Fault),
    /// The peer reported a protocol violation of this side.
    #[error("the peer ended the connection: {0}")]
    Terminated(Fault),
}

impl CloseReason {
    /// A failure of the network or of this host, described by `error`.
    #[must_use]
    pub fn network(error: &io::Error) -> Self {
        Self::Network {
            kind: error.kind(),
            text: describe(error),
            remedy: remedy(error),
        }
    }

    /// As [`network`](Self::network), for a failure of the operation `what`, such as "posting
    /// receives".
    #[must_use]
    pub fn failed(what: &str, error: &io::Error) -> Self {
        Self::Network {
            kind: error.kind(),
            text: format!("{what}: {}", describe(error)),
            remedy: remedy(error),
        }
    }

    /// Replaces the general remedy for the kernel's error by a more specific one.
    #[must_use]
    pub fn with_remedy(mut self, closer: &'static str) -> Self {
        if let Self::Network { remedy, .. } = &mut self {
            *remedy = Some(closer);
        }
        self
    }

    /// Removes the remedy, for callers that add a more specific one.
    #[must_use]
    pub fn without_remedy(mut self) -> Self {
        if let Self::Network { remedy, .. } = &mut self {
            *remedy = None;
        }
        self
    }
}

/// A protocol violation: the layer that detected it, its error code, and a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Protocol layer: `MPA`, `DDP`, `RDMAP`; on InfiniBand `transport`.
    pub layer: &'static str,
    /// Error type and code of that layer.
    pub code: u16,
    /// What was found and what was expected.
    pub text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} error {:#06x})", self.text, self.layer, self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_reason_names_what_failed_and_remedy_without_error_number() {
        for number in 1..134 {
            let error = io::Error::from_raw_os_error(number);
            for reason in [
                CloseReason::network(&error),
                CloseReason::failed("posting receives", &error),
            ] {
                let text = reason.to_string();
                assert!(!text.contains("os error"), "{text}");
                assert!(text.contains("; "), "{text}");
                let alone = reason.without_remedy().to_string();
                assert!(text.starts_with(&format!("{alone}; ")), "{text}");
            }
        }
        let reset = io::Error::from_raw_os_error(104);
        assert_eq!(
            CloseReason::failed("posting receives", &reset).to_string(),
            "the network connection failed: posting receives: connection reset by peer; the peer \
             or a firewall closed the connection; see the log of the peer"
        );
    }
}
