//! Private data of connection requests to a target.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvmeof_fuzz::served;
use nvmeof_target_core::Limits;
use nvmeof_wire::cm::{Accept, Reject, Request};
use std::time::Duration;
use zerocopy::IntoBytes;

fuzz_target!(|private_data: &[u8]| {
    let target = served();
    match target.queue(private_data, Duration::ZERO) {
        Ok((queue, accept)) => {
            let request = Request::parse(private_data).expect("accepted private data parse");
            assert_eq!(queue.qid(), request.qid.get());
            assert!(queue.qid() <= target.limits().io_queues);
            assert!((2..=Limits::MAX_QUEUE_DEPTH).contains(&queue.entries()));
            assert_eq!(accept.crqsize.get(), queue.entries());
            assert_eq!(Accept::parse(accept.as_bytes()), Some(accept));
        }
        Err(refusal) => {
            let reject = Reject::parse(refusal.reject.as_bytes());
            assert_eq!(
                reject.map(|reject| reject.status),
                Some(refusal.reject.status)
            );
            assert!(!refusal.to_string().is_empty());
        }
    }
    assert_eq!(target.controllers(), 0);
});
