//! Cross-Controller Reset: it completes when backing stores have nothing of the impacted
//! controller, whichever way its queues end.

use std::time::Duration;

use nvmeof_rdma::{Provider, QpId};
use nvmeof_wire::admin::{Cns, CrossControllerReset, GetLogPage, Identify, LogId};
use nvmeof_wire::identify::IdentifyController;
use nvmeof_wire::log::{CrossResetEntry, CrossResetState};
use nvmeof_wire::opcode::io;
use zerocopy::FromBytes;

use super::Bench;
use super::host::{Host, admin, ready, run};
use super::io::command;
use super::log::logged;
use super::orders::close;
use crate::Mail;
use crate::mailbox::Order;

const A_WHILE: Duration = Duration::from_millis(100);

/// What names the controller of that admin queue.
fn named(bench: &mut Bench, host: &mut Host, qp: QpId) -> CrossControllerReset {
    let sent = host.send_with(qp, Identify::new(Cns::CONTROLLER, 0).to_sqe(), &[0; 4096]);
    let (_, data) = run(bench, host, sent);
    let id = IdentifyController::read_from_bytes(&data).unwrap();
    CrossControllerReset {
        icid: id.cntlid.get(),
        ciu: id.ciu,
        cirn: id.cirn.get(),
    }
}

/// Resets the controller; says whether that was immediate.
fn reset(bench: &mut Bench, sibling: &mut Host, qp: QpId, named: CrossControllerReset) -> bool {
    let sent = sibling.send(qp, named.to_sqe(), &[]);
    let (cqe, _) = run(bench, sibling, sent);
    assert!(cqe.status().is_success(), "{:?}", cqe.status());
    cqe.dw0() == CrossControllerReset::IMMEDIATE
}

/// The state of the only reset in the log page.
fn state(bench: &mut Bench, sibling: &mut Host, qp: QpId) -> CrossResetState {
    let page = GetLogPage::new(LogId::CROSS_CONTROLLER_RESET, 0, 0, 16);
    let sent = sibling.send_with(qp, page.to_sqe(), &[0; 16]);
    let (cqe, data) = run(bench, sibling, sent);
    assert!(cqe.status().is_success());
    assert_eq!(data[0], 1);
    CrossResetEntry::read_from_bytes(&data[8..]).unwrap().ccrs
}

/// An impacted host with a write and a read at the backing store, and a sibling.
fn impacted(bench: &mut Bench) -> (Host, CrossControllerReset, QpId, Host, QpId) {
    let (mut impacted, mut sibling) = (bench.host(), bench.host());
    sibling.name = Some(impacted.id[0]);
    let (admin_qp, qp) = ready(bench, &mut impacted);
    let named = named(bench, &mut impacted, admin_qp);
    let (sibling_qp, _) = admin(bench, &mut sibling, 0);
    bench.reactor.stores_mut().hold = true;
    impacted.send_with(qp, command(io::WRITE, 4, 1), &[1; 512]);
    impacted.send_with(qp, command(io::READ, 20, 1), &[0; 512]);
    bench.run_for(&mut [&mut impacted, &mut sibling], A_WHILE);
    assert_eq!(bench.reactor.stores_mut().in_flight(), 2);
    (impacted, named, qp, sibling, sibling_qp)
}

#[test]
fn reset_completes_when_backing_stores_have_nothing_of_the_controller() {
    let mut bench = Bench::new(90);
    let (mut impacted, named, qp, mut sibling, sibling_qp) = impacted(&mut bench);
    assert!(!reset(&mut bench, &mut sibling, sibling_qp, named));
    // What comes now is not begun.
    impacted.send_with(qp, command(io::WRITE, 4, 1), &[2; 512]);
    bench.run_for(&mut [&mut impacted, &mut sibling], A_WHILE);
    assert_eq!(bench.reactor.stores_mut().in_flight(), 2);
    let now = state(&mut bench, &mut sibling, sibling_qp);
    assert_eq!(now, CrossResetState::IN_PROGRESS);
    bench.reactor.stores_mut().hold = false;
    bench.run_for(&mut [&mut impacted, &mut sibling], A_WHILE);
    let now = state(&mut bench, &mut sibling, sibling_qp);
    assert_eq!(now, CrossResetState::SUCCESS);
    assert_eq!(bench.reactor.stores_mut().contents[0][4 * 512], 1);
    assert!(
        reset(&mut bench, &mut sibling, sibling_qp, named),
        "it is known to be quiet"
    );
}

#[test]
fn reset_waits_for_operations_of_queue_pairs_that_are_gone() {
    let mut bench = Bench::new(91);
    let (mut impacted, named, qp, mut sibling, sibling_qp) = impacted(&mut bench);
    impacted.provider.disconnect(qp);
    bench.run_for(&mut [&mut impacted, &mut sibling], A_WHILE);
    // The I/O queue pair is gone; what backing stores have of it is not.
    assert!(!reset(&mut bench, &mut sibling, sibling_qp, named));
    bench.run_for(&mut [&mut impacted, &mut sibling], A_WHILE);
    assert_eq!(bench.reactor.queue_pairs(), 1);
    let now = state(&mut bench, &mut sibling, sibling_qp);
    assert_eq!(now, CrossResetState::IN_PROGRESS);
    bench.reactor.stores_mut().hold = false;
    bench.run_for(&mut [&mut impacted, &mut sibling], A_WHILE);
    let now = state(&mut bench, &mut sibling, sibling_qp);
    assert_eq!(now, CrossResetState::SUCCESS);
}

