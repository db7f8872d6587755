//! The computations of a transaction. They are values, so that another thread can run them.

use std::fmt;
use std::sync::Arc;

use nvmeof_wire::Nqn;
use nvmeof_wire::auth::{GroupId, HashId};

use crate::exchange::{Exchange, ExchangeError, SharedSecret};
use crate::key::Key;
use crate::random::{self, Random, RandomError};
use crate::response::{Challenged, Response, ResponseError, Transcript};

/// What both sides know of a transaction, owned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transaction {
    pub(crate) hash: HashId,
    pub(crate) group: GroupId,
    pub(crate) t_id: u16,
    pub(crate) hostnqn: Nqn,
    pub(crate) subnqn: Nqn,
}

impl Transaction {
    fn transcript(&self) -> Transcript<'_> {
        Transcript {
            hash: self.hash,
            t_id: self.t_id,
            sc_c: 0,
            hostnqn: self.hostnqn.as_str(),
            subnqn: self.subnqn.as_str(),
        }
    }
}

/// A challenge of this side, and its half of the key exchange.
pub(crate) struct OwnChallenge {
    pub(crate) value: Vec<u8>,
    pub(crate) seqnum: u32,
    /// `None` for the NULL group.
    pub(crate) exchange: Option<Exchange>,
}

/// A challenge of the other side.
#[derive(Clone)]
pub(crate) struct PeerChallenge {
    pub(crate) value: Vec<u8>,
    pub(crate) seqnum: u32,
}

/// A computation. [`run`](Self::run) takes from microseconds (NULL group) to tens of milliseconds
/// (ffdhe8192).
pub struct Work {
    /// Number of its transaction.
    pub(crate) number: u64,
    pub(crate) kind: Box<Kind>,
}

pub(crate) enum Kind {
    /// Controller: a challenge.
    Challenge { hash: HashId, group: GroupId },
    /// Controller: compares the response of the host with those of its keys, and responds.
    Verify(Verify),
    /// Host: the response, and what the controller has to respond.
    Respond(Respond),
}

pub(crate) struct Verify {
    pub(crate) transaction: Transaction,
    pub(crate) keys: Vec<Arc<Key>>,
    pub(crate) own: OwnChallenge,
    pub(crate) response: Vec<u8>,
    pub(crate) public: Vec<u8>,
    /// The challenge of the host and the key to respond with.
    pub(crate) peer: Option<(PeerChallenge, Arc<Key>)>,
}

pub(crate) struct Respond {
    pub(crate) transaction: Transaction,
    pub(crate) key: Arc<Key>,
    pub(crate) peer: PeerChallenge,
    pub(crate) public: Vec<u8>,
    /// The key of the controller, if that has to authenticate itself.
    pub(crate) controller_key: Option<Arc<Key>>,
}

/// The result of a computation, for the state machine that requested it.
pub struct WorkResult {
    pub(crate) number: u64,
    // In a box, because it is passed in an enumeration with events of every read and write.
    pub(crate) done: Box<Result<Done, WorkError>>,
}

pub(crate) enum Done {
    Challenge(OwnChallenge),
    Verified {
        /// Index of the key of the host.
        key: usize,
        response: Option<Response>,
    },
    Responded {
        response: Response,
        public: Vec<u8>,
        /// Own challenge and its response, if the controller has to authenticate itself.
        expected: Option<(PeerChallenge, Response)>,
    },
}

