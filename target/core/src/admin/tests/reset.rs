//! Commands that are on their way when the host resets the controller (Base 2.1,
//! 3.7.2): they get no response and have no further effect.

use nvmeof_wire::Sqe;
use nvmeof_wire::admin::{Cns, Identify, SetFeatures};
use nvmeof_wire::fabrics::PropertyAccess;
use nvmeof_wire::features::{FeatureId, HostBehavior};
use nvmeof_wire::registers::{Cc, Csts, Property, PropertyValue};
use zerocopy::IntoBytes;

use crate::testing::{Host, keyed, target};
use crate::{Action, Event, Executed, Request};

/// Begins a command before a reset.
fn begin(host: &mut Host, sqe: Sqe) -> (Request, Action) {
    let mut request = Request::default();
    let action = host.queue.begin(host.now, &sqe.to_bytes(), &mut request);
    host.set_cc(0);
    host.set_cc(Cc::ENABLE.0);
    (request, action)
}

fn step(host: &mut Host, mut request: Request, event: Event<'_>) -> Action {
    host.queue.step(host.now, &mut request, event)
}

#[test]
fn shutdown_interrupted_by_reset_has_no_effect() {
    let (mut host, _) = Host::admin(&target());
    let cc = PropertyValue::Dword(Cc::ENABLE.0 | 1 << 14);
    let shutdown = PropertyAccess::set(Property::CC, cc);
    let (request, action) = begin(&mut host, shutdown);
    assert!(matches!(action, Action::Execute(_)), "{action:?}");
    let (outcome, data) = (Executed::Ok, &[][..]);
    let action = step(&mut host, request, Event::Executed { outcome, data });
    assert!(matches!(action, Action::Hold), "{action:?}");
    assert_eq!(host.csts(), u64::from(Csts::RDY.bits()));
}

#[test]
fn page_waiting_across_a_reset_is_not_returned() {
    let (mut host, _) = Host::admin(&target());
    let mut sqe = Identify::new(Cns::CONTROLLER, 0).to_sqe();
    sqe.dptr = keyed(4096).to_descriptor();
    let (request, action) = begin(&mut host, sqe);
    assert!(matches!(action, Action::Produce { .. }), "{action:?}");
    let action = step(&mut host, request, Event::Buffer(&mut [0; 4096]));
    assert!(matches!(action, Action::Hold), "{action:?}");
    // One after it is.
    assert_eq!(host.identify(Cns::CONTROLLER, 0).data.len(), 4096);
}

#[test]
fn feature_data_after_a_reset_are_ignored() {
    let (mut host, _) = Host::admin(&target());
    let data = HostBehavior::zeroed();
    let mut sqe = SetFeatures::new(FeatureId::HOST_BEHAVIOR, 0).to_sqe();
    sqe.dptr = keyed(data.as_bytes().len()).to_descriptor();
    let (request, action) = begin(&mut host, sqe);
    assert!(matches!(action, Action::Pull { .. }), "{action:?}");
    let action = step(&mut host, request, Event::Pulled(data.as_bytes()));
    assert!(matches!(action, Action::Hold), "{action:?}");
}
