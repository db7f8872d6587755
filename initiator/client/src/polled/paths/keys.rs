//! Authentication of the queues of connected controllers again, with other keys.
//!
//! ```text
//!  MultipathAdmin                                     MultipathIo
//!  Admin ── admin queue authenticated ──request──► its I/O queues, all at once
//!    │                                    Io ◄──────── all have ended ──┘
//!    └── failed ─► ended ◄── answered ────┘
//! ```
//!
//! It ends: each transaction of a queue has a time limit, a controller whose queues are lost is
//! lost itself, and the I/O half answers what it has not ended when it is closed or dropped.

use std::sync::Arc;

use nvmeof_initiator_core::dhchap::HostKeys;

use super::shared::{Incarnation, Report};
use crate::error::{Error, UsageError};
use crate::polled::io::IoQueue;

/// A change of the keys of all paths, which the program requested.
#[derive(Debug)]
pub(super) struct KeyChange {
    pub(super) keys: Arc<HostKeys>,
    /// Controllers that were being connected when it began: they are part of it.
    pub(super) connecting: Vec<Incarnation>,
    /// The first error.
    pub(super) result: Result<(), Error>,
}

impl KeyChange {
    /// A path failed.
    pub(super) fn failed(&mut self, error: Error) {
        if self.result.is_ok() {
            self.result = Err(error);
        }
    }
}

/// The I/O queues of a controller are to be authenticated again.
#[derive(Clone, Debug)]
pub(super) struct KeyRequest {
    pub(super) of: Incarnation,
    /// Identifies the request among those of the controller.
    pub(super) number: u64,
    pub(super) keys: Arc<HostKeys>,
}

/// The authentication of a controller.
#[derive(Debug, Default)]
pub(super) struct Authentication {
    /// The keys of the last one, or of the connection.
    keys: Option<Arc<HostKeys>>,
    number: u64,
    stage: Stage,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Idle,
    Admin,
    Io {
        is_requested: bool,
    },
    Ended(Result<(), Error>),
}

impl Authentication {
    /// Of a controller that is connected with `keys`.
    pub(super) fn new(keys: Option<Arc<HostKeys>>) -> Self {
        Self {
            keys,
            ..Self::default()
        }
    }

    /// The keys of the last one, or of the connection.
    pub(super) fn keys(&self) -> Option<&Arc<HostKeys>> {
        self.keys.as_ref()
    }

    /// Whether `keys` are those of the last one, or of the connection.
    pub(super) fn is_with(&self, keys: &Arc<HostKeys>) -> bool {
        self.keys.as_ref().is_some_and(|it| Arc::ptr_eq(it, keys))
    }

    /// The authentication of the admin queue is requested. Replaces one in progress.
    pub(super) fn begin(&mut self, keys: Arc<HostKeys>) {
        self.keys = Some(keys);
        self.number += 1;
        self.stage = Stage::Admin;
    }

    /// The admin queue has ended it.
    pub(super) fn on_admin(&mut self, result: Result<(), Error>) {
        if matches!(self.stage, Stage::Admin) {
            self.stage = match result {
                Ok(()) => Stage::Io {
                    is_requested: false,
                },
                Err(error) => Stage::Ended(Err(error)),
            };
        }
    }

    /// The request to the I/O half, once.
    pub(super) fn take_request(&mut self, of: Incarnation) -> Option<KeyRequest> {
        let Stage::Io { is_requested } = &mut self.stage else {
            return None;
        };
        let keys = self.keys.clone()?;
        let number = self.number;
        (!std::mem::replace(is_requested, true)).then_some(KeyRequest { of, number, keys })
    }

    /// The I/O half has answered request `number`.
    pub(super) fn on_answer(&mut self, number: u64, result: Result<(), Error>) {
        if number == self.number && matches!(self.stage, Stage::Io { .. }) {
            self.stage = Stage::Ended(result);
        }
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Admin | Stage::Io { .. })
    }

    /// The keys and the result, once.
    pub(super) fn take_result(&mut self) -> Option<(Arc<HostKeys>, Result<(), Error>)> {
        let Stage::Ended(result) = &self.stage else {
            return None;
        };
        let ended = (self.keys.clone()?, result.clone());
        self.stage = Stage::Idle;
        Some(ended)
    }
}

/// A request that the I/O half works on.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) of: Incarnation,
    number: u64,
    /// Queues that have not ended it.
    unended: usize,
    /// The first error.
    result: Result<(), Error>,
}

impl KeyRequest {
    /// The answer of an I/O half that has ended.
    pub(super) fn closed(&self) -> Report {
        Report::Authenticated(self.of, self.number, Err(closed()))
    }
}

fn closed() -> Error {
    UsageError::Other("the I/O queues are closed".to_owned()).into()
}

impl Pending {
    /// Begins to authenticate `queues`.
    pub(super) fn begin(request: &KeyRequest, queues: &mut [IoQueue]) -> Self {
        let mut pending = Self {
            of: request.of,
            number: request.number,
            unended: queues.len(),
            result: Ok(()),
        };
        for queue in queues {
            if let Err(error) = queue.reauthenticate(Some(Arc::clone(&request.keys))) {
                pending.on_ended(Err(error));
            }
        }
        pending
    }

    /// The answer, once all `queues` have ended it, or one has failed and they `are_lost`.
    pub(super) fn poll(&mut self, queues: &mut [IoQueue], are_lost: bool) -> Option<Report> {
        for queue in queues {
            if let Some(result) = queue.take_reauthentication() {
                self.on_ended(result);
            }
        }
        let is_ended = self.unended == 0 || (are_lost && self.result.is_err());
        is_ended.then(|| Report::Authenticated(self.of, self.number, self.result.clone()))
    }

    /// The answer if the I/O half ends before.
    pub(super) fn closed(&self) -> Report {
        Report::Authenticated(self.of, self.number, Err(closed()))
    }

    fn on_ended(&mut self, result: Result<(), Error>) {
        self.unended = self.unended.saturating_sub(1);
        if self.result.is_ok() {
            self.result = result;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use nvmeof_initiator_core::dhchap::Key;
    use nvmeof_memory::Secret;

    use super::*;

    /// The I/O half may answer before it sees the request that replaces the one that it answers.
    #[test]
    fn answer_to_a_replaced_request_is_ignored() {
        let secret = Secret::take(&mut [1; 32]).unwrap();
        let key = Arc::new(Key::of(secret, None).unwrap());
        let keys = Arc::new(HostKeys::new(key, None));
        let mut authentication = Authentication::default();
        let of = Incarnation(1);
        let mut requested = || {
            authentication.begin(Arc::clone(&keys));
            authentication.on_admin(Ok(()));
            authentication.take_request(of).unwrap().number
        };
        let (first, second) = (requested(), requested());
        assert!(authentication.take_request(of).is_none(), "once");
        authentication.on_answer(first, Ok(()));
        assert!(authentication.is_running() && authentication.take_result().is_none());
        authentication.on_answer(second, Ok(()));
        let (with, result) = authentication.take_result().unwrap();
        assert!(Arc::ptr_eq(&with, &keys) && result.is_ok());
        assert!(!authentication.is_running() && authentication.is_with(&keys));
    }
}
