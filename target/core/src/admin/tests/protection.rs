//! Namespace Write Protection (Base 2.1, 5.1.25.1.31 and 8.1.16).

mod kept;

use nvmeof_wire::admin::{Cns, GetFeatures, GetLogPage, LogId, NSID_ALL, Select, SetFeatures};
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::features::{AsyncEventConfig, FeatureId, WriteProtection};
use nvmeof_wire::identify::capabilities::Nwpc;
use nvmeof_wire::identify::{IdentifyController, IdentifyNamespace};
use nvmeof_wire::log::SmartLog;
use nvmeof_wire::nvm::{Copy, DatasetManagement, Io, flush};
use nvmeof_wire::opcode::io;
use nvmeof_wire::registers::Cc;
use nvmeof_wire::{Nqn, Status};
use zerocopy::FromBytes;

use super::discovery;
use crate::admin::cancel_requests;
use crate::testing::{
    Completion, Host, apply, change_a_namespace, closed, connect_data, namespace, subsystem, target,
};
use crate::{
    Action, Event, Executed, FollowUps, IoKind, NamespaceSpec, NamespaceState, Order, Request,
    SavedProtection, SettingsKeeper, Target,
};

const FRIEND: &str = "nqn.2026-11.org.example:friend";
const FID: FeatureId = FeatureId::NAMESPACE_WRITE_PROTECTION;

fn set(host: &mut Host, nsid: u32, state: WriteProtection) -> Completion {
    let command = SetFeatures {
        nsid,
        ..SetFeatures::new(FID, state.to_dword())
    };
    host.plain(command.to_sqe())
}

fn get(host: &mut Host, nsid: u32, select: Select) -> Completion {
    let command = GetFeatures {
        fid: FID,
        select,
        cdw11: 0,
        nsid,
    };
    host.plain(command.to_sqe())
}

fn state(host: &mut Host, nsid: u32) -> WriteProtection {
    let completion = get(host, nsid, Select::Current);
    assert_eq!(completion.status(), Status::SUCCESS);
    WriteProtection::from_dword(u32::try_from(completion.result()).unwrap())
}

fn write(host: &mut Host) -> Status {
    let command = Io::new(1, 0, 1).to_sqe(io::WRITE);
    host.write(command, &[0; 512]).status()
}

/// Figure "Commands Allowed when Specifying a Write Protected NSID".
#[test]
fn a_protected_namespace_is_read_and_not_written() {
    let (mut admin, mut queue) = Host::ready(&target());
    assert_eq!(write(&mut queue), Status::SUCCESS);
    assert_eq!(state(&mut admin, 1), WriteProtection::NONE);
    let completion = set(&mut admin, 1, WriteProtection::PROTECTED);
    assert_eq!(completion.status(), Status::SUCCESS);
    // Earlier writes are stable by then.
    let flushed: Vec<_> = admin.ops.iter().map(|op| (op.kind, op.store)).collect();
    assert_eq!(flushed, [(IoKind::Settle, 10)]);
    assert_eq!(state(&mut admin, 1), WriteProtection::PROTECTED);
    let before = queue.ops.len();
    let range = Io::new(1, 0, 1);
    let trim = DatasetManagement {
        nsid: 1,
        ranges: 1,
        deallocate: true,
    };
    let hint = DatasetManagement {
        deallocate: false,
        ..trim
    };
    let copy = Copy {
        nsid: 1,
        slba: 100,
        ranges: 1,
        format: 0,
        protected: false,
        fua: false,
    };
    for completion in [
        queue.write(range.to_sqe(io::WRITE), &[0; 512]),
        queue.plain(range.to_sqe(io::WRITE_ZEROES)),
        queue.write(trim.to_sqe(), &[0; 16]),
        queue.write(copy.to_sqe(), &[0; 32]),
    ] {
        assert_eq!(completion.status(), Status::NAMESPACE_WRITE_PROTECTED);
    }
    assert_eq!(queue.ops.len(), before, "nothing reached the backing store");
    for completion in [
        queue.read(range.to_sqe(io::READ), 512),
        queue.write(range.to_sqe(io::COMPARE), &[0; 512]),
        queue.plain(range.to_sqe(io::VERIFY)),
        queue.plain(flush(1)),
        queue.write(hint.to_sqe(), &[0; 16]),
    ] {
        assert_eq!(completion.status(), Status::SUCCESS);
    }
    let id = admin.identify(Cns::NAMESPACE, 1);
    let id = IdentifyNamespace::read_from_bytes(&id.data).ok().unwrap();
    assert_eq!(id.nsattr, 1);
    // "The controller shall not set" the critical warning for that.
    let smart = GetLogPage::new(LogId::SMART, 0, 0, 512);
    let smart = admin.read(smart.to_sqe(), 512);
    assert_eq!(SmartLog::read_from_bytes(&smart.data).unwrap().cw, 0);
    assert_eq!(
        set(&mut admin, 1, WriteProtection::NONE).status(),
        Status::SUCCESS
    );
    assert_eq!(write(&mut queue), Status::SUCCESS);
}

