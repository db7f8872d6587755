//! What can go wrong, who is at fault, and what to do about it.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_initiator_core::{BadSlotCount, CommandError, Setting, SetupError, cm};
use nvmeof_memory::PoolError;
use nvmeof_rdma::{Address, CloseReason, ConnectError, PostError, explain};
use nvmeof_wire::cm::RejectStatus;

/// What went wrong. Cheap to clone: one cause may end many calls. Displays as
/// cause and, where one is known, remedy.
#[derive(Clone, Debug)]
pub enum Error {
    /// The controller answered a command with a failure. The connection is
    /// well.
    Command(Box<CommandError>),
    /// The target refused the connection or is not one we can use.
    Setup(Arc<Setup>),
    /// The connection could not be made or is lost, and every call with it.
    Lost(Arc<Lost>),
    /// The call makes no sense: the caller's fault.
    Usage(Arc<UsageError>),
    /// This machine lacks something.
    Machine(Arc<MachineError>),
}

/// Who is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The caller asked for something that cannot be.
    Caller,
    /// The target refused, failed or broke the protocol.
    Target,
    /// The network.
    Network,
    /// This machine: memory, limits.
    Machine,
}

/// Setting up a controller failed.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The target's address.
    pub addr: Address,
    /// Queue that was being set up.
    pub qid: u16,
    /// Why.
    pub why: SetupFault,
}

/// Why setting up a controller failed.
#[derive(Clone, Debug)]
pub enum SetupFault {
    /// The target rejected the RDMA connection, with a status if it said one.
    Rejected(Option<RejectStatus>),
    /// The target refused the NVMe connection, or is not one we can use.
    Nvme(SetupError),
}

/// A connection that could not be made or is lost.
#[derive(Clone, Debug)]
pub struct Lost {
    /// The target's address.
    pub addr: Address,
    /// Queue identifier; 0 is the admin queue.
    pub qid: u16,
    /// Name of the RDMA provider.
    pub provider: &'static str,
    /// Whether it stood before.
    pub established: bool,
    /// Why.
    pub cause: LostCause,
}

/// Why a connection is no more.
#[derive(Clone, Debug)]
pub enum LostCause {
    /// The queue pair closed by itself.
    Network(CloseReason),
    /// Something took too long.
    Timeout {
        /// What.
        what: &'static str,
    },
    /// The controller did not answer Keep Alive: its association has ended, with
    /// all of its queues.
    KeepAlive {
        /// Identifier of the controller.
        cntlid: u16,
        /// The keep-alive time-out.
        timeout: Duration,
    },
    /// The target broke the protocol: what it did.
    Protocol(String),
    /// The runtime that connected it, and drove it, has ended.
    Undriven,
    /// We closed it.
    Local,
    /// It does not stand yet.
    NotYet,
}

/// A call that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// A buffer that is not a whole number of blocks.
    #[error(
        "a buffer of {len} bytes is not a whole number of blocks of {block_size} bytes; \
         set its length to a multiple"
    )]
    NotBlocks {
        /// Bytes in view.
        len: usize,
        /// Bytes of a block.
        block_size: u32,
    },
    /// Blocks beyond the end of the namespace.
    #[error(
        "{count} blocks from {slba} reach beyond the end of namespace {nsid}, \
         which has {blocks} blocks"
    )]
    OutOfRange {
        /// Namespace.
        nsid: u32,
        /// First block.
        slba: u64,
        /// Number of blocks.
        count: u64,
        /// Blocks of the namespace.
        blocks: u64,
    },
    /// No such namespace.
    #[error("the subsystem has no namespace {nsid}; it has {known}")]
    NoNamespace {
        /// Asked for.
        nsid: u32,
        /// Those there are, in words.
        known: String,
    },
    /// A namespace with a format that we do not read.
    #[error("namespace {nsid} {what}, which this host does not support")]
    Format {
        /// Namespace.
        nsid: u32,
        /// What its format is.
        what: String,
    },
    /// More bytes than any buffer has.
    #[error("a buffer of {len} bytes was asked for, the longest has {longest}")]
    BufferTooLong {
        /// Asked for.
        len: usize,
        /// Longest there is.
        longest: usize,
    },
    /// All buffers are out.
    #[error(
        "no buffer of {len} bytes is free; drop some, or configure more \
         (HostConfig::buffers, HostConfig::with_buffers_for)"
    )]
    NoBuffer {
        /// Asked for.
        len: usize,
    },
    /// A buffer of another host.
    #[error("the buffer does not come from this host's pools; take it from Host::buffer")]
    ForeignBuffer,
    /// More blocks than are compared and written at once.
    #[error(
        "{count} blocks are more than the {most} that are compared and written at once ({field})"
    )]
    CompareAndWrite {
        /// Asked for.
        count: u64,
        /// Most there may be.
        most: u64,
        /// The Identify field that says so, zero-based.
        field: &'static str,
    },
    /// Something else.
    #[error("{0}")]
    Other(String),
}

