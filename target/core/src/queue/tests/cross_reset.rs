//! Cross-Controller Reset: each way to complete, and each refusal.

use std::num::NonZeroU16;
use std::sync::{Arc, Mutex};

use nvmeof_wire::admin::{Cns, CrossControllerReset, GetLogPage, LogId, bare};
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::features::AsyncEventConfig;
use nvmeof_wire::identify::IdentifyController;
use nvmeof_wire::log::controllers::{CONTROLLER_ENTRIES_MAX, REMOVE_COMPLETED};
use nvmeof_wire::log::{CrossResetEntry, CrossResetState, LostHostEntry};
use nvmeof_wire::opcode::admin;
use nvmeof_wire::registers::Cc;
use nvmeof_wire::{Nqn, Sqe, Status};
use zerocopy::FromBytes;

use crate::admin::tests::discovery;
use crate::admin::tests::events::{enable, event, hold};
use crate::testing::{CLOSED, Host, SUBNQN, connect_data, connect_data_of, target_with};
use crate::{
    CloseCause, FollowUps, IncarnationKey, Limits, Model, OtherGateways, RemoteReset, Target,
};

fn many() -> Target {
    target_with(Limits {
        controllers: 1000,
        host_controllers: 1000,
        port_controllers: 1000,
        host_queues: 1000,
        ..Limits::default()
    })
}

/// Process number `process` of a target with the model of [`many`].
fn process(number: u16) -> Target {
    let key = IncarnationKey::new([1; 16], b"machine", NonZeroU16::new(number).unwrap());
    let model = Model::clone(&many().model());
    Target::with_incarnations(model, Some(key))
}

/// What names the present incarnation of a controller.
fn named(host: &mut Host) -> CrossControllerReset {
    let data = host.identify(Cns::CONTROLLER, 0).data;
    let id = IdentifyController::read_from_bytes(&data).unwrap();
    CrossControllerReset {
        icid: id.cntlid.get(),
        ciu: id.ciu,
        cirn: id.cirn.get(),
    }
}

fn page<E: FromBytes>(host: &mut Host, lid: LogId, lsp: u8) -> Vec<E> {
    let mut command = GetLogPage::new(lid, 0, 0, 4096);
    command.lsp = lsp;
    let data = host.read(command.to_sqe(), 4096).data;
    let count = u16::from_le_bytes([data[0], data[1]]);
    assert!(
        data[8 + 8 * usize::from(count)..]
            .iter()
            .all(|byte| *byte == 0)
    );
    let entries = data[8..].chunks(8).take(count.into());
    entries
        .map(|entry| E::read_from_bytes(entry).unwrap())
        .collect()
}

fn resets(host: &mut Host) -> Vec<(u16, CrossResetState)> {
    let entries = page::<CrossResetEntry>(host, LogId::CROSS_CONTROLLER_RESET, 0);
    entries
        .iter()
        .map(|one| (one.icid.get(), one.ccrs))
        .collect()
}

/// A closed queue pair, of which backing stores have nothing, as the engine does it.
fn close(mut host: Host) {
    host.queue.quiesced();
    let _ = host.queue.close();
}

