//! Cases: keys that cannot be invalidated, because the network blocks the queue.

use nvmeof_rdma::{CloseReason, Rights};
use nvmeof_rdma_conformance::Endpoint::{A, B};
use nvmeof_rdma_conformance::{check_pattern, run};
use nvmeof_rdma_verbs::DeviceKind;

use super::{Device, device};

/// Retransmits after 8.6 seconds, which is longer than a withdraw waits. A software device
/// that retransmits fails for other reasons.
const LATE: u8 = 21;

/// The owner gets the buffer back in any case, and its connection ends. The peer's machine may
/// still report that it disconnects.
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
        let slice = rig[A].try_expose(link.a, buf, Rights::REMOTE_READ);
        let slice = slice.expect("a buffer is exposed");
        let buf = rig[A].withdraw(slice.key);
        check_pattern(&buf, 3);
        let reason = rig.closed(A, link.a);
        let is_network = match &reason {
            CloseReason::Peer => true,
            CloseReason::Network { text, .. } => text.contains("does not acknowledge"),
            _ => false,
        };
        assert!(is_network, "{reason}");
    });
}