/// Something this machine lacks.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MachineError {
    /// A queue size that cannot be had.
    #[error("{0}; choose another queue size")]
    Slots(BadSlotCount),
    /// No memory.
    #[error("{0}")]
    Memory(String),
    /// Memory that cannot be registered.
    #[error("the RDMA provider cannot use the buffers: {0}")]
    Register(String),
    /// No connection can even be tried.
    #[error("cannot connect to {addr}: {text}")]
    Connect {
        /// Where to.
        addr: Address,
        /// Why not.
        text: String,
    },
    /// The RDMA provider cannot be had.
    #[error("the RDMA provider `{name}` cannot be used: {text}")]
    Provider {
        /// Its name.
        name: &'static str,
        /// Why not.
        text: String,
    },
    /// No target of this host shares memory with us.
    #[error("cannot connect through shared memory: {0}")]
    NobodyHere(String),
    /// A file that cannot be read.
    #[error("{path}: {text}")]
    File {
        /// Which.
        path: String,
        /// Why not.
        text: String,
    },
    /// Nothing that a host name follows from.
    #[error("/etc/machine-id: no such file, so this host has no name")]
    NoHostNqn,
    /// A bug of ours.
    #[error("internal error, please report it: {0}")]
    Internal(String),
}

impl Error {
    /// Who is at fault.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Command(_) | Self::Setup(_) => Fault::Target,
            Self::Lost(lost) => match &lost.cause {
                LostCause::Network(_) | LostCause::Timeout { .. } | LostCause::KeepAlive { .. } => {
                    Fault::Network
                }
                LostCause::Protocol(_) => Fault::Target,
                LostCause::Undriven | LostCause::Local | LostCause::NotYet => Fault::Caller,
            },
            Self::Usage(_) => Fault::Caller,
            Self::Machine(_) => Fault::Machine,
        }
    }

    /// What happened, without what to do about it.
    #[must_use]
    pub fn cause(&self) -> String {
        match self {
            Self::Command(error) => error.to_string(),
            Self::Setup(setup) => setup.cause(),
            Self::Lost(lost) => lost.cause(),
            Self::Usage(error) => error.to_string(),
            Self::Machine(error) => error.to_string(),
        }
    }

    /// What to do about it, where that can be said.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Command(error) => error.remedy().map(str::to_owned),
            Self::Setup(setup) => setup.remedy(),
            Self::Lost(lost) => lost.remedy(),
            Self::Machine(error) => error.remedy().map(str::to_owned),
            Self::Usage(error) => error.remedy().map(str::to_owned),
        }
    }

    /// Which settings of the caller it is about, for programs that have names for them.
    #[must_use]
    pub fn settings(&self) -> &'static [Setting] {
        match self {
            Self::Command(error) => error.settings(),
            Self::Setup(setup) => setup.settings(),
            Self::Lost(lost) => lost.settings(),
            Self::Usage(error) => error.settings(),
            Self::Machine(error) => error.settings(),
        }
    }

    /// The remedy, and after it in brackets the names that a program has for the settings
    /// it is about: `name` gives them.
    #[must_use]
    pub fn remedy_naming(&self, name: impl Fn(Setting) -> Option<String>) -> Option<String> {
        let names: Vec<String> = self.settings().iter().copied().filter_map(name).collect();
        let remedy = self.remedy()?;
        if names.is_empty() {
            return Some(remedy);
        }
        Some(format!("{remedy} ({})", names.join(", ")))
    }

    pub(crate) fn cannot_connect(addr: Address, error: &ConnectError) -> Self {
        let text = match error {
            ConnectError::Config(error) => error.to_string(),
            ConnectError::Kind(error) => error.to_string(),
            ConnectError::Io { source, .. } => match addr.check() {
                Err(why) => why.to_string(),
                Ok(()) => explain(source),
            },
        };
        MachineError::Connect { addr, text }.into()
    }

    pub(crate) fn rejected(addr: Address, qid: u16, private_data: &[u8]) -> Self {
        // What says nothing may be padded with zeroes, and no status is 0.
        let status = cm::reject_status(private_data).filter(|status| status.get() != 0);
        let why = SetupFault::Rejected(status);
        Self::Setup(Arc::new(Setup { addr, qid, why }))
    }

    pub(crate) fn setup(addr: Address, qid: u16, error: SetupError) -> Self {
        let why = SetupFault::Nvme(error);
        Self::Setup(Arc::new(Setup { addr, qid, why }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause())?;
        match self.remedy() {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl Setup {
    fn cause(&self) -> String {
        let Self { addr, .. } = self;
        match &self.why {
            SetupFault::Rejected(Some(status)) => {
                format!("the target at {addr} rejected queue {}: {status}", self.qid)
            }
            SetupFault::Rejected(None) => {
                format!("{addr} rejected the connection and does not say why")
            }
            SetupFault::Nvme(error) => format!("the target at {addr}: {error}"),
        }
    }

    fn remedy(&self) -> Option<String> {
        match &self.why {
            SetupFault::Rejected(Some(status)) => Some(cm::reject_remedy(*status).to_owned()),
            SetupFault::Rejected(None) => {
                Some("is it an NVMe over RDMA target? its log may say why".to_owned())
            }
            SetupFault::Nvme(error) => error.remedy(),
        }
    }

    fn settings(&self) -> &'static [Setting] {
        match &self.why {
            SetupFault::Rejected(Some(status)) => cm::reject_settings(*status),
            SetupFault::Rejected(None) => &[],
            SetupFault::Nvme(error) => error.settings(),
        }
    }
}

impl Lost {
    fn cause(&self) -> String {
        let Self { addr, qid, .. } = self;
        let kind = match qid {
            0 => "the admin queue".to_owned(),
            qid => format!("I/O queue {qid}"),
        };
        // What to do is said by `remedy`, which knows the address.
        let alone = |reason: &CloseReason| reason.clone().without_remedy();
        match (&self.cause, self.established) {
            (LostCause::Local, _) => "the connection was closed by this side".to_owned(),
            (LostCause::Undriven, _) => {
                format!("{kind} to {addr} is closed: the runtime that connected it has ended")
            }
            (LostCause::NotYet, _) => format!("{kind} to {addr} is not connected yet"),
            (LostCause::Network(reason), false) => match network_kind(reason) {
                Some(io::ErrorKind::ConnectionRefused) => {
                    format!(
                        "connection refused: nothing listens on {addr}{}",
                        self.over()
                    )
                }
                _ => format!("cannot connect to {addr}{}: {}", self.over(), alone(reason)),
            },
            (LostCause::Network(reason), true) => {
                format!(
                    "the connection of {kind} to {addr} is lost: {}",
                    alone(reason)
                )
            }
            (LostCause::Timeout { .. }, false) => {
                format!("{addr} does not answer{}", self.over())
            }
            (LostCause::Timeout { what }, true) => format!(
                "the target at {addr} did not answer {what} on {kind} in time; \
                 the queue was disconnected"
            ),
            (LostCause::KeepAlive { cntlid, timeout }, _) => format!(
                "controller {cntlid} at {addr} did not answer Keep Alive within {} s; \
                 all of its queues were disconnected",
                timeout.as_secs_f64()
            ),
            (LostCause::Protocol(text), _) => {
                format!("the target at {addr} broke the protocol on {kind}: {text}")
            }
        }
    }

    fn remedy(&self) -> Option<String> {
        if let (false, Err(why)) = (self.established, self.addr.check()) {
            return Some(why.to_string());
        }
        let text = match (&self.cause, self.established) {
            (LostCause::Network(reason), false) => {
                unreached_remedy(self.addr, network_kind(reason))
            }
            (LostCause::Timeout { .. }, false) => match self.addr {
                Address::Ip(_) => "check address, port, routes and firewalls",
                Address::Unix(_) => "is it nvmeof-target that listens there? its log may say more",
            },
            (LostCause::Undriven, _) => {
                "keep the runtime in which Host::connect was called until the controller is \
                 disconnected"
            }
            (LostCause::KeepAlive { .. }, _) => {
                "check the target and the network between, then connect again"
            }
            (LostCause::Network(_), true) => "look into the target's log, then connect again",
            (LostCause::Timeout { .. }, true) => {
                "the target's log may say what it waits for; raise the command time-out \
                 if its storage is slow"
            }
            (LostCause::Protocol(_), _) => "please report it with both logs",
            (LostCause::Local | LostCause::NotYet, _) => return None,
        };
        if self.device_may_be_wrong() {
            return Some(format!(
                "{text}; the target may not serve RoCE or InfiniBand on this address: try \
                 software iWARP"
            ));
        }
        Some(text.to_owned())
    }

    fn settings(&self) -> &'static [Setting] {
        match (&self.cause, self.established, self.addr) {
            _ if self.device_may_be_wrong() => &[Setting::Address, Setting::SoftwareIwarp],
            (LostCause::Network(_) | LostCause::Timeout { .. }, false, Address::Ip(_)) => {
                &[Setting::Address]
            }
            (LostCause::Network(_), false, Address::Unix(_)) => &[Setting::SocketPath],
            (LostCause::Timeout { .. }, true, _) => &[Setting::CommandTimeout],
            _ => &[],
        }
    }

    /// Whether the target may be there, but not for this device: one that speaks iWARP
    /// reaches targets without devices, others do not.
    fn device_may_be_wrong(&self) -> bool {
        let nobody_there = matches!(
            &self.cause,
            LostCause::Network(_) | LostCause::Timeout { .. }
        );
        self.over_device() && nobody_there && !self.established
    }

    fn over_device(&self) -> bool {
        self.provider == "verbs"
    }

    /// By which way it was tried, where that is not clear by itself.
    fn over(&self) -> &'static str {
        if self.over_device() {
            " over verbs"
        } else {
            ""
        }
    }
}

