//! Why a controller could not be set up, and what to do about it.

use std::fmt;
use std::time::Duration;

use nvmeof_wire::Status;
use nvmeof_wire::fabrics::InvalidParameter;

use crate::admin::{Names, QueueShape};
use crate::blocks::CommandError;
use crate::queue::QueueFault;
use crate::setting::Setting;

/// Why a controller could not be set up.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SetupError {
    /// The Connect command failed.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// The target wants something of the host that it cannot do, or cannot do
    /// something that the host needs.
    #[error("{what}")]
    Lacks {
        /// What, in words.
        what: String,
        /// What to do about it.
        remedy: &'static str,
        /// Which settings it is about.
        settings: &'static [Setting],
    },
    /// CSTS.CFS is set.
    #[error("the controller reports a fatal error (CSTS.CFS)")]
    Fatal,
    /// CSTS did not change in time.
    #[error("the controller did not become {what} within {} s", after.as_secs_f32())]
    NotInTime {
        /// What it should have become.
        what: &'static str,
        /// How long it had.
        after: Duration,
    },
    /// A command of the set-up failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// An answer that makes no sense.
    #[error("an answer makes no sense: {0}")]
    Garbled(String),
    /// The target broke the queue's rules.
    #[error("the target broke the protocol: {0}")]
    Queue(#[from] QueueFault),
}

/// A Connect command that failed: what was asked, and the answer.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// What the target said.
    pub status: Status,
    /// Where it says the mistake is, with Connect Invalid Parameters.
    pub at: Option<InvalidParameter>,
    /// The names it was given.
    pub names: Names,
    /// The queue it was asked for.
    pub queue: QueueShape,
}

/// Byte offsets of the connect data and command (NVMe Base 2.0, section 6.3).
const HOSTID: InvalidParameter = InvalidParameter::InData(0);
const CNTLID: InvalidParameter = InvalidParameter::InData(16);
const SUBNQN: InvalidParameter = InvalidParameter::InData(256);
const HOSTNQN: InvalidParameter = InvalidParameter::InData(512);
const QID: InvalidParameter = InvalidParameter::InCommand(42);
const SQSIZE: InvalidParameter = InvalidParameter::InCommand(44);
const KATO: InvalidParameter = InvalidParameter::InCommand(48);

impl SetupError {
    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Refused(refusal) => refusal.remedy(),
            Self::Lacks { remedy, .. } => Some((*remedy).to_owned()),
            Self::Fatal => Some("look into the target's log and restart it".to_owned()),
            Self::NotInTime { .. } => {
                Some("the target is overloaded or hangs; look into its log".to_owned())
            }
            Self::Command(error) => error.remedy().map(str::to_owned),
            Self::Garbled(_) | Self::Queue(_) => {
                Some("please report it with the target's name and version".to_owned())
            }
        }
    }

    /// Which settings it is about.
    #[must_use]
    pub fn settings(&self) -> &'static [Setting] {
        match self {
            Self::Refused(refusal) => refusal.settings(),
            Self::Lacks { settings, .. } => settings,
            Self::Command(error) => error.settings(),
            Self::Fatal | Self::NotInTime { .. } | Self::Garbled(_) | Self::Queue(_) => &[],
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Names {
            hostnqn, subnqn, ..
        } = &self.names;
        let QueueShape { qid, size, .. } = self.queue;
        if self.status.is(Status::CONNECT_INVALID_HOST) {
            return write!(
                f,
                "host `{hostnqn}` is not allowed to use subsystem `{subnqn}`"
            );
        }
        match self.at {
            Some(SUBNQN) => write!(f, "there is no subsystem `{subnqn}`"),
            Some(HOSTNQN) => {
                write!(f, "the host's name `{hostnqn}` is not acceptable")
            }
            Some(HOSTID) => f.write_str("the host identifier is not acceptable"),
            Some(CNTLID) => write!(f, "queue {qid} names a controller that is not there"),
            Some(QID) => write!(f, "queue identifier {qid} is taken or out of range"),
            Some(SQSIZE) => write!(f, "a queue of {size} entries is not possible"),
            Some(KATO) => f.write_str("the keep-alive time-out is out of range"),
            Some(other) => {
                write!(
                    f,
                    "Connect of queue {qid}: {} is not acceptable",
                    other.field()
                )
            }
            None => write!(f, "Connect of queue {qid} was refused: {}", self.status),
        }
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    pub(crate) fn new(status: Status, result: u64, names: &Names, queue: QueueShape) -> Self {
        let at = status
            .is(Status::CONNECT_INVALID_PARAMETERS)
            .then(|| InvalidParameter::from_result(result));
        Self {
            status,
            at,
            names: names.clone(),
            queue,
        }
    }

    fn settings(&self) -> &'static [Setting] {
        match self.at {
            Some(SUBNQN) => &[Setting::Subsystem],
            Some(HOSTNQN) => &[Setting::HostNqn],
            Some(HOSTID) => &[Setting::HostId],
            Some(QID) => &[Setting::IoQueues],
            Some(SQSIZE) => &[Setting::QueueSize],
            Some(KATO) => &[Setting::KeepAlive],
            None if self.status.is(Status::CONNECT_INVALID_HOST) => &[Setting::HostNqn],
            _ => &[],
        }
    }

    fn remedy(&self) -> Option<String> {
        let hostnqn = &self.names.hostnqn;
        if let Some(at) = self.at {
            return Some(match at {
                SUBNQN => "choose one of those that the target's discovery log has for this host"
                    .to_owned(),
                HOSTNQN => "give this host a valid name".to_owned(),
                HOSTID => "give this host a UUID that is not zero".to_owned(),
                CNTLID => "the controller is gone; connect anew".to_owned(),
                QID => "ask for fewer I/O queues".to_owned(),
                SQSIZE => "choose another size".to_owned(),
                KATO => "choose another time-out".to_owned(),
                _ => "host and target disagree about the protocol; update the older".to_owned(),
            });
        }
        Some(match self.status.kind() {
            Status::CONNECT_INVALID_HOST => format!(
                "add \"{hostnqn}\" to `allowed_hosts` of the subsystem in the target's \
                 configuration, or connect as another host"
            ),
            Status::CONNECT_CONTROLLER_BUSY => {
                "the target has as many controllers as it can; try again later or raise its limit"
                    .to_owned()
            }
            Status::CONNECT_INCOMPATIBLE_FORMAT => {
                "host and target disagree about the protocol; update the older".to_owned()
            }
            Status::CONNECT_RESTART_DISCOVERY => {
                "what the target offers has changed; discover again".to_owned()
            }
            Status::AUTHENTICATION_REQUIRED => {
                "this host cannot authenticate; turn authentication off for it".to_owned()
            }
            _ => return None,
        })
    }
}