/// Base 2.1, 4.4: with FFFFFFFFh Set Features sets the value "for all namespaces attached to
/// the controller processing the command", and Get Features fails with Invalid Namespace or Format.
#[test]
fn all_namespaces_of_a_host_are_protected_with_one_command() {
    let target = target();
    let hidden = NamespaceSpec {
        hosts: Some(vec![FRIEND.into()]),
        ..namespace(3)
    };
    let spec = |fourth: NamespaceSpec| crate::SubsystemSpec {
        namespaces: vec![namespace(1), namespace(2), hidden.clone(), fourth],
        ..subsystem()
    };
    let _ = apply(&target, &[spec(namespace(4)), closed()]);
    let (mut admin, mut queue) = Host::ready(&target);
    let states = |admin: &mut Host| [1, 2, 4].map(|nsid| state(admin, nsid));
    let (none, protected) = (WriteProtection::NONE, WriteProtection::PROTECTED);
    set(&mut admin, 2, protected);
    admin.ops.clear();
    let completion = set(&mut admin, NSID_ALL, protected);
    assert_eq!(completion.status(), Status::SUCCESS);
    // Earlier writes to the second one are stable already.
    let settled: Vec<_> = admin.ops.iter().map(|op| (op.kind, op.store)).collect();
    assert_eq!(settled, [10, 40].map(|store| (IoKind::Settle, store)));
    assert_eq!(states(&mut admin), [protected; 3]);
    assert_eq!(write(&mut queue), Status::NAMESPACE_WRITE_PROTECTED);
    let mut data = connect_data(0xffff);
    data.hostnqn = Nqn::new(FRIEND).unwrap().to_field();
    let (mut friend, _) = Host::admin_with(&target, 0, &data);
    assert_eq!(state(&mut friend, 3), none, "it is not there for the other");
    for select in [Select::Current, Select::Default, Select::Saved] {
        let completion = get(&mut admin, NSID_ALL, select);
        assert_eq!(completion.status(), Status::INVALID_NAMESPACE);
    }
    assert_eq!(set(&mut admin, NSID_ALL, none).status(), Status::SUCCESS);
    assert_eq!(states(&mut admin), [none; 3]);
    // If one cannot be protected, none is.
    let gone = NamespaceSpec {
        state: NamespaceState::Faulted,
        ..namespace(4)
    };
    let fixed = NamespaceSpec {
        readonly: true,
        ..namespace(4)
    };
    let until = WriteProtection::UNTIL_POWER_CYCLE;
    for (fourth, status) in [
        (gone, Status::NAMESPACE_NOT_READY),
        (fixed, Status::FEATURE_NOT_CHANGEABLE),
    ] {
        let _ = apply(&target, &[spec(fourth), closed()]);
        assert_eq!(set(&mut admin, NSID_ALL, until).status().kind(), status);
        assert_eq!([1, 2].map(|nsid| state(&mut admin, nsid)), [none; 2]);
    }
    // A failure of a backing store leaves earlier namespaces protected.
    let _ = apply(&target, &[spec(namespace(4)), closed()]);
    admin.outcomes = vec![Executed::Ok, Executed::Failed];
    let completion = set(&mut admin, NSID_ALL, protected);
    assert_eq!(completion.status(), Status::WRITE_FAULT);
    assert_eq!(states(&mut admin), [protected, none, none]);
    // A fixed state may be requested again.
    for nsid in [4, NSID_ALL] {
        assert_eq!(set(&mut admin, nsid, until).status(), Status::SUCCESS);
    }
    assert_eq!(states(&mut admin), [until; 3]);
}

