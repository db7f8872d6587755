//! Tests with two channels over one memory: records, wake-ups, and peers that overwrite the
//! memory.

use std::os::fd::AsFd;

use nvmeof_rdma_layers::Dice;

use super::*;
use crate::fault::codes;
use crate::record::{GRAIN, HEADER, Kind, SEGMENT, size, wrong};

fn pair(ring: usize) -> (Channel, Channel) {
    let (active, fd) = Channel::create(ring, MOST_GRANTS).unwrap();
    let passive = Channel::open(fd.as_fd(), ring as u64, MOST_GRANTS).unwrap();
    (active, passive)
}

fn record(len: usize) -> Record {
    Record {
        len: u32::try_from(len).unwrap(),
        ..Record::new(Kind::Send)
    }
}

/// Takes a record and its payload.
fn take(channel: &mut Channel) -> Option<(Record, Vec<u8>)> {
    let record = channel.next().unwrap()?;
    let mut bytes = vec![0; record.len as usize];
    channel.payload(&mut bytes).unwrap();
    channel.release(&record);
    Some((record, bytes))
}

#[test]
fn records_arrive_complete_and_in_order_across_wraps() {
    let (mut a, mut b) = pair(MIN_RING);
    let mut round = 0u8;
    let lens = [0, 1, 31, 32, 33, 4096, SEGMENT, 5000, SEGMENT - 1];
    for len in lens.iter().cycle().take(1000) {
        for forth in [true, false] {
            let (from, to) = if forth {
                (&mut a, &mut b)
            } else {
                (&mut b, &mut a)
            };
            round = round.wrapping_add(1);
            let bytes: Vec<u8> = (0..*len).map(|at| at.to_le_bytes()[0] ^ round).collect();
            let (one, two) = bytes.split_at(len / 3);
            assert!(from.has_room(*len).unwrap());
            from.put(record(*len), [one, two]).unwrap();
            from.publish();
            assert_eq!(take(to), Some((record(*len), bytes)));
            assert_eq!(take(to), None);
            to.publish();
        }
    }
}

#[test]
fn full_ring_refuses_records_until_released() {
    let (mut a, mut b) = pair(MIN_RING);
    let mut put = 0;
    while a.has_room(SEGMENT).unwrap() {
        a.put(record(SEGMENT), [&[7; SEGMENT], &[]]).unwrap();
        put += 1;
    }
    assert_eq!(put, MIN_RING / size(SEGMENT));
    a.publish();
    for _ in 0..put {
        assert_eq!(take(&mut b).unwrap().1, [7; SEGMENT]);
    }
    b.publish();
    assert!(a.has_room(SEGMENT).unwrap());
}

#[test]
fn one_sleep_gets_one_wake_up_for_requested_changes() {
    let (mut a, mut b) = pair(MIN_RING);
    a.wake();
    b.wake();
    let send = |a: &mut Channel| {
        a.put(record(8), [&[1; 8], &[]]).unwrap();
        a.publish()
    };
    assert!(!send(&mut a), "b is awake");
    take(&mut b).unwrap();
    assert!(!b.publish(), "a is awake");
    assert!(b.rest(None).unwrap());
    assert!(send(&mut a), "b sleeps");
    assert!(!send(&mut a), "b was woken");
    assert!(!b.rest(None).unwrap(), "there is something");
    assert!(!send(&mut a), "b stays awake");
    // A requests a wake-up for records, not for room.
    assert!(a.rest(None).unwrap());
    take(&mut b).unwrap();
    assert!(!b.publish());
    // Now also for room, as long as there is none.
    while a.has_room(SEGMENT).unwrap() {
        a.put(record(SEGMENT), [&[7; SEGMENT], &[]]).unwrap();
    }
    a.publish();
    assert!(a.rest(Some(SEGMENT)).unwrap());
    while take(&mut b).is_some() {}
    assert!(b.publish());
    assert!(!a.rest(Some(SEGMENT)).unwrap(), "there is room");
}

#[test]
fn new_connection_requests_wake_up() {
    let (mut a, mut b) = pair(MIN_RING);
    for (from, to) in [(&mut a, "passive"), (&mut b, "active")] {
        from.put(record(0), [&[], &[]]).unwrap();
        assert!(from.publish(), "the {to} side sleeps from the start");
    }
}

