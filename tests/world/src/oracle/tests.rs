//! The oracle accepts what a correct disk answers and nothing else.

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
fn an_acknowledged_write_is_what_is_read() {
    let mut oracle = oracle();
    let first = write(&mut oracle, false);
    let second = write(&mut oracle, false);
    assert!(may_read(&mut oracle, second));
    assert!(!may_read(&mut oracle, first));
    assert!(!may_read(&mut oracle, ZEROES));
    assert!(!may_read(&mut oracle, 999));
}

#[test]
fn writes_at_the_same_time_may_end_in_either_order_but_not_flap() {
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
fn a_read_during_a_write_may_see_either() {
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
fn a_lost_write_may_come_until_it_is_settled_and_then_not_change() {
    let mut oracle = oracle();
    let old = write(&mut oracle, false);
    let lost = oracle.begin_write(0, 0..1, false, false);
    oracle.end(lost, Ending::Lost).unwrap();
    assert!(oracle.end(lost, Ending::Lost).is_err(), "ends once");
    assert!(may_read(&mut oracle, old));
    let newer = write(&mut oracle, false);
    assert!(may_read(&mut oracle, newer));
    assert!(may_read(&mut oracle, lost), "it came after all");
    oracle.settle();
    assert!(!may_read(&mut oracle, old));
    let newest = write(&mut oracle, false);
    assert!(!may_read(&mut oracle, lost));
    assert!(may_read(&mut oracle, newest));
}

#[test]
fn a_crash_takes_what_was_not_flushed_and_nothing_else() {
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
fn a_flush_covers_only_what_was_acknowledged_before_it_was_sent() {
    let mut oracle = oracle();
    let flush = oracle.begin_flush(0);
    let _late = write(&mut oracle, false);
    oracle.end(flush, Ending::Done).unwrap();
    oracle.crash();
    assert!(may_read(&mut oracle, ZEROES));
}

#[test]
fn what_a_crash_may_have_taken_is_not_made_durable_by_a_later_flush() {
    let mut oracle = oracle();
    let _cached = write(&mut oracle, false);
    oracle.crash();
    flush(&mut oracle);
    oracle.crash();
    assert!(may_read(&mut oracle, ZEROES));
}

#[test]
fn an_answer_that_arrives_after_a_crash_proves_only_fua() {
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

/// Once the target has let go of its queue, a write whose answer was lost is done before
/// one that starts then is acknowledged, but not before one that had started.
#[test]
fn a_lost_write_does_not_undo_what_was_written_after_the_target_let_go_of_it() {
    let mut oracle = oracle();
    let lost = oracle.begin_write(0, 0..1, false, false);
    oracle.end(lost, Ending::Lost).unwrap();
    let between = write(&mut oracle, false);
    assert!(oracle.has_not_let_go());
    assert!(may_read(&mut oracle, between));
    assert!(may_read(&mut oracle, lost), "as late as that");
    let straddling = oracle.begin_write(0, 0..1, false, false);
    oracle.let_go();
    assert!(!oracle.has_not_let_go());
    oracle.end(straddling, Ending::Done).unwrap();
    assert!(may_read(&mut oracle, straddling));
    assert!(may_read(&mut oracle, lost), "as late as that");
    let after = write(&mut oracle, true);
    assert!(may_read(&mut oracle, after));
    assert!(!may_read(&mut oracle, lost));
    oracle.crash();
    assert!(!may_read(&mut oracle, lost), "nor after a crash");
}
