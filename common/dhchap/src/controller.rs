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
//! fails: see [`ControllerAuth::is_authenticated`]. So does one that need not authenticate itself:
//! see [`ControllerAuth::optional`].

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
    /// The keys of the host, the current one first: one, or two while it gets a new one. None: the
    /// host cannot authenticate itself.
    pub keys: Vec<Arc<Key>>,
    /// Whether the current key is not known, so that the first one is the old one.
    pub first_is_old: bool,
    /// Keys that are configured, but not known: one of them may be what the host has or requires.
    pub unknown: UnknownKeys,
    /// The key of the controller, for hosts that require it.
    pub controller_key: Option<Arc<Key>>,
    /// Hash functions that may be used, the preferred first.
    pub hashes: Vec<HashId>,
    /// Groups that may be used, the preferred first.
    pub groups: Vec<GroupId>,
}

/// Keys that are configured, but could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnknownKeys {
    /// How many of the host.
    pub host: usize,
    /// Whether that of the controller.
    pub controller: bool,
}

impl Policy {
    /// The current key of the host, if it is known.
    #[must_use]
    pub fn current(&self) -> Option<&Arc<Key>> {
        self.keys.first().filter(|_| !self.first_is_old)
    }

    /// The key that is being replaced, if there is one.
    #[must_use]
    pub fn old(&self) -> Option<&Arc<Key>> {
        self.keys.get(usize::from(!self.first_is_old))
    }

    /// Why a host fails for want of a key: `known`, unless it may be one that is not known.
    fn without_key(&self, known: AuthFailure) -> AuthFailure {
        let is_unknown = match known {
            AuthFailure::NoControllerKey => self.unknown.controller,
            _ => self.unknown.host > 0,
        };
        if is_unknown {
            AuthFailure::UnknownKey
        } else {
            known
        }
    }
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
    /// Its response matches none of its keys.
    #[error("the response matches none of the keys of the host")]
    WrongResponse,
    /// A key that is not known may be the one that the host has or requires. The host is told
    /// nothing, so that it tries again.
    #[error("the key of the host may be one that could not be read")]
    UnknownKey,
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

/// What a host proved by a transaction that succeeded.
#[derive(Clone, Debug)]
pub struct Proof {
    /// Its key.
    pub key: Arc<Key>,
    /// Index of the key in [`Policy::keys`] when the transaction began.
    pub index: usize,
    /// The hash function of the responses.
    pub hash: HashId,
    /// The group of the key exchange.
    pub group: GroupId,
    /// Whether the controller proved its key, too.
    pub is_mutual: bool,
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
    /// Whether the queue may be used only after a transaction succeeded.
    is_required: bool,
    is_authenticated: bool,
    /// Index of the key that the host proved last.
    proved: Option<usize>,
    /// Of the last transaction that succeeded, until it is taken.
    proof: Option<Proof>,
    /// Counts transactions.
    number: u64,
}

#[derive(Debug)]
enum State {
    Idle,
    Choosing(Chosen),
    Challenge(Box<Challenged>),
    AwaitReply(Box<Challenged>),
    Verifying(Chosen),
    Success {
        t_id: u16,
        proof: Proof,
        response: Option<Vec<u8>>,
    },
    AwaitSuccess2 {
        t_id: u16,
        proof: Proof,
    },
    Failure {
        t_id: u16,
        explanation: Explanation,
    },
    /// The queue is to be closed.
    Failed,
}

/// A transaction with the keys of its beginning.
#[derive(Debug)]
struct Chosen {
    transaction: Transaction,
    policy: Arc<Policy>,
}

struct Challenged {
    chosen: Chosen,
    own: OwnChallenge,
}

impl std::fmt::Debug for Challenged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.chosen.fmt(f)
    }
}

/// The timeout of a step if the controller has no Keep Alive Timeout (NVMe Base 2.0, 8.13.5.2), and
/// the longest one: a host chooses its Keep Alive Timeout, which may be weeks.
const MAX_TIMEOUT: Duration = Duration::from_secs(120);

/// The shortest timeout. That of Linux is 5 s, in which a busy host does not always compute two
/// exponentiations; when it then loses the connection, Linux 6.12 waits for twelve minutes. Peers
/// gain nothing: each chooses its Keep Alive Timeout.
const MIN_TIMEOUT: Duration = Duration::from_secs(30);

