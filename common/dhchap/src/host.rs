//! The host's side of a transaction, on one queue.
//!
//! ```text
//!  start                         Challenge           Work            sent
//!  ─────► Negotiate (Send, Receive) ─────► Responding ───► Reply (Send, Receive)
//!                                                                      │ Success1
//!  any ── Failure1, wrong message ──► Refused          ┌── one-way ────┤
//!                                                      ▼               ▼ R2 is right
//!                                                    Done ◄──── Success2 (Send)
//!                                    R2 is wrong: Failure2 (Send), Refused
//! ```

use std::sync::Arc;

use nvmeof_wire::Nqn;
use nvmeof_wire::auth::{
    Challenge, Explanation, Failure, FailureSide, GroupId, HashId, MAX_MESSAGE, Message, Negotiate,
    Reply, Success1, Success2,
};

use crate::key::Key;
use crate::response::Response;
use crate::work::{Done, Kind, PeerChallenge, Respond, Transaction};
use crate::{Work, WorkError, WorkResult};

/// The keys of a host, and what it may use.
#[derive(Clone, Debug)]
pub struct HostKeys {
    /// The key of the host.
    pub key: Arc<Key>,
    /// The key of the controller: if there is one, the controller has to prove it.
    pub controller_key: Option<Arc<Key>>,
    /// Hash functions to offer, the preferred first, at most 30.
    pub hashes: Vec<HashId>,
    /// Groups to offer, the preferred first, at most 30.
    pub groups: Vec<GroupId>,
}

impl HostKeys {
    /// Offers all hash functions and groups that are known, cheap ones first.
    #[must_use]
    pub fn new(key: Arc<Key>, controller_key: Option<Arc<Key>>) -> Self {
        Self {
            key,
            controller_key,
            hashes: vec![HashId::SHA256, HashId::SHA384, HashId::SHA512],
            groups: vec![
                GroupId::NULL,
                GroupId::FFDHE2048,
                GroupId::FFDHE3072,
                GroupId::FFDHE4096,
                GroupId::FFDHE6144,
                GroupId::FFDHE8192,
            ],
        }
    }
}

/// What to do next.
#[derive(Debug)]
pub enum HostStep {
    /// Send these bytes (Authentication Send), then call [`HostAuth::sent`].
    Send(Vec<u8>),
    /// Fetch a message of at most [`MAX_MESSAGE`] bytes (Authentication Receive), then call
    /// [`HostAuth::received`].
    Receive,
    /// Run this, then call [`HostAuth::finished`].
    Run(Work),
    /// Both sides did what they had to: the queue may be used.
    Done,
    /// The queue is to be closed.
    Refused(Refusal),
}

