//! Tests of when work enters the ring, and in which order.

use std::os::fd::AsFd;

use nvmeof_memory::{Pages, Pool, PoolLayout};
use nvmeof_rdma::Inline;

use super::*;
use crate::ring::MIN_RING;

struct Pair {
    outbound: Outbound,
    ours: Channel,
    theirs: Channel,
    keys: KeyTable,
    posted: u64,
}

impl Pair {
    fn new() -> Self {
        let (ours, fd) = Channel::create(MIN_RING, 0).unwrap();
        let theirs = Channel::open(fd.as_fd(), MIN_RING as u64, 0).unwrap();
        Self {
            outbound: Outbound::new(),
            ours,
            theirs,
            keys: KeyTable::new(1, 0),
            posted: 0,
        }
    }

    fn post(&mut self, work: Work) {
        let tag = Tag(self.posted);
        self.posted += 1;
        self.outbound.post(tag, work, Some(&mut self.ours), None);
    }

    fn post_message(&mut self) -> Posted {
        let (tag, head) = (Tag(self.posted), Inline::of(*b"head"));
        self.posted += 1;
        let ours = Some(&mut self.ours);
        self.outbound.post_message(tag, &head, None, ours, None)
    }

    /// Number of completions.
    fn completed(&mut self) -> usize {
        let mut events = Vec::new();
        self.outbound.complete(QpId(0), &mut events);
        events.len()
    }

    /// Records that the peer finds after publication.
    fn arrived(&mut self) -> Vec<(Kind, u32)> {
        self.ours.publish();
        let mut kinds = Vec::new();
        while let Some(record) = self.theirs.next().unwrap() {
            kinds.push((record.kind, record.len));
            self.theirs.release(&record);
        }
        self.theirs.publish();
        kinds
    }

    fn transmit(&mut self) {
        let sent = self.outbound.transmit(&mut self.ours, &mut self.keys, None);
        sent.unwrap();
    }
}

fn message(body: Option<Buf>) -> Work {
    Work::Send {
        head: Inline::of(*b"head"),
        body,
        invalidate: None,
        solicited: false,
    }
}

fn buf(len: usize) -> Buf {
    let layout = PoolLayout {
        count: 1,
        stride: len,
        lead: 0,
    };
    Pool::new(layout, Pages::Normal).unwrap().take().unwrap()
}

fn write() -> Work {
    let remote = RemoteSlice {
        key: RemoteKey(0),
        addr: 0,
        len: 8,
    };
    let local = buf(8);
    Work::Write { local, remote }
}

#[test]
fn message_is_put_when_posted() {
    let mut pair = Pair::new();
    pair.post(message(None));
    pair.post(message(Some(buf(100))));
    assert_eq!((pair.completed(), pair.outbound.posted()), (2, 0));
    assert!(pair.theirs.next().unwrap().is_none(), "not published yet");
    assert_eq!(pair.arrived(), [(Kind::Send, 4), (Kind::Send, 104)]);
}

#[test]
fn message_waits_for_earlier_work() {
    let mut pair = Pair::new();
    pair.post(write());
    pair.post(message(None));
    assert_eq!((pair.completed(), pair.arrived().len()), (0, 0));
    pair.transmit();
    assert_eq!(pair.arrived(), [(Kind::Write, 8), (Kind::Send, 4)]);
    assert_eq!(pair.completed(), 2);
    // A grant without a message.
    let exposed = RemoteSlice {
        key: RemoteKey(1 << 8),
        addr: 1 << 20,
        len: 8,
    };
    let grant = Grant::new(&exposed, Rights::REMOTE_READ, 0, 0).unwrap();
    (0..2).for_each(|_| pair.outbound.grant(grant));
    pair.post(message(None));
    assert!(pair.arrived().is_empty());
    pair.transmit();
    assert_eq!(pair.arrived(), [(Kind::Grant, 0), (Kind::Send, 4)]);
    // A grant that the message cannot carry, because it carries another key.
    pair.outbound.grant(grant);
    pair.post(Work::Send {
        head: Inline::of(*b"head"),
        body: None,
        invalidate: Some(RemoteKey(7)),
        solicited: false,
    });
    assert!(pair.arrived().is_empty());
    pair.transmit();
    assert_eq!(pair.arrived(), [(Kind::Grant, 0), (Kind::Send, 4)]);
    // A response.
    pair.outbound.respond(0, 0, 0);
    pair.post(message(None));
    assert!(pair.arrived().is_empty());
    pair.transmit();
    assert_eq!(pair.arrived().len(), 2);
}

#[test]
fn message_is_done_at_once_only_behind_completed_work() {
    let mut pair = Pair::new();
    pair.outbound.start(1);
    assert_eq!(pair.post_message(), Posted::Done);
    assert_eq!(pair.arrived(), [(Kind::Send, 4)]);
    pair.post(write());
    assert_eq!(pair.post_message(), Posted::Pending, "waits for its turn");
    pair.transmit();
    assert_eq!(pair.post_message(), Posted::Pending, "others not reported");
    assert_eq!((pair.completed(), pair.outbound.posted()), (3, 0));
    assert_eq!(pair.post_message(), Posted::Done);
    let Work::Write { local, remote } = write() else {
        unreachable!();
    };
    pair.post(Work::Read { local, remote });
    pair.transmit();
    assert_eq!(pair.post_message(), Posted::Pending, "a read is in flight");
    assert_eq!((pair.completed(), pair.outbound.posted()), (0, 2));
}

#[test]
fn message_waits_for_room_and_long_one_is_split() {
    let mut pair = Pair::new();
    let piece = u32::try_from(SEGMENT).unwrap();
    pair.post(message(Some(buf(SEGMENT))));
    assert!(pair.arrived().is_empty());
    pair.transmit();
    assert_eq!(pair.arrived(), [(Kind::Send, piece), (Kind::Send, 4)]);
    assert_eq!(pair.completed(), 1);
    let mut put = 0;
    while pair.outbound.is_idle() {
        pair.post(message(Some(buf(1000))));
        put += pair.completed();
    }
    assert!((50..70).contains(&put), "{put} of 1004 bytes fill 64 KiB");
    pair.post(message(None));
    assert_eq!(pair.completed(), 0);
    assert_eq!(pair.arrived().len(), put);
    pair.transmit();
    assert_eq!(pair.arrived(), [(Kind::Send, 1004), (Kind::Send, 4)]);
}
