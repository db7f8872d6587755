//! Cases: withdrawn buffers return exactly once, immediately or later.

use crate::Endpoint::{self, A, B};
use crate::pattern::check;
use crate::rig::{Link, Rig};
use nvmeof_memory::Buf;
use nvmeof_rdma::{ExposeError, Inline, RemoteKey, Rights, Work};

/// Keys that are withdrawn at once.
const KEYS: u64 = 20;
const LEN: usize = 1000;

/// Exposes buffers at `end`, the content of each is the pattern of its index.
fn expose_some(rig: &mut Rig<'_>, link: Link, end: Endpoint) -> Vec<RemoteKey> {
    let qp = link.at(end);
    let mut expose = |seed| {
        let buf = rig[end].filled(LEN, seed);
        rig[end].expose(qp, buf, Rights::all()).key
    };
    (0..KEYS).map(&mut expose).collect()
}

/// Withdraws all keys. Returns the buffers that returned.
fn withdraw_some(rig: &mut Rig<'_>, end: Endpoint, keys: &[RemoteKey]) -> Vec<Option<Buf>> {
    let withdraw = |key: &RemoteKey| rig[end].start_withdrawing(*key).expect("it is exposed");
    keys.iter().map(withdraw).collect()
}

/// Checks that each buffer returned, unchanged.
fn assert_returned(
    rig: &mut Rig<'_>,
    end: Endpoint,
    keys: &[RemoteKey],
    at_once: Vec<Option<Buf>>,
) {
    for ((seed, key), buf) in (0..).zip(keys).zip(at_once) {
        let buf = buf.or_else(|| rig[end].take_returned(*key));
        check(&buf.expect("it returned"), seed);
        assert!(rig[end].take_returned(*key).is_none(), "returned twice");
    }
}

/// Whether or not the buffer returned, its owner cannot withdraw the key again.
pub fn withdrawn_key_is_unknown_at_once(rig: &mut Rig<'_>) {
    let link = rig.link();
    let keys = expose_some(rig, link, B);
    let at_once = withdraw_some(rig, B, &keys);
    for key in &keys {
        let again = rig[B].start_withdrawing(*key).map(|_| ());
        assert_eq!(again, Err(ExposeError::UnknownKey));
    }
    rig.settle();
    assert_returned(rig, B, &keys, at_once);
    rig.assert_alive(link);
}

/// Whichever side disconnects, and whenever.
pub fn withdrawn_buffers_return_once_before_closed(rig: &mut Rig<'_>) {
    for steps in [0, 1, 3] {
        for end in [A, B] {
            let link = rig.link();
            let keys = expose_some(rig, link, B);
            let at_once = withdraw_some(rig, B, &keys);
            for _ in 0..steps {
                rig.step();
            }
            rig[end].disconnect(link.at(end));
            // The rig checks that everything returned before.
            rig.closed(A, link.a);
            rig.closed(B, link.b);
            assert_returned(rig, B, &keys, at_once);
        }
    }
}

/// A peer that dies, while its side has work in flight.
pub fn withdrawn_buffer_returns_when_peer_dies(rig: &mut Rig<'_>) {
    let link = rig.link();
    let keys = expose_some(rig, link, A);
    rig[A].send(link.a, 1, 64);
    rig[B].vanish();
    let at_once = withdraw_some(rig, A, &keys);
    rig.closed(A, link.a);
    assert_returned(rig, A, &keys, at_once);
}

/// An owner may sleep at once after it withdraws a key: it is woken when the buffer returns.
pub fn owner_that_withdraws_is_woken(rig: &mut Rig<'_>) {
    let link = rig.link();
    let keys = expose_some(rig, link, A);
    rig.goes_to_sleep(A);
    let mut at_once = withdraw_some(rig, A, &keys);
    for (key, buf) in keys.iter().zip(&mut at_once) {
        loop {
            *buf = buf.take().or_else(|| rig[A].take_returned(*key));
            if buf.is_some() {
                break;
            }
            let now = rig.now();
            let until = rig[A].rest();
            let is_due = until.is_some_and(|until| until <= now);
            assert!(is_due || rig.wakes(A), "it sleeps until {until:?}");
            rig.poll_at(A);
        }
    }
    assert_returned(rig, A, &keys, at_once);
    rig.assert_alive(link);
}

/// The peer does not know that the key is withdrawn. If that is complete, its message is a fault.
pub fn key_may_be_invalidated_while_withdrawn(rig: &mut Rig<'_>) {
    for steps in 0..4 {
        let link = rig.link();
        if !rig.may_invalidate(B, link) {
            return;
        }
        let buf = rig[B].filled(LEN, 0);
        let key = rig[B].expose(link.b, buf, Rights::all()).key;
        rig[B].recv(link.b, 1, 64);
        let work = Work::Send {
            head: Inline::new(b"done").unwrap(),
            body: None,
            invalidate: Some(key),
            solicited: false,
        };
        rig[A].post(link.a, 2, work);
        for _ in 0..steps {
            rig.poll_at(A);
        }
        let at_once = withdraw_some(rig, B, &[key]);
        rig.settle();
        assert_returned(rig, B, &[key], at_once);
        if rig[B].is_closed(link.b) {
            rig.closed(A, link.a);
        } else {
            rig[A].inbox.clear();
            rig[B].inbox.clear();
            rig.assert_alive(link);
        }
        rig[A].inbox.clear();
        rig[B].inbox.clear();
    }
}
