//! Errors: cause, fault and remedy.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_initiator_core::{BadSlotCount, CommandError, Setting, SetupError, cm};
use nvmeof_memory::PoolError;
use nvmeof_rdma::{Address, CloseReason, ConnectError, ExposeError, PostError, explain};
use nvmeof_wire::cm::RejectStatus;
use nvmeof_wire::log::ana::AnaState;
use nvmeof_wire::status::{SCT_MEDIA, SCT_PATH};
use nvmeof_wire::{Nqn, Status};

/// An error. Cheap to clone: one cause may end many calls. Displays as the cause and, if
/// one is known, the remedy.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// A command completed with an error. The connection is not affected.
    Command(Box<CommandError>),
    /// The target refused the connection or is not supported.
    Setup(Arc<Setup>),
    /// The connection failed or is lost, and every call with it.
    Lost(Arc<Lost>),
    /// The call is invalid: the fault of the caller.
    Usage(Arc<UsageError>),
    /// A resource of this machine is missing.
    Machine(Arc<MachineError>),
    /// No path to the subsystem can be used, and none may become available. Each path is given up,
    /// is lost for longer than `fast_io_fail`, has no such namespace, or reports ANA Persistent
    /// Loss.
    NoPath(Arc<NoPath>),
    /// The path of a command that changes data or reservations was lost before the response, and
    /// the command cannot be sent again. It is unknown whether it was executed. If the lost
    /// controller is not fenced, it can still execute the command, even after later commands over
    /// other paths.
    UnknownOutcome(Arc<Lost>),
    /// A call did not end within the time limit of the caller. The connection is not affected.
    TimedOut(Arc<TimedOut>),
}

/// A kind of [`Error`], for programs that handle some kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Blocks beyond the end of the namespace. Its size may have changed:
    /// [`Namespace::refresh`](crate::Namespace::refresh).
    OutOfRange,
    /// The namespace does not exist.
    NoNamespace,
    /// All buffers are in use.
    NoBuffer,
    /// Another invalid call.
    InvalidCall,
    /// The data differ: Compare, and Compare and Write.
    Different,
    /// The namespace is write protected.
    WriteProtected,
    /// The backing store of the namespace is full.
    NoSpace,
    /// The media failed to read or write the blocks.
    Media,
    /// The reservations of the namespace do not permit it: another host has reserved the namespace,
    /// or a key of a reservation command is not the registered one. Never retried.
    ReservationConflict,
    /// The controller cannot access the namespace now. Another path may.
    Path,
    /// The controller completed the command with another status.
    Command,
    /// The target refused the connection or is not supported.
    Refused,
    /// The connection failed or is lost.
    ConnectionLost,
    /// No path to the subsystem can be used.
    NoPath,
    /// It is unknown whether a command was executed, because its path is lost.
    UnknownOutcome,
    /// The time limit of the caller has passed.
    TimedOut,
    /// A resource of this machine is missing.
    Machine,
}

/// A call did not end within the time limit of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedOut {
    /// The time limit.
    pub limit: Duration,
    /// What the call waited for.
    pub waiting_for: Awaited,
    /// Whether a command that changes data was sent: it may have been executed, or may still be,
    /// even after later commands.
    pub may_have_executed: bool,
}

/// What a call waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Awaited {
    /// The submission of its first or next command: the limit passed before.
    Submission,
    /// Room in the queue: the command was not sent.
    Room,
    /// The authentication of the queue: the controller refused the command until then.
    Authentication,
    /// The completion of a command, by its name.
    Completion(&'static str),
    /// A path to the subsystem.
    Path,
    /// The fencing of a lost controller.
    Fence,
    /// The time before a retry.
    RetryDelay,
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Submission => f.write_str("the submission of a command"),
            Self::Room => f.write_str("room in the queue"),
            Self::Authentication => f.write_str("the authentication of the queue"),
            Self::Completion(command) => write!(f, "the completion of {command}"),
            Self::Path => f.write_str("a path"),
            Self::Fence => f.write_str("the fencing of a lost controller"),
            Self::RetryDelay => f.write_str("the time before a retry"),
        }
    }
}

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, .. } = self;
        write!(
            f,
            "the call did not end within {limit:?}: it waited for {}",
            self.waiting_for
        )?;
        if self.may_have_executed {
            f.write_str("; a command that changes data may have been executed, or may still be")?;
        }
        Ok(())
    }
}

