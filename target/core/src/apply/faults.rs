//! Disabled namespaces, and those whose backing store is gone.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use nvmeof_wire::admin::{Cns, NSID_ALL};
use nvmeof_wire::identify::{
    IdentifyController, IdentifyNamespace, IdentifyNamespaceIndependent, NamespaceList,
};
use nvmeof_wire::nvm::{Io, flush};
use nvmeof_wire::opcode::io;
use nvmeof_wire::{Nqn, Status};
use zerocopy::FromBytes;

use crate::testing::{Host, SUBNQN, apply, closed, namespace, subsystem, target};
use crate::{
    ChangeKind, Executed, NamespaceSpec, NamespaceState, Preferred, Revision, SubsystemSpec, Target,
};

fn identify<T: FromBytes>(host: &mut Host, cns: Cns, nsid: u32) -> T {
    let completion = host.identify(cns, nsid);
    assert_eq!(completion.status(), Status::SUCCESS, "{cns:?} {nsid}");
    T::read_from_bytes(&completion.data).ok().unwrap()
}

fn read(host: &mut Host, nsid: u32) -> Status {
    let len = if nsid == 3 { 4096 } else { 512 };
    let completion = host.read(Io::new(nsid, 0, 1).to_sqe(io::READ), len);
    completion.cqe.status().without_more()
}

/// What became of namespace 1.
fn revise(target: &Target, blocks: u64, state: NamespaceState) -> Vec<ChangeKind> {
    let revision = Revision {
        nqn: Nqn::new(SUBNQN).unwrap(),
        nsid: 1,
        store: 11,
        blocks,
        preferred: Preferred::default(),
        state,
    };
    let applied = target.apply(target.model().revised(&[revision])).unwrap();
    assert_eq!(applied.disconnected, []);
    applied.changes.into_iter().map(|one| one.kind).collect()
}

/// After the backing store was opened again, or has another size.
#[test]
fn preferred_sizes_follow_the_current_store() {
    let target = target();
    let (mut admin, _host) = Host::ready(&target);
    let revision = Revision {
        nqn: Nqn::new(SUBNQN).unwrap(),
        nsid: 1,
        store: 10,
        blocks: 1000,
        preferred: Preferred {
            write: 4096,
            ..Preferred::default()
        },
        state: NamespaceState::Ready,
    };
    let applied = target.apply(target.model().revised(&[revision])).unwrap();
    let [change] = &applied.changes[..] else {
        panic!("{applied:?}");
    };
    let line = change.to_string();
    assert!(
        line.ends_with("namespace 1 is changed: preferred size"),
        "{line}"
    );
    let id: IdentifyNamespace = identify(&mut admin, Cns::NAMESPACE, 1);
    assert_eq!((id.npwg.get(), id.nows.get()), (7, 7));
}

#[test]
fn namespace_of_a_lost_store_is_active_and_not_ready() {
    let target = target();
    let (mut admin, mut host) = Host::ready(&target);
    let changes = revise(&target, 1000, NamespaceState::Faulted);
    assert_eq!(changes, [ChangeKind::Faulted]);
    let ops = host.ops.len();
    let not_ready = Status::NAMESPACE_NOT_READY;
    assert_eq!(read(&mut host, 1), not_ready, "and without DNR");
    let write = Io::new(1, 0, 1).to_sqe(io::WRITE);
    assert_eq!(
        host.write(write, &[0; 512]).cqe.status().without_more(),
        not_ready
    );
    assert_eq!(host.plain(flush(1)).cqe.status().without_more(), not_ready);
    assert_eq!(host.ops.len(), ops, "its backing store is left alone");
    // The other one is served as ever, and flushed.
    assert_eq!(read(&mut host, 3), Status::SUCCESS);
    assert_eq!(
        host.plain(flush(NSID_ALL)).cqe.status().without_more(),
        not_ready
    );
    let flushed: Vec<_> = host.ops[ops + 1..].iter().map(|op| op.store).collect();
    assert_eq!(flushed, [30]);
    let list: NamespaceList = identify(&mut admin, Cns::ACTIVE_NAMESPACES, 0);
    assert_eq!(list.iter().collect::<Vec<_>>(), [1, 3]);
    let nstat = |admin: &mut Host| {
        let id: IdentifyNamespaceIndependent = identify(admin, Cns::INDEPENDENT_NAMESPACE, 1);
        id.nstat
    };
    assert_eq!(nstat(&mut admin), 0);
    let changes = revise(&target, 1000, NamespaceState::Ready);
    assert_eq!(changes, [ChangeKind::Recovered]);
    assert_eq!(
        (read(&mut host, 1), nstat(&mut admin)),
        (Status::SUCCESS, 1)
    );
    assert_eq!(host.ops.last().unwrap().store, 11);
}