/// A reset in between: the namespace in progress is protected, since other requests may
/// depend on it, and no further one follows.
#[test]
fn a_reset_ends_the_protection_of_all() {
    let target = target();
    let _ = apply(&target, &[both(), closed()]);
    let (mut admin, _) = Host::admin(&target);
    let (mut request, action) = begin_set(&mut admin, NSID_ALL, WriteProtection::PROTECTED);
    assert!(matches!(action, Action::Execute(op) if op.store == 10));
    admin.set_cc(0);
    admin.set_cc(Cc::ENABLE.0);
    let (outcome, data) = (Executed::Ok, &[][..]);
    let event = Event::Executed { outcome, data };
    let action = admin.queue.step(admin.now, &mut request, event);
    assert!(matches!(action, Action::Hold), "{action:?}");
    assert_eq!(state(&mut admin, 2), WriteProtection::NONE);
}

fn both() -> crate::SubsystemSpec {
    crate::SubsystemSpec {
        namespaces: vec![namespace(1), namespace(2)],
        ..subsystem()
    }
}

#[test]
fn protection_until_power_cycle_cannot_be_removed() {
    let target = target();
    let (mut admin, _) = Host::admin(&target);
    let until = WriteProtection::UNTIL_POWER_CYCLE;
    for state in [WriteProtection::PROTECTED, until, until] {
        assert_eq!(set(&mut admin, 1, state).status(), Status::SUCCESS);
    }
    for state in [WriteProtection::NONE, WriteProtection::PROTECTED] {
        let completion = set(&mut admin, 1, state);
        assert_eq!(completion.status(), Status::FEATURE_NOT_CHANGEABLE);
    }
    // Neither a reset nor another model is a power cycle.
    admin.set_cc(0);
    admin.set_cc(Cc::ENABLE.0);
    assert_eq!(state(&mut admin, 1), until);
    change_a_namespace(&target);
    assert_eq!(state(&mut admin, 1), until);
    let cntlid = target.shared.registry.all()[0].cntlid;
    assert_eq!(
        write(&mut Host::io(&target, 1, cntlid)),
        Status::NAMESPACE_WRITE_PROTECTED
    );
    // Another namespace with the same NSID is not protected.
    let mut spec = subsystem();
    spec.namespaces[0].uuid = Some([9; 16]);
    let _ = apply(&target, &[spec, closed()]);
    assert_eq!(state(&mut admin, 1), WriteProtection::NONE);
}

#[test]
fn configured_readonly_cannot_be_changed() {
    let (mut admin, _) = Host::admin(&target());
    assert_eq!(state(&mut admin, 3), WriteProtection::PROTECTED);
    let protected = WriteProtection::PROTECTED;
    assert_eq!(set(&mut admin, 3, protected).status(), Status::SUCCESS);
    for state in [WriteProtection::NONE, WriteProtection::UNTIL_POWER_CYCLE] {
        let completion = set(&mut admin, 3, state);
        assert_eq!(completion.status(), Status::FEATURE_NOT_CHANGEABLE);
    }
}

#[test]
fn a_namespace_that_cannot_be_flushed_is_not_protected() {
    let (mut admin, mut queue) = Host::ready(&target());
    admin.outcomes = vec![Executed::Failed];
    let completion = set(&mut admin, 1, WriteProtection::PROTECTED);
    assert_eq!(completion.status(), Status::WRITE_FAULT);
    assert_eq!(state(&mut admin, 1), WriteProtection::NONE);
    assert_eq!(write(&mut queue), Status::SUCCESS);
}

#[test]
fn protection_change_notifies_every_host() {
    let target = target();
    let (mut admin, _) = Host::admin(&target);
    let (mut other, _) = Host::admin(&target);
    let enable = SetFeatures::new(FeatureId::ASYNC_EVENT_CONFIG, AsyncEventConfig::NSAN.bits());
    other.plain(enable.to_sqe());
    let request = nvmeof_wire::admin::bare(nvmeof_wire::opcode::admin::ASYNC_EVENT_REQUEST);
    other.run(request, &[], &[]);
    for state in [WriteProtection::PROTECTED, WriteProtection::NONE] {
        let _ = admin.queue.take_follow_ups();
        set(&mut admin, 1, state);
        // The removal takes effect with its save, and the keeper
        // notifies all hosts.
        let at_once = state == WriteProtection::PROTECTED;
        assert_eq!(
            admin.queue.take_follow_ups().contains(FollowUps::POLL_ALL),
            at_once
        );
        let Some(Order::Respond(response)) = other.queue.poll(other.now) else {
            panic!("no event of {state:?}");
        };
        let event = AsyncEvent::from_dword(response.cqe.dw0());
        assert_eq!(event, AsyncEvent::NAMESPACE_CHANGED);
        let page = GetLogPage::new(LogId::CHANGED_NAMESPACES, 0, 0, 4096);
        assert_eq!(
            other.read(page.to_sqe(), 4096).data[..8],
            [1, 0, 0, 0, 0, 0, 0, 0]
        );
        other.run(request, &[], &[]);
        // The same state again changes nothing, and no reactor has to poll.
        let _ = admin.queue.take_follow_ups();
        set(&mut admin, 1, state);
        assert!(
            !admin.queue.take_follow_ups().contains(FollowUps::POLL_ALL),
            "{state:?}"
        );
        assert!(other.queue.poll(other.now).is_none());
    }
}

