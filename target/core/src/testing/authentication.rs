//! Keys for tests, and a host that authenticates itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use nvmeof_dhchap::{
    HostAuth, HostKeys, HostStep, Key, Policy, Random, RandomError, Refusal, Secret,
};
use nvmeof_wire::auth::{AuthCommand, GroupId, HashId, MAX_MESSAGE};
use nvmeof_wire::fabrics::{Connect, ConnectData, ConnectResult};
use nvmeof_wire::{Nqn, Status};

use super::{Completion, HOST, Host, SUBNQN, connect_data, target};
use crate::{AuthenticationSpec, Model, Target};

/// Reproducible numbers.
pub(crate) struct Numbers(pub(crate) u64);

impl Random for Numbers {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), RandomError> {
        for byte in bytes {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
            self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
            *byte = self.0.to_be_bytes()[0];
        }
        Ok(())
    }
}

/// The key of these bytes.
pub(crate) fn key(byte: u8) -> Arc<Key> {
    let secret = Secret::take(&mut [byte; 32]).unwrap();
    Arc::new(Key::of(secret, None).unwrap())
}

/// The policy of a host with these keys. Without key exchange, which takes long.
pub(crate) fn policy(keys: &[u8], controller_key: Option<u8>) -> Policy {
    Policy {
        first_is_old: false,
        unknown: Default::default(),
        keys: keys.iter().map(|byte| key(*byte)).collect(),
        controller_key: controller_key.map(key),
        hashes: vec![HashId::SHA256, HashId::SHA384],
        groups: vec![GroupId::NULL],
    }
}

/// The keys of a host that has this one, and requires that the controller has the other one.
pub(crate) fn host_keys(host: u8, controller: Option<u8>) -> HostKeys {
    HostKeys::new(key(host), controller.map(key))
}

/// [`HOST`] has to prove this.
pub(crate) fn only_host(policy: Policy) -> AuthenticationSpec {
    AuthenticationSpec {
        hosts: [(nqn(HOST), Arc::new(policy))].into(),
        subsystems: BTreeSet::new(),
        discovery: false,
    }
}

pub(crate) fn nqn(text: &str) -> Nqn {
    Nqn::new(text).unwrap()
}

/// The same subsystems from now on, with other keys. Returns the changes, in words.
pub(crate) fn apply_keys(target: &Target, spec: AuthenticationSpec) -> Vec<String> {
    let model = Model::clone(&target.model()).with_authentication(spec);
    let applied = target.apply(model).unwrap();
    assert!(applied.disconnected.is_empty(), "{applied:?}");
    applied.changes.iter().map(ToString::to_string).collect()
}

/// A target on which [`HOST`] has key 1, the old key 2, and the controller has key 9.
pub(crate) fn keyed_target() -> Target {
    let target = target();
    apply_keys(&target, only_host(policy(&[1, 2], Some(9))));
    target
}

/// How a command of the authentication ended that the host cannot continue after.
pub(crate) type Ended = Result<(), Refusal>;

impl Host {
    /// Connects a queue whose host has to authenticate itself.
    pub(crate) fn unproven(target: &Target, qid: u16, data: &ConnectData) -> Self {
        Self::unproven_with(target, &Connect::new(qid, 32, 0), data)
    }

    /// The same by this command.
    pub(crate) fn unproven_with(target: &Target, connect: &Connect, data: &ConnectData) -> Self {
        let mut host = Self::open(target, connect.qid.get(), 32);
        let completion = host.connect(connect, data);
        assert_eq!(completion.status(), Status::SUCCESS, "{completion:?}");
        let result = ConnectResult::from_result(completion.result());
        assert!(result.requires_authentication() && !result.requires_secure_channel());
        assert!(!host.queue.is_connected() && host.queue.hostnqn().is_none());
        host
    }

    /// An admin queue of [`HOST`] that proved key 1, and its controller, which is ready.
    pub(crate) fn proven(target: &Target) -> (Self, u16) {
        let mut host = Self::unproven(target, 0, &connect_data(0xffff));
        assert_eq!(host.authenticate(host_keys(1, None)), Ok(()));
        let (_, _, cntlid) = host.queue.association().unwrap();
        let enable = nvmeof_wire::registers::Cc::ENABLE.0;
        assert_eq!(host.set_cc(enable).status(), Status::SUCCESS);
        (host, cntlid)
    }

    /// Sends a message.
    pub(crate) fn auth_send(&mut self, message: &[u8]) -> Completion {
        let len = u32::try_from(message.len()).unwrap();
        self.write(AuthCommand::send(len).to_sqe(), message)
    }

    /// Fetches a message.
    pub(crate) fn auth_receive(&mut self) -> Completion {
        let len = u32::try_from(MAX_MESSAGE).unwrap();
        self.read(AuthCommand::receive(len).to_sqe(), MAX_MESSAGE)
    }

    /// Authenticates itself with these keys.
    pub(crate) fn authenticate(&mut self, keys: HostKeys) -> Ended {
        let (ended, last) = self.transact(keys);
        assert_eq!(last, Status::SUCCESS);
        ended
    }

    /// The same. Also returns the status of the last command.
    pub(crate) fn transact(&mut self, keys: HostKeys) -> (Ended, Status) {
        let (mut auth, mut step) = HostAuth::start(nqn(HOST), nqn(SUBNQN), keys, 7);
        let mut last = Status::SUCCESS;
        loop {
            step = match step {
                HostStep::Send(bytes) => {
                    last = self.auth_send(&bytes).status();
                    auth.sent()
                }
                HostStep::Receive => {
                    let completion = self.auth_receive();
                    last = completion.status();
                    if last != Status::SUCCESS {
                        return (Err(auth.closed()), last);
                    }
                    auth.received(&completion.data)
                }
                HostStep::Run(work) => auth.finished(work.run(&mut Numbers(1))),
                HostStep::Done => return (Ok(()), last),
                HostStep::Refused(refusal) => return (Err(refusal), last),
            };
        }
    }
}