/// Why a transaction failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The controller reports a failure.
    #[error("the controller reports: {}", .0.name())]
    ByController(Explanation),
    /// The controller does not have the key that is required of it.
    #[error("the controller did not prove its key: {0}")]
    ControllerNotAuthenticated(&'static str),
    /// The controller chose something that was not offered.
    #[error("the controller chose {what} {value:#04x}, which was not offered")]
    NotOffered {
        /// Hash function or group.
        what: &'static str,
        /// Its identifier.
        value: u8,
    },
    /// A message at the wrong time.
    #[error("unexpected message {0}")]
    Unexpected(&'static str),
    /// A message with wrong contents.
    #[error("{message}: {why}")]
    Payload {
        /// The message.
        message: &'static str,
        /// The field and its rule.
        why: &'static str,
    },
    /// No message at all.
    #[error("malformed message: {}", .0.name())]
    Malformed(Explanation),
    /// The host could not compute its response.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// The connection ended before the transaction, as that of nvmet does after a wrong key.
    #[error("the target closed the connection during authentication")]
    Closed,
    /// The caller did something else than requested.
    #[error("steps out of order")]
    Order,
}

/// The host's side of authentication on one queue: one transaction.
#[derive(Debug)]
pub struct HostAuth {
    hostnqn: Nqn,
    subnqn: Nqn,
    keys: HostKeys,
    t_id: u16,
    state: State,
}

#[derive(Debug)]
enum State {
    Negotiating,
    AwaitChallenge,
    Responding(Box<Transaction>),
    Replying {
        hash: HashId,
        expected: Option<Response>,
    },
    AwaitSuccess {
        hash: HashId,
        expected: Option<Response>,
    },
    /// Success2 or Failure2 is sent: how it ends.
    Ending(Result<(), Refusal>),
    Ended,
}

impl HostAuth {
    /// A transaction `t_id` for a queue of a controller of `subnqn`, and its first step.
    #[must_use]
    pub fn start(hostnqn: Nqn, subnqn: Nqn, keys: HostKeys, t_id: u16) -> (Self, HostStep) {
        let mut this = Self {
            hostnqn,
            subnqn,
            keys,
            t_id,
            state: State::Negotiating,
        };
        let message = Negotiate {
            t_id,
            sc_c: 0,
            hashes: &this.keys.hashes,
            groups: &this.keys.groups,
            is_offered: true,
        };
        let mut bytes = vec![0; MAX_MESSAGE];
        let step = match message.write(&mut bytes) {
            Some(len) => {
                bytes.truncate(len);
                HostStep::Send(bytes)
            }
            None => this.refuse(Refusal::Order),
        };
        (this, step)
    }

    /// The message was sent.
    pub fn sent(&mut self) -> HostStep {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Negotiating => self.state = State::AwaitChallenge,
            State::Replying { hash, expected } => {
                self.state = State::AwaitSuccess { hash, expected };
            }
            State::Ending(Ok(())) => return HostStep::Done,
            State::Ending(Err(refusal)) => return HostStep::Refused(refusal),
            _ => return HostStep::Refused(Refusal::Order),
        }
        HostStep::Receive
    }

    /// The message that was fetched, and perhaps bytes after it.
    pub fn received(&mut self, bytes: &[u8]) -> HostStep {
        let message = match Message::parse(bytes) {
            Ok(message) => message,
            Err(error) => return self.end(Refusal::Malformed(error.explanation())),
        };
        match (std::mem::replace(&mut self.state, State::Ended), &message) {
            (_, Message::Failure(failure)) if failure.side == FailureSide::Controller => {
                self.refuse(Refusal::ByController(failure.explanation))
            }
            (State::AwaitChallenge, Message::Challenge(challenge)) => self.challenge(challenge),
            (State::AwaitSuccess { hash, expected }, Message::Success1(success)) => {
                self.success(hash, expected.as_ref(), success)
            }
            (_, message) => self.end(Refusal::Unexpected(message.name())),
        }
    }

    /// The result of the computation.
    pub fn finished(&mut self, result: WorkResult) -> HostStep {
        let State::Responding(transaction) = std::mem::replace(&mut self.state, State::Ended)
        else {
            return self.refuse(Refusal::Order);
        };
        let (response, public, expected) = match *result.done {
            Ok(Done::Responded {
                response,
                public,
                expected,
            }) => (response, public, expected),
            Ok(_) => return self.refuse(Refusal::Order),
            Err(error) => return self.end(error.into()),
        };
        let challenge = expected.as_ref().map(|(own, _)| own);
        let reply = Reply {
            t_id: self.t_id,
            // Without a challenge it has no meaning, but 0 requests a secure channel.
            seqnum: challenge.map_or(1, |own| own.seqnum),
            response: response.as_bytes(),
            challenge: challenge.map(|own| own.value.as_slice()),
            public: &public,
        };
        let mut bytes = vec![0; MAX_MESSAGE];
        let Some(len) = reply.write(&mut bytes) else {
            return self.refuse(Refusal::Order);
        };
        bytes.truncate(len);
        self.state = State::Replying {
            hash: transaction.hash,
            expected: expected.map(|(_, response)| response),
        };
        HostStep::Send(bytes)
    }

    /// Why the transaction failed, if the connection has ended now: the controller may close it
    /// before it completes a last message.
    #[must_use]
    pub fn closed(&self) -> Refusal {
        match &self.state {
            State::Ending(Err(refusal)) => refusal.clone(),
            _ => Refusal::Closed,
        }
    }

    fn challenge(&mut self, challenge: &Challenge<'_>) -> HostStep {
        const CHALLENGE: &str = "DH-HMAC-CHAP_Challenge";
        let wrong = |why| Refusal::Payload {
            message: CHALLENGE,
            why,
        };
        let Challenge { hash, group, .. } = *challenge;
        let not_offered = |what, value| Refusal::NotOffered { what, value };
        let refusal = if challenge.t_id != self.t_id {
            Some(wrong("T_ID is of another transaction"))
        } else if !self.keys.hashes.contains(&hash) {
            Some(not_offered("hash function", hash.0))
        } else if !self.keys.groups.contains(&group) {
            Some(not_offered("group", group.0))
        } else if Some(challenge.challenge.len()) != hash.hash_len() {
            Some(wrong("HL is not the length of the hash"))
        } else if Some(challenge.public.len()) != group.public_len() {
            Some(wrong("DHVLEN is not the length of the modulus"))
        } else if challenge.seqnum == 0 {
            Some(wrong("SEQNUM is 0"))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            return self.end(refusal);
        }
        let transaction = Transaction {
            hash,
            group,
            t_id: self.t_id,
            hostnqn: self.hostnqn,
            subnqn: self.subnqn,
        };
        self.state = State::Responding(Box::new(transaction));
        HostStep::Run(Work {
            number: 0,
            kind: Box::new(Kind::Respond(Respond {
                transaction,
                key: Arc::clone(&self.keys.key),
                peer: PeerChallenge {
                    value: challenge.challenge.to_vec(),
                    seqnum: challenge.seqnum,
                },
                public: challenge.public.to_vec(),
                controller_key: self.keys.controller_key.clone(),
            })),
        })
    }

    fn success(
        &mut self,
        hash: HashId,
        expected: Option<&Response>,
        success: &Success1<'_>,
    ) -> HostStep {
        const SUCCESS: &str = "DH-HMAC-CHAP_Success1";
        let wrong = |why| Refusal::Payload {
            message: SUCCESS,
            why,
        };
        if success.t_id != self.t_id {
            return self.end(wrong("T_ID is of another transaction"));
        }
        match (expected, success.response) {
            (None, None) => HostStep::Done,
            (None, Some(_)) => self.end(wrong("RVALID is 1 without a challenge")),
            (Some(_), None) => self.end(Refusal::ControllerNotAuthenticated("it sent no response")),
            (Some(_), Some(response)) if Some(response.len()) != hash.hash_len() => {
                self.end(wrong("HL is not the length of the hash"))
            }
            (Some(expected), Some(response)) if expected.equals(response) => {
                self.last(Ok(()), |bytes, t_id| Success2 { t_id }.write(bytes))
            }
            (Some(_), Some(_)) => self.end(Refusal::ControllerNotAuthenticated(
                "its response is of another key",
            )),
        }
    }

    /// Reports a failure to the controller, and ends.
    fn end(&mut self, refusal: Refusal) -> HostStep {
        let explanation = match &refusal {
            Refusal::Unexpected(_) => Explanation::INCORRECT_MESSAGE,
            Refusal::Payload { .. } | Refusal::Work(WorkError::Exchange(_)) => {
                Explanation::INCORRECT_PAYLOAD
            }
            Refusal::NotOffered { what: "group", .. } => Explanation::GROUP_NOT_USABLE,
            Refusal::NotOffered { .. } => Explanation::HASH_NOT_USABLE,
            Refusal::Malformed(explanation) => *explanation,
            _ => Explanation::FAILED,
        };
        self.last(Err(refusal), |bytes, t_id| {
            let failure = Failure {
                t_id,
                side: FailureSide::Host,
                explanation,
            };
            failure.write(bytes)
        })
    }

    /// Sends a last message.
    fn last(
        &mut self,
        ending: Result<(), Refusal>,
        write: impl FnOnce(&mut [u8], u16) -> Option<usize>,
    ) -> HostStep {
        let mut bytes = vec![0; 16];
        let Some(len) = write(&mut bytes, self.t_id) else {
            return self.refuse(Refusal::Order);
        };
        bytes.truncate(len);
        self.state = State::Ending(ending);
        HostStep::Send(bytes)
    }

    fn refuse(&mut self, refusal: Refusal) -> HostStep {
        self.state = State::Ended;
        HostStep::Refused(refusal)
    }
}
