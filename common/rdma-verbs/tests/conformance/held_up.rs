//! Cases: keys that cannot be invalidated, because the network blocks the queue.

use std::io::ErrorKind;

use nvmeof_rdma::{CloseReason, Rights};
use nvmeof_rdma_conformance::Endpoint::{A, B};
use nvmeof_rdma_conformance::{check_pattern, run};
use nvmeof_rdma_verbs::DeviceKind;

use super::{Device, device};

/// Retransmits after 8.6 seconds, which is longer than a withdraw waits. A software device
/// that retransmits fails for other reasons.
const LATE: u8 = 21;

/// The owner gets the buffer back in any case, its connection ends, and the reason is the
/// network and not the peer.
#[test]
fn key_that_cannot_be_invalidated_ends_connection() {
    let device = Device {
        ack_timeout: Some(LATE),
        ..device()
    };
    if device.kind == DeviceKind::Iwarp {
        // No work requests bind or invalidate memory there.
        return;
    }
    run([device], |rig| {
        let link = rig.link();
        rig[B].vanish();
        // It is not acknowledged, and everything behind it waits.
        rig[A].send(link.a, 1, 64);
        let buf = rig[A].filled(100, 3);
        let provider = rig[A].provider();
        let slice = provider.expose(link.a, buf, Rights::REMOTE_READ);
        let slice = slice.expect("a buffer is exposed");
        let buf = provider.withdraw(slice.key).expect("it comes back");
        check_pattern(&buf, 3);
        let reason = rig.closed(A, link.a);
        let CloseReason::Network { kind, text, .. } = &reason else {
            panic!("{reason}");
        };
        assert_eq!(*kind, ErrorKind::TimedOut);
        assert!(text.contains("does not acknowledge"), "{text}");
    });
}