#[test]
fn memory_of_wrong_size_is_refused() {
    let (_channel, fd) = Channel::create(MIN_RING, 0).unwrap();
    let open = |ring| Channel::open(fd.as_fd(), ring, 0).map(|_| ());
    for ring in [
        0,
        1,
        4096,
        MIN_RING as u64 + 64,
        MAX_RING as u64 * 2,
        u64::MAX,
    ] {
        assert!(matches!(open(ring), Err(ChannelError::Ring(_))), "{ring}");
    }
    let other = open(2 * MIN_RING as u64);
    assert!(matches!(other, Err(ChannelError::Memory(_))), "{other:?}");
    for grants in [1, MOST_GRANTS - 1, MOST_GRANTS + 1, u32::MAX] {
        let odd = Channel::open(fd.as_fd(), MIN_RING as u64, grants);
        assert!(matches!(odd, Err(ChannelError::Grants(_))), "{grants}");
    }
    let other = Channel::open(fd.as_fd(), MIN_RING as u64, MOST_GRANTS);
    assert!(matches!(other, Err(ChannelError::Memory(_))));
}

impl Channel {
    /// The next record of the peer, if there is one.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, Fault> {
        if !self.is_ready()? {
            return Ok(None);
        }
        self.record().map(Some).map_err(wrong)
    }

    /// Position in the records of the peer.
    pub(crate) fn taken(&self) -> u64 {
        self.into.taken()
    }

    /// Publishes a full ring of the active side, without a write.
    pub(crate) fn refill(&self) {
        let ring = self.out_size();
        let head = self.taken() + ring as u64;
        scribble(self, place(0, ring).head, head);
    }

    fn out_size(&self) -> usize {
        (self.marks - CONTROL) / 2
    }

    /// Changes one word: an index, a wake-up request, or where the next record of either ring
    /// is read; often by one bit only.
    pub(crate) fn scribble(&self, dice: &mut Dice) {
        let ring = self.out_size();
        let number = dice.below(2);
        let at = match dice.below(5) {
            4 => self.marks + dice.below(2 * GRANT_SLOTS) * 8,
            0 => dice.below(6) * APART,
            1 => dice.below(self.memory.len() / 8) * 8,
            _ => {
                let index = dice.below(2) * APART + number * 2 * APART;
                let index = self.memory.word(index).unwrap().load(Ordering::Relaxed);
                let start = usize::try_from(index % ring as u64).unwrap() / GRAIN * GRAIN;
                place(number, ring).data + start + dice.below(3) * 8
            }
        };
        let word = self.memory.word(at).unwrap();
        let value = match dice.below(4) {
            0 => dice.below(1 << 20) as u64,
            1 => dice.roll(),
            2 => word.load(Ordering::Relaxed).wrapping_add(64),
            _ => word.load(Ordering::Relaxed) ^ 1 << dice.below(64),
        };
        word.store(value, Ordering::Relaxed);
    }
}

/// Changes a word of the memory as a peer could.
fn scribble(channel: &Channel, at: usize, value: u64) {
    let word = channel.memory.word(at).unwrap();
    word.store(value, Ordering::Relaxed);
}

#[test]
fn impossible_index_is_a_fault() {
    let ring = MIN_RING as u64;
    for value in [
        1,
        63,
        65,
        ring + 64,
        u64::MAX,
        0u64.wrapping_sub(64),
        1 << 63,
    ] {
        let (_a, mut b) = pair(MIN_RING);
        scribble(&b, place(0, MIN_RING).head, value);
        assert_eq!(b.next().unwrap_err().code, codes::INDEX, "head {value}");

        let (mut a, _b) = pair(MIN_RING);
        while a.has_room(SEGMENT).unwrap() {
            a.put(record(SEGMENT), [&[0; SEGMENT], &[]]).unwrap();
        }
        scribble(&a, place(0, MIN_RING).tail, value);
        let refused = a.has_room(SEGMENT).unwrap_err();
        assert_eq!(refused.code, codes::INDEX, "tail {value}");
    }
}

#[test]
fn decreasing_index_is_a_fault() {
    let (mut a, mut b) = pair(MIN_RING);
    for _ in 0..2 {
        a.put(record(0), [&[], &[]]).unwrap();
    }
    a.publish();
    take(&mut b).unwrap();
    take(&mut b).unwrap();
    scribble(&b, place(0, MIN_RING).head, 64);
    assert_eq!(b.next().unwrap_err().code, codes::INDEX);
}

#[test]
fn incomplete_record_is_a_fault() {
    let most = MIN_RING - HEADER;
    for (len, ready, good) in [
        (0, 64, true),
        (33, 64, false),
        (33, 128, true),
        (most, MIN_RING, true),
        (most + 1, MIN_RING, false),
        (u32::MAX as usize, MIN_RING, false),
    ] {
        let (_a, mut b) = pair(MIN_RING);
        let words = record(len).to_words();
        for (number, word) in words.into_iter().enumerate() {
            scribble(&b, place(0, MIN_RING).data + number * 8, word);
        }
        scribble(&b, place(0, MIN_RING).head, ready as u64);
        match b.next() {
            Ok(Some(found)) => assert!(good && found == record(len)),
            Ok(None) => panic!("there is a record"),
            Err(fault) => assert!(!good && fault.code == codes::RECORD, "{fault}"),
        }
    }
}
