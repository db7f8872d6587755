//! Set-up messages of shared memory from a hostile peer: any first message, any responses to
//! a connection request, any response to a probe.
//!
//! Invariants: see `nvmeof_fuzz::shm`.
#![no_main]

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use nvmeof_fuzz::Script;
use nvmeof_fuzz::shm::{CONFIG, Ours, RING, config, folder, say, socket};
use nvmeof_memory::{Shared, receive_passed};
use nvmeof_rdma::{Address, PrivateData, Provider, Rights};
use nvmeof_rdma_shm::{ProbeError, probe};
use socket2::Socket;

const PORT: u16 = 4421;
/// Maximum bytes of a message of this protocol.
const LONGEST: usize = 256;

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    match script.byte() % 8 {
        0..=2 => ask(&mut script),
        3..=6 => reply(&mut script),
        _ => answer_probe(&mut script),
    }
});

/// A peer connects: any first message, and further ones.
fn ask(script: &mut Script<'_>) {
    let mut ours = Ours::new();
    let addr = Address::from(([127, 0, 0, 1], PORT));
    ours.shm.listen(addr).expect("a listener");
    let (peer, addr) = socket(PORT);
    peer.connect(&addr).expect("a listener");
    // Its memory: mostly with the length in its request.
    let len = match script.byte() {
        0..128 => 4096 + 2 * RING,
        128..224 => 4096 + 2 * RING + 16 * 2048,
        odd => usize::from(odd) * 64,
    };
    let (_, memory) = Shared::create(len).expect("memory");
    talk(&mut ours, &peer, &memory, script, |script| {
        let bytes = script.short();
        match bytes.first() {
            Some(1) => [&b"\x01nvmshm2"[..], &bytes[1..]].concat(),
            _ => bytes.to_vec(),
        }
    });
    drop(peer);
    ours.finish();
}

/// This side connects to a peer, which responds.
fn reply(script: &mut Script<'_>) {
    let _ = std::fs::create_dir(folder());
    let (listener, addr) = socket(PORT);
    listener.bind(&addr).expect("a free place");
    listener.listen(8).expect("a listener");
    let mut ours = Ours::new();
    let addr = Address::from(([127, 0, 0, 1], PORT));
    let private_data = PrivateData::new(script.bytes(8)).expect("few bytes");
    let qp = ours.shm.connect(addr, &CONFIG, &private_data, ours.now);
    ours.qp = Some(qp.expect("a connection"));
    ours.receive();
    let (peer, _) = listener.accept().expect("a connection");
    let mut room = [0; LONGEST];
    let (len, memory) = receive_passed(peer.as_fd(), &mut room).expect("a request");
    assert!(
        room[..len].starts_with(b"\x01nvmshm2"),
        "{:?}",
        &room[..len]
    );
    assert!(
        room[..len].ends_with(&private_data),
        "private data of this side"
    );
    let memory = memory.expect("memory comes with it");
    talk(&mut ours, &peer, &memory, script, |script| {
        // Mostly existing kinds.
        let kind = script.byte();
        let kind = if kind < 224 { kind % 8 + 2 } else { kind };
        [&[kind], script.short()].concat()
    });
    drop((peer, listener));
    ours.finish();
}

/// The peer sends messages, while this side uses the connection.
fn talk(
    ours: &mut Ours,
    peer: &Socket,
    memory: &OwnedFd,
    script: &mut Script<'_>,
    message: impl Fn(&mut Script<'_>) -> Vec<u8>,
) {
    for _ in 0..32 {
        if script.is_empty() {
            return;
        }
        match script.byte() % 8 {
            0..=3 => {
                let memory = (script.byte() & 1 == 0).then(|| memory.as_fd());
                say(peer, &message(script), memory);
                ours.poll();
            }
            4 => ours.now += Duration::from_millis(script.u16().into()),
            5 => ours.accept(Rights::from_bits_truncate(script.byte())),
            6 => ours.work(Rights::all()),
            _ => ours.poll(),
        }
    }
}

/// This side probes for a listener.
fn answer_probe(script: &mut Script<'_>) {
    let _ = std::fs::create_dir(folder());
    let (listener, addr) = socket(PORT);
    listener.bind(&addr).expect("a free place");
    listener.listen(8).expect("a listener");
    let bytes = script.rest();
    let answered = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (peer, _) = listener.accept().expect("a connection");
            say(&peer, bytes, None);
            // Otherwise the response would be lost with the probe.
            let mut room = [0; LONGEST];
            let _ = receive_passed(peer.as_fd(), &mut room);
        });
        let addr = SocketAddr::from(([127, 0, 0, 1], PORT));
        probe(addr, &config(), Duration::from_secs(10))
    });
    match answered {
        Ok(()) => assert_eq!(bytes, [7], "the only valid response"),
        Err(ProbeError::Refused(why)) => {
            assert!(
                !why.contains(char::is_control),
                "{why:?} contains control characters"
            );
        }
        Err(other) => panic!("{other}"),
    }
    let _ = std::fs::remove_dir_all(folder());
}