#[test]
fn reset_of_a_connected_controller_completes_when_its_queues_are_quiet() {
    let target = many();
    let (mut sibling, cntlid) = Host::admin(&target);
    enable(&mut sibling, AsyncEventConfig::CCRCN);
    hold(&mut sibling);
    let (mut impacted, mut io) = Host::ready(&target);
    let named = named(&mut impacted);
    let completion = sibling.plain(named.to_sqe());
    assert_eq!(
        (completion.status(), completion.result()),
        (Status::SUCCESS, 0)
    );
    let remark = sibling.queue.take_remark().unwrap();
    assert!(remark.contains("reset by controller"), "{remark}");
    assert!(
        sibling
            .queue
            .take_follow_ups()
            .contains(FollowUps::POLL_ALL)
    );
    // Its queues end, and begin nothing.
    let gone = CloseCause::ControllerGone { cntlid: named.icid };
    assert_eq!(io.close_cause(), Some(gone.clone()));
    assert_eq!(impacted.close_cause(), Some(gone));
    // A backing store still has something of one of them.
    let left = io.queue.take_in_flight().unwrap();
    drop(io);
    close(impacted);
    assert_eq!(event(&mut sibling), None);
    assert_eq!(
        resets(&mut sibling),
        [(named.icid, CrossResetState::IN_PROGRESS)]
    );
    let again = sibling.plain(named.to_sqe());
    assert_eq!(again.status(), Status::CROSS_RESET_IN_PROGRESS);
    // Now it has not.
    assert!(left.release());
    assert_eq!(
        event(&mut sibling),
        Some(AsyncEvent::CROSS_CONTROLLER_RESET)
    );
    let entries: Vec<CrossResetEntry> = page(
        &mut sibling,
        LogId::CROSS_CONTROLLER_RESET,
        REMOVE_COMPLETED,
    );
    assert_eq!(entries.len(), 1);
    assert_eq!(
        (entries[0].ccrs, entries[0].ciu),
        (CrossResetState::SUCCESS, named.ciu)
    );
    assert_eq!(entries[0].acid.get(), cntlid);
    assert_eq!(resets(&mut sibling), []);
    // What is known to be quiet is answered at once.
    let completion = sibling.plain(named.to_sqe());
    let immediate = u64::from(CrossControllerReset::IMMEDIATE);
    assert_eq!(
        (completion.status(), completion.result()),
        (Status::SUCCESS, immediate)
    );
}

#[test]
fn reset_of_a_departed_controller_waits_for_what_is_in_flight() {
    let target = many();
    let (mut sibling, _) = Host::admin(&target);
    let (mut impacted, mut io) = Host::ready(&target);
    let named = named(&mut impacted);
    close(impacted);
    let left = io.queue.take_in_flight().unwrap();
    assert!(!left_is_awaited(&target, &mut sibling));
    let completion = sibling.plain(named.to_sqe());
    assert_eq!(
        (completion.status(), completion.result()),
        (Status::SUCCESS, 0)
    );
    drop(left);
    assert_eq!(sibling.close_cause(), None);
    assert_eq!(
        resets(&mut sibling),
        [(named.icid, CrossResetState::SUCCESS)]
    );
}

/// Else a host could make the target forget by discovering often.
#[test]
fn departed_discovery_controllers_displace_none() {
    let target = many();
    let (mut sibling, _) = Host::admin(&target);
    let (mut impacted, _) = Host::admin(&target);
    let named = named(&mut impacted);
    close(impacted);
    for _ in 0..300 {
        close(discovery(&target));
    }
    let completion = sibling.plain(named.to_sqe());
    let immediate = u64::from(CrossControllerReset::IMMEDIATE);
    assert_eq!(
        (completion.status(), completion.result()),
        (Status::SUCCESS, immediate)
    );
}

/// The first controller of each process has the same identifier, so this names the one that
/// executes the command.
#[test]
fn reset_of_a_controller_of_a_previous_process_is_immediate() {
    let (first, second) = (process(1), process(2));
    let (mut impacted, _) = Host::admin(&first);
    let (mut sibling, cntlid) = Host::admin(&second);
    let named = named(&mut impacted);
    assert_eq!(named.icid, cntlid);
    let completion = sibling.plain(named.to_sqe());
    let immediate = u64::from(CrossControllerReset::IMMEDIATE);
    assert_eq!(
        (completion.status(), completion.result()),
        (Status::SUCCESS, immediate)
    );
    let remark = sibling.queue.take_remark().unwrap();
    assert!(remark.contains("of a previous process"), "{remark}");
    assert_eq!(resets(&mut sibling), []);
    assert_eq!(sibling.close_cause(), None);
}

