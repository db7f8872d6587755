//! In-band authentication of one queue, after its Connect and again later (NVMe Base 2.0, 8.13.5).
//!
//! [`nvmeof_dhchap::HostAuth`] has the transaction. This wraps its messages in commands.

use nvmeof_dhchap::{HostAuth, HostKeys, HostStep, Work, WorkResult};
use nvmeof_wire::Status;
use nvmeof_wire::auth::{AuthCommand, MAX_MESSAGE};
use nvmeof_wire::fabrics::{ConnectResult, FcType};
use nvmeof_wire::opcode::Direction;

use crate::admin::{Ask, Names, QueueShape};
use crate::blocks::CommandError;
use crate::command::{Command, CommandCompletion};
use crate::error::{Refusal, SetupError};
use crate::setting::Setting;

/// Authenticates one queue: one transaction.
#[derive(Debug)]
pub struct Authentication {
    auth: HostAuth,
    /// What is to be done, unless a command is outstanding.
    step: Option<HostStep>,
    /// Whether the outstanding command sends.
    is_sending: bool,
    /// What the Connect of the queue requested, which the last message of the first transaction
    /// completes.
    connect: Option<Box<(Names, QueueShape)>>,
}

/// What to do next.
#[derive(Debug)]
pub enum AuthenticationStep {
    /// Send this, and pass the completion to `handle_completion`.
    Send(Ask),
    /// Run this, and pass the result to `handle_result`. It takes up to 100 ms, depending on the
    /// group.
    Run(Work),
    /// Wait for the completion of the last command.
    Pending,
    /// The queue is authenticated.
    Done,
}

/// Bytes that one command fetches.
const ROOM: u32 = 4096;
const _: () = assert!(ROOM as usize == MAX_MESSAGE);

impl Authentication {
    /// What follows a Connect of `queue` that succeeded with `connect`: `None` if the queue can be
    /// used.
    ///
    /// # Errors
    /// [`SetupError::Keys`]: the host has no key, or the controller cannot prove its own.
    /// [`SetupError::Unsupported`]: the controller requires a secure channel.
    pub fn after_connect(
        names: &Names,
        queue: QueueShape,
        connect: ConnectResult,
    ) -> Result<Option<Self>, SetupError> {
        if connect.requires_secure_channel() {
            return Err(SetupError::Unsupported {
                what: "the target requires a secure channel (ASCR), which RDMA does not have"
                    .to_owned(),
                remedy: "configure authentication without secure channel concatenation",
                settings: &[Setting::Keys],
            });
        }
        let keys = names.keys.as_deref();
        if !connect.requires_authentication() {
            // An I/O queue as well: its connection may reach another machine than that of the
            // admin queue.
            return match keys.and_then(|keys| keys.controller_key.as_ref()) {
                None => Ok(None),
                Some(_) => Err(SetupError::Keys {
                    what: match queue.qid {
                        0 => {
                            "the target does not authenticate, so it cannot prove that it has \
                              the controller's key"
                        }
                        _ => {
                            "the target does not authenticate an I/O queue, so it cannot prove \
                              that it has the controller's key"
                        }
                    },
                    remedy: "configure keys of this host on the target, or omit the controller's \
                             key",
                }),
            };
        }
        let Some(keys) = keys else {
            return Err(no_key(
                "the target requires in-band authentication, and this host has no key",
            ));
        };
        Ok(Some(Self {
            connect: Some(Box::new((names.clone(), queue))),
            ..Self::start(names, keys, t_id(queue.qid, 0))
        }))
    }

    /// Authenticates the connected queue `qid` again, which goes on serving. `round` counts these
    /// transactions of the queue from 1 on.
    ///
    /// # Errors
    /// [`SetupError::Keys`]: the host has no key.
    pub fn again(names: &Names, qid: u16, round: u8) -> Result<Self, SetupError> {
        let keys = names.keys.as_deref().ok_or_else(|| {
            no_key("the queue cannot be authenticated again, because this host has no key")
        })?;
        Ok(Self::start(names, keys, t_id(qid, round)))
    }