impl ControllerAuth {
    /// A queue of that host that has to authenticate itself from `now` on. `keep_alive` is the Keep
    /// Alive Timeout of its controller, zero for none. A step may take that long, but at least half
    /// a minute and at most two minutes.
    #[must_use]
    pub fn new(
        hostnqn: Nqn,
        subnqn: Nqn,
        policy: Arc<Policy>,
        keep_alive: Duration,
        now: Duration,
    ) -> Self {
        let timeout = match keep_alive {
            Duration::ZERO => MAX_TIMEOUT,
            keep_alive => keep_alive.clamp(MIN_TIMEOUT, MAX_TIMEOUT),
        };
        Self {
            hostnqn,
            subnqn,
            policy,
            timeout,
            state: State::Idle,
            deadline: now.checked_add(timeout),
            is_required: true,
            is_authenticated: false,
            proved: None,
            proof: None,
            number: 0,
        }
    }

    /// A queue of that host that is used already. The host may authenticate itself, and a failure
    /// does not end the queue.
    #[must_use]
    pub fn optional(hostnqn: Nqn, subnqn: Nqn, policy: Arc<Policy>, keep_alive: Duration) -> Self {
        let required = Self::new(hostnqn, subnqn, policy, keep_alive, Duration::ZERO);
        Self {
            is_required: false,
            deadline: None,
            ..required
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

    /// What the host proved by a transaction that has succeeded since the last call.
    pub fn take_proof(&mut self) -> Option<Proof> {
        self.proof.take()
    }

    /// Uses other keys, hash functions and groups from the next transaction on.
    pub fn set_policy(&mut self, policy: Arc<Policy>) {
        self.policy = policy;
    }

    /// What the controller waits for.
    #[must_use]
    pub fn expected(&self) -> Expected {
        match self.state {
            State::Idle if self.may_continue() => Expected::Nothing,
            State::Choosing(_) | State::Verifying(_) => Expected::Work,
            State::Failed => Expected::Close,
            _ => Expected::Host,
        }
    }

    /// Whether the transaction has failed, and the host has not fetched that yet or cannot.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        matches!(self.state, State::Failure { .. } | State::Failed)
    }

    /// When [`expire`](Self::expire) is to be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Ends the transaction if the host is too slow. Returns why it failed, unless it had failed
    /// before and only the message about it was not fetched.
    pub fn expire(&mut self, now: Duration) -> Option<AuthFailure> {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return None;
        }
        let failure = match &self.state {
            State::Choosing(_) | State::Verifying(_) => {
                Some(WorkError::NotRun("no result within two minutes").into())
            }
            State::Failure { .. } => None,
            _ => Some(AuthFailure::Timeout(self.timeout)),
        };
        self.ended();
        failure
    }