#[test]
fn reset_of_what_no_previous_process_of_the_host_issued_is_refused() {
    let [first, second, third] = [1, 2, 3].map(process);
    let (mut sibling, _) = Host::admin(&second);
    let (mut impacted, _) = Host::admin(&first);
    let before = named(&mut impacted);
    let (mut later, _) = Host::admin(&third);
    let (mut keyless, _) = Host::admin(&many());
    let (mut own, _) = Host::admin(&second);
    let forgotten = named(&mut own);
    own.set_cc(0);
    own.set_cc(Cc::ENABLE.0);
    let ciu = before.ciu % 255 + 1;
    let wrong = [
        named(&mut later),
        named(&mut keyless),
        forgotten,
        CrossControllerReset { ciu, ..before },
        CrossControllerReset { icid: 99, ..before },
    ];
    for wrong in wrong {
        let completion = sibling.plain(wrong.to_sqe());
        assert_eq!(completion.status(), Status::INVALID_FIELD, "{wrong:?}");
    }
    let other = "nqn.2026-11.org.example:other";
    let (mut stranger, _) = Host::admin_with(&second, 0, &connect_data_of(other, 0xffff));
    let refused = stranger.plain(before.to_sqe()).status();
    assert_eq!(refused, Status::INVALID_FIELD);
    // The same name with another Host Identifier is another host.
    let mut same_name = connect_data(0xffff);
    same_name.hostid = [9; 16];
    let (mut same_name, _) = Host::admin_with(&second, 0, &same_name);
    let refused = same_name.plain(before.to_sqe()).status();
    assert_eq!(refused, Status::INVALID_FIELD);
    assert_eq!(
        sibling.plain(before.to_sqe()).status(),
        Status::SUCCESS,
        "it was valid"
    );
}

/// Without a reset nobody is notified when the last operation ends.
fn left_is_awaited(target: &Target, sibling: &mut Host) -> bool {
    let (admin, mut io) = Host::ready(target);
    close(admin);
    let left = io.queue.take_in_flight().unwrap();
    assert_eq!(resets(sibling), []);
    left.release()
}

#[test]
fn a_stale_incarnation_is_refused_and_the_present_one_survives() {
    let target = many();
    let (mut sibling, own) = Host::admin(&target);
    let (mut impacted, _) = Host::admin(&target);
    let before = named(&mut impacted);
    impacted.set_cc(0);
    impacted.set_cc(Cc::ENABLE.0);
    let present = named(&mut impacted);
    assert_eq!(present.ciu, before.ciu % 255 + 1);
    assert_ne!(present.cirn, before.cirn);
    let itself = named(&mut sibling);
    let wrong = [
        before,
        CrossControllerReset {
            ciu: before.ciu,
            ..present
        },
        CrossControllerReset {
            cirn: before.cirn,
            ..present
        },
        CrossControllerReset {
            icid: 4000,
            ..present
        },
        CrossControllerReset {
            icid: present.icid,
            ciu: 0,
            cirn: 0,
        },
        itself,
    ];
    for wrong in wrong {
        let completion = sibling.plain(wrong.to_sqe());
        assert_eq!(completion.status(), Status::INVALID_FIELD, "{wrong:?}");
    }
    assert_eq!(own, itself.icid);
    assert_eq!(impacted.close_cause(), None);
    assert_eq!(named(&mut impacted), present);
}

#[test]
fn only_controllers_of_the_same_host_and_subsystem_are_reset() {
    let target = many();
    let (mut impacted, _) = Host::admin(&target);
    let named = named(&mut impacted);
    let (mut stranger, _) = Host::admin_with(
        &target,
        0,
        &connect_data_of("nqn.2026-11.org.example:other", 0xffff),
    );
    assert_eq!(
        stranger.plain(named.to_sqe()).status(),
        Status::INVALID_FIELD
    );
    let friend = "nqn.2026-11.org.example:friend";
    let (mut impacted_of_friend, _) =
        Host::admin_with(&target, 0, &connect_data_of(friend, 0xffff));
    let mut elsewhere = connect_data_of(friend, 0xffff);
    elsewhere.subnqn = Nqn::new(CLOSED).unwrap().to_field();
    let (mut elsewhere, _) = Host::admin_with(&target, 0, &elsewhere);
    let its = self::named(&mut impacted_of_friend);
    assert_eq!(
        elsewhere.plain(its.to_sqe()).status(),
        Status::INVALID_FIELD
    );
    assert_eq!(
        discovery(&target).plain(named.to_sqe()).status(),
        Status::INVALID_OPCODE
    );
    assert_eq!(impacted.close_cause(), None);
    assert_eq!(impacted_of_friend.close_cause(), None);
    assert_ne!(SUBNQN, CLOSED);
}

