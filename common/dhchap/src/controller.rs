//! The controller's side of a transaction, on one queue.
//!
//! ```text
//!              Negotiate            Work                Receive
//!  Idle ──────────────► Choosing ───────► Challenge ────────────► AwaitReply
//!   ▲                                                                │ Reply
//!   │          Success2             Receive              Work        ▼
//!   ├────◄─── AwaitSuccess2 ◄──────────── Success ◄───────────── Verifying
//!   │             Receive, without challenge of the host │
//!   └────────────────────◄───────────────────────────────┘
//!  any ── wrong message, wrong response ──► Failure ── Receive ──► Failed
//! ```
//!
//! A queue that was authenticated once remains so while it authenticates again, and also if that
//! fails: see [`ControllerAuth::is_authenticated`].

use std::sync::Arc;
use std::time::Duration;

use nvmeof_wire::Nqn;
use nvmeof_wire::auth::{
    Challenge, Explanation, Failure, FailureSide, GroupId, HashId, Message, Negotiate, Reply,
    Success1,
};

use crate::key::Key;
use crate::work::{Done, Kind, OwnChallenge, PeerChallenge, Transaction, Verify};
use crate::{Work, WorkError, WorkResult};

/// What a host has to prove, and how.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The keys of the host: one, or two while it gets a new one.
    pub keys: Vec<Arc<Key>>,
    /// The key of the controller, for hosts that require it.
    pub controller_key: Option<Arc<Key>>,
    /// Hash functions that may be used, the preferred first.
    pub hashes: Vec<HashId>,
    /// Groups that may be used, the preferred first.
    pub groups: Vec<GroupId>,
}

/// What the controller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Nothing: no transaction is in progress.
    Nothing,
    /// A message of the host, or that it fetches one.
    Host,
    /// The result of a [`Work`].
    Work,
    /// That the queue is closed: the host has fetched the failure, or reported one.
    Close,
}

/// The response to an Authentication Receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A message of this length, in bytes.
    Message(usize),
    /// The message is being computed: the command completes after [`ControllerAuth::finish`].
    Later,
    /// There is nothing to fetch: Command Sequence Error.
    Nothing,
    /// The buffer of the host is shorter than the message: Invalid Field.
    TooShort,
}

/// Why a transaction failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthFailure {
    /// The host has no key, so that it cannot be authenticated.
    #[error("no key is configured for the host")]
    NoKey,
    /// Its response is of none of its keys.
    #[error("the response is of no key of the host")]
    WrongResponse,
    /// The host wants the controller to authenticate itself, which has no key.
    #[error("the host requires authentication of the controller, for which no key is configured")]
    NoControllerKey,
    /// The host supports nothing that may be used.
    #[error("the host offers no usable {0}")]
    NotUsable(&'static str),
    /// The host requests secure channel concatenation.
    #[error("the host requests secure channel concatenation ({0:#04x}), which RDMA does not have")]
    Concatenation(u8),
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
    /// The host did not continue in time.
    #[error("no message within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The host reports a failure.
    #[error("the host reports: {}", .0.name())]
    ByHost(Explanation),
    /// The controller could not compute what it needs.
    #[error(transparent)]
    Work(#[from] WorkError),
}

impl AuthFailure {
    /// What the host is told.
    #[must_use]
    pub fn explanation(&self) -> Explanation {
        match self {
            Self::NotUsable("protocol") => Explanation::PROTOCOL_NOT_USABLE,
            Self::NotUsable("hash function") => Explanation::HASH_NOT_USABLE,
            Self::NotUsable(_) => Explanation::GROUP_NOT_USABLE,
            Self::Concatenation(_) => Explanation::CONCATENATION_MISMATCH,
            Self::Unexpected(_) => Explanation::INCORRECT_MESSAGE,
            Self::Payload { .. } | Self::Work(WorkError::Exchange(_)) => {
                Explanation::INCORRECT_PAYLOAD
            }
            Self::Malformed(explanation) => *explanation,
            _ => Explanation::FAILED,
        }
    }
}

/// The controller's side of authentication on one queue.
#[derive(Debug)]
pub struct ControllerAuth {
    hostnqn: Nqn,
    subnqn: Nqn,
    policy: Arc<Policy>,
    /// The longest time between two steps of the host.
    timeout: Duration,
    state: State,
    deadline: Option<Duration>,
    is_authenticated: bool,
    /// Index of the key that the host proved last.
    proved: Option<usize>,
    /// Counts transactions.
    number: u64,
}

#[derive(Debug)]
enum State {
    Idle,
    Choosing(Transaction),
    Challenge(Box<Challenged>),
    AwaitReply(Box<Challenged>),
    Verifying(Transaction),
    Success {
        t_id: u16,
        hash: HashId,
        response: Option<Vec<u8>>,
    },
    AwaitSuccess2 {
        t_id: u16,
    },
    Failure {
        t_id: u16,
        explanation: Explanation,
    },
    /// The queue is to be closed.
    Failed,
}

struct Challenged {
    transaction: Transaction,
    own: OwnChallenge,
}

impl std::fmt::Debug for Challenged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.transaction.fmt(f)
    }
}