/// Why a computation has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkError {
    /// The response matches none of the keys of the host.
    #[error("the response matches none of the keys of the host")]
    WrongResponse,
    /// See [`ExchangeError`].
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// See [`ResponseError`].
    #[error(transparent)]
    Response(#[from] ResponseError),
    /// See [`RandomError`].
    #[error(transparent)]
    Random(#[from] RandomError),
    /// The computation was not run.
    #[error("the computation was not run: {0}")]
    NotRun(&'static str),
}

impl Work {
    /// The group of its exponentiations; `NULL` if it has none.
    #[must_use]
    pub fn group(&self) -> GroupId {
        match &*self.kind {
            Kind::Challenge { group, .. } => *group,
            Kind::Verify(verify) => verify.transaction.group,
            Kind::Respond(respond) => respond.transaction.group,
        }
    }

    /// The group of the [`Exchange`] that it generates, which the caller may have prepared:
    /// see [`run_with`](Self::run_with). `None` if it generates none.
    #[must_use]
    pub fn generates(&self) -> Option<GroupId> {
        match *self.kind {
            Kind::Challenge {
                group: GroupId::NULL,
                ..
            }
            | Kind::Verify(_) => None,
            Kind::Challenge { group, .. } => Some(group),
            Kind::Respond(_) => Some(self.group()).filter(|group| *group != GroupId::NULL),
        }
    }

    /// Runs it.
    #[must_use]
    pub fn run(self, random: &mut dyn Random) -> WorkResult {
        self.run_with(None, random)
    }

    /// Runs it with an exchange that was prepared before, if there is one for its group: an
    /// exchange is used once, but need not wait for its use.
    #[must_use]
    pub fn run_with(self, prepared: Option<Exchange>, random: &mut dyn Random) -> WorkResult {
        let done = match *self.kind {
            Kind::Challenge { hash, group } => {
                challenge(hash, group, prepared, random).map(Done::Challenge)
            }
            Kind::Verify(verify) => verify.run(),
            Kind::Respond(respond) => respond.run(prepared, random),
        };
        WorkResult {
            number: self.number,
            done: Box::new(done),
        }
    }

    /// The result when it cannot be run, such as for want of a worker. The transaction fails.
    #[must_use]
    pub fn not_run(&self, why: &'static str) -> WorkResult {
        WorkResult {
            number: self.number,
            done: Box::new(Err(WorkError::NotRun(why))),
        }
    }
}

fn challenge(
    hash: HashId,
    group: GroupId,
    prepared: Option<Exchange>,
    random: &mut dyn Random,
) -> Result<OwnChallenge, WorkError> {
    let mut value = vec![0; hash.hash_len().unwrap_or_default()];
    random.fill(&mut value)?;
    let exchange = match (group, prepared) {
        (GroupId::NULL, _) => None,
        (group, Some(prepared)) if prepared.group() == group => Some(prepared),
        (group, _) => Some(Exchange::generate(group, random)?),
    };
    let seqnum = random::nonzero(random)?;
    Ok(OwnChallenge {
        value,
        seqnum,
        exchange,
    })
}

impl Verify {
    fn run(self) -> Result<Done, WorkError> {
        let transcript = self.transaction.transcript();
        let shared = agree(self.own.exchange, &self.public)?;
        let own = Challenged {
            value: &self.own.value,
            seqnum: self.own.seqnum,
            shared: shared.as_ref(),
        };
        // Every key is compared, so that the time does not tell which one is right.
        let mut found = None;
        for (at, key) in self.keys.iter().enumerate() {
            if transcript.host_response(key, own)?.equals(&self.response) {
                found = found.or(Some(at));
            }
        }
        let key = found.ok_or(WorkError::WrongResponse)?;
        let response = match self.peer {
            None => None,
            Some((peer, key)) => {
                let peer = peer.challenged(shared.as_ref());
                Some(transcript.controller_response(&key, peer)?)
            }
        };
        Ok(Done::Verified { key, response })
    }
}

impl Respond {
    fn run(self, prepared: Option<Exchange>, random: &mut dyn Random) -> Result<Done, WorkError> {
        let Transaction { hash, group, .. } = self.transaction;
        let transcript = self.transaction.transcript();
        let own = challenge(hash, group, prepared, random)?;
        let public = own.exchange.as_ref().map(Exchange::public);
        let public = public.unwrap_or_default().to_vec();
        let shared = agree(own.exchange, &self.public)?;
        let peer = self.peer.challenged(shared.as_ref());
        let response = transcript.host_response(&self.key, peer)?;
        let expected = match self.controller_key {
            None => None,
            Some(key) => {
                let own = PeerChallenge {
                    value: own.value,
                    seqnum: own.seqnum,
                };
                let expected =
                    transcript.controller_response(&key, own.challenged(shared.as_ref()))?;
                Some((own, expected))
            }
        };
        Ok(Done::Responded {
            response,
            public,
            expected,
        })
    }
}

impl PeerChallenge {
    fn challenged<'a>(&'a self, shared: Option<&'a SharedSecret>) -> Challenged<'a> {
        Challenged {
            value: &self.value,
            seqnum: self.seqnum,
            shared,
        }
    }
}

/// The shared secret, if there is a key exchange.
fn agree(exchange: Option<Exchange>, public: &[u8]) -> Result<Option<SharedSecret>, ExchangeError> {
    exchange.map(|exchange| exchange.agree(public)).transpose()
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &*self.kind {
            Kind::Challenge { .. } => "Challenge",
            Kind::Verify(_) => "Verify",
            Kind::Respond(_) => "Respond",
        };
        write!(f, "Work({name}, {})", self.group().name())
    }
}

impl fmt::Debug for WorkResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.done {
            Ok(_) => f.write_str("WorkResult(Ok)"),
            Err(error) => write!(f, "WorkResult({error:?})"),
        }
    }
}