#[test]
fn resets_beyond_the_limit_or_the_log_page_are_refused() {
    let target = many();
    let (mut sibling, _) = Host::admin(&target);
    let id = sibling.identify(Cns::CONTROLLER, 0).data;
    let id = IdentifyController::read_from_bytes(&id).unwrap();
    let mut in_progress = Vec::new();
    for _ in 0..id.ccrl {
        let (mut impacted, _) = Host::admin(&target);
        let named = named(&mut impacted);
        assert_eq!(sibling.plain(named.to_sqe()).status(), Status::SUCCESS);
        in_progress.push(impacted);
    }
    let (mut one_more, _) = Host::admin(&target);
    let refused = named(&mut one_more).to_sqe();
    assert_eq!(
        sibling.plain(refused).status(),
        Status::CROSS_RESET_LIMIT_EXCEEDED
    );
    in_progress.into_iter().for_each(close);
    assert_eq!(sibling.close_cause(), None);
    for _ in usize::from(id.ccrl)..CONTROLLER_ENTRIES_MAX {
        let (mut impacted, _) = Host::admin(&target);
        let named = named(&mut impacted);
        assert_eq!(sibling.plain(named.to_sqe()).status(), Status::SUCCESS);
        close(impacted);
        assert_eq!(sibling.close_cause(), None);
    }
    assert_eq!(
        sibling.plain(refused).status(),
        Status::CROSS_RESET_LOG_FULL
    );
    assert_eq!(one_more.close_cause(), None);
    let removed: Vec<CrossResetEntry> = page(
        &mut sibling,
        LogId::CROSS_CONTROLLER_RESET,
        REMOVE_COMPLETED,
    );
    assert_eq!(removed.len(), CONTROLLER_ENTRIES_MAX);
    assert_eq!(sibling.plain(refused).status(), Status::SUCCESS);
}

/// Both end; neither waits for the other.
#[test]
fn two_controllers_that_reset_each_other_both_end() {
    let target = many();
    let [(mut first, _), (mut second, _)] = [Host::admin(&target), Host::admin(&target)];
    let (of_first, of_second) = (named(&mut first), named(&mut second));
    assert_eq!(first.plain(of_second.to_sqe()).status(), Status::SUCCESS);
    // What the second one sent before it was polled finds it lost.
    let crossing: Sqe = of_first.to_sqe();
    assert!(matches!(
        second.run(crossing, &[], &[]),
        crate::testing::Outcome::Closed(CloseCause::ControllerGone { .. })
    ));
    close(second);
    assert_eq!(first.close_cause(), None);
    assert_eq!(
        resets(&mut first),
        [(of_second.icid, CrossResetState::SUCCESS)]
    );
}

