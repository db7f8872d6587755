//! Errors of the set-up of a controller, with remedies.

use std::fmt;
use std::time::Duration;

use nvmeof_wire::Status;
use nvmeof_wire::fabrics::InvalidParameter;

use nvmeof_dhchap as dhchap;

use crate::admin::{Names, QueueShape};
use crate::blocks::{AUTHENTICATION_REQUIRED, CommandError};
use crate::queue::QueueFault;
use crate::setting::Setting;

/// Why a controller could not be set up.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SetupError {
    /// The Connect command failed.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// The host does not support a requirement of the target, or the reverse.
    #[error("{what}")]
    Unsupported {
        /// What is not supported.
        what: String,
        /// The remedy.
        remedy: &'static str,
        /// The settings that caused it.
        settings: &'static [Setting],
    },
    /// The keys of this host are not those that the target requires. The target may have others
    /// later.
    #[error("{what}")]
    Keys {
        /// What is missing.
        what: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
    /// CSTS.CFS is set.
    #[error("the controller reports a fatal error (CSTS.CFS)")]
    Fatal,
    /// CSTS did not change in time.
    #[error("the controller did not become {what} within {} s", after.as_secs_f32())]
    TimedOut {
        /// The state that it should have reached.
        what: &'static str,
        /// The time that it had.
        after: Duration,
    },
    /// A command of the set-up failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A response that is invalid.
    #[error("invalid response: {0}")]
    InvalidResponse(String),
    /// A log page that changed whenever it was read.
    #[error("the {page} changed during each of {attempts} attempts to read it")]
    Unstable {
        /// The page.
        page: &'static str,
        /// Number of attempts.
        attempts: usize,
    },
    /// The host or the controller was not authenticated.
    #[error("authentication failed: {0}")]
    Authentication(Box<dhchap::Refusal>),
    /// The target broke the queue's rules.
    #[error("the target violated the protocol: {0}")]
    Queue(#[from] QueueFault),
}

/// A Connect command that failed: the request and the response.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The status of the command.
    pub status: Status,
    /// The invalid parameter, with Connect Invalid Parameters.
    pub at: Option<InvalidParameter>,
    /// The names that were sent.
    pub names: Names,
    /// The requested queue.
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
    /// The remedy, if one is known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Refused(refusal) => refusal.remedy(),
            Self::Unsupported { remedy, .. } | Self::Keys { remedy, .. } => {
                Some((*remedy).to_owned())
            }
            Self::Fatal => Some("check the target's log and restart the target".to_owned()),
            Self::TimedOut { .. } => {
                Some("the target is overloaded or unresponsive; check its log".to_owned())
            }
            Self::Command(error) => error.remedy().map(str::to_owned),
            Self::Unstable { .. } => Some("the state of the target is changing: retry".to_owned()),
            Self::Authentication(refusal) => authentication_remedy(refusal).map(str::to_owned),
            Self::InvalidResponse(_) | Self::Queue(_) => {
                Some("please report it with the target's name and version".to_owned())
            }
        }
    }

    /// The settings that caused it.
    #[must_use]
    pub fn settings(&self) -> &'static [Setting] {
        match self {
            Self::Refused(refusal) => refusal.settings(),
            Self::Unsupported { settings, .. } => settings,
            Self::Command(error) => error.settings(),
            Self::Authentication(_) | Self::Keys { .. } => &[Setting::Keys],
            Self::Fatal
            | Self::TimedOut { .. }
            | Self::InvalidResponse(_)
            | Self::Unstable { .. }
            | Self::Queue(_) => &[],
        }
    }
}

/// The remedy of a failed authentication.
fn authentication_remedy(refusal: &dhchap::Refusal) -> Option<&'static str> {
    match refusal {
        dhchap::Refusal::ByController(_) | dhchap::Refusal::Closed => Some(
            "compare the key of this host, its hash functions and its groups with those that the \
             target has for this host NQN; the target's log has the cause",
        ),
        dhchap::Refusal::ControllerNotAuthenticated(_) => Some(
            "compare the controller's key with that of the target; if they are equal, another \
             machine answers at this address",
        ),
        dhchap::Refusal::NotOffered { .. }
        | dhchap::Refusal::Unexpected(_)
        | dhchap::Refusal::Payload { .. }
        | dhchap::Refusal::Malformed(_)
        | dhchap::Refusal::Work(_)
        | dhchap::Refusal::Order => None,
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
                write!(f, "host NQN `{hostnqn}` is invalid")
            }
            Some(HOSTID) => f.write_str("the host identifier is invalid"),
            Some(CNTLID) => write!(f, "queue {qid}: the controller does not exist"),
            Some(QID) => write!(f, "queue identifier {qid} is in use or out of range"),
            Some(SQSIZE) => write!(f, "queue size {size} is out of range"),
            Some(KATO) => f.write_str("the keep-alive time-out is out of range"),
            Some(other) => {
                write!(f, "Connect of queue {qid}: {} is invalid", other.field())
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
            None if self.status.is(Status::AUTHENTICATION_REQUIRED) => &[Setting::Keys],
            _ => &[],
        }
    }

    fn remedy(&self) -> Option<String> {
        let hostnqn = &self.names.hostnqn;
        if let Some(at) = self.at {
            return Some(match at {
                SUBNQN => "choose a subsystem from the target's discovery log".to_owned(),
                HOSTNQN => "give this host a valid name".to_owned(),
                HOSTID => "give this host a UUID that is not zero".to_owned(),
                CNTLID => "the controller is gone; connect again".to_owned(),
                QID => "request fewer I/O queues".to_owned(),
                SQSIZE => "choose another size".to_owned(),
                KATO => "choose another time-out".to_owned(),
                _ => "host and target use different versions of the protocol; update the older one"
                    .to_owned(),
            });
        }
        Some(match self.status.kind() {
            Status::CONNECT_INVALID_HOST => format!(
                "add \"{hostnqn}\" to `allowed_hosts` of the subsystem in the target's \
                 configuration, or connect as another host"
            ),
            Status::CONNECT_CONTROLLER_BUSY => {
                "the target is at its limit of controllers; retry later or raise the limit"
                    .to_owned()
            }
            Status::CONNECT_INCOMPATIBLE_FORMAT => {
                "host and target use different versions of the protocol; update the older one"
                    .to_owned()
            }
            Status::CONNECT_RESTART_DISCOVERY => {
                "the discovery log page has changed; discover again".to_owned()
            }
            Status::AUTHENTICATION_REQUIRED => AUTHENTICATION_REQUIRED.to_owned(),
            _ => return None,
        })
    }
}
