//! In-band authentication of the hosts of a [`Fake`](super::Fake).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use nvmeof_initiator::dhchap::{
    ControllerAuth, HostKeys, Key, Policy, Received, Secret, SystemRandom,
};
use nvmeof_initiator::{Nqn, Status};
use nvmeof_rdma::QpId;
use nvmeof_wire::auth::{GroupId, HashId, MAX_MESSAGE};

use super::SUBNQN;

const HOSTNQN: &str = "nqn.2026-11.org.example:host";

/// What hosts have to prove.
#[derive(Clone, Debug)]
pub(crate) struct Requirement {
    /// The keys of the host.
    pub(crate) keys: Vec<Arc<Key>>,
    pub(crate) controller_key: Option<Arc<Key>>,
    pub(crate) group: GroupId,
    /// Of the subsystem.
    pub(crate) subnqn: Nqn,
}

impl Requirement {
    /// Keys of the host, without key exchange.
    pub(crate) fn of(keys: &[u8]) -> Self {
        Self {
            keys: keys.iter().map(|byte| key(*byte)).collect(),
            controller_key: None,
            group: GroupId::NULL,
            subnqn: Nqn::new(SUBNQN).unwrap(),
        }
    }

    fn policy(&self) -> Arc<Policy> {
        Arc::new(Policy {
            first_is_old: false,
            unknown: Default::default(),
            keys: self.keys.clone(),
            controller_key: self.controller_key.clone(),
            hashes: vec![HashId::SHA256],
            groups: vec![self.group],
        })
    }
}

/// A key that consists of this byte.
pub(crate) fn key(byte: u8) -> Arc<Key> {
    let secret = Secret::take(&mut [byte; 32]).unwrap();
    Arc::new(Key::of(secret, None).unwrap())
}

/// Keys of a host and of a controller.
pub(crate) fn keys(host: u8, controller: Option<u8>) -> Arc<HostKeys> {
    Arc::new(HostKeys::new(key(host), controller.map(key)))
}

/// The authentications of all queues.
#[derive(Debug, Default)]
pub(crate) struct Authentications {
    queues: HashMap<QpId, ControllerAuth>,
    /// Queues that have to authenticate again.
    demanded: HashSet<QpId>,
    /// Messages of hosts.
    pub(crate) messages: usize,
    /// Commands that were refused, by queue identifier.
    pub(crate) refused: Vec<u16>,
}

impl Authentications {
    pub(super) fn require(&mut self, qp: QpId, requirement: &Requirement, now: Duration) {
        let (host, subsystem) = (Nqn::new(HOSTNQN).unwrap(), requirement.subnqn);
        let timeout = Duration::from_secs(5);
        let auth = ControllerAuth::new(host, subsystem, requirement.policy(), timeout, now);
        self.queues.insert(qp, auth);
    }

    pub(super) fn remove(&mut self, qp: QpId) {
        self.queues.remove(&qp);
        self.demanded.remove(&qp);
    }

    /// Refuses commands of all queues until they have authenticated again.
    pub(crate) fn demand(&mut self) {
        self.demanded = self.queues.keys().copied().collect();
    }

    /// Other keys, from the next transactions on.
    pub(crate) fn change(&mut self, requirement: &Requirement) {
        for auth in self.queues.values_mut() {
            auth.set_policy(requirement.policy());
        }
    }

    /// Index of the key that each queue proved last.
    pub(crate) fn proved(&self) -> Vec<Option<usize>> {
        self.queues
            .values()
            .map(ControllerAuth::proved_key)
            .collect()
    }

    pub(super) fn refuses(&mut self, qp: QpId, qid: u16) -> bool {
        let auth = self.queues.get(&qp);
        let is_refused =
            self.demanded.contains(&qp) || auth.is_some_and(|auth| !auth.is_authenticated());
        if is_refused {
            self.refused.push(qid);
        }
        is_refused
    }

    pub(super) fn sent(&mut self, qp: QpId, message: &[u8], now: Duration) -> Status {
        self.messages += 1;
        let Some(auth) = self.queues.get_mut(&qp) else {
            return Status::INVALID_OPCODE;
        };
        if let Ok(Some(work)) = auth.send(now, message) {
            let _ = auth.finish(now, work.run(&mut SystemRandom));
        }
        Status::SUCCESS
    }

    pub(super) fn receive(&mut self, qp: QpId, now: Duration) -> Vec<u8> {
        let mut message = vec![0; MAX_MESSAGE];
        if let Some(auth) = self.queues.get_mut(&qp) {
            let received = auth.receive(now, &mut message);
            assert!(matches!(received, Received::Message(_)), "{received:?}");
            // DH-HMAC-CHAP_Success1.
            if message[..2] == [1, 3] {
                self.demanded.remove(&qp);
            }
        }
        message
    }
}