#[test]
fn revision_changes_the_size_and_ignores_invalid_ones() {
    let target = target();
    let (mut admin, mut host) = Host::ready(&target);
    let changes = revise(&target, 10, NamespaceState::Ready);
    let (from, to) = (512_000, 5120);
    assert_eq!(changes, [ChangeKind::Resized { from, to }]);
    let last = |slba| Io::new(1, slba, 1).to_sqe(io::READ);
    assert_eq!(host.read(last(9), 512).status(), Status::SUCCESS);
    let beyond = host.read(last(10), 512).status();
    assert_eq!(beyond, Status::LBA_OUT_OF_RANGE);
    for blocks in [0, u64::MAX, 1 << 54] {
        revise(&target, blocks, NamespaceState::Ready);
        let id: IdentifyNamespace = identify(&mut admin, Cns::NAMESPACE, 1);
        assert_eq!(id.nsze.get(), 10);
    }
}

/// The backing store reports that it is gone before the model says so.
#[test]
fn commands_of_a_lost_store_fail_and_may_be_retried() {
    let (_admin, mut host) = Host::ready(&target());
    host.outcomes = vec![
        Executed::Gone,
        Executed::Fenced,
        Executed::Standby,
        Executed::Failed,
    ];
    assert_eq!(read(&mut host, 1), Status::NAMESPACE_NOT_READY);
    // Linux sends a command with a path error to another path, unless DNR is set.
    assert_eq!(read(&mut host, 1), Status::INTERNAL_PATH_ERROR);
    assert_eq!(read(&mut host, 1), Status::ANA_INACCESSIBLE);
    let failed = read(&mut host, 1);
    assert_eq!(failed, Status::UNRECOVERED_READ_ERROR.with_dnr());
}

fn with_second(state: NamespaceState) -> SubsystemSpec {
    let second = NamespaceSpec {
        state,
        ..namespace(2000)
    };
    let mut spec = subsystem();
    spec.namespaces.push(second);
    spec
}

#[test]
fn disabled_namespace_is_allocated_and_not_active() {
    let target = target();
    let (mut admin, mut host) = Host::ready(&target);
    let applied = apply(&target, &[with_second(NamespaceState::Disabled), closed()]);
    assert_eq!(applied.changes[0].kind, ChangeKind::Added);
    let lists = |admin: &mut Host| {
        [Cns::ACTIVE_NAMESPACES, Cns::CSI_ALLOCATED_NAMESPACES].map(|cns| {
            let list: NamespaceList = identify(admin, cns, 1);
            list.iter().collect::<Vec<_>>()
        })
    };
    assert_eq!(lists(&mut admin), [vec![3], vec![3, 2000]]);
    let id: IdentifyController = identify(&mut admin, Cns::CONTROLLER, 0);
    assert_eq!(id.nn.get(), 2000, "the highest valid one");
    // Base 2.1, 3.2.1.4: an inactive namespace identifier.
    let inactive = Status::INVALID_FIELD.with_dnr();
    assert_eq!(read(&mut host, 2000), inactive);
    // Identify Namespace data structure: "if the specified namespace is an inactive NSID, then
    // the controller returns a zero filled data structure".
    let id = admin.identify(Cns::NAMESPACE, 2000);
    assert!(id.data.iter().all(|byte| *byte == 0));
    let id: IdentifyNamespace = identify(&mut admin, Cns::ALLOCATED_NAMESPACE, 2000);
    assert_eq!(id.nsze.get(), 0);
    assert_ne!(id.nguid, [0; 16]);
    for (state, kind, status) in [
        (NamespaceState::Ready, ChangeKind::Enabled, Status::SUCCESS),
        (NamespaceState::Disabled, ChangeKind::Disabled, inactive),
    ] {
        let applied = apply(&target, &[with_second(state), closed()]);
        assert_eq!(applied.changes.len(), 1);
        assert_eq!(applied.changes[0].kind, kind);
        assert_eq!(read(&mut host, 2000), status);
    }
}