/// What to do when a target could not be connected to.
fn unreached_remedy(addr: Address, kind: Option<io::ErrorKind>) -> &'static str {
    match (addr, kind) {
        (Address::Ip(_), Some(io::ErrorKind::ConnectionRefused)) => {
            "is nvmeof-target running there? check address and port"
        }
        (Address::Ip(_), _) => "check address, port and the network between",
        (Address::Unix(_), Some(io::ErrorKind::PermissionDenied)) => {
            "this user needs write permission for the socket (unix.mode of the target, or the \
             group of its file) and may have to be let into its folder"
        }
        (Address::Unix(_), _) => {
            "is nvmeof-target running, with a port at that path? check the path"
        }
    }
}

fn network_kind(reason: &CloseReason) -> Option<io::ErrorKind> {
    match reason {
        CloseReason::Network { kind, .. } => Some(*kind),
        _ => None,
    }
}

impl UsageError {
    pub(crate) fn no_namespace(nsid: u32, active: &[u32]) -> Self {
        let known = match active {
            [] => "none".to_owned(),
            some => {
                let some: Vec<String> = some.iter().take(16).map(u32::to_string).collect();
                some.join(", ")
            }
        };
        Self::NoNamespace { nsid, known }
    }

    fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::NoNamespace { .. } => Some("choose an active namespace"),
            Self::OutOfRange { .. } => Some("choose blocks within the namespace"),
            Self::CompareAndWrite { .. } => Some("give fewer"),
            _ => None,
        }
    }

    fn settings(&self) -> &'static [Setting] {
        match self {
            Self::NoNamespace { .. } => &[Setting::Namespace],
            Self::OutOfRange { .. } => &[Setting::Blocks],
            Self::CompareAndWrite { .. } => &[Setting::CompareAndWrite],
            _ => &[],
        }
    }
}