/// The timeout of a step if the controller has no Keep Alive Timeout (NVMe Base 2.0, 8.13.5.2).
const NO_KEEP_ALIVE: Duration = Duration::from_secs(120);

impl ControllerAuth {
    /// A queue of that host that has to authenticate itself from `now` on. `keep_alive` is the Keep
    /// Alive Timeout of its controller, zero for none.
    #[must_use]
    pub fn new(
        hostnqn: Nqn,
        subnqn: Nqn,
        policy: Arc<Policy>,
        keep_alive: Duration,
        now: Duration,
    ) -> Self {
        let timeout = match keep_alive {
            Duration::ZERO => NO_KEEP_ALIVE,
            keep_alive => keep_alive,
        };
        Self {
            hostnqn,
            subnqn,
            policy,
            timeout,
            state: State::Idle,
            deadline: now.checked_add(timeout),
            is_authenticated: false,
            proved: None,
            number: 0,
        }
    }

    /// Whether the host has authenticated itself once. A failure of a later transaction does not
    /// change this, because it may be another peer's message or a key that is being changed.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// Index in [`Policy::keys`] of the key that the host proved last.
    #[must_use]
    pub fn proved_key(&self) -> Option<usize> {
        self.proved
    }

    /// Uses other keys from the next transaction on.
    pub fn set_policy(&mut self, policy: Arc<Policy>) {
        self.policy = policy;
    }

    /// What the controller waits for.
    #[must_use]
    pub fn expected(&self) -> Expected {
        match self.state {
            State::Idle if self.is_authenticated => Expected::Nothing,
            State::Choosing(_) | State::Verifying(_) => Expected::Work,
            State::Failed => Expected::Close,
            _ => Expected::Host,
        }
    }

