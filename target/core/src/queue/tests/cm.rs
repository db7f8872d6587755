//! Private data of the connection request (RDMA transport 1.0, 3.1).

use nvmeof_wire::cm::{RejectStatus, Request};
use zerocopy::IntoBytes;

use crate::testing::{NOW, target};

fn refused(private_data: &[u8]) -> RejectStatus {
    let refusal = target().queue(private_data, NOW).unwrap_err();
    assert!(!refusal.cause.is_empty());
    refusal.reject.status
}

#[test]
fn each_wrong_field_has_its_own_status() {
    let good = Request::new(1, 128);
    assert_eq!(
        refused(&good.as_bytes()[..31]),
        RejectStatus::INVALID_LENGTH
    );
    assert_eq!(refused(&[]), RejectStatus::INVALID_LENGTH);
    let mut recfmt = good;
    recfmt.recfmt = 1.into();
    assert_eq!(refused(recfmt.as_bytes()), RejectStatus::INVALID_RECFMT);
    let mut qid = good;
    qid.qid = 5.into();
    assert_eq!(refused(qid.as_bytes()), RejectStatus::INVALID_QID);
    for hsqsize in [0, 128, u16::MAX] {
        let mut request = good;
        request.hsqsize = hsqsize.into();
        assert_eq!(refused(request.as_bytes()), RejectStatus::INVALID_HSQSIZE);
    }
    let mut hrqsize = good;
    hrqsize.hrqsize = 0.into();
    assert_eq!(refused(hrqsize.as_bytes()), RejectStatus::INVALID_HRQSIZE);
}

#[test]
fn an_admin_queue_has_32_entries_at_most() {
    assert_eq!(
        refused(Request::new(0, 33).as_bytes()),
        RejectStatus::INVALID_HSQSIZE
    );
    let (queue, accept) = target().queue(Request::new(0, 32).as_bytes(), NOW).unwrap();
    assert_eq!(
        (queue.qid(), queue.entries(), accept.crqsize.get()),
        (0, 32, 32)
    );
}

#[test]
fn padding_after_the_private_data_is_ignored() {
    let mut padded = Request::new(1, 128).as_bytes().to_vec();
    padded.resize(56, 0);
    assert!(target().queue(&padded, NOW).is_ok());
}