/// No path to a subsystem can be used.
#[derive(Clone, Debug)]
pub struct NoPath {
    /// The subsystem.
    pub subnqn: Nqn,
    /// The address and the last error of each path.
    pub paths: Vec<(Address, Option<Error>)>,
    /// The ANA state of the namespace on each of these paths; `None` on a path that is not
    /// connected or reports none.
    pub states: Vec<Option<AnaState>>,
}

/// The status of commands in that state (Base 2.1, 8.1.1).
fn of_state(state: AnaState) -> Option<Status> {
    match state {
        AnaState::INACCESSIBLE => Some(Status::ANA_INACCESSIBLE),
        AnaState::PERSISTENT_LOSS => Some(Status::ANA_PERSISTENT_LOSS),
        AnaState::CHANGE => Some(Status::ANA_TRANSITION),
        _ => None,
    }
}

impl fmt::Display for NoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no path to {} can be used", self.subnqn)?;
        for (at, (addr, error)) in self.paths.iter().enumerate() {
            f.write_str(if at == 0 { ": " } else { "; " })?;
            match error {
                Some(error) => f.write_str(&error.cause())?,
                None => {
                    write!(f, "{addr} cannot access the namespace")?;
                    let state = self.states.get(at).copied().flatten();
                    if let Some(status) = state.and_then(of_state) {
                        write!(f, ": {status}")?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The side that is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request of the caller is invalid.
    Caller,
    /// The target refused, failed or violated the protocol.
    Target,
    /// The network.
    Network,
    /// This machine: memory, limits.
    Machine,
}

/// The set-up of a controller failed.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The target's address.
    pub addr: Address,
    /// The queue that failed.
    pub qid: u16,
    /// The reason.
    pub why: SetupFault,
}

/// Why the set-up of a controller failed.
#[derive(Clone, Debug)]
pub enum SetupFault {
    /// The target rejected the RDMA connection; the status, if it gave one.
    Rejected(Option<RejectStatus>),
    /// The target refused the NVMe connection, or is not supported.
    Nvme(SetupError),
}

/// A connection that failed or is lost.
#[derive(Clone, Debug)]
pub struct Lost {
    /// The target's address.
    pub addr: Address,
    /// Queue identifier; 0 is the admin queue.
    pub qid: u16,
    /// Name of the RDMA provider.
    pub provider: &'static str,
    /// Whether it was established before.
    pub established: bool,
    /// The reason.
    pub cause: LostCause,
}

/// Why a connection is lost.
#[derive(Clone, Debug)]
pub enum LostCause {
    /// The queue pair closed by itself.
    Network(CloseReason),
    /// A time-out expired.
    Timeout {
        /// The command or step that took too long.
        what: &'static str,
    },
    /// The controller did not complete Keep Alive: its association has ended, with all of
    /// its queues.
    KeepAlive {
        /// Identifier of the controller.
        cntlid: u16,
        /// The keep-alive time-out.
        timeout: Duration,
    },
    /// The target violated the protocol: description.
    Protocol(String),
    /// The runtime that connected it, and drove it, has ended.
    RuntimeEnded,
    /// This side closed it.
    Local,
    /// It is not established yet.
    NotConnected,
}

/// An invalid call.
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
        /// The requested namespace.
        nsid: u32,
        /// The active namespaces, as text.
        known: String,
    },
    /// A namespace with an unsupported format.
    #[error("namespace {nsid} {what}, which this host does not support")]
    Format {
        /// Namespace.
        nsid: u32,
        /// Description of the format.
        what: String,
    },
    /// A length that exceeds every buffer.
    #[error("no buffer has {len} bytes: the longest has {longest} bytes")]
    BufferTooLong {
        /// The requested length.
        len: usize,
        /// The longest length.
        longest: usize,
    },
    /// All buffers are in use.
    #[error(
        "no buffer of {len} bytes is free; drop some, or configure more \
         (HostConfig::buffers, HostConfig::with_buffers_for)"
    )]
    NoBuffer {
        /// The requested length.
        len: usize,
    },
    /// A buffer of another host.
    #[error("the buffer is not from this host's pools; allocate it with Host::buffer")]
    ForeignBuffer,
    /// Too many blocks for one Compare and Write.
    #[error("{count} blocks exceed the limit of one Compare and Write, {most} blocks ({field})")]
    CompareAndWrite {
        /// The requested number.
        count: u64,
        /// The limit.
        most: u64,
        /// The Identify field of the limit, a 0's based value.
        field: &'static str,
    },
    /// Another invalid call.
    #[error("{0}")]
    Other(String),
}

