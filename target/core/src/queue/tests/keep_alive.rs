//! Keep Alive (Base 2.1, 3.9): by command, by traffic, and what happens when
//! the host is idle.

use std::time::Duration;

use nvmeof_wire::admin::{Cns, SetFeatures, bare};
use nvmeof_wire::fabrics::Connect;
use nvmeof_wire::features::FeatureId;
use nvmeof_wire::nvm;
use nvmeof_wire::opcode::admin;
use nvmeof_wire::registers::Cc;
use nvmeof_wire::{Nqn, Status};

use crate::testing::{Host, connect_data, target, target_with};
use crate::{Call, CloseCause, FollowUps, Limits};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn keep_alive_timeout_ends_controller_and_queues() {
    let target = target();
    let (mut admin, cntlid) = Host::admin_with(&target, 1500, &connect_data(0xffff));
    let mut io = Host::io(&target, 1, cntlid);
    // 1.5 s are rounded up to 2 s.
    admin.now += 2 * SECOND;
    assert_eq!(admin.close_cause(), None);
    let deadline = admin.queue.next_deadline().unwrap();
    assert!(deadline > admin.now);
    admin.now = deadline;
    assert_eq!(
        admin.close_cause(),
        Some(CloseCause::KeepAlive { kato_ms: 2000 })
    );
    assert!(admin.queue.take_follow_ups().contains(FollowUps::CALL));
    assert_eq!(admin.queue.take_calls(), [Call { reactor: 0, cntlid }]);
    assert_eq!(
        io.close_cause(),
        Some(CloseCause::ControllerGone { cntlid })
    );
    assert_eq!(target.controllers(), 0);
}

#[test]
fn any_command_renews_traffic_based_keep_alive() {
    let target = target();
    let (mut admin, cntlid) = Host::admin_with(&target, 1000, &connect_data(0xffff));
    let mut io = Host::io(&target, 1, cntlid);
    for _ in 0..5 {
        io.now += SECOND;
        admin.now += SECOND;
        io.plain(nvm::flush(1));
        assert_eq!(admin.close_cause(), None);
    }
}

/// Base 2.1, 3.9.4: what counts is an interval, not the time since the last
/// command.
#[test]
fn command_in_an_interval_extends_keep_alive_to_the_next() {
    let target = target();
    let (mut admin, _) = Host::admin_with(&target, 2000, &connect_data(0xffff));
    admin.now += SECOND;
    admin.csts();
    // A late timer of the host, longer than its timeout after that.
    admin.now += 2 * SECOND;
    assert_eq!(admin.close_cause(), None);
    admin.csts();
    admin.now += 2 * SECOND + SECOND / 10;
    assert_eq!(
        admin.close_cause(),
        Some(CloseCause::KeepAlive { kato_ms: 2000 })
    );
}

#[test]
fn enable_set_features_and_queue_loss_renew_keep_alive() {
    let target = target();
    let mut admin = Host::open(&target, 0, 32);
    let connect = Connect::new(0, 32, 2000);
    let cntlid = admin.connect(&connect, &connect_data(0xffff)).result();
    admin.now += 2 * SECOND;
    admin.set_cc(Cc::ENABLE.0);
    admin.now += 2 * SECOND;
    assert_eq!(admin.close_cause(), None);
    let set = SetFeatures::new(FeatureId::KEEP_ALIVE_TIMER, 2000);
    admin.plain(set.to_sqe());
    admin.now += SECOND;
    let io = Host::io(&target, 1, u16::try_from(cntlid).unwrap());
    io.queue.note_activity(admin.now);
    drop(io);
    admin.now += SECOND + SECOND / 10;
    assert_eq!(admin.close_cause(), None);
    admin.now += 2 * SECOND;
    assert_eq!(admin.close_cause(), None, "its first poll came late");
    admin.now += 2 * SECOND + SECOND / 10;
    assert!(admin.close_cause().is_some());
}

#[test]
fn only_keep_alive_counts_without_tbkas() {
    let limits = Limits {
        traffic_keep_alive: false,
        ..Limits::default()
    };
    let target = target_with(limits);
    let (mut admin, _) = Host::admin_with(&target, 1000, &connect_data(0xffff));
    admin.now += SECOND;
    assert_eq!(
        admin.plain(bare(admin::KEEP_ALIVE)).status(),
        Status::SUCCESS
    );
    admin.now += SECOND;
    admin.identify(Cns::CONTROLLER, 0);
    assert_eq!(admin.close_cause(), None);
    admin.now += SECOND;
    assert!(admin.close_cause().is_some());
}

#[test]
fn without_a_time_out_nothing_expires_and_keep_alive_is_refused() {
    let (mut admin, _) = Host::admin(&target());
    assert_eq!(admin.queue.next_deadline(), None);
    let completion = admin.plain(bare(admin::KEEP_ALIVE));
    assert_eq!(completion.status(), Status::KEEP_ALIVE_TIMEOUT_INVALID);
    admin.now += 1000 * SECOND;
    assert_eq!(admin.close_cause(), None);
}

#[test]
fn set_features_changes_the_keep_alive_timeout() {
    let (mut admin, _) = Host::admin(&target());
    let _ = admin.queue.take_follow_ups();
    let set = SetFeatures::new(FeatureId::KEEP_ALIVE_TIMER, 2500);
    assert_eq!(admin.plain(set.to_sqe()).status(), Status::SUCCESS);
    assert!(admin.queue.take_follow_ups().contains(FollowUps::DEADLINE));
    admin.now += 4 * SECOND;
    assert_eq!(
        admin.close_cause(),
        Some(CloseCause::KeepAlive { kato_ms: 3000 })
    );
}

#[test]
fn silent_discovery_controller_expires() {
    let target = target();
    let mut data = connect_data(0xffff);
    data.subnqn = Nqn::discovery().to_field();
    let (mut host, _) = Host::admin_with(&target, 0, &data);
    host.now += 121 * SECOND;
    assert!(matches!(
        host.close_cause(),
        Some(CloseCause::KeepAlive { .. })
    ));
}
