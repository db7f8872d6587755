//! Tests of floods with records that cost their sender next to nothing, beside an honest
//! connection. They count the records that one poll processes.

use super::*;
use crate::channel::Channel;
use crate::message::Message;
use crate::record::{GRAIN, Kind, Record};

/// Maximum records that one poll processes of a connection which sends nothing else.
const IN_ONE_POLL: u64 = 32;
/// Polls of a flood.
const POLLS: u32 = 50;

/// A record with `len` bytes of payload that names `window`.
fn record(kind: Kind, len: usize, window: &RemoteSlice) -> Record {
    let len = u32::try_from(len).unwrap();
    Record {
        len,
        key: window.key.0,
        rest: len,
        addr: window.addr,
        ..Record::new(kind)
    }
}

/// Side 0 floods one connection to side 1, and is honest on another.
struct Beside {
    host: Host,
    flooded: [QpId; 2],
    honest: [QpId; 2],
    window: RemoteSlice,
}

impl Beside {
    fn new(active: Pages) -> Self {
        let mut host = Host::new(active);
        let (flooded, honest) = (host.link(), host.link());
        let side = &mut host.sides[1];
        let window = side.buf();
        let window = side.provider.expose(flooded[1], window, Rights::all());
        let window = window.unwrap();
        let buf = side.buf();
        side.provider.post_recv(flooded[1], Tag(7), buf).unwrap();
        Self {
            host,
            flooded,
            honest,
            window,
        }
    }

    /// The flooded connection of a side; `None` once it has ended.
    fn channel(&mut self, side: usize) -> Option<&mut Channel> {
        let qp = self.flooded[side];
        let conn = self.host.sides[side].provider.conns.get_mut(qp.0)?;
        conn.channel
            .as_mut()
            .filter(|_| conn.phase == Phase::Running)
    }

    /// Fills the ring.
    fn flood(&mut self, record: Record) {
        let payload = &[1; 1][..record.len as usize];
        let channel = self.channel(0).unwrap();
        while channel.has_room(payload.len()).unwrap() {
            channel.put(record, [payload, &[]]).unwrap();
        }
        if channel.publish() {
            let conn = self.host.sides[0].provider.conns.get_mut(self.flooded[0].0);
            conn.unwrap().send(&Message::Wake);
        }
    }

    /// Records that side 1 took in a poll that has to bring a message of the honest
    /// peer. `None` once the flooded connection has ended.
    fn taken_in_a_poll(&mut self) -> Option<u64> {
        let before = self.channel(1)?.taken();
        self.host.now += Duration::from_millis(1);
        let now = self.host.now;
        let [from, to] = &mut self.host.sides;
        let buf = to.buf();
        to.provider.post_recv(self.honest[1], Tag(0), buf).unwrap();
        let work = Work::Send {
            head: Inline::of(*b"alive"),
            body: None,
            invalidate: None,
            solicited: false,
        };
        from.provider.post(self.honest[0], Tag(0), work).unwrap();
        from.provider.submit(now);
        let mut events = Vec::new();
        to.provider.poll(now, &mut events);
        let honest = |event: &&Event| match event {
            Event::Received(one) => one.qp == self.honest[1] && one.outcome.is_success(),
            _ => false,
        };
        assert_eq!(events.iter().filter(honest).count(), 1, "{events:?}");
        from.provider.poll(now, &mut events);
        let bytes = self.channel(1)?.taken() - before;
        Some(bytes / GRAIN as u64)
    }
}

#[test]
fn honest_connection_waits_for_few_idle_records() {
    let kinds = [
        (Kind::Send, 0),
        (Kind::Send, 1),
        (Kind::Write, 0),
        (Kind::Write, 1),
        (Kind::Grant, 0),
    ];
    for pages in [Pages::Normal, Pages::Shareable] {
        for (kind, len) in kinds {
            let mut beside = Beside::new(pages);
            let record = record(kind, len, &beside.window);
            for _ in 0..POLLS {
                beside.flood(record);
                let taken = beside.taken_in_a_poll().unwrap();
                let few = (1..=IN_ONE_POLL).contains(&taken);
                assert!(few, "{taken} records: {record:?}");
            }
        }
    }
}

/// Reads of no bytes: more than may be in flight end the connection.
#[test]
fn honest_connection_waits_for_no_more_reads_than_may_be_in_flight() {
    let mut beside = Beside::new(Pages::Normal);
    beside.flood(record(Kind::Read, 0, &beside.window));
    assert_eq!(beside.taken_in_a_poll(), None);
}

/// One store republishes a whole ring of records that were processed before.
#[test]
fn honest_connection_waits_for_few_republished_records() {
    let mut beside = Beside::new(Pages::Normal);
    beside.flood(record(Kind::Send, 0, &beside.window));
    for _ in 0..POLLS {
        let taken = beside.taken_in_a_poll().unwrap();
        assert!((1..=IN_ONE_POLL).contains(&taken), "{taken} records");
        beside.channel(1).unwrap().refill();
    }
}
