//! Cases: first messages that siw overlooks.

use std::io::{Read, Write};
use std::net::TcpStream;

use nvmeof_rdma_conformance::{Endpoint::B, Rig, run};

use super::device;

/// Enhanced, revision 2, 4 bytes more: 1 Read each way (RFC 6581, section 9).
const REQUEST: &[u8] = b"MPA ID Req Frame\x10\x02\x00\x04\x00\x01\x00\x01";
/// Bytes of a reply before its private data; the last two are the length of the private data
/// (RFC 5044, section 7.1).
const REPLY: usize = 20;
/// Bytes of an RDMA Read Request in its FPDU (RFC 5040, section 4.4).
const READ_REQUEST: usize = 52;

/// Reads `len` bytes.
fn take(rig: &mut Rig<'_>, stream: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    rig.wait("bytes of the other side", |_| {
        let mut more = vec![0; len - bytes.len()];
        let count = stream.read(&mut more).unwrap_or(0);
        bytes.extend_from_slice(more.get(..count).unwrap());
        (bytes.len() == len).then_some(())
    });
    bytes
}

/// A peer that is accepted and sends nothing gets a Read of no bytes, because siw may have
/// overlooked its first message.
#[test]
fn silent_peer_gets_empty_read() {
    let device = device();
    if !device.name.starts_with("siw") {
        return;
    }
    run([device], |rig| {
        let addr = rig.listening().socket_addr().unwrap();
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream.write_all(REQUEST).unwrap();
        let (b, config) = (rig.request(B).qp, rig.config());
        rig.accept(B, b, &config, "");
        rig.established(B, b);
        rig[B].recv(b, 1, 64);
        let reply = take(rig, &mut stream, REPLY);
        let more = u16::from_be_bytes([reply[REPLY - 2], reply[REPLY - 1]]);
        take(rig, &mut stream, usize::from(more));

        let request = take(rig, &mut stream, READ_REQUEST);
        assert_eq!(request[..4], [0, 46, 0x41, 0x41], "a Read Request");
        assert_eq!(request[12..16], [0, 0, 0, 1], "the first");
        let (sink, len) = (&request[20..32], &request[32..36]);
        assert_eq!(len, [0; 4], "of no bytes");

        // Its Read Response, and a Send of 8 bytes; no checksums.
        let mut answer = vec![0, 14, 0xC1, 0x42];
        answer.extend_from_slice(sink);
        answer.extend([0; 4]);
        answer.extend([0, 26, 0x41, 0x43]);
        answer.extend([0; 4 + 4]);
        answer.extend([0, 0, 0, 1]);
        answer.extend([0; 4 + 8 + 4]);
        stream.write_all(&answer).unwrap();
        let received = rig.received(B, b);
        assert!(received.outcome.is_success(), "{:?}", received.outcome);
        assert_eq!(received.len, 8);
    });
}