    /// A message that the host sent. Returns a computation to run, whose result goes to
    /// [`finish`](Self::finish). After a failure, messages are ignored until the host has fetched
    /// it; they do not extend its time.
    ///
    /// # Errors
    /// [`AuthFailure`], for the log. The command itself succeeds: the host fetches the failure.
    pub fn send(&mut self, now: Duration, bytes: &[u8]) -> Result<Option<Work>, AuthFailure> {
        if self.has_failed() {
            return Ok(None);
        }
        let t_id = Message::t_id(bytes).unwrap_or_default();
        let handled = match Message::parse(bytes) {
            Ok(message) => self.handle(&message),
            Err(error) => Err(AuthFailure::Malformed(error.explanation())),
        };
        if let Err(failure) = &handled {
            self.fail(t_id, failure);
        }
        self.deadline = match self.state {
            State::Idle | State::Failed => None,
            // The host waits, and is not at fault.
            State::Choosing(_) | State::Verifying(_) => now.checked_add(MAX_TIMEOUT),
            _ => now.checked_add(self.timeout),
        };
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
            *result.done,
        ) {
            (State::Choosing(chosen), Ok(Done::Challenge(own))) => {
                self.state = State::Challenge(Box::new(Challenged { chosen, own }));
                Ok(())
            }
            (State::Verifying(chosen), Ok(Done::Verified { key, response }))
                if let Some(proof) = chosen.proof(key, response.is_some()) =>
            {
                self.state = State::Success {
                    t_id: chosen.transaction.t_id,
                    proof,
                    response: response.map(|response| response.as_bytes().to_vec()),
                };
                Ok(())
            }
            (State::Choosing(chosen) | State::Verifying(chosen), result) => {
                let failure = match result {
                    Err(WorkError::WrongResponse) => {
                        chosen.policy.without_key(AuthFailure::WrongResponse)
                    }
                    Err(error) => error.into(),
                    Ok(_) => WorkError::NotRun("the result of another computation").into(),
                };
                self.fail(chosen.transaction.t_id, &failure);
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
                proof,
                response,
            } => {
                let hash_len = proof.hash.hash_len().unwrap_or_default();
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
                proof,
                response: Some(_),
            } => self.state = State::AwaitSuccess2 { t_id, proof },
            State::Success { proof, .. } => self.authenticated(proof),
            _ => self.ended(),
        }
        Received::Message(len)
    }

    fn authenticated(&mut self, proof: Proof) {
        self.is_authenticated = true;
        self.proved = Some(proof.index);
        self.proof = Some(proof);
        self.ended();
    }

    /// Whether the queue may be used, whatever becomes of a transaction.
    fn may_continue(&self) -> bool {
        self.is_authenticated || !self.is_required
    }

    /// The transaction has ended. A queue that was authenticated before goes on.
    fn ended(&mut self) {
        self.deadline = None;
        self.state = match self.may_continue() {
            true => State::Idle,
            false => State::Failed,
        };
    }

    fn fail(&mut self, t_id: u16, failure: &AuthFailure) {
        // Nothing is told to a host that reported the failure itself, or that should try again:
        // Linux deletes its controller after a failure of which it is told, and connects again
        // after the loss of a connection.
        let is_silent = match failure {
            AuthFailure::ByHost(_) => true,
            AuthFailure::UnknownKey => !self.may_continue(),
            _ => false,
        };
        if is_silent {
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
            // The host has lost a message of its transaction, and begins another one.
            (
                State::Challenge(_)
                | State::AwaitReply(_)
                | State::Success { .. }
                | State::AwaitSuccess2 { .. },
                Message::Negotiate(negotiate),
            ) if self.may_continue() => self.negotiate(negotiate).map(Some),
            (State::AwaitReply(one), Message::Reply(reply)) => self.reply(*one, reply).map(Some),
            (State::AwaitSuccess2 { t_id, proof }, Message::Success2(success)) => {
                if success.t_id != t_id {
                    return Err(wrong(message.name(), "T_ID is of another transaction"));
                }
                self.authenticated(proof);
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
        if self.policy.keys.is_empty() {
            return Err(self.policy.without_key(AuthFailure::NoKey));
        }
        let mut hashes = self.policy.hashes.iter();
        let hash = hashes.find(|hash| offer.hashes.contains(hash));
        let mut groups = self.policy.groups.iter();
        let group = groups.find(|group| offer.groups.contains(group));
        let hash = *hash.ok_or(AuthFailure::NotUsable("hash function"))?;
        let group = *group.ok_or(AuthFailure::NotUsable("DH group"))?;
        self.number = self.number.wrapping_add(1);
        let transaction = Transaction {
            hash,
            group,
            t_id: offer.t_id,
            hostnqn: self.hostnqn,
            subnqn: self.subnqn,
        };
        let policy = Arc::clone(&self.policy);
        self.state = State::Choosing(Chosen {
            transaction,
            policy,
        });
        Ok(self.work(Kind::Challenge { hash, group }))
    }

    fn reply(&mut self, one: Challenged, reply: &Reply<'_>) -> Result<Work, AuthFailure> {
        const REPLY: &str = "DH-HMAC-CHAP_Reply";
        let Challenged { chosen, own } = one;
        let Chosen {
            transaction,
            policy,
        } = &chosen;
        let transaction = *transaction;
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
                let key = policy.controller_key.clone();
                let challenge = PeerChallenge {
                    value: value.to_vec(),
                    seqnum: reply.seqnum,
                };
                let none = || policy.without_key(AuthFailure::NoControllerKey);
                Some((challenge, key.ok_or_else(none)?))
            }
        };
        let keys = policy.keys.clone();
        self.state = State::Verifying(chosen);
        Ok(self.work(Kind::Verify(Verify {
            transaction,
            keys,
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

impl Chosen {
    /// The host proved this key of the policy.
    fn proof(&self, index: usize, is_mutual: bool) -> Option<Proof> {
        Some(Proof {
            key: Arc::clone(self.policy.keys.get(index)?),
            index,
            hash: self.transaction.hash,
            group: self.transaction.group,
            is_mutual,
        })
    }
}

impl Challenged {
    fn message(&self) -> Challenge<'_> {
        let exchange = self.own.exchange.as_ref();
        let transaction = &self.chosen.transaction;
        Challenge {
            t_id: transaction.t_id,
            hash: transaction.hash,
            group: transaction.group,
            seqnum: self.own.seqnum,
            challenge: &self.own.value,
            public: exchange.map_or(&[], |exchange| exchange.public()),
        }
    }
}

fn wrong(message: &'static str, why: &'static str) -> AuthFailure {
    AuthFailure::Payload { message, why }
}