/// A resource of this machine that is missing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MachineError {
    /// An invalid queue size.
    #[error("{0}; choose another queue size")]
    Slots(BadSlotCount),
    /// No memory.
    #[error("{0}")]
    Memory(String),
    /// Memory that cannot be registered.
    #[error("the RDMA provider cannot use the buffers: {0}")]
    Register(String),
    /// No attempt to connect is possible.
    #[error("cannot connect to {addr}: {text}")]
    Connect {
        /// The address of the target.
        addr: Address,
        /// The reason.
        text: String,
    },
    /// The RDMA provider is not available.
    #[error("the RDMA provider `{name}` cannot be used: {text}")]
    Provider {
        /// Its name.
        name: &'static str,
        /// The reason.
        text: String,
    },
    /// No target on this host shares memory with this process.
    #[error("cannot connect through shared memory: {0}")]
    NoLocalTarget(String),
    /// A file that cannot be read.
    #[error("{path}: {text}")]
    File {
        /// Its path.
        path: String,
        /// The reason.
        text: String,
    },
    /// No file to derive a host NQN from.
    #[error("/etc/machine-id: no such file, so this host has no NQN")]
    NoHostNqn,
    /// The host identifier would be derived from the host name.
    #[error(
        "this host has neither /etc/nvme/hostid nor /etc/machine-id: its identifier would change \
         with its host name, and its registrations would be lost"
    )]
    NoLastingHostId,
    /// A bug of this crate.
    #[error("internal error, please report it: {0}")]
    Internal(String),
}

