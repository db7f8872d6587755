//! Targets that send invalid responses or none: the tool reports this and exits.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::net::TcpListener;

use nvmeof_e2e::{NQN, Peer, Run, TIMEOUT};
use nvmeof_wire::{Cqe, Status};

/// Runs `nvmeof COMMAND` against a target that calls `play` for each connection. The command
/// must fail with a message that contains all of `words`.
#[track_caller]
fn against(command: &str, play: fn(&mut Peer), words: &[&str]) {
    against_within(TIMEOUT.as_secs(), command, play, words);
}

/// The same with a timeout in seconds.
#[track_caller]
fn against_within(seconds: u64, command: &str, play: fn(&mut Peer), words: &[&str]) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    // It never ends; the process ends with the tests.
    std::thread::spawn(move || {
        loop {
            let mut peer = Peer::accept(&listener);
            play(&mut peer);
        }
    });
    let line = format!("-t rdma -a 127.0.0.1 -s {port} --command-timeout {seconds}");
    Run::nvmeof(command).args(&line).fails(1, words);
}

fn id_ctrl(play: fn(&mut Peer), words: &[&str]) {
    against(&format!("id-ctrl -n {NQN}"), play, words);
}

/// Receives the request of 20 + 4 + 32 bytes; replies with `flags` and `private`.
fn reply(peer: &mut Peer, flags: u8, private: &[u8]) {
    let _ = peer.receive(56);
    let len = u16::try_from(4 + private.len()).unwrap();
    let mut frame = b"MPA ID Rep Frame".to_vec();
    frame.extend([flags, 2]);
    frame.extend(len.to_be_bytes());
    frame.extend([0, 16, 0, 16]);
    frame.extend(private);
    peer.say(&frame);
}

fn accept(peer: &mut Peer) {
    let mut private = [0; 32];
    private[2] = 32;
    reply(peer, 0x10, &private);
}

/// Receives the Connect command of 2 + 18 + 64 + 4 bytes.
fn take_connect(peer: &mut Peer) {
    accept(peer);
    let _ = peer.receive(88);
}

#[test]
fn invalid_reply_of_target_is_reported() {
    id_ctrl(
        |peer| peer.say(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        &["MPA"],
    );
    id_ctrl(|peer| peer.say(&[0xff; 1000]), &["MPA"]);
    id_ctrl(|_peer| {}, &["127.0.0.1"]);
    against("discover", |peer| peer.say(&[0; 20]), &["MPA"]);
}

#[test]
fn rejecting_replies_are_reported() {
    // Record format 0, no resources.
    id_ctrl(|peer| reply(peer, 0x30, &[0, 0, 6, 0]), &["resources"]);
    id_ctrl(|peer| reply(peer, 0x30, &[0, 0, 99, 0]), &["99"]);
    id_ctrl(|peer| reply(peer, 0x30, &[]), &["127.0.0.1"]);
    // An accept without the private data of NVMe.
    id_ctrl(|peer| reply(peer, 0x10, b"x"), &["NVMe"]);
    id_ctrl(|peer| reply(peer, 0x90, &[0; 32]), &["marker"]);
}

#[test]
fn frames_that_break_the_rules() {
    id_ctrl(
        |peer| {
            take_connect(peer);
            peer.say(&[0xff; 4096]);
            peer.receive_all();
        },
        &["protocol"],
    );
    // An RDMA Write with an invalid key.
    id_ctrl(
        |peer| {
            take_connect(peer);
            let mut frame = vec![0, 22, 0xc1, 0x40, 1, 2, 3, 4];
            frame.extend([0; 20]);
            peer.say(&frame);
            peer.receive_all();
        },
        &["0x01020304"],
    );
}

#[test]
fn nonsensical_responses_are_refused() {
    // To a command that was not sent.
    id_ctrl(
        |peer| {
            take_connect(peer);
            peer.capsule(&Cqe::new(0x7777, 1, Status::SUCCESS, 1).to_bytes());
            peer.receive_all();
        },
        &["0x7777"],
    );
    // Too short.
    id_ctrl(
        |peer| {
            take_connect(peer);
            peer.capsule(&[0; 15]);
            peer.receive_all();
        },
        &["15"],
    );
    // An SQ head outside of the queue.
    id_ctrl(
        |peer| {
            accept(peer);
            let connect = peer.receive(88);
            let cid = u16::from_le_bytes([connect[22], connect[23]]);
            peer.capsule(&Cqe::new(cid, 5000, Status::SUCCESS, 1).to_bytes());
            peer.receive_all();
        },
        &["5000"],
    );
}

#[test]
fn silent_target_times_out() {
    against_within(
        1,
        &format!("id-ctrl -n {NQN}"),
        |peer| {
            take_connect(peer);
            peer.receive_all();
        },
        &["Connect"],
    );
}
