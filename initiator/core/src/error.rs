//! Why a controller could not be set up, and what to do about it.

use std::fmt;
use std::time::Duration;

use nvmeof_wire::Status;
use nvmeof_wire::fabrics::InvalidParameter;

use crate::admin::{Names, QueueShape};
use crate::blocks::CommandError;
use crate::queue::QueueFault;

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
    /// What to do about it; `target` says where that is as on the command line:
    /// `-a 192.0.2.1 -s 4420`.
    #[must_use]
    pub fn remedy(&self, target: &str) -> Option<String> {
        match self {
            Self::Refused(refusal) => refusal.remedy(target),
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

    fn remedy(&self, target: &str) -> Option<String> {
        let hostnqn = &self.names.hostnqn;
        if let Some(at) = self.at {
            return Some(match at {
                SUBNQN => format!(
                    "see which there are for this host with\n  nvmeof discover -t rdma {target}"
                ),
                HOSTNQN => "give a valid name with --hostnqn".to_owned(),
                HOSTID => "give a UUID that is not zero with --hostid".to_owned(),
                CNTLID => "the controller is gone; connect anew".to_owned(),
                QID => "ask for fewer I/O queues (--nr-io-queues)".to_owned(),
                SQSIZE => "choose another size (--queue-size)".to_owned(),
                KATO => "choose another time-out (--keep-alive-tmo)".to_owned(),
                _ => "host and target disagree about the protocol; update the older".to_owned(),
            });
        }
        Some(match self.status.kind() {
            Status::CONNECT_INVALID_HOST => format!(
                "add \"{hostnqn}\" to `allowed_hosts` of the subsystem in the target's \
                 configuration, or connect as another host with --hostnqn"
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