#[test]
fn unknown_states_and_namespaces_are_refused() {
    let (mut admin, _) = Host::admin(&target());
    for (nsid, status) in [
        (0, Status::INVALID_NAMESPACE),
        (2, Status::INVALID_FIELD),
        (1025, Status::INVALID_NAMESPACE),
    ] {
        let completion = set(&mut admin, nsid, WriteProtection::PROTECTED);
        assert_eq!(completion.status(), status, "{nsid}");
        for select in [Select::Current, Select::Default, Select::Saved] {
            let completion = get(&mut admin, nsid, select);
            assert_eq!(completion.status(), status, "{nsid}");
        }
    }
    for state in 3..8 {
        let completion = set(&mut admin, 1, WriteProtection(state));
        assert_eq!(completion.status(), Status::INVALID_FIELD, "{state}");
    }
    set(&mut admin, 1, WriteProtection::PROTECTED);
    assert_eq!(get(&mut admin, 1, Select::Default).result(), 0);
    // Changeable, and of a namespace.
    assert_eq!(get(&mut admin, 1, Select::Capabilities).result(), 6);
    let id = admin.identify(Cns::CONTROLLER, 0);
    let id = IdentifyController::read_from_bytes(&id.data).ok().unwrap();
    assert_eq!(id.nwpc, (Nwpc::NWPWPS | Nwpc::WPUPCS).bits());
    let mut finder = discovery(&target());
    let completion = set(&mut finder, 1, WriteProtection::PROTECTED);
    assert_eq!(completion.status(), Status::INVALID_FIELD);
}

/// The namespace does not exist for a host that cannot access it.
#[test]
fn host_without_access_cannot_protect_and_is_not_notified() {
    let target = target();
    let (mut admin, _) = Host::admin(&target);
    let mut data = connect_data(0xffff);
    data.hostnqn = Nqn::new(FRIEND).unwrap().to_field();
    let (mut friend, _) = Host::admin_with(&target, 0, &data);
    let mut spec = subsystem();
    spec.namespaces[0].hosts = Some(vec![FRIEND.into()]);
    let _ = apply(&target, &[spec, closed()]);
    let enable = SetFeatures::new(FeatureId::ASYNC_EVENT_CONFIG, AsyncEventConfig::NSAN.bits());
    for host in [&mut admin, &mut friend] {
        host.plain(enable.to_sqe());
        let page = GetLogPage::new(LogId::CHANGED_NAMESPACES, 0, 0, 4096);
        host.read(page.to_sqe(), 4096);
        let request = nvmeof_wire::admin::bare(nvmeof_wire::opcode::admin::ASYNC_EVENT_REQUEST);
        host.run(request, &[], &[]);
    }
    let completion = set(&mut admin, 1, WriteProtection::PROTECTED);
    assert_eq!(completion.status(), Status::INVALID_FIELD);
    let completion = get(&mut admin, 1, Select::Current);
    assert_eq!(completion.status(), Status::INVALID_FIELD);
    let completion = set(&mut friend, 1, WriteProtection::PROTECTED);
    assert_eq!(completion.status(), Status::SUCCESS);
    assert!(friend.queue.poll(friend.now).is_some());
    assert!(admin.queue.poll(admin.now).is_none());
}

#[test]
fn protection_applies_to_all_controllers() {
    let target = target();
    let (mut admin, mut queue) = Host::ready(&target);
    let (mut other, _) = Host::admin(&target);
    set(&mut other, 1, WriteProtection::PROTECTED);
    assert_eq!(write(&mut queue), Status::NAMESPACE_WRITE_PROTECTED);
    assert_eq!(state(&mut admin, 1), WriteProtection::PROTECTED);
    // It belongs to the namespace, also while that is not served.
    let rest = NamespaceSpec {
        readonly: true,
        ..namespace(3)
    };
    let mut spec = subsystem();
    spec.namespaces = vec![rest];
    let _ = apply(&target, &[spec, closed()]);
    let _ = apply(&target, &[subsystem(), closed()]);
    assert_eq!(state(&mut admin, 1), WriteProtection::PROTECTED);
    assert_eq!(write(&mut queue), Status::NAMESPACE_WRITE_PROTECTED);
}