impl MachineError {
    fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Provider { name: "verbs", .. } => {
                Some("software iWARP needs no RDMA device, where the target serves iWARP")
            }
            Self::Connect {
                addr: Address::Ip(_),
                ..
            } => Some("check address and port; `ip route get` shows the way there"),
            Self::NobodyHere(_) => Some(
                "check that the target runs on this host with provider \"shm\" or \"auto\", and \
                 that its shm.users has this user, and that its shm.folder is the folder given",
            ),
            Self::NoHostNqn => Some("give this host a name"),
            _ => None,
        }
    }

    fn settings(&self) -> &'static [Setting] {
        match self {
            Self::Slots(_) => &[Setting::QueueSize],
            Self::Provider { name: "verbs", .. } => &[Setting::SoftwareIwarp],
            Self::Connect {
                addr: Address::Ip(_),
                ..
            } => &[Setting::Address],
            Self::NobodyHere(_) => &[Setting::ShmFolder],
            Self::NoHostNqn => &[Setting::HostNqn],
            _ => &[],
        }
    }

    #[allow(clippy::needless_pass_by_value, reason = "for map_err")]
    pub(crate) fn pool(error: PoolError) -> Self {
        Self::Memory(error.to_string())
    }

    #[allow(clippy::needless_pass_by_value, reason = "for map_err")]
    pub(crate) fn register(error: io::Error) -> Self {
        Self::Register(error.to_string())
    }

    #[allow(clippy::needless_pass_by_value, reason = "for map_err")]
    pub(crate) fn internal(error: impl fmt::Display) -> Self {
        Self::Internal(error.to_string())
    }

    pub(crate) fn post(error: &PostError) -> Self {
        Self::Internal(format!("a receive was refused: {error}"))
    }
}