    /// When [`expire`](Self::expire) is to be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Fails the transaction if the host is too slow. Returns why, if so.
    pub fn expire(&mut self, now: Duration) -> Option<AuthFailure> {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return None;
        }
        self.ended();
        Some(AuthFailure::Timeout(self.timeout))
    }

    /// A message that the host sent. Returns a computation to run, whose result goes to
    /// [`finish`](Self::finish).
    ///
    /// # Errors
    /// [`AuthFailure`], for the log. The command itself succeeds: the host fetches the failure.
    pub fn send(&mut self, now: Duration, bytes: &[u8]) -> Result<Option<Work>, AuthFailure> {
        let t_id = Message::t_id(bytes).unwrap_or_default();
        let handled = match Message::parse(bytes) {
            Ok(message) => self.handle(&message),
            Err(error) => Err(AuthFailure::Malformed(error.explanation())),
        };
        self.deadline = now.checked_add(self.timeout);
        if let Err(failure) = &handled {
            self.fail(t_id, failure);
        }
        if matches!(self.state, State::Idle) {
            self.deadline = None;
        }
        handled
    }

    /// The result of a computation. One of an earlier transaction is ignored.
    ///
    /// # Errors
    /// [`AuthFailure`], for the log. The host fetches the failure.
    pub fn finish(&mut self, now: Duration, result: WorkResult) -> Result<(), AuthFailure> {
        if result.number != self.number || self.expected() != Expected::Work {
            return Ok(());
        }
        self.deadline = now.checked_add(self.timeout);
        match (
            std::mem::replace(&mut self.state, State::Failed),
            result.done,
        ) {
            (State::Choosing(transaction), Ok(Done::Challenge(own))) => {
                self.state = State::Challenge(Box::new(Challenged { transaction, own }));
                Ok(())
            }
            (State::Verifying(transaction), Ok(Done::Verified { key, response })) => {
                self.proved = Some(key);
                self.state = State::Success {
                    t_id: transaction.t_id,
                    hash: transaction.hash,
                    response: response.map(|response| response.as_bytes().to_vec()),
                };
                Ok(())
            }
            (State::Choosing(transaction) | State::Verifying(transaction), result) => {
                let failure = match result {
                    Err(WorkError::WrongResponse) => AuthFailure::WrongResponse,
                    Err(error) => error.into(),
                    Ok(_) => WorkError::NotRun("the result of another computation").into(),
                };
                self.fail(transaction.t_id, &failure);
                Err(failure)
            }
            // `expected` excludes them.
            (state, _) => {
                self.state = state;
                Ok(())
            }
        }
    }

    /// Writes the message that the host fetches to `buf`.
    pub fn receive(&mut self, now: Duration, buf: &mut [u8]) -> Received {
        let written = match &self.state {
            State::Choosing(_) | State::Verifying(_) => return Received::Later,
            State::Idle | State::AwaitReply(_) | State::AwaitSuccess2 { .. } | State::Failed => {
                return Received::Nothing;
            }
            State::Challenge(one) => one.message().write(buf),
            State::Success {
                t_id,
                hash,
                response,
            } => {
                let hash_len = hash.hash_len().unwrap_or_default();
                let message = Success1 {
                    t_id: *t_id,
                    hash_len: u8::try_from(hash_len).unwrap_or_default(),
                    response: response.as_deref(),
                };
                message.write(buf)
            }
            State::Failure { t_id, explanation } => {
                let message = Failure {
                    t_id: *t_id,
                    side: FailureSide::Controller,
                    explanation: *explanation,
                };
                message.write(buf)
            }
        };
        let Some(len) = written else {
            return Received::TooShort;
        };
        self.deadline = now.checked_add(self.timeout);
        match std::mem::replace(&mut self.state, State::Failed) {
            State::Challenge(one) => self.state = State::AwaitReply(one),
            State::Success {
                t_id,
                response: Some(_),
                ..
            } => self.state = State::AwaitSuccess2 { t_id },
            State::Success { .. } => self.authenticated(),
            _ => self.ended(),
        }
        Received::Message(len)
    }

    fn authenticated(&mut self) {
        self.is_authenticated = true;
        self.ended();
    }

    /// The transaction has ended. A queue that was authenticated before goes on.
    fn ended(&mut self) {
        self.deadline = None;
        self.state = match self.is_authenticated {
            true => State::Idle,
            false => State::Failed,
        };
    }

    fn fail(&mut self, t_id: u16, failure: &AuthFailure) {
        // Nothing is told to a host that reported the failure itself.
        if matches!(failure, AuthFailure::ByHost(_)) {
            return self.ended();
        }
        self.state = State::Failure {
            t_id,
            explanation: failure.explanation(),
        };
    }

    fn handle(&mut self, message: &Message<'_>) -> Result<Option<Work>, AuthFailure> {
        match (std::mem::replace(&mut self.state, State::Failed), message) {
            (State::Idle, Message::Negotiate(negotiate)) => self.negotiate(negotiate).map(Some),
            (State::AwaitReply(one), Message::Reply(reply)) => self.reply(*one, reply).map(Some),
            (State::AwaitSuccess2 { t_id }, Message::Success2(success)) => {
                if success.t_id != t_id {
                    return Err(wrong(message.name(), "T_ID is of another transaction"));
                }
                self.authenticated();
                Ok(None)
            }
            (
                State::AwaitReply(_) | State::AwaitSuccess2 { .. },
                Message::Failure(Failure {
                    side: FailureSide::Host,
                    explanation,
                    ..
                }),
            ) => Err(AuthFailure::ByHost(*explanation)),
            (_, message) => Err(AuthFailure::Unexpected(message.name())),
        }
    }

    /// Chooses hash function and group: the first of the policy that the host supports.
    fn negotiate(&mut self, offer: &Negotiate<'_>) -> Result<Work, AuthFailure> {
        if offer.sc_c != 0 {
            return Err(AuthFailure::Concatenation(offer.sc_c));
        }
        if !offer.is_offered {
            return Err(AuthFailure::NotUsable("protocol"));
        }
        let mut hashes = self.policy.hashes.iter();
        let hash = hashes.find(|hash| offer.hashes.contains(hash));
        let mut groups = self.policy.groups.iter();
        let group = groups.find(|group| offer.groups.contains(group));
        let hash = *hash.ok_or(AuthFailure::NotUsable("hash function"))?;
        let group = *group.ok_or(AuthFailure::NotUsable("DH group"))?;
        if self.policy.keys.is_empty() {
            return Err(AuthFailure::NoKey);
        }
        self.number = self.number.wrapping_add(1);
        self.state = State::Choosing(Transaction {
            hash,
            group,
            t_id: offer.t_id,
            hostnqn: self.hostnqn,
            subnqn: self.subnqn,
        });
        Ok(self.work(Kind::Challenge { hash, group }))
    }

    fn reply(&mut self, one: Challenged, reply: &Reply<'_>) -> Result<Work, AuthFailure> {
        const REPLY: &str = "DH-HMAC-CHAP_Reply";
        let Challenged { transaction, own } = one;
        if reply.t_id != transaction.t_id {
            return Err(wrong(REPLY, "T_ID is of another transaction"));
        }
        if Some(reply.response.len()) != transaction.hash.hash_len() {
            return Err(wrong(REPLY, "HL is not the length of the hash"));
        }
        // A Reply without a value would be a silent downgrade to the NULL group.
        if Some(reply.public.len()) != transaction.group.public_len() {
            return Err(wrong(REPLY, "DHVLEN is not the length of the modulus"));
        }
        let peer = match reply.challenge {
            None => None,
            Some(_) if reply.seqnum == 0 => return Err(wrong(REPLY, "SEQNUM is 0")),
            Some(value) => {
                let key = self.policy.controller_key.clone();
                let challenge = PeerChallenge {
                    value: value.to_vec(),
                    seqnum: reply.seqnum,
                };
                Some((challenge, key.ok_or(AuthFailure::NoControllerKey)?))
            }
        };
        self.state = State::Verifying(transaction);
        Ok(self.work(Kind::Verify(Verify {
            transaction,
            keys: self.policy.keys.clone(),
            own,
            response: reply.response.to_vec(),
            public: reply.public.to_vec(),
            peer,
        })))
    }

    fn work(&self, kind: Kind) -> Work {
        Work {
            number: self.number,
            kind: Box::new(kind),
        }
    }
}

impl Challenged {
    fn message(&self) -> Challenge<'_> {
        let exchange = self.own.exchange.as_ref();
        Challenge {
            t_id: self.transaction.t_id,
            hash: self.transaction.hash,
            group: self.transaction.group,
            seqnum: self.own.seqnum,
            challenge: &self.own.value,
            public: exchange.map_or(&[], |exchange| exchange.public()),
        }
    }
}

fn wrong(message: &'static str, why: &'static str) -> AuthFailure {
    AuthFailure::Payload { message, why }
}
