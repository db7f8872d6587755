//! Errors that say who is at fault.

use std::fmt;
use std::io;

use crate::address::{Address, UnusableAddress, WrongKind};
use crate::explain::{describe, explain, followed_by, remedy};

/// A call was refused: why, and what it was given, back.
#[derive(Debug)]
pub struct Refused<T, E = PostError> {
    /// Why.
    pub why: E,
    /// What was given.
    pub back: T,
}

impl<T: fmt::Debug, E: fmt::Display> fmt::Display for Refused<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl<T: fmt::Debug, E: fmt::Display + fmt::Debug> std::error::Error for Refused<T, E> {}

/// Why work or a call on a queue pair was refused. All are the caller's
/// doing, except that a queue pair may close at any time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// No such queue pair, or it is closing.
    #[error("the queue pair is closed")]
    Closed,
    /// Not in the state that allows this call.
    #[error("the queue pair is {state}, which does not allow this call")]
    WrongState {
        /// What the queue pair is doing.
        state: &'static str,
    },
    /// As many are outstanding as the queue pair was given room for.
    #[error("all {depth} places of the queue are taken")]
    QueueFull {
        /// Places of that queue.
        depth: u32,
    },
    /// The buffer's region was not registered with this provider.
    #[error("the buffer lies in a region that is not registered with this provider")]
    NotRegistered,
    /// A message, write or read is longer than allowed, or than the remote
    /// memory it names.
    #[error("{len} bytes are more than the {max} that are possible here")]
    TooLong {
        /// Bytes asked for.
        len: usize,
        /// Bytes possible.
        max: usize,
    },
    /// A number in [`QpConfig`](crate::QpConfig) is 0 where it must not be or
    /// above the provider's limit.
    #[error("{what} is {value}, the provider allows 1 to {max}")]
    Size {
        /// Which number.
        what: &'static str,
        /// Value asked for.
        value: u32,
        /// Largest possible.
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
        /// Keys there are.
        max: u32,
    },
    /// Nothing is exposed by that key.
    #[error("nothing is exposed by that key")]
    UnknownKey,
    /// The peer's read of the memory is being answered.
    #[error("the peer is reading this memory; disconnect before withdrawing it")]
    Busy,
}

/// Why listening failed: the machine's doing or the configuration's.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody else listens there.
    #[error("address {addr} is in use by another program; {}", in_use(.addr))]
    InUse {
        /// Address asked for.
        addr: Address,
    },
    /// The IP address is on no interface of this machine.
    #[error(
        "address {addr} is on no interface of this machine; \
         `ip address` shows those there are"
    )]
    NoSuchAddress {
        /// Address asked for.
        addr: Address,
    },
    /// The interface that leads to the address is not there.
    #[error(
        "the interface of {addr} is not there; `ip link` shows those there are and their numbers"
    )]
    NoSuchInterface {
        /// Address asked for.
        addr: Address,
    },
    /// No address of one machine.
    #[error("cannot listen on {addr}: {why}")]
    Unusable {
        /// Address asked for.
        addr: Address,
        /// Why, and what to write.
        why: UnusableAddress,
    },
    /// Not allowed.
    #[error("no permission to listen on {addr}; {}", not_permitted(.addr))]
    Permission {
        /// Address asked for.
        addr: Address,
    },
    /// An address of a kind that the provider does not serve.
    #[error(transparent)]
    Kind(#[from] WrongKind),
    /// Anything else.
    #[error("cannot listen on {addr}: {}", explain(.source))]
    Io {
        /// Address asked for.
        addr: Address,
        /// What the kernel said.
        source: io::Error,
    },
}

impl ListenError {
    /// Sorts what the kernel said about `addr`.
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

    /// Whether listening may succeed later though nobody changes the address: it is
    /// not there yet, or somebody else has it. A file in the place of a socket and a name
    /// that cannot be are errors of the configuration.
    #[must_use]
    pub fn may_pass(&self) -> bool {
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

/// What the kernel says of an interface that is not there (errno(3)).
const ENODEV: i32 = 19;

/// What to do about an address that is in use.
fn in_use(addr: &Address) -> &'static str {
    match addr {
        Address::Ip(_) => "stop it or choose another port (`ss -ltnp` shows who listens)",
        Address::Unix(_) => "stop it or choose another path (`ss -lxp` shows who listens)",
    }
}

fn not_permitted(addr: &Address) -> &'static str {
    match addr {
        Address::Ip(_) => "ports below 1024 need CAP_NET_BIND_SERVICE, 4420 does not",
        Address::Unix(_) => "this user has to be allowed to write the folder of the socket",
    }
}

/// Why a connection could not even be tried.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A size the provider does not have.
    #[error(transparent)]
    Config(#[from] PostError),
    /// An address of a kind that the provider does not serve.
    #[error(transparent)]
    Kind(#[from] WrongKind),
    /// The kernel refused.
    #[error("cannot connect to {addr}: {}", explain(.source))]
    Io {
        /// Address asked for.
        addr: Address,
        /// What the kernel said.
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

/// Why a queue pair closed. Displays as one line that names cause and what
/// was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// We asked for it.
    #[error("closed by this side")]
    Local,
    /// The peer closed in good order.
    #[error("closed by the peer")]
    Peer,
    /// The peer refused the connection.
    #[error("the peer rejected the connection")]
    Rejected,
    /// Something that was due did not come.
    #[error("timed out waiting for {waiting_for}")]
    Timeout {
        /// What was due.
        waiting_for: &'static str,
    },
    /// The network failed: reset, refused, unreachable.
    #[error("the network connection failed: {}", followed_by(.text.clone(), *.remedy))]
    Network {
        /// Kind of error, for deciding what to do.
        kind: io::ErrorKind,
        /// What failed, and what the kernel said of it.
        text: String,
        /// What to do about it, where `text` does not say it and it is known.
        remedy: Option<&'static str>,
    },
    /// The peer broke a rule; this is what we told it.
    #[error("the peer broke the protocol: {0}")]
    PeerFault(Fault),
    /// The peer says that we broke a rule.
    #[error("the peer ended the connection: {0}")]
    Terminated(Fault),
}

impl CloseReason {
    /// The network or this machine failed, as `error` says.
    #[must_use]
    pub fn network(error: &io::Error) -> Self {
        Self::Network {
            kind: error.kind(),
            text: describe(error),
            remedy: remedy(error),
        }
    }

    /// The same where `what` failed, such as "posting receives".
    #[must_use]
    pub fn failed(what: &str, error: &io::Error) -> Self {
        Self::Network {
            kind: error.kind(),
            text: format!("{what}: {}", describe(error)),
            remedy: remedy(error),
        }
    }

    /// The same with a closer remedy than the kernel's error has.
    #[must_use]
    pub fn with_remedy(mut self, closer: &'static str) -> Self {
        if let Self::Network { remedy, .. } = &mut self {
            *remedy = Some(closer);
        }
        self
    }

    /// The reason alone, for callers that know a closer remedy.
    #[must_use]
    pub fn without_remedy(mut self) -> Self {
        if let Self::Network { remedy, .. } = &mut self {
            *remedy = None;
        }
        self
    }
}

/// A broken rule: which layer found it, its code there, and words.
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
            "the network connection failed: posting receives: connection reset by peer; the other \
             side, or a firewall between, ended it; its log may say why"
        );
    }
}
