//! Failures: an error number for fio; cause and remedy as text.

use std::fmt;
use std::io::ErrorKind;

use nix::errno::Errno;
use nvmeof_initiator::{Error, Lost, LostCause, MachineError, Setting, SetupFault};
use nvmeof_initiator_core::SetupError;
use nvmeof_rdma::CloseReason;

use crate::statuses;

/// A failure with its error number and message.
#[derive(Clone, Debug)]
pub struct Failure {
    text: String,
    errno: Errno,
}

impl Failure {
    /// A failure with a message that has cause and remedy.
    #[must_use]
    pub fn new(text: impl Into<String>, errno: Errno) -> Self {
        let text = text.into();
        Self { text, errno }
    }

    /// The error number for fio.
    #[must_use]
    pub fn errno(&self) -> Errno {
        self.errno
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = match error.remedy_naming(|setting| option(setting).map(str::to_owned)) {
            Some(remedy) => format!("{}; {remedy}", error.cause()),
            None => error.cause(),
        };
        Self::new(text, errno(&error))
    }
}

/// The job file option of a setting.
fn option(setting: Setting) -> Option<&'static str> {
    Some(match setting {
        Setting::Address | Setting::SocketPath => "address=",
        Setting::Subsystem => "subsystem=",
        Setting::HostNqn => "hostnqn=",
        Setting::IoQueues => "queues=",
        Setting::QueueSize => "iodepth=",
        Setting::SoftwareIwarp => "provider=iwarp",
        Setting::ShmFolder => "shm_folder=",
        Setting::Namespace => "namespace=",
        Setting::Keys => "dhchap_secret=, dhchap_ctrl_secret=",
        _ => return None,
    })
}

/// The error number that fits best, otherwise `EIO`.
pub(crate) fn errno(error: &Error) -> Errno {
    match error {
        Error::Command(error) => statuses::errno(error.status),
        Error::Lost(lost) | Error::UnknownOutcome(lost) => of_lost(lost),
        Error::Setup(setup) => match &setup.why {
            SetupFault::Rejected(_) => Errno::ECONNREFUSED,
            SetupFault::Nvme(error) => of_setup(error),
        },
        Error::Usage(_) => Errno::EINVAL,
        Error::Machine(error) => match **error {
            MachineError::NoLocalTarget(_) => Errno::ECONNREFUSED,
            _ => Errno::ENOMEM,
        },
        Error::NoPath(no_path) => match &no_path.paths[..] {
            [(_, Some(error))] => errno(error),
            _ => Errno::EHOSTUNREACH,
        },
        _ => Errno::EIO,
    }
}

/// The error number of a failed controller set-up.
fn of_setup(error: &SetupError) -> Errno {
    match error {
        SetupError::Refused(refusal) => statuses::errno_of_connect(refusal.status),
        SetupError::Command(error) => statuses::errno(error.status),
        SetupError::TimedOut { .. } => Errno::ETIMEDOUT,
        SetupError::Unsupported { .. } => Errno::EOPNOTSUPP,
        SetupError::Authentication(_) | SetupError::Keys { .. } => Errno::EKEYREJECTED,
        SetupError::Fatal => Errno::EIO,
        SetupError::Unstable { .. } => Errno::EAGAIN,
        SetupError::InvalidResponse(_) | SetupError::Queue(_) => Errno::EPROTO,
    }
}

