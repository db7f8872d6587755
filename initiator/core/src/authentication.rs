//! In-band authentication of one queue, after its Connect (NVMe Base 2.0, 8.13.5).
//!
//! [`nvmeof_dhchap::HostAuth`] has the transaction. This wraps its messages in commands.

use nvmeof_dhchap::{HostAuth, HostStep, Work, WorkResult};
use nvmeof_wire::auth::{AuthCommand, MAX_MESSAGE};
use nvmeof_wire::fabrics::{ConnectResult, FcType};
use nvmeof_wire::opcode::Direction;

use crate::admin::{Ask, Names};
use crate::blocks::CommandError;
use crate::command::{Command, CommandCompletion};
use crate::error::SetupError;

/// Authenticates one queue.
#[derive(Debug)]
pub struct Authentication {
    auth: HostAuth,
    /// What is to be done, unless a command is outstanding.
    step: Option<HostStep>,
    /// Whether the outstanding command sends.
    is_sending: bool,
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
    /// What follows a Connect of queue `qid` that succeeded with `connect`: `None` if the queue can
    /// be used.
    ///
    /// # Errors
    /// [`SetupError::Unsupported`]: the host has no key, or the controller cannot prove its own.
    pub fn after_connect(
        names: &Names,
        qid: u16,
        connect: ConnectResult,
    ) -> Result<Option<Self>, SetupError> {
        if connect.requires_secure_channel() {
            return Err(unsupported(
                "the target requires a secure channel (ASCR), which RDMA does not have",
                "configure authentication without secure channel concatenation",
            ));
        }
        let keys = names.keys.as_deref();
        if !connect.requires_authentication() {
            // A target may authenticate the admin queue only, on which the controller has proved
            // its key then.
            let controller_key = keys.and_then(|keys| keys.controller_key.as_ref());
            return match controller_key.filter(|_| qid == 0) {
                None => Ok(None),
                Some(_) => Err(unsupported(
                    "the target does not authenticate, so it cannot prove that it has the \
                     controller's key",
                    "configure keys of this host on the target, or omit the controller's key",
                )),
            };
        }
        let Some(keys) = keys else {
            return Err(unsupported(
                "the target requires in-band authentication, and this host has no key",
                "pass the key that is configured for this host on the target",
            ));
        };
        // Unique among the transactions of the host: each queue has one.
        let t_id = qid.wrapping_add(1);
        let (hostnqn, subnqn) = (names.hostnqn, names.subnqn);
        let (auth, step) = HostAuth::start(hostnqn, subnqn, keys.clone(), t_id);
        Ok(Some(Self {
            auth,
            step: Some(step),
            is_sending: false,
        }))
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
    /// [`SetupError::Command`]: the command failed.
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

fn unsupported(what: &str, remedy: &'static str) -> SetupError {
    SetupError::Unsupported {
        what: what.to_owned(),
        remedy,
        settings: &[crate::Setting::Keys],
    }
}
