//! Cases: a peer can access memory that was exposed to it, and nothing else.

use std::collections::BTreeSet;

use crate::Endpoint::{A, B};
use crate::pattern::{check, check_all};
use crate::rig::{Link, Rig};
use nvmeof_memory::{Pages, Pool, PoolLayout};
use nvmeof_rdma::{
    CloseReason, ExposeError, Inline, Outcome, QpConfig, RemoteKey, RemoteSlice, Rights, Work,
    WorkKind,
};

/// Offset of the window in its buffer, and its length.
const START: usize = 512;
const LEN: usize = 1024;
const BOTH: Rights = Rights::all();

/// Exposes a window of B, lets A do `kind` on the slice that `forge` returns, and checks that
/// A got nothing, that nothing changed, that both sides closed, and that another connection
/// is not affected.
fn breach(
    rig: &mut Rig<'_>,
    kind: WorkKind,
    rights: Rights,
    forge: impl Fn(&mut Rig<'_>, Link, RemoteSlice) -> RemoteSlice,
) {
    let (other, link) = (rig.link(), rig.link());
    let window = rig[B].buf_at(START, LEN);
    let before = rig[B].exposed();
    let slice = rig[B].expose(link.b, window, rights);
    rig[B].recv(link.b, 1, 64);
    let remote = forge(rig, link, slice);
    attack(rig, link, kind, remote);
    if kind == WorkKind::Send && rig.deviations().invalid_keys_pass {
        let reason = rig.closed(B, link.b);
        assert!(matches!(reason, CloseReason::PeerFault(_)), "B: {reason}");
        rig.closed(A, link.a);
    } else {
        assert_fault(rig, link);
    }
    let exposed: Vec<RemoteKey> = rig[B].exposed().difference(&before).copied().collect();
    for key in exposed {
        assert_untouched(rig[B].withdraw(key));
    }
    rig.assert_alive(other);
}

/// Posts work that must fail, and a message that must not arrive any more.
fn attack(rig: &mut Rig<'_>, link: Link, kind: WorkKind, remote: RemoteSlice) {
    let len = remote.len as usize;
    match kind {
        WorkKind::Write => rig[A].write(link.a, 1, len, remote),
        WorkKind::Read => rig[A].read(link.a, 1, len, remote),
        WorkKind::Send => return,
    }
    rig[A].send(link.a, 2, 32);
    if kind == WorkKind::Read {
        let completion = rig.completion(A, link.a);
        assert!(!completion.outcome.is_success(), "a read of {remote:?}");
        check_all(&completion.buf.unwrap(), 0xEE);
    }
    if kind == WorkKind::Write {
        let outcome = rig.received(B, link.b).outcome;
        assert_eq!(outcome, Outcome::Flushed, "the message after the write");
    }
}

fn assert_fault(rig: &mut Rig<'_>, link: Link) {
    rig.assert_peer_fault(B, link);
}

fn assert_untouched(mut window: nvmeof_memory::Buf) {
    assert_eq!(window.view(), START..START + LEN, "view as exposed");
    window.set_view(0..2 * START + LEN).unwrap();
    check_all(&window, 0xEE);
}

/// Ranges of addresses outside of `slice`.
fn outside(slice: RemoteSlice) -> Vec<RemoteSlice> {
    let (start, len) = (slice.addr, slice.len);
    let at = |addr, len| RemoteSlice { addr, len, ..slice };
    vec![
        at(start - 1, 1),
        at(start - 1, 2),
        at(start - 1, len),
        at(start + u64::from(len), 1),
        at(start + u64::from(len) - 1, 2),
        at(start + 1, len),
        at(start, len + 1),
        at(start - 8, len + 16),
        at(start + (1 << 32), 8),
        at(0, 8),
    ]
}

fn all_outside(rig: &mut Rig<'_>, kind: WorkKind) {
    let cases = outside(RemoteSlice {
        key: RemoteKey(0),
        addr: 1 << 20,
        len: 1,
    });
    for number in 0..cases.len() {
        breach(rig, kind, BOTH, |_, _, slice| outside(slice)[number]);
    }
}

/// One byte before, one past the end, and more.
pub fn writes_outside_are_faults(rig: &mut Rig<'_>) {
    all_outside(rig, WorkKind::Write);
}

/// One byte before, one past the end, and more.
pub fn reads_outside_are_faults(rig: &mut Rig<'_>) {
    all_outside(rig, WorkKind::Read);
}

/// Address plus length beyond 64 bits is out of range and does not wrap.
pub fn addresses_do_not_wrap(rig: &mut Rig<'_>) {
    for kind in [WorkKind::Write, WorkKind::Read] {
        for (addr, len) in [(u64::MAX, 1), (u64::MAX, 2), (u64::MAX - 100, 1000)] {
            breach(rig, kind, BOTH, |_, _, slice| RemoteSlice {
                addr,
                len,
                ..slice
            });
        }
    }
}

/// Unknown keys give no access.
pub fn unknown_keys_are_faults(rig: &mut Rig<'_>) {
    type Change = fn(u32) -> u32;
    let changes: [Change; 5] = [
        |key| key ^ 1,
        |key| key ^ (1 << 8),
        |key| key ^ (1 << 31),
        |_| 0,
        |_| u32::MAX,
    ];
    for kind in [WorkKind::Write, WorkKind::Read] {
        for change in changes {
            breach(rig, kind, BOTH, |_, _, slice| RemoteSlice {
                key: RemoteKey(change(slice.key.0)),
                ..slice
            });
        }
    }
}

/// After `withdraw` the key gives no access, also if its slot is reused.
pub fn withdrawn_keys_are_faults(rig: &mut Rig<'_>) {
    for kind in [WorkKind::Write, WorkKind::Read] {
        breach(rig, kind, BOTH, |rig, link, slice| {
            let window = rig[B].withdraw(slice.key);
            let again = rig[B].try_withdraw(slice.key).map(|_| ());
            assert_eq!(again, Err(ExposeError::UnknownKey));
            let new = rig[B].expose(link.b, window, BOTH);
            RemoteSlice {
                key: slice.key,
                ..new
            }
        });
    }
}

/// After a message invalidated it the key gives no access.
pub fn invalidated_keys_are_faults(rig: &mut Rig<'_>) {
    let link = rig.link();
    if !rig.may_invalidate(B, link) {
        return;
    }
    for kind in [WorkKind::Write, WorkKind::Read] {
        breach(rig, kind, BOTH, |rig, link, slice| {
            rig[B].recv(link.b, 5, 64);
            invalidate(rig, link, slice.key);
            let received = rig.received(B, link.b);
            let named = rig.deviations().named(Some(slice.key));
            assert_eq!(received.invalidated, named);
            // The receive that the attack must not use is behind it.
            rig.success(A, link.a, 3);
            slice
        });
    }
}

/// A key is valid on its own connection only.
pub fn keys_of_other_queue_pairs_are_faults(rig: &mut Rig<'_>) {
    for kind in [WorkKind::Write, WorkKind::Read] {
        let owner = rig.link();
        let window = rig[B].buf_at(START, LEN);
        let foreign = rig[B].expose(owner.b, window, BOTH);
        breach(rig, kind, BOTH, |_, _, _| foreign);
        // It is still valid on its own connection.
        rig[A].read(owner.a, 1, LEN, foreign);
        check_all(&rig.success(A, owner.a, 1).buf.unwrap(), 0xEE);
        assert_untouched(rig[B].withdraw(foreign.key));
    }
}

/// A region is exposed as a whole to a trusted peer, and to no other.
pub fn exposed_regions_are_for_trusted_peer_only(rig: &mut Rig<'_>) {
    let trusting = QpConfig {
        trusts_peer: true,
        ..rig.config()
    };
    let layout = PoolLayout {
        count: 2,
        stride: LEN,
        lead: 0,
    };
    for kind in [WorkKind::Write, WorkKind::Read] {
        let pool = Pool::new(layout, Pages::Shareable).unwrap();
        let links = [rig.link(), rig.link_with(&trusting, &trusting)];
        let owner = rig.link_with(&trusting, &trusting);
        let not_trusted = rig[B].provider().expose_region(links[0].b, pool.region());
        assert_eq!(not_trusted.unwrap(), None);
        let exposed = rig[B].provider().expose_region(owner.b, pool.region());
        let Some(exposure) = exposed.unwrap() else {
            return;
        };
        let buf = pool.take().unwrap();
        let slice = exposure.slice_of(&buf);
        for tag in [1, 2] {
            // Again and again, without another call.
            rig[A].write(owner.a, tag, LEN, slice);
            rig.success(A, owner.a, tag);
            rig[A].read(owner.a, tag, LEN, slice);
            check(&rig.success(A, owner.a, tag).buf.unwrap(), tag);
        }
        for link in links {
            rig[B].recv(link.b, 1, 64);
            attack(rig, link, kind, slice);
            assert_fault(rig, link);
        }
        check(&buf, 2);
        rig.assert_alive(owner);
        rig[B].disconnect(owner.b);
        rig.closed(B, owner.b);
        check(&buf, 2);
    }
}

/// Readable memory is not writable, and vice versa.
pub fn access_rights_are_enforced(rig: &mut Rig<'_>) {
    for (kind, rights) in [
        (WorkKind::Write, Rights::REMOTE_READ),
        (WorkKind::Read, Rights::REMOTE_WRITE),
        (WorkKind::Write, Rights::empty()),
        (WorkKind::Read, Rights::empty()),
    ] {
        if kind == WorkKind::Read && rig.deviations().reads_need_no_right {
            continue;
        }
        breach(rig, kind, rights, |_, _, slice| slice);
    }
}

fn invalidate(rig: &mut Rig<'_>, link: Link, key: RemoteKey) {
    let work = Work::Send {
        head: Inline::new(b"done").unwrap(),
        body: None,
        invalidate: Some(key),
        solicited: false,
    };
    rig[A].post(link.a, 3, work);
}

/// The receive reports the key, `withdraw` returns the buffer, and other keys are not
/// affected. Where keys are only withdrawn, such a message is a fault.
pub fn send_may_invalidate_key(rig: &mut Rig<'_>) {
    let link = rig.link();
    if !rig.may_invalidate(B, link) {
        breach(rig, WorkKind::Send, BOTH, |rig, link, slice| {
            invalidate(rig, link, slice.key);
            assert!(!rig.received(B, link.b).outcome.is_success());
            slice
        });
        return;
    }
    let (first, second) = (rig[B].buf_at(START, LEN), rig[B].buf(LEN));
    let first = rig[B].expose(link.b, first, BOTH);
    let second = rig[B].expose(link.b, second, BOTH);
    rig[B].recv(link.b, 1, 64);
    rig[A].write(link.a, 2, LEN, first);
    invalidate(rig, link, first.key);
    let received = rig.received(B, link.b);
    let named = rig.deviations().named(Some(first.key));
    assert_eq!((received.len, received.invalidated), (4, named));
    let window = rig[B].withdraw(first.key);
    assert_eq!(window.view(), START..START + LEN);
    check(&window, 2);
    rig[A].write(link.a, 4, LEN, second);
    rig[B].recv(link.b, 5, 64);
    rig[A].send(link.a, 6, 5);
    assert_eq!(rig.message(B, link.b, 6, 5).invalidated, None);
    check(&rig[B].withdraw(second.key), 4);
}

/// An unknown or withdrawn key cannot be invalidated.
pub fn invalidating_unknown_key_is_a_fault(rig: &mut Rig<'_>) {
    for withdrawn in [false, true] {
        breach(rig, WorkKind::Send, BOTH, |rig, link, slice| {
            let mut key = RemoteKey(slice.key.0 ^ 0x100);
            if withdrawn {
                key = slice.key;
                assert_untouched(rig[B].withdraw(key));
            }
            invalidate(rig, link, key);
            assert!(!rig.received(B, link.b).outcome.is_success());
            slice
        });
    }
}

/// Only the connection of a key may invalidate it.
pub fn invalidating_for_another_queue_pair_is_a_fault(rig: &mut Rig<'_>) {
    let owner = rig.link();
    let window = rig[B].buf_at(START, LEN);
    let foreign = rig[B].expose(owner.b, window, BOTH);
    breach(rig, WorkKind::Send, BOTH, |rig, link, slice| {
        invalidate(rig, link, foreign.key);
        assert!(!rig.received(B, link.b).outcome.is_success());
        slice
    });
    if !rig.deviations().invalid_keys_pass {
        rig[A].read(owner.a, 1, LEN, foreign);
        check_all(&rig.success(A, owner.a, 1).buf.unwrap(), 0xEE);
    }
    assert_untouched(rig[B].withdraw(foreign.key));
}

/// When `withdraw` returns, no byte changes any more, even in the middle of a
/// write.
pub fn withdraw_stops_write_in_progress(rig: &mut Rig<'_>) {
    for iterations in [0, 1, 2, 3, 4, 6, 9, 13, 20, 40] {
        let link = rig.link();
        let len = 100_000;
        let window = rig[B].buf(len);
        let slice = rig[B].expose(link.b, window, Rights::REMOTE_WRITE);
        for tag in 0..20 {
            rig[A].write(link.a, tag, len, slice);
        }
        for _ in 0..iterations {
            rig.step();
        }
        let window = rig[B].withdraw(slice.key);
        let before = window.to_vec();
        // The connection ends only if a part of the write was left.
        rig.settle();
        assert!(window[..] == before[..], "written after withdraw");
        drop(window);
        if rig[B].is_closed(link.b) {
            assert_fault(rig, link);
        } else {
            rig[A].inbox.clear();
            rig.assert_alive(link);
        }
        rig[A].inbox.clear();
    }
}

/// `withdraw` returns memory only when no read of it is in progress: a read that succeeds has
/// the earlier bytes.
pub fn withdraw_during_read_is_safe(rig: &mut Rig<'_>) {
    for iterations in [0, 1, 2, 3, 4, 6, 9, 13, 20, 40] {
        let link = rig.link();
        let len = 1 << 20;
        let window = rig[B].filled(len, 4);
        let slice = rig[B].expose(link.b, window, Rights::REMOTE_READ);
        rig[A].read(link.a, 1, len, slice);
        for _ in 0..iterations {
            rig.step();
        }
        let mut window = match rig[B].try_withdraw(slice.key) {
            Ok(window) => window,
            Err(error) => {
                assert_eq!(error, ExposeError::Busy);
                rig[B].disconnect(link.b);
                rig.closed(B, link.b);
                rig[B].withdraw(slice.key)
            }
        };
        check(&window, 4);
        window.fill(0x55);
        let completion = rig.completion(A, link.a);
        if !completion.outcome.is_success() {
            rig.closed(A, link.a);
        } else if !rig.deviations().answers_after_withdraw {
            check(&completion.buf.unwrap(), 4);
        }
    }
}

/// A withdrawn key is not reused soon.
pub fn keys_are_reused_late(rig: &mut Rig<'_>) {
    let link = rig.link();
    let mut seen = BTreeSet::new();
    for _ in 0..1000 {
        let buf = rig[B].buf(16);
        let slice = rig[B].expose(link.b, buf, BOTH);
        assert!(seen.insert(slice.key), "{:?} was reused", slice.key);
        rig[B].withdraw(slice.key);
    }
}