impl From<CommandError> for Error {
    fn from(error: CommandError) -> Self {
        Self::Command(Box::new(error))
    }
}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Self {
        Self::Lost(Arc::new(lost))
    }
}

impl From<UsageError> for Error {
    fn from(error: UsageError) -> Self {
        Self::Usage(Arc::new(error))
    }
}

impl From<MachineError> for Error {
    fn from(error: MachineError) -> Self {
        Self::Machine(Arc::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(provider: &'static str, established: bool, cause: LostCause) -> String {
        lost_at("10.0.0.1:4420", provider, established, cause)
    }

    fn lost_at(addr: &str, provider: &'static str, established: bool, cause: LostCause) -> String {
        let addr = addr.parse().unwrap();
        let lost = Lost {
            addr,
            qid: 0,
            provider,
            established,
            cause,
        };
        Error::from(lost).to_string()
    }

    #[test]
    fn who_is_not_reached_over_a_device_may_be_without() {
        let network = |kind: io::ErrorKind| LostCause::Network(CloseReason::network(&kind.into()));
        let timeout = || LostCause::Timeout { what: "a reply" };
        for cause in [
            network(io::ErrorKind::ConnectionRefused),
            network(io::ErrorKind::HostUnreachable),
            timeout(),
        ] {
            let text = lost("verbs", false, cause.clone());
            assert!(text.contains("over verbs"), "{text}");
            assert!(text.contains("try software iWARP"), "{text}");
            let text = lost("iwarp", false, cause);
            assert!(!text.contains("iWARP"), "{text}");
        }
        for cause in [network(io::ErrorKind::ConnectionReset), timeout()] {
            let text = lost("verbs", true, cause);
            assert!(!text.contains("iWARP"), "{text}");
        }
        let text = lost("verbs", false, LostCause::Protocol("x".to_owned()));
        assert!(!text.contains("iWARP"), "{text}");
    }

    #[test]
    fn lost_connection_names_one_remedy_and_no_error_number() {
        for established in [false, true] {
            let reset = io::Error::from_raw_os_error(104);
            let cause = LostCause::Network(CloseReason::network(&reset));
            let text = lost("iwarp", established, cause);
            assert!(text.contains("10.0.0.1:4420"), "{text}");
            assert!(!text.contains("os error"), "{text}");
            assert_eq!(text.matches("; ").count(), 1, "{text}");
        }
    }

    #[test]
    fn whoever_is_not_reached_through_a_unix_socket_is_told_about_files() {
        use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied};
        for (kind, word) in [
            (ConnectionRefused, "running"),
            (NotFound, "running"),
            (PermissionDenied, "unix.mode"),
        ] {
            let cause = LostCause::Network(CloseReason::network(&kind.into()));
            let text = lost_at("unix:/run/a.sock", "iwarp", false, cause);
            assert!(text.contains("unix:/run/a.sock"), "{text}");
            assert!(text.contains(word) && !text.contains("port,"), "{text}");
        }
        let timeout = LostCause::Timeout { what: "a reply" };
        let text = lost_at("unix:/run/a.sock", "iwarp", false, timeout);
        assert!(!text.contains("firewall"), "{text}");
    }

    #[test]
    fn a_rejection_padded_with_zeroes_says_nothing() {
        let addr = "10.0.0.1:4420".parse().unwrap();
        for data in [&[][..], &[0; 148]] {
            let text = Error::rejected(addr, 0, data).to_string();
            assert!(text.contains("does not say why"), "{text}");
        }
        let mut told = [0; 148];
        told[2] = 6;
        let text = Error::rejected(addr, 0, &told).to_string();
        assert!(text.contains("rejected queue 0"), "{text}");
    }
}