impl Error {
    /// The side that is at fault.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Command(_) | Self::Setup(_) => Fault::Target,
            Self::Lost(lost) => match &lost.cause {
                LostCause::Network(_) | LostCause::Timeout { .. } | LostCause::KeepAlive { .. } => {
                    Fault::Network
                }
                LostCause::Protocol(_) => Fault::Target,
                LostCause::RuntimeEnded | LostCause::Local | LostCause::NotConnected => {
                    Fault::Caller
                }
            },
            Self::Usage(_) => Fault::Caller,
            Self::Machine(_) => Fault::Machine,
            Self::NoPath(_) | Self::UnknownOutcome(_) | Self::TimedOut(_) => Fault::Network,
        }
    }

    /// Whether a later attempt to connect would fail as well.
    #[cfg(feature = "async")]
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Setup(setup) => match &setup.why {
                SetupFault::Nvme(SetupError::Refused(refusal)) => refusal.status.dnr(),
                SetupFault::Nvme(SetupError::Unsupported { .. }) => true,
                SetupFault::Nvme(_) | SetupFault::Rejected(_) => false,
            },
            Self::Usage(_) => true,
            _ => false,
        }
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Command(error) => kind_of_status(error.status),
            Self::Setup(_) => ErrorKind::Refused,
            Self::Lost(_) => ErrorKind::ConnectionLost,
            Self::Usage(error) => match **error {
                UsageError::OutOfRange { .. } => ErrorKind::OutOfRange,
                UsageError::NoNamespace { .. } => ErrorKind::NoNamespace,
                UsageError::NoBuffer { .. } => ErrorKind::NoBuffer,
                _ => ErrorKind::InvalidCall,
            },
            Self::Machine(_) => ErrorKind::Machine,
            Self::NoPath(_) => ErrorKind::NoPath,
            Self::UnknownOutcome(_) => ErrorKind::UnknownOutcome,
            Self::TimedOut(_) => ErrorKind::TimedOut,
        }
    }

    /// Whether a call that changes data may have been executed, in part or as a whole, or may
    /// still be, although it failed. Of a command that completed with an error, only its own blocks
    /// may have changed; other commands of the same call may have succeeded.
    #[must_use]
    pub fn outcome_is_unknown(&self) -> bool {
        match self {
            Self::TimedOut(timed_out) => timed_out.may_have_executed,
            Self::Lost(lost) => lost.established,
            // A queue that fails because of this machine ends its calls with that error.
            Self::UnknownOutcome(_) | Self::Machine(_) => true,
            Self::Command(_) | Self::Setup(_) | Self::Usage(_) | Self::NoPath(_) => false,
        }
    }

    /// The error of a call of which earlier commands have changed data, if `has_changed`.
    #[cfg(feature = "async")]
    pub(crate) fn after_changes(self, has_changed: bool) -> Self {
        match self {
            Self::TimedOut(timed_out) if has_changed => Self::TimedOut(Arc::new(TimedOut {
                may_have_executed: true,
                ..*timed_out
            })),
            error => error,
        }
    }

    /// The cause, without the remedy.
    #[must_use]
    pub fn cause(&self) -> String {
        match self {
            Self::Command(error) => error.to_string(),
            Self::Setup(setup) => setup.cause(),
            Self::Lost(lost) => lost.cause(),
            Self::Usage(error) => error.to_string(),
            Self::Machine(error) => error.to_string(),
            Self::NoPath(error) => error.to_string(),
            Self::UnknownOutcome(lost) => {
                format!("a command was executed or not: {}", lost.cause())
            }
            Self::TimedOut(timed_out) => timed_out.to_string(),
        }
    }

    /// The remedy, if one is known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Command(error) => error.remedy().map(str::to_owned),
            Self::Setup(setup) => setup.remedy(),
            Self::Lost(lost) => lost.remedy(),
            Self::Machine(error) => error.remedy().map(str::to_owned),
            Self::Usage(error) => error.remedy().map(str::to_owned),
            Self::NoPath(error) => {
                let mut each = error.paths.iter().filter_map(|(_, error)| error.as_ref());
                each.find_map(Self::remedy)
            }
            Self::UnknownOutcome(_) => {
                Some("read what the command would have changed, and repeat it if need be".into())
            }
            Self::TimedOut(_) => {
                Some("raise the time limit of the call if the backing store is slow".into())
            }
        }
    }

    /// The settings of the caller that caused it, for programs that have names for them.
    #[must_use]
    pub fn settings(&self) -> &'static [Setting] {
        match self {
            Self::Command(error) => error.settings(),
            Self::Setup(setup) => setup.settings(),
            Self::Lost(lost) => lost.settings(),
            Self::Usage(error) => error.settings(),
            Self::Machine(error) => error.settings(),
            Self::NoPath(_) | Self::UnknownOutcome(_) | Self::TimedOut(_) => &[],
        }
    }

    /// The remedy, followed by the names of the settings in parentheses. `name` returns the
    /// name that a program has for a setting.
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
        // Private data without a status may be padded with zeroes, and no status is 0.
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
                format!("{addr} rejected the connection without a reason")
            }
            SetupFault::Nvme(error) => format!("the target at {addr}: {error}"),
        }
    }

    fn remedy(&self) -> Option<String> {
        match &self.why {
            SetupFault::Rejected(Some(status)) => Some(cm::reject_remedy(*status).to_owned()),
            SetupFault::Rejected(None) => Some(
                "check that it is an NVMe over RDMA target; its log may have the reason".to_owned(),
            ),
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

impl LostCause {
    /// Whether the peer ended the connection, and not the network.
    pub(crate) fn is_by_peer(&self) -> bool {
        match self {
            Self::Network(CloseReason::Peer) => true,
            Self::Network(CloseReason::Network { kind, .. }) => {
                *kind == io::ErrorKind::ConnectionReset
            }
            _ => false,
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
        // `remedy` has the remedy, which depends on the address.
        let alone = |reason: &CloseReason| reason.clone().without_remedy();
        match (&self.cause, self.established) {
            (LostCause::Local, _) => "this side closed the connection".to_owned(),
            (LostCause::RuntimeEnded, _) => {
                format!("{kind} to {addr} is closed: the runtime that connected it has ended")
            }
            (LostCause::NotConnected, _) => format!("{kind} to {addr} is not connected yet"),
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
                format!("{addr} does not respond{}", self.over())
            }
            (LostCause::Timeout { what }, true) => format!(
                "the target at {addr} did not complete {what} on {kind} in time; \
                 the queue was disconnected"
            ),
            (LostCause::KeepAlive { cntlid, timeout }, _) => format!(
                "controller {cntlid} at {addr} did not complete Keep Alive within {} s; \
                 all of its queues were disconnected",
                timeout.as_secs_f64()
            ),
            (LostCause::Protocol(text), _) => {
                format!("the target at {addr} violated the protocol on {kind}: {text}")
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
                Address::Unix(_) => {
                    "check that nvmeof-target listens on this path; its log may have the reason"
                }
            },
            (LostCause::RuntimeEnded, _) => {
                "keep the runtime in which Host::connect was called until the controller is \
                 disconnected"
            }
            (LostCause::KeepAlive { .. }, _) => {
                "check the target and the network path, then connect again"
            }
            (LostCause::Network(_), true) => "check the target's log, then connect again",
            (LostCause::Timeout { .. }, true) => {
                "the target's log may name what the command waits for; raise the command \
                 time-out if the backing store is slow"
            }
            (LostCause::Protocol(_), _) => "report it with the logs of both sides",
            (LostCause::Local | LostCause::NotConnected, _) => return None,
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

    /// Whether the target may listen, but not for this device: only iWARP devices can
    /// connect to targets without devices.
    fn device_may_be_wrong(&self) -> bool {
        let unreachable = matches!(
            &self.cause,
            LostCause::Network(_) | LostCause::Timeout { .. }
        );
        self.over_device() && unreachable && !self.established
    }

    fn over_device(&self) -> bool {
        self.provider == "verbs"
    }

    /// The provider of the attempt, where it is not obvious.
    fn over(&self) -> &'static str {
        if self.over_device() {
            " over verbs"
        } else {
            ""
        }
    }
}

/// The kind of a command that completed with an error.
fn kind_of_status(status: Status) -> ErrorKind {
    match status.kind() {
        Status::LBA_OUT_OF_RANGE => ErrorKind::OutOfRange,
        Status::INVALID_NAMESPACE | Status::NAMESPACE_NOT_ATTACHED => ErrorKind::NoNamespace,
        Status::COMPARE_FAILURE => ErrorKind::Different,
        Status::NAMESPACE_WRITE_PROTECTED => ErrorKind::WriteProtected,
        Status::CAPACITY_EXCEEDED => ErrorKind::NoSpace,
        Status::RESERVATION_CONFLICT => ErrorKind::ReservationConflict,
        kind if kind.code_type() == SCT_PATH => ErrorKind::Path,
        kind if kind.code_type() == SCT_MEDIA => ErrorKind::Media,
        _ => ErrorKind::Command,
    }
}

/// The remedy when connecting failed.
fn unreached_remedy(addr: Address, kind: Option<io::ErrorKind>) -> &'static str {
    match (addr, kind) {
        (Address::Ip(_), Some(io::ErrorKind::ConnectionRefused)) => {
            "check that nvmeof-target is running there; check address and port"
        }
        (Address::Ip(_), _) => "check address, port and the network path",
        (Address::Unix(_), Some(io::ErrorKind::PermissionDenied)) => {
            "this user needs write permission for the socket (unix.mode of the target, or the \
             group of its file) and search permission for its folder"
        }
        (Address::Unix(_), _) => "check that nvmeof-target is running, with a port at this path",
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
            Self::CompareAndWrite { .. } => Some("specify fewer"),
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
                Some("software iWARP requires no RDMA device, if the target serves iWARP")
            }
            Self::Connect {
                addr: Address::Ip(_),
                ..
            } => Some("check address and port; `ip route get` shows the route"),
            Self::NoLocalTarget(_) => Some(
                "check that the target runs on this host with provider \"shm\" or \"auto\", that \
                 its shm.users contains this user, and that its shm.folder is the folder given",
            ),
            Self::NoHostNqn => Some("give this host an NQN"),
            Self::NoLastingHostId => Some("give this host an identifier, the same in each call"),
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
            Self::NoLocalTarget(_) => &[Setting::ShmFolder],
            Self::NoHostNqn => &[Setting::HostNqn],
            Self::NoLastingHostId => &[Setting::HostId],
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

    /// Why a buffer could not be exposed, unless the caller is at fault.
    pub(crate) fn not_exposed(why: &ExposeError) -> Option<Self> {
        let is_shortage = matches!(why, ExposeError::Full { .. } | ExposeError::Device);
        is_shortage.then(|| Self::Register(why.to_string()))
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
    fn unreachable_over_device_suggests_software_iwarp() {
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
    fn unreachable_unix_socket_names_path_and_permissions() {
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
    fn kind_of_a_command_error_follows_its_status() {
        let kind = |status: Status| {
            let error = CommandError {
                command: "Write",
                status: status.with_dnr(),
                result: 0,
                place: None,
            };
            let error = Error::from(error);
            assert!(!error.outcome_is_unknown());
            error.kind()
        };
        for (status, expected) in [
            (Status::LBA_OUT_OF_RANGE, ErrorKind::OutOfRange),
            (Status::COMPARE_FAILURE, ErrorKind::Different),
            (Status::CAPACITY_EXCEEDED, ErrorKind::NoSpace),
            (Status::UNRECOVERED_READ_ERROR, ErrorKind::Media),
            (Status::ANA_INACCESSIBLE, ErrorKind::Path),
            (Status::RESERVATION_CONFLICT, ErrorKind::ReservationConflict),
            (Status::INVALID_FIELD, ErrorKind::Command),
        ] {
            assert_eq!(kind(status), expected, "{status}");
        }
    }

    #[test]
    fn time_limit_error_names_what_the_call_waited_for() {
        let error = |waiting_for, may_have_executed| {
            Error::TimedOut(Arc::new(TimedOut {
                limit: Duration::from_millis(20),
                waiting_for,
                may_have_executed,
            }))
        };
        let text = error(Awaited::Completion("Write"), true).to_string();
        assert!(text.contains("within 20ms: it waited for the completion of Write; a command"));
        let text = error(Awaited::Room, false).to_string();
        assert!(text.contains("room in the queue; raise"), "{text}");
        let text = error(Awaited::Submission, false).to_string();
        assert!(
            text.contains("the submission of a command; raise"),
            "{text}"
        );
    }

    #[test]
    fn rejection_padded_with_zeroes_has_no_status() {
        let addr = "10.0.0.1:4420".parse().unwrap();
        for data in [&[][..], &[0; 148]] {
            let text = Error::rejected(addr, 0, data).to_string();
            assert!(text.contains("without a reason"), "{text}");
        }
        let mut private_data = [0; 148];
        private_data[2] = 6;
        let text = Error::rejected(addr, 0, &private_data).to_string();
        assert!(text.contains("rejected queue 0"), "{text}");
    }
}