#[test]
fn lost_communication_is_reported_by_other_controllers_of_the_host() {
    let target = many();
    let (mut sibling, _) = Host::admin(&target);
    enable(&mut sibling, AsyncEventConfig::LHCN);
    hold(&mut sibling);
    // One that the host ended itself is not lost.
    let (ended, _) = Host::admin(&target);
    close(ended);
    let lost_hosts =
        |host: &mut Host| page::<LostHostEntry>(host, LogId::LOST_HOST_COMMUNICATION, 0);
    assert_eq!(lost_hosts(&mut sibling), []);
    let (mut silent, cntlid) = Host::admin_with(&target, 1000, &connect_data(0xffff));
    let ciu = named(&mut silent).ciu;
    silent.now = silent.queue.next_deadline().unwrap();
    assert!(matches!(
        silent.close_cause(),
        Some(CloseCause::KeepAlive { .. })
    ));
    let (mut broken, other) = Host::admin(&target);
    let _ = named(&mut broken);
    broken.queue.count_connection_error();
    drop(broken);
    assert_eq!(
        event(&mut sibling),
        Some(AsyncEvent::LOST_HOST_COMMUNICATION)
    );
    let entries = lost_hosts(&mut sibling);
    let expected = [(cntlid, 1), (other, 1)];
    assert_eq!(
        entries
            .iter()
            .map(|it| (it.cntlid.get(), it.lc))
            .collect::<Vec<_>>(),
        expected
    );
    assert_eq!(entries[0].ciu, ciu);
    // Another host gets no notification.
    let (mut stranger, _) = Host::admin_with(
        &target,
        0,
        &connect_data_of("nqn.2026-11.org.example:other", 0xffff),
    );
    assert_eq!(lost_hosts(&mut stranger), []);
}

#[test]
fn a_controller_that_is_reset_forgets_its_own_resets() {
    let target = many();
    let (mut sibling, _) = Host::admin(&target);
    let (mut impacted, _) = Host::admin(&target);
    assert_eq!(
        sibling.plain(named(&mut impacted).to_sqe()).status(),
        Status::SUCCESS
    );
    sibling.set_cc(0);
    sibling.set_cc(Cc::ENABLE.0);
    assert_eq!(resets(&mut sibling), []);
    close(impacted);
    assert_eq!(sibling.close_cause(), None);
    assert_eq!(
        sibling.plain(bare(admin::KEEP_ALIVE)).status(),
        Status::KEEP_ALIVE_TIMEOUT_INVALID
    );
}

/// Another gateway assigns identifiers from 1000.
#[derive(Debug, Default)]
struct Elsewhere(Mutex<Vec<Arc<RemoteReset>>>);

impl OtherGateways for Elsewhere {
    fn reset(&self, subsystem: &Nqn, cntlid: u16) -> Option<Arc<RemoteReset>> {
        assert_eq!(subsystem.as_str(), SUBNQN);
        (cntlid >= 1000).then(|| {
            let reset = Arc::<RemoteReset>::default();
            self.0.lock().unwrap().push(Arc::clone(&reset));
            reset
        })
    }
}

#[test]
fn controllers_of_another_gateway_are_reset_when_that_is_fenced() {
    let target = many();
    let elsewhere = Arc::<Elsewhere>::default();
    let gateways: Arc<dyn OtherGateways> = Arc::clone(&elsewhere) as _;
    target.set_other_gateways(gateways);
    let (mut host, _) = Host::admin(&target);
    enable(&mut host, AsyncEventConfig::CCRCN);
    hold(&mut host);
    let of = |icid| CrossControllerReset {
        icid,
        ciu: 3,
        cirn: 77,
    };
    let refused = host.plain(of(999).to_sqe());
    assert!(refused.status().is(Status::INVALID_FIELD));
    for icid in [1000, 1001] {
        let completion = host.plain(of(icid).to_sqe());
        assert_eq!(
            (completion.status(), completion.result()),
            (Status::SUCCESS, 0)
        );
    }
    assert_eq!(event(&mut host), None);
    let outcomes = elsewhere.0.lock().unwrap().clone();
    outcomes[0].end(true);
    assert!(event(&mut host).is_some());
    let expected = [
        (1000, CrossResetState::SUCCESS),
        (1001, CrossResetState::IN_PROGRESS),
    ];
    assert_eq!(resets(&mut host), expected);
    outcomes[1].end(false);
    hold(&mut host);
    assert!(event(&mut host).is_some());
    assert_eq!(resets(&mut host)[1], (1001, CrossResetState::FAILED));
    for icid in 2000..2004 {
        assert!(host.plain(of(icid).to_sqe()).status().is_success());
    }
    let refused = host.plain(of(2004).to_sqe());
    assert!(refused.status().is(Status::CROSS_RESET_LIMIT_EXCEEDED));
}
