//! The oracle accepts the results of a correct disk and no others.

use super::*;

fn oracle() -> Oracle {
    Oracle::new([8])
}

fn write(oracle: &mut Oracle, fua: bool) -> OpId {
    let id = oracle.begin_write(0, 0..1, false, fua);
    oracle.end(id, Ending::Done).unwrap();
    id
}

fn flush(oracle: &mut Oracle) {
    let id = oracle.begin_flush(0);
    oracle.end(id, Ending::Done).unwrap();
}

fn may_read(oracle: &mut Oracle, value: Value) -> bool {
    let id = oracle.begin_read(0, 0..1);
    oracle.end_read(id, &[value]).is_ok()
}

#[test]
fn acknowledged_write_is_read() {
    let mut oracle = oracle();
    let first = write(&mut oracle, false);
    let second = write(&mut oracle, false);
    assert!(may_read(&mut oracle, second));
    assert!(!may_read(&mut oracle, first));
    assert!(!may_read(&mut oracle, ZEROES));
    assert!(!may_read(&mut oracle, 999));
}

#[test]
fn concurrent_writes_take_effect_in_one_order() {
    let mut oracle = oracle();
    let one = oracle.begin_write(0, 0..1, false, false);
    let other = oracle.begin_write(0, 0..1, false, false);
    oracle.end(other, Ending::Done).unwrap();
    oracle.end(one, Ending::Done).unwrap();
    assert!(may_read(&mut oracle, one));
    assert!(!may_read(&mut oracle, other), "it was overwritten");
    assert!(may_read(&mut oracle, one));
}

#[test]
fn read_during_a_write_returns_either_value() {
    for sees_new in [false, true] {
        let mut oracle = oracle();
        let old = write(&mut oracle, false);
        let read = oracle.begin_read(0, 0..1);
        let new = oracle.begin_write(0, 0..1, false, false);
        oracle.end(new, Ending::Done).unwrap();
        let value = if sees_new { new } else { old };
        oracle.end_read(read, &[value]).unwrap();
        assert!(!may_read(&mut oracle, old));
        assert!(may_read(&mut oracle, new));
    }
}

#[test]
fn lost_write_may_take_effect_until_settled() {
    let mut oracle = oracle();
    let old = write(&mut oracle, false);
    let lost = oracle.begin_write(0, 0..1, false, false);
    oracle.end(lost, Ending::Lost).unwrap();
    assert!(oracle.end(lost, Ending::Lost).is_err(), "ends once");
    assert!(may_read(&mut oracle, old));
    let newer = write(&mut oracle, false);
    assert!(may_read(&mut oracle, newer));
    assert!(may_read(&mut oracle, lost), "it took effect later");
    oracle.settle();
    assert!(!may_read(&mut oracle, old));
    let newest = write(&mut oracle, false);
    assert!(!may_read(&mut oracle, lost));
    assert!(may_read(&mut oracle, newest));
}

#[test]
fn crash_loses_only_unflushed_writes() {
    let mut oracle = oracle();
    let flushed = write(&mut oracle, false);
    flush(&mut oracle);
    let cached = write(&mut oracle, false);
    oracle.crash();
    let (mut one, mut other) = (oracle, self::oracle());
    assert!(!may_read(&mut one, ZEROES));
    assert!(may_read(&mut one, flushed));
    assert!(!may_read(&mut one, cached), "decided");

    let through = write(&mut other, true);
    let cached = write(&mut other, false);
    other.crash();
    assert!(!may_read(&mut other, ZEROES));
    assert!(may_read(&mut other, cached));
    assert!(!may_read(&mut other, through), "decided");
}

#[test]
fn flush_covers_only_writes_acknowledged_before_it_was_sent() {
    let mut oracle = oracle();
    let flush = oracle.begin_flush(0);
    let _late = write(&mut oracle, false);
    oracle.end(flush, Ending::Done).unwrap();
    oracle.crash();
    assert!(may_read(&mut oracle, ZEROES));
}

#[test]
fn later_flush_does_not_prove_writes_before_a_crash() {
    let mut oracle = oracle();
    let _cached = write(&mut oracle, false);
    oracle.crash();
    flush(&mut oracle);
    oracle.crash();
    assert!(may_read(&mut oracle, ZEROES));
}

#[test]
fn response_after_a_crash_proves_only_fua_writes() {
    for fua in [false, true] {
        let mut oracle = oracle();
        let old = write(&mut oracle, true);
        let straddling = oracle.begin_write(0, 0..1, false, fua);
        oracle.crash();
        oracle.end(straddling, Ending::Done).unwrap();
        assert_eq!(may_read(&mut oracle, old), !fua);
    }
}

