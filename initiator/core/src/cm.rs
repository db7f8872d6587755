//! Private data of the RDMA connection: the request of a host, and the check of the
//! response (NVMe RDMA transport, section 3.1).

use nvmeof_wire::cm::{Accept, Reject, RejectStatus, Request};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U16;

use crate::setting::Setting;

/// The private data to connect queue `qid` of `entries` entries with. An I/O
/// queue names the controller it belongs to.
#[must_use]
pub fn request(qid: u16, entries: u16, cntlid: u16) -> Vec<u8> {
    let mut request = Request::new(qid, entries);
    if qid != 0 {
        request.cntlid = U16::new(cntlid);
    }
    request.as_bytes().to_vec()
}

/// Checks the private data of a target's accept.
///
/// # Errors
/// The reason why they are invalid.
pub fn check_accept(private_data: &[u8]) -> Result<(), String> {
    match Accept::parse(private_data) {
        Some(_) => Ok(()),
        None => Err(format!(
            "the private data of its accept ({} bytes) are not those of an NVMe target",
            private_data.len()
        )),
    }
}

/// The status of a rejection, if its private data are those of NVMe.
#[must_use]
pub fn reject_status(private_data: &[u8]) -> Option<RejectStatus> {
    Reject::parse(private_data).map(|reject| reject.status)
}

/// The remedy for a rejected connection.
#[must_use]
pub fn reject_remedy(status: RejectStatus) -> &'static str {
    match status {
        RejectStatus::NO_RESOURCES => {
            "disconnect other hosts, request fewer queues, or raise the target's limits"
        }
        RejectStatus::INVALID_HSQSIZE | RejectStatus::INVALID_HRQSIZE => "request smaller queues",
        RejectStatus::INVALID_QID => "request fewer I/O queues",
        _ => "host and target use different versions of the protocol; update the older one",
    }
}

/// The settings that caused a rejection.
#[must_use]
pub fn reject_settings(status: RejectStatus) -> &'static [Setting] {
    match status {
        RejectStatus::INVALID_HSQSIZE | RejectStatus::INVALID_HRQSIZE => &[Setting::QueueSize],
        RejectStatus::INVALID_QID => &[Setting::IoQueues],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_queue_request_has_no_controller() {
        let admin = request(0, 32, 0xffff);
        assert_eq!(admin.len(), 32);
        assert_eq!(admin[8..10], [0, 0]);
        let io = request(1, 128, 7);
        assert_eq!(io[2..10], [1, 0, 128, 0, 127, 0, 7, 0]);
    }

    #[test]
    fn answers_are_checked() {
        assert!(check_accept(&[0; 32]).is_ok());
        assert!(check_accept(&[]).is_err());
        assert!(check_accept(&[1, 0, 0, 0]).is_err());
        let reject = Reject::new(RejectStatus::NO_RESOURCES);
        assert_eq!(
            reject_status(reject.as_bytes()),
            Some(RejectStatus::NO_RESOURCES)
        );
        assert_eq!(reject_status(b""), None);
    }
}
