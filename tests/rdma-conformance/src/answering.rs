//! Cases: an RDMA Write and its message, posted together (`post_response`).

use crate::Endpoint::{A, B};
use crate::pattern::{check, fill};
use crate::rig::{Link, Rig};
use nvmeof_rdma::{PostError, QpConfig, RemoteSlice, Rights, WorkKind, WriteAndSend};

/// Bytes of the message, as many as a completion queue entry has.
const HEAD: usize = 16;

/// A response with `len` bytes of pattern `seed`, and a message of that pattern.
fn reply(rig: &Rig<'_>, seed: u64, len: usize, remote: RemoteSlice) -> WriteAndSend {
    let mut head = [0; HEAD];
    fill(&mut head, seed);
    WriteAndSend {
        local: rig[A].filled(len, seed),
        remote,
        head,
        invalidate: None,
    }
}

/// Waits until everything that A posted has returned successfully.
fn all_done(rig: &mut Rig<'_>, link: Link) {
    while rig[A].outstanding_work(link.a) > 0 {
        let done = rig.completion(A, link.a);
        assert!(done.outcome.is_success(), "{done:?}");
    }
}

/// When the message arrives the data are in place, for any size, and the key is invalid if
/// that was requested.
pub fn response_is_data_then_message(rig: &mut Rig<'_>) {
    let link = rig.link();
    let most = rig[A].provider().limits().max_message as usize;
    let sizes = [1, 512, 4096, 70_000, (1 << 20) + 1];
    for (tag, len) in (0u64..).zip(sizes.into_iter().cycle().take(10)) {
        let len = len.min(most);
        let window = rig[B].buf(len);
        let slice = rig[B].expose(link.b, window, Rights::REMOTE_WRITE);
        rig[B].recv(link.b, tag, 64);
        let mut reply = reply(rig, tag, len, slice);
        let invalidates = tag >= 5 && rig.may_invalidate(B, link);
        reply.invalidate = invalidates.then_some(slice.key);
        rig[A].reply(link.a, tag, reply).expect("it is taken");
        let message = rig.message(B, link.b, tag, HEAD);
        let named = rig.deviations().named(invalidates.then_some(slice.key));
        assert_eq!(message.invalidated, named);
        check(&rig[B].withdraw(slice.key), tag);
        all_done(rig, link);
    }
}

/// Many at once, behind long data and reads, keep their order.
pub fn responses_keep_order(rig: &mut Rig<'_>) {
    let link = rig.link();
    let long = rig[B].buf(300_000);
    let long = rig[B].expose(link.b, long, Rights::all());
    let windows = [1u64, 2, 3, 4].map(|tag| {
        let window = rig[B].buf(5000);
        rig[B].recv(link.b, tag, 64);
        rig[B].expose(link.b, window, Rights::REMOTE_WRITE)
    });
    rig[A].write(link.a, 100, 300_000, long);
    for (tag, slice) in (1u64..).zip(windows) {
        let reply = reply(rig, tag, 5000, slice);
        rig[A].reply(link.a, tag, reply).expect("it is taken");
        if tag == 2 {
            rig[A].read(link.a, 101, 1000, long);
        }
    }
    for (tag, slice) in (1u64..).zip(windows) {
        rig.message(B, link.b, tag, HEAD);
        check(&rig[B].withdraw(slice.key), tag);
    }
    all_done(rig, link);
}

/// It takes two entries, data longer than the remote memory are refused, and unsent requests
/// return when the queue pair is closed.
pub fn refused_and_unsent_responses_return(rig: &mut Rig<'_>) {
    let config = QpConfig {
        sends: 2,
        ..rig.config()
    };
    let link = rig.link_with(&config, &rig.config());
    let window = rig[B].buf(4096);
    let slice = rig[B].expose(link.b, window, Rights::REMOTE_WRITE);
    let long = reply(rig, 1, 4097, slice);
    let refused = rig[A].reply(link.a, 1, long);
    let (len, max) = (4097, 4096);
    assert_eq!(refused, Err(PostError::TooLong { len, max }));
    rig[B].recv(link.b, 2, 64);
    let first = reply(rig, 2, 4096, slice);
    assert_eq!(rig[A].reply(link.a, 2, first), Ok(()));
    let second = reply(rig, 3, 4096, slice);
    let full = rig[A].reply(link.a, 3, second);
    assert_eq!(full, Err(PostError::QueueFull { depth: 2 }));
    rig.message(B, link.b, 2, HEAD);
    all_done(rig, link);
    let last = reply(rig, 4, 4096, slice);
    assert_eq!(rig[A].reply(link.a, 4, last), Ok(()));
    rig[A].provider().disconnect(link.a);
    rig.closed(A, link.a);
    assert_eq!(rig[A].outstanding_work(link.a), 0);
    let gone = reply(rig, 5, 4096, slice);
    assert_eq!(rig[A].reply(link.a, 5, gone), Err(PostError::Closed));
}

/// Its last completion is the Send's.
pub fn response_message_returns_last(rig: &mut Rig<'_>) {
    let link = rig.link();
    let window = rig[B].buf(4096);
    let slice = rig[B].expose(link.b, window, Rights::REMOTE_WRITE);
    rig[B].recv(link.b, 1, 64);
    let reply = reply(rig, 1, 4096, slice);
    rig[A].reply(link.a, 1, reply).expect("it is taken");
    rig.message(B, link.b, 1, HEAD);
    let mut data = Vec::new();
    loop {
        let done = rig.completion(A, link.a);
        data.extend(done.buf);
        if done.kind == WorkKind::Send {
            break;
        }
        assert_eq!(done.kind, WorkKind::Write);
    }
    let [data] = &data[..] else {
        panic!("the buffer returns once: {data:?}");
    };
    check(data, 1);
    assert_eq!(rig[A].outstanding_work(link.a), 0);
}