/// A command in flight beside others.
fn begin_set(host: &mut Host, nsid: u32, state: WriteProtection) -> (Request, Action) {
    let command = SetFeatures {
        nsid,
        ..SetFeatures::new(FID, state.to_dword())
    };
    let mut request = Request::default();
    let sqe = command.to_sqe().to_bytes();
    let action = host.queue.begin(host.now, &sqe, &mut request);
    (request, action)
}

fn end(host: &mut Host, mut request: Request, outcome: Executed) -> Status {
    let event = Event::Executed { outcome, data: &[] };
    let action = host.queue.step(host.now, &mut request, event);
    host.end(request, action).cqe.status().without_more()
}

/// The request of one host does not depend on that of another.
#[test]
fn failed_request_keeps_protection_of_another_host() {
    let target = target();
    let (mut one, mut queue) = Host::ready(&target);
    let (mut two, _) = Host::admin(&target);
    let protected = WriteProtection::PROTECTED;
    let (first, action) = begin_set(&mut one, 1, protected);
    assert!(matches!(action, Action::Execute(op) if op.kind == IoKind::Settle));
    let (second, action) = begin_set(&mut two, 1, protected);
    let settles = matches!(action, Action::Execute(op) if op.kind == IoKind::Settle);
    assert!(settles, "the first may fail, or its host be gone");
    let status = end(&mut one, first, Executed::Failed);
    assert_eq!(status.kind(), Status::WRITE_FAULT);
    assert_eq!(state(&mut one, 1), protected);
    assert!(end(&mut two, second, Executed::Ok).is_success());
    assert_eq!(write(&mut queue), Status::NAMESPACE_WRITE_PROTECTED);
    // In any order of completion.
    set(&mut one, 1, WriteProtection::NONE);
    let (first, _) = begin_set(&mut one, 1, protected);
    let (second, _) = begin_set(&mut two, 1, protected);
    let status = end(&mut two, second, Executed::Failed);
    assert_eq!(status.kind(), Status::WRITE_FAULT);
    assert!(end(&mut one, first, Executed::Ok).is_success());
    assert_eq!(state(&mut one, 1), protected);
    // A failed request does not restore the earlier state.
    assert_eq!(
        set(&mut one, 1, WriteProtection::NONE).status(),
        Status::SUCCESS
    );
    let (first, _) = begin_set(&mut one, 1, protected);
    set(&mut two, 1, WriteProtection::NONE);
    set(&mut two, 1, WriteProtection::UNTIL_POWER_CYCLE);
    end(&mut one, first, Executed::Failed);
    assert_eq!(state(&mut one, 1), WriteProtection::UNTIL_POWER_CYCLE);
}

/// Hosts are notified when it begins, and again when it fails or its queue is
/// closed.
#[test]
fn requests_of_a_closed_queue_are_cancelled() {
    let target = target();
    let (mut admin, _) = Host::admin(&target);
    let (mut other, mut queue) = Host::ready(&target);
    let enable = SetFeatures::new(FeatureId::ASYNC_EVENT_CONFIG, AsyncEventConfig::NSAN.bits());
    other.plain(enable.to_sqe());
    let is_notified = |other: &mut Host| {
        let request = nvmeof_wire::admin::bare(nvmeof_wire::opcode::admin::ASYNC_EVENT_REQUEST);
        other.run(request, &[], &[]);
        let page = GetLogPage::new(LogId::CHANGED_NAMESPACES, 0, 0, 4096);
        let notified = matches!(other.queue.poll(other.now), Some(Order::Respond(_)));
        other.read(page.to_sqe(), 4096);
        notified
    };
    let (request, _) = begin_set(&mut admin, 1, WriteProtection::PROTECTED);
    assert!(admin.queue.take_follow_ups().contains(FollowUps::POLL_ALL));
    assert!(is_notified(&mut other));
    end(&mut admin, request, Executed::Failed);
    assert!(admin.queue.take_follow_ups().contains(FollowUps::POLL_ALL));
    assert!(is_notified(&mut other));
    let _lost = begin_set(&mut admin, 1, WriteProtection::PROTECTED);
    assert!(is_notified(&mut other));
    assert_eq!(write(&mut queue), Status::NAMESPACE_WRITE_PROTECTED);
    let (follow_ups, _) = admin.queue.close();
    assert!(
        follow_ups.contains(FollowUps::POLL_ALL),
        "others have to be notified"
    );
    assert!(is_notified(&mut other));
    assert_eq!(state(&mut other, 1), WriteProtection::NONE);
    assert_eq!(write(&mut queue), Status::SUCCESS);
    // The next request flushes again.
    let (_, action) = begin_set(&mut other, 1, WriteProtection::PROTECTED);
    assert!(matches!(action, Action::Execute(_)));
}