    fn start(names: &Names, keys: &HostKeys, t_id: u16) -> Self {
        let (hostnqn, subnqn) = (names.hostnqn, names.subnqn);
        let (auth, step) = HostAuth::start(hostnqn, subnqn, keys.clone(), t_id);
        Self {
            auth,
            step: Some(step),
            is_sending: false,
            connect: None,
        }
    }

    /// The next step.
    ///
    /// # Errors
    /// [`SetupError::Authentication`]: the queue is to be closed.
    pub fn poll(&mut self) -> Result<AuthenticationStep, SetupError> {
        Ok(match self.step.take() {
            None => AuthenticationStep::Pending,
            Some(HostStep::Send(bytes)) => {
                self.is_sending = true;
                AuthenticationStep::Send(send(bytes))
            }
            Some(HostStep::Receive) => {
                self.is_sending = false;
                AuthenticationStep::Send(receive().into())
            }
            Some(HostStep::Run(work)) => AuthenticationStep::Run(work),
            Some(HostStep::Done) => {
                self.step = Some(HostStep::Done);
                AuthenticationStep::Done
            }
            Some(HostStep::Refused(refusal)) => {
                return Err(SetupError::Authentication(Box::new(refusal)));
            }
        })
    }

    /// Takes the completion of the last command; `data` is what was fetched.
    ///
    /// # Errors
    /// [`SetupError::Command`]: the command failed. [`SetupError::Refused`]: the host is
    /// authenticated, and the controller refuses the queue, such as at its limit of controllers.
    pub fn handle_completion(
        &mut self,
        completion: CommandCompletion,
        data: &[u8],
    ) -> Result<(), SetupError> {
        let fctype = match self.is_sending {
            true => FcType::AUTH_SEND,
            false => FcType::AUTH_RECEIVE,
        };
        if !completion.status.is_success() {
            if let Some(connect) = &self.connect
                && is_of_connect(completion.status)
            {
                let (names, queue) = &**connect;
                let refusal = Refusal::new(completion.status, completion.result, names, *queue);
                return Err(SetupError::Refused(Box::new(refusal)));
            }
            return Err(SetupError::Command(CommandError {
                command: fctype.name(),
                status: completion.status,
                result: completion.result,
                place: None,
            }));
        }
        self.step = Some(match self.is_sending {
            true => self.auth.sent(),
            false => self.auth.received(data),
        });
        Ok(())
    }

    /// The error if the connection has ended now.
    #[must_use]
    pub fn closed(&self) -> SetupError {
        SetupError::Authentication(Box::new(self.auth.closed()))
    }

    /// Takes the result of a computation.
    pub fn handle_result(&mut self, result: WorkResult) {
        self.step = Some(self.auth.finished(result));
    }
}

/// The identifier of a transaction. Queues have different ones at the same time (with up to 255
/// queues), and a message of the last round of a queue does not match this one.
fn t_id(qid: u16, round: u8) -> u16 {
    (u16::from(round) << 8).wrapping_add(qid).wrapping_add(1)
}

fn send(bytes: Vec<u8>) -> Ask {
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let sqe = AuthCommand::send(len).to_sqe();
    let name = FcType::AUTH_SEND.name();
    Ask {
        command: Command::new(sqe, name, Direction::ToController, len),
        payload: bytes,
    }
}

fn receive() -> Command {
    let sqe = AuthCommand::receive(ROOM).to_sqe();
    Command::new(sqe, FcType::AUTH_RECEIVE.name(), Direction::ToHost, ROOM)
}

/// Whether `status` is one of Connect (NVMe Base 2.0, section 6.3).
fn is_of_connect(status: Status) -> bool {
    let statuses = [
        Status::CONNECT_INCOMPATIBLE_FORMAT,
        Status::CONNECT_CONTROLLER_BUSY,
        Status::CONNECT_INVALID_PARAMETERS,
        Status::CONNECT_RESTART_DISCOVERY,
        Status::CONNECT_INVALID_HOST,
    ];
    statuses.iter().any(|it| status.is(*it))
}

fn no_key(what: &'static str) -> SetupError {
    SetupError::Keys {
        what,
        remedy: "pass the key that is configured for this host on the target",
    }
}