/// The host is silent and takes no part: its queue pairs stay where they are.
#[test]
fn reset_of_a_silent_host_does_not_wait_for_its_connections() {
    let mut bench = Bench::new(92);
    let (silent, named, _, mut sibling, sibling_qp) = impacted(&mut bench);
    assert!(!reset(&mut bench, &mut sibling, sibling_qp, named));
    bench.reactor.stores_mut().hold = false;
    bench.run_for(&mut [&mut sibling], A_WHILE);
    let now = state(&mut bench, &mut sibling, sibling_qp);
    assert_eq!(now, CrossResetState::SUCCESS);
    drop(silent);
}

/// A backing store that never responds: the reset stays in progress, and the log says which one
/// it is, also when the queue pair is gone.
#[test]
fn delayed_reset_is_logged_with_its_backing_store() {
    for is_gone in [false, true] {
        let mut bench = Bench::new(93);
        let (mut impacted, named, qp, mut sibling, sibling_qp) = impacted(&mut bench);
        if is_gone {
            impacted.provider.disconnect(qp);
            bench.run_for(&mut [&mut impacted, &mut sibling], A_WHILE);
        }
        let log = logged(|| {
            assert!(!reset(&mut bench, &mut sibling, sibling_qp, named));
            bench.run_for(&mut [&mut impacted, &mut sibling], Duration::from_secs(100));
        });
        let delayed = |line: &&String| line.contains("Cross-Controller Reset incomplete");
        let lines: Vec<_> = log.iter().filter(delayed).collect();
        assert_eq!(lines.len(), 2, "{lines:#?}");
        for words in ["2 operations not completed by backing store 0", "cntlid="] {
            assert!(lines[0].contains(words), "{words} is not in: {}", lines[0]);
        }
        let now = state(&mut bench, &mut sibling, sibling_qp);
        assert_eq!(now, CrossResetState::IN_PROGRESS);
        bench.reactor.stores_mut().hold = false;
        bench.run_for(&mut [&mut impacted, &mut sibling], A_WHILE);
        let now = state(&mut bench, &mut sibling, sibling_qp);
        assert_eq!(now, CrossResetState::SUCCESS);
    }
}

/// Whoever uses the storage again fences these operations first.
#[test]
fn reset_does_not_wait_for_operations_of_abandoned_stores() {
    for is_gone in [false, true] {
        let mut bench = Bench::new(96);
        let (mut impacted, named, qp, mut sibling, sibling_qp) = impacted(&mut bench);
        if is_gone {
            impacted.provider.disconnect(qp);
            bench.run_for(&mut [&mut impacted, &mut sibling], A_WHILE);
        }
        assert!(!reset(&mut bench, &mut sibling, sibling_qp, named));
        let _closed = close(&bench);
        let stores = vec![0];
        bench.reactor.mailbox().order(Order::Abandon { stores });
        bench.run_for(&mut [&mut impacted, &mut sibling], A_WHILE);
        let now = state(&mut bench, &mut sibling, sibling_qp);
        assert_eq!(now, CrossResetState::SUCCESS);
        assert_eq!(bench.reactor.stores_mut().in_flight(), 2);
    }
}

/// A drain closes the connections at its timeout; what backing stores have stays awaited.
#[test]
fn reset_during_drain_is_in_progress_until_backing_stores_complete() {
    let mut bench = Bench::new(94);
    let (mut impacted, named, _, mut sibling, sibling_qp) = impacted(&mut bench);
    // The sibling has a command in flight too, so that its connection stays for a while.
    assert!(!reset(&mut bench, &mut sibling, sibling_qp, named));
    bench.reactor.mailbox().send(Mail::DRAIN);
    bench.run_for(&mut [&mut impacted, &mut sibling], A_WHILE);
    assert!(!bench.drained, "operations are outstanding");
    bench.reactor.stores_mut().hold = false;
    bench.until(&mut [&mut impacted, &mut sibling], |bench, _| bench.drained);
    assert_eq!(bench.reactor.queue_pairs(), 0);
    assert_eq!(bench.reactor.stores_mut().contents[0][4 * 512], 1);
}

/// Each of two controllers of a host resets the other one: both end.
#[test]
fn controllers_that_reset_each_other_both_end() {
    let mut bench = Bench::new(95);
    let (mut one, first, _, mut other, other_qp) = impacted(&mut bench);
    let second = named(&mut bench, &mut other, other_qp);
    let (one_admin, other_admin) = (one.established[0], other_qp);
    one.send(one_admin, second.to_sqe(), &[]);
    other.send(other_admin, first.to_sqe(), &[]);
    bench.run_for(&mut [&mut one, &mut other], A_WHILE);
    bench.reactor.stores_mut().hold = false;
    bench.run_for(&mut [&mut one, &mut other], Duration::from_secs(3));
    // The one whose command came second had ended by then, or both commands were executed.
    assert!(bench.reactor.target.connected().len() <= 1);
    assert!(one.closed.len() + other.closed.len() >= 1);
}