/// A request of a departed host does not preserve a protection whose request failed.
#[test]
fn lost_protection_request_ends_with_a_failed_one() {
    let target = target();
    let (mut one, mut queue) = Host::ready(&target);
    let (mut two, _) = Host::admin(&target);
    let protected = WriteProtection::PROTECTED;
    let _lost = begin_set(&mut two, 1, protected);
    let (request, _) = begin_set(&mut one, 1, protected);
    drop(two);
    assert_eq!(state(&mut one, 1), protected, "it may be granted");
    let status = end(&mut one, request, Executed::Failed);
    assert_eq!(status.kind(), Status::WRITE_FAULT);
    assert_eq!(state(&mut one, 1), WriteProtection::NONE);
    assert_eq!(write(&mut queue), Status::SUCCESS);
}

/// The flush is in progress when the Keep Alive Timer expires, and completes later.
#[test]
fn flushed_writes_of_departed_host_are_forgotten() {
    let target = target();
    let (mut one, _) = Host::ready(&target);
    let (mut two, cntlid) = Host::admin(&target);
    let protected = WriteProtection::PROTECTED;
    let (late, _) = begin_set(&mut two, 1, protected);
    let (request, _) = begin_set(&mut one, 1, protected);
    let controller = target.shared.registry.get(cntlid).unwrap();
    assert!(!cancel_requests(&target.shared, &controller, |_| true));
    end(&mut two, late, Executed::Ok);
    assert_eq!(state(&mut one, 1), protected, "it may be granted");
    end(&mut one, request, Executed::Failed);
    assert_eq!(state(&mut one, 1), WriteProtection::NONE);
}

/// It waited for a slot of its backing store.
#[test]
fn aborted_request_is_undone() {
    let target = target();
    let (mut admin, mut queue) = Host::ready(&target);
    let (mut request, _) = begin_set(&mut admin, 1, WriteProtection::PROTECTED);
    let _ = admin.queue.take_follow_ups();
    let action = admin.queue.abort(&mut request);
    assert!(matches!(action, Action::Respond(_)));
    assert!(admin.queue.take_follow_ups().contains(FollowUps::POLL_ALL));
    assert_eq!(state(&mut admin, 1), WriteProtection::NONE);
    assert_eq!(write(&mut queue), Status::SUCCESS);
}

#[test]
fn request_ends_with_its_subsystem() {
    let target = target();
    let (mut admin, _) = Host::ready(&target);
    let _lost = begin_set(&mut admin, 1, WriteProtection::PROTECTED);
    let _ = apply(&target, &[closed()]);
    drop(admin);
    let _ = apply(&target, &[subsystem(), closed()]);
    let (mut admin, mut queue) = Host::ready(&target);
    assert_eq!(state(&mut admin, 1), WriteProtection::NONE);
    assert_eq!(write(&mut queue), Status::SUCCESS);
}

/// The backing store may recover: the host may retry.
#[test]
fn namespace_not_ready_cannot_be_protected() {
    let target = target();
    let (mut admin, _) = Host::admin(&target);
    admin.outcomes = vec![Executed::Gone];
    let protected = WriteProtection::PROTECTED;
    let completion = set(&mut admin, 1, protected);
    assert_eq!(
        completion.cqe.status().without_more(),
        Status::NAMESPACE_NOT_READY
    );
    let mut spec = subsystem();
    spec.namespaces[0].state = NamespaceState::Faulted;
    let _ = apply(&target, &[spec, closed()]);
    let completion = set(&mut admin, 1, protected);
    assert_eq!(
        completion.cqe.status().without_more(),
        Status::NAMESPACE_NOT_READY
    );
    assert_eq!(admin.ops.len(), 1, "no backing store");
    assert_eq!(state(&mut admin, 1), WriteProtection::NONE);
}
