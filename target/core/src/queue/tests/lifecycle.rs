//! Properties, reset, shutdown and Disconnect.

use nvmeof_wire::admin::Cns;
use nvmeof_wire::fabrics::{self, PropertyAccess};
use nvmeof_wire::registers::{Cap, Cc, Csts, Property, PropertyValue, Vs};
use nvmeof_wire::{Status, nvm};

use crate::testing::{Host, target};
use crate::{Call, CloseCause, Executed, FollowUps, IoKind};

#[test]
fn properties_are_read_with_their_own_size() {
    let (mut admin, _) = Host::admin(&target());
    let mut get = |property, eight| admin.plain(PropertyAccess::get(property, eight));
    let cap = Cap(get(Property::CAP, true).result());
    let sets = Cap::CSS_NVM | Cap::CSS_IOCS;
    assert_eq!((cap.max_queue_entries(), cap.css()), (128, sets));
    // The same time as CAP.TO, in the same units.
    assert!(cap.is_ready_with_media());
    let crto = get(Property::CRTO, false).result();
    assert_eq!(crto * 500, u64::from(cap.ready_timeout_ms()));
    assert_eq!(get(Property::VS, false).result(), u64::from(Vs::V2_0.0));
    assert_eq!(get(Property::CC, false).result(), u64::from(Cc::ENABLE.0));
    assert_eq!(
        get(Property::CSTS, false).result(),
        u64::from(Csts::RDY.bits())
    );
    let wrong = [
        (Property::CAP, false),
        (Property::VS, true),
        (Property::CRTO, true),
        (Property::new(0x0c), false),
        (Property::new(u32::MAX), false),
    ];
    for (property, eight) in wrong {
        assert_eq!(
            get(property, eight).status(),
            Status::INVALID_FIELD,
            "{property:?}"
        );
    }
}

#[test]
fn only_cc_can_be_written() {
    let (mut admin, _) = Host::admin(&target());
    let mut set = |property, value| admin.plain(PropertyAccess::set(property, value)).status();
    assert_eq!(
        set(Property::CAP, PropertyValue::Qword(0)),
        Status::INVALID_FIELD
    );
    assert_eq!(
        set(Property::NSSR, PropertyValue::Dword(0x4e56_4d65)),
        Status::INVALID_FIELD
    );
    assert_eq!(
        set(Property::CC, PropertyValue::Qword(1)),
        Status::INVALID_FIELD
    );
}

#[test]
fn before_enable_only_fabrics_commands_are_served() {
    let target = target();
    let (mut admin, _) = Host::admin(&target);
    admin.set_cc(0);
    let completion = admin.identify(Cns::CONTROLLER, 0);
    assert_eq!(completion.status(), Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(admin.csts(), 0);
}

#[test]
fn invalid_cc_is_fatal() {
    let (mut admin, _) = Host::admin(&target());
    admin.set_cc(0);
    admin.set_cc(1);
    assert_eq!(admin.csts(), u64::from(Csts::CFS.bits()));
    assert!(admin.queue.take_remark().unwrap().contains("CC"));
    assert_eq!(
        admin.identify(Cns::CONTROLLER, 0).status(),
        Status::COMMAND_SEQUENCE_ERROR
    );
}

#[test]
fn reset_closes_io_queues_and_keeps_the_admin_queue() {
    let target = target();
    let (mut admin, cntlid) = Host::admin(&target);
    let mut io = Host::io(&target, 1, cntlid);
    let _ = admin.queue.take_follow_ups();
    admin.set_cc(0);
    assert!(admin.queue.take_follow_ups().contains(FollowUps::CALL));
    assert_eq!(admin.queue.take_calls(), [Call { reactor: 0, cntlid }]);
    assert_eq!(
        io.close_cause(),
        Some(CloseCause::ControllerGone { cntlid })
    );
    admin.set_cc(Cc::ENABLE.0);
    let again = Host::io(&target, 1, cntlid);
    // The old queue leaves late, and does not affect the new one.
    drop(io);
    let mut third = Host::open(&target, 1, 128);
    let connect = fabrics::Connect::new(1, 128, 0);
    let completion = third.connect(&connect, &crate::testing::connect_data(cntlid));
    assert_eq!(completion.status(), Status::CONNECT_INVALID_PARAMETERS);
    drop(again);
}

#[test]
fn command_on_a_queue_from_before_a_reset_closes_it() {
    let target = target();
    let (mut admin, cntlid) = Host::admin(&target);
    let mut io = Host::io(&target, 1, cntlid);
    admin.set_cc(0);
    let crate::testing::Outcome::Closed(cause) = io.run(nvm::flush(1), &[], &[]) else {
        panic!("still open");
    };
    assert_eq!(cause, CloseCause::ControllerGone { cntlid });
}

#[test]
fn normal_shutdown_first_flushes_what_the_host_wrote_in_every_namespace() {
    // The engine knows whether the host wrote there. Flushing everything would make
    // each shutdown wait for stalled stores that the host never wrote to.
    let (mut admin, mut io) = Host::ready(&target());
    admin.outcomes = vec![Executed::Failed];
    admin.set_cc(Cc::ENABLE.with_normal_shutdown().0);
    let flushed: Vec<_> = admin.ops.iter().map(|op| (op.kind, op.store)).collect();
    assert_eq!(flushed, [(IoKind::FlushOwn, 10), (IoKind::FlushOwn, 30)]);
    let complete = Csts::RDY | Csts::SHST_COMPLETE;
    assert_eq!(admin.csts(), u64::from(complete.bits()));
    assert_eq!(
        io.plain(nvm::flush(1)).status(),
        Status::COMMAND_SEQUENCE_ERROR
    );
}

#[test]
fn abrupt_shutdown_does_not_flush() {
    let (mut admin, _) = Host::admin(&target());
    admin.set_cc(Cc::ENABLE.0 | 2 << 14);
    assert!(admin.ops.is_empty());
    assert_eq!(
        admin.csts(),
        u64::from((Csts::RDY | Csts::SHST_COMPLETE).bits())
    );
}

#[test]
fn disconnect_completes_and_closes_an_io_queue() {
    let (mut admin, mut io) = Host::ready(&target());
    assert_eq!(
        admin.plain(fabrics::disconnect()).status(),
        Status::INVALID_QUEUE_TYPE
    );
    let mut bad = fabrics::disconnect();
    bad.cdw10 = 1.into();
    assert_eq!(io.plain(bad).status(), Status::CONNECT_INCOMPATIBLE_FORMAT);
    assert_eq!(io.close_cause(), None);
    assert_eq!(io.plain(fabrics::disconnect()).status(), Status::SUCCESS);
    assert!(io.queue.take_follow_ups().contains(FollowUps::POLL));
    assert_eq!(io.close_cause(), Some(CloseCause::Disconnected));
}

#[test]
fn io_queue_has_no_properties() {
    let (_admin, mut io) = Host::ready(&target());
    let get = PropertyAccess::get(Property::CSTS, false);
    assert_eq!(io.plain(get).status(), Status::INVALID_QUEUE_TYPE);
}

#[test]
fn losing_the_admin_queue_loses_the_controller() {
    let target = target();
    let (admin, mut io) = Host::ready(&target);
    assert!(admin.queue.is_needed() && !io.queue.is_needed());
    let (follow_ups, calls) = admin.queue.close();
    assert!(follow_ups.contains(FollowUps::CALL) && calls.len() == 1);
    assert!(matches!(
        io.close_cause(),
        Some(CloseCause::ControllerGone { .. })
    ));
}
