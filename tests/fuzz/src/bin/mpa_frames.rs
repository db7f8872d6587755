//! Frames of the MPA connection set-up: parsed frames serialize to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvmeof_fuzz::Script;
use nvmeof_rdma_soft::iwarp::mpa::{Frame, FrameKind, MAX_PRIVATE, Reads};
use nvmeof_rdma_soft::iwarp::{Header, ReadRequest, Terminate};

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    let frame = script.array();
    for kind in [FrameKind::Request, FrameKind::Reply] {
        match Frame::parse(kind, &frame) {
            Ok(parsed) => {
                assert!(usize::from(parsed.private_len) <= MAX_PRIVATE);
                assert!(kind.may_start(&frame));
                assert_eq!(Frame::parse(kind, &parsed.to_bytes()), Ok(parsed));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    let reads = Reads::parse(script.array());
    assert_eq!(Reads::parse(reads.to_bytes()), reads);
    let reply = reads.reply(script.u32(), script.u32());
    assert_eq!(Reads::parse(reply.to_bytes()), reply);
    assert!(reads.peer_to_peer || !(reply.rtr_empty || reply.rtr_write || reply.rtr_read));

    headers(&mut script);
});

/// Headers and payloads of single segments.
fn headers(script: &mut Script<'_>) {
    let bytes: [u8; 20] = script.array();
    let first = [bytes[0], bytes[1], bytes[2], bytes[3]];
    if let Ok(len) = Header::framed_len(first)
        && let Ok(header) = Header::parse(&bytes[..len])
    {
        let mut written = Vec::new();
        header.write(&mut written);
        assert_eq!(Header::parse(&written), Ok(header));
    }
    let request: [u8; ReadRequest::LEN] = script.array();
    let mut written = Vec::new();
    ReadRequest::parse(&request).write(&mut written);
    assert_eq!(written, request);
    let fault = Terminate::parse(script.rest()).into_fault();
    assert!(!fault.to_string().is_empty());
}