#[test]
fn compares_are_checked_both_ways() {
    let mut oracle = oracle();
    let value = write(&mut oracle, false);
    let compare = oracle.begin_read(0, 0..1);
    assert!(oracle.end_differing(compare, &[value]).is_err());
    let compare = oracle.begin_read(0, 0..1);
    oracle.end_differing(compare, &[ZEROES]).unwrap();
    let compare = oracle.begin_read(0, 0..1);
    assert!(oracle.end_read(compare, &[ZEROES]).is_err());
}

/// Once the target has released its queue, a write without a response takes effect before
/// a write that starts then is acknowledged, but not before one that had started.
#[test]
fn lost_write_does_not_overwrite_newer_writes_after_release() {
    let mut oracle = oracle();
    let lost = oracle.begin_write(0, 0..1, false, false);
    oracle.end(lost, Ending::Lost).unwrap();
    let between = write(&mut oracle, false);
    assert!(oracle.has_unreleased());
    assert!(may_read(&mut oracle, between));
    assert!(may_read(&mut oracle, lost), "still possible");
    let straddling = oracle.begin_write(0, 0..1, false, false);
    oracle.release();
    assert!(!oracle.has_unreleased());
    oracle.end(straddling, Ending::Done).unwrap();
    assert!(may_read(&mut oracle, straddling));
    assert!(may_read(&mut oracle, lost), "still possible");
    let after = write(&mut oracle, true);
    assert!(may_read(&mut oracle, after));
    assert!(!may_read(&mut oracle, lost));
    oracle.crash();
    assert!(!may_read(&mut oracle, lost), "nor after a crash");
}

#[test]
fn write_sent_again_after_a_crash_may_take_effect() {
    let mut oracle = oracle();
    let id = oracle.begin_write(0, 0..1, false, false);
    oracle.crash();
    assert!(may_read(&mut oracle, ZEROES));
    assert!(!may_read(&mut oracle, id), "nothing of it was left");
    oracle.resend(id);
    assert!(may_read(&mut oracle, ZEROES) && may_read(&mut oracle, id));
    oracle.end(id, Ending::Done).unwrap();
    assert!(!may_read(&mut oracle, ZEROES));
}

#[test]
fn excluded_write_takes_no_effect_until_its_host_is_allowed() {
    for is_lost in [false, true] {
        let mut oracle = oracle();
        oracle.sent_by(Some(1));
        let late = oracle.begin_write(0, 0..1, false, false);
        if is_lost {
            oracle.end(late, Ending::Lost).unwrap();
        }
        oracle.exclude(0, 1);
        assert!(
            may_read(&mut oracle, late),
            "it may have taken effect before"
        );
        oracle.sent_by(Some(0));
        let new = write(&mut oracle, false);
        assert!(!may_read(&mut oracle, late));
        assert!(may_read(&mut oracle, new));
        oracle.allow(0, 1);
        assert!(may_read(&mut oracle, late));
    }
}

#[test]
fn read_of_another_value_shows_that_excluded_write_had_no_effect() {
    let mut oracle = oracle();
    oracle.sent_by(Some(1));
    let late = oracle.begin_write(0, 0..1, false, false);
    oracle.exclude(0, 1);
    assert!(may_read(&mut oracle, ZEROES));
    assert!(!may_read(&mut oracle, late));
    oracle.end(late, Ending::Done).unwrap();
    assert!(!may_read(&mut oracle, ZEROES) && !may_read(&mut oracle, late));
}

#[test]
fn flush_before_the_response_of_excluded_write_proves_nothing() {
    let mut oracle = oracle();
    oracle.sent_by(Some(1));
    let old = oracle.begin_write(0, 0..1, false, false);
    oracle.exclude(0, 1);
    let flush = oracle.begin_flush(0);
    oracle.end(old, Ending::Done).unwrap();
    oracle.end(flush, Ending::Done).unwrap();
    oracle.crash();
    assert!(may_read(&mut oracle, ZEROES));
}

#[test]
fn write_of_released_queue_is_not_executed_when_its_host_is_allowed() {
    let mut oracle = oracle();
    oracle.sent_by(Some(1));
    let late = oracle.begin_write(0, 0..1, false, false);
    oracle.end(late, Ending::Lost).unwrap();
    oracle.exclude(0, 1);
    oracle.release();
    let new = write(&mut oracle, false);
    oracle.allow(0, 1);
    assert!(!may_read(&mut oracle, late));
    assert!(may_read(&mut oracle, new));
}