fn of_lost(lost: &Lost) -> Errno {
    match &lost.cause {
        LostCause::Network(CloseReason::Network { kind, .. })
            if *kind == ErrorKind::ConnectionRefused =>
        {
            Errno::ECONNREFUSED
        }
        LostCause::Network(_) => Errno::ECONNRESET,
        LostCause::Timeout { .. } | LostCause::KeepAlive { .. } => Errno::ETIMEDOUT,
        LostCause::Protocol(_) => Errno::EPROTO,
        LostCause::RuntimeEnded | LostCause::Local | LostCause::NotConnected => Errno::ENOTCONN,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nvmeof_initiator::{
        CommandError, Names, NoPath, Nqn, QueueShape, Setup, Status, UsageError,
    };
    use nvmeof_initiator_core::Refusal;

    use super::*;

    fn lost(established: bool, cause: LostCause) -> Error {
        Lost {
            addr: "10.0.0.1:4420".parse().unwrap(),
            qid: 1,
            provider: "iwarp",
            established,
            cause,
        }
        .into()
    }

    #[test]
    fn each_error_has_a_number() {
        for (status, number) in [
            (Status::CAPACITY_EXCEEDED, Errno::ENOSPC),
            (Status::NAMESPACE_WRITE_PROTECTED, Errno::EROFS),
            (Status::INVALID_OPCODE, Errno::EOPNOTSUPP),
            (Status::LBA_OUT_OF_RANGE, Errno::EREMOTEIO),
            (Status::WRITE_FAULT, Errno::ENODATA),
        ] {
            let error = CommandError {
                command: "Write",
                status,
                result: 0,
                place: None,
            };
            assert_eq!(errno(&error.into()), number);
        }
        let busy = |status| {
            let refusal = Refusal {
                status,
                at: None,
                names: Names {
                    hostid: [1; 16],
                    hostnqn: Nqn::discovery(),
                    subnqn: Nqn::discovery(),
                    keys: None,
                },
                queue: QueueShape {
                    qid: 0,
                    size: 32,
                    flow_control: true,
                },
            };
            Error::Setup(Arc::new(Setup {
                addr: "10.0.0.1:4420".parse().unwrap(),
                qid: 0,
                why: SetupFault::Nvme(SetupError::Refused(Box::new(refusal))),
            }))
        };
        assert_eq!(errno(&busy(Status::CONNECT_CONTROLLER_BUSY)), Errno::EBUSY);
        assert_eq!(errno(&busy(Status::CONNECT_INVALID_HOST)), Errno::EACCES);
        let timeout = LostCause::Timeout { what: "Read" };
        assert_eq!(errno(&lost(true, timeout)), Errno::ETIMEDOUT);
        assert_eq!(errno(&lost(true, LostCause::Local)), Errno::ENOTCONN);
        let nobody = MachineError::NoLocalTarget("x".to_owned());
        assert_eq!(errno(&nobody.into()), Errno::ECONNREFUSED);
        let usage = UsageError::Other("x".to_owned());
        assert_eq!(errno(&usage.into()), Errno::EINVAL);
        let keep_alive = || {
            let (cntlid, timeout) = (1, std::time::Duration::ZERO);
            lost(true, LostCause::KeepAlive { cntlid, timeout })
        };
        for (count, number) in [(1, Errno::ETIMEDOUT), (2, Errno::EHOSTUNREACH)] {
            let path = || ("10.0.0.1:4420".parse().unwrap(), Some(keep_alive()));
            let no_path = NoPath {
                subnqn: Nqn::discovery(),
                paths: std::iter::repeat_with(path).take(count).collect(),
                states: Vec::new(),
            };
            assert_eq!(errno(&Error::NoPath(Arc::new(no_path))), number);
        }
    }

    #[test]
    fn remedies_are_those_of_a_job_file() {
        let refused = CloseReason::network(&ErrorKind::ConnectionRefused.into());
        let refused = LostCause::Network(refused);
        let failure = Failure::from(lost(false, refused));
        assert_eq!(failure.errno(), Errno::ECONNREFUSED);
        let text = failure.to_string();
        assert!(text.contains("nothing listens on 10.0.0.1:4420"), "{text}");
        assert!(text.contains("address="), "{text}");
        assert!(!text.contains("(-a)"), "{text}");
        let name = "verbs";
        let text = "no device".to_owned();
        for (why, option) in [
            (
                MachineError::NoLocalTarget("nobody".to_owned()),
                "shm_folder=",
            ),
            (MachineError::Provider { name, text }, "provider=iwarp"),
        ] {
            let text = Failure::from(Error::from(why)).to_string();
            assert!(text.contains(option) && !text.contains("--"), "{text}");
        }
        let known = "1".to_owned();
        let absent = UsageError::NoNamespace { nsid: 7, known };
        let text = Failure::from(Error::from(absent)).to_string();
        assert!(
            text.ends_with("it has 1; choose an active namespace (namespace=)"),
            "{text}"
        );
    }
}
