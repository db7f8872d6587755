//! Random actions, one at a time, within the protocol.

use crate::pattern::{fill, length};
use crate::rig::Rig;
use crate::soak::{Conn, DEPTH, LONGEST, Message, Sink, Soak, Source, WINDOW};
use nvmeof_rdma::{RemoteSlice, Rights, Work};

impl Soak {
    /// Does one random action on `conn`.
    pub(super) fn act(&mut self, rig: &mut Rig<'_>, conn: &mut Conn) {
        let side = self.dice.below(2);
        match self.dice.below(12) {
            0..=2 => self.post_recv(rig, conn, side),
            3..=5 => self.send(rig, conn, side),
            6 | 7 => self.write(rig, conn, side),
            8 | 9 => self.read(rig, conn, side),
            10 => self.renew_source(rig, conn, side),
            _ => self.retire(rig, conn, side),
        }
    }

    fn tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    /// A receive at the side that direction `side` goes to.
    fn post_recv(&mut self, rig: &mut Rig<'_>, conn: &mut Conn, side: usize) {
        let to = conn.directions[side].from.other();
        let qp = conn.link.at(to);
        if rig[to].outstanding_recvs(qp) < DEPTH {
            let (tag, len) = (self.tag(), length(&mut self.dice, LONGEST));
            rig[to].recv(qp, tag, len);
            conn.directions[side].room.push_back(len);
        }
    }

    fn has_place(rig: &Rig<'_>, conn: &Conn, side: usize) -> bool {
        let from = conn.directions[side].from;
        rig[from].outstanding_work(conn.link.at(from)) < DEPTH
    }

    /// A message, if the other side has a receive for it.
    fn send(&mut self, rig: &mut Rig<'_>, conn: &mut Conn, side: usize) {
        if !Self::has_place(rig, conn, side) {
            return;
        }
        if let Some(room) = conn.directions[side].room.pop_front() {
            let len = length(&mut self.dice, room);
            self.message(rig, conn, side, len, false);
        }
    }

    fn message(
        &mut self,
        rig: &mut Rig<'_>,
        conn: &mut Conn,
        side: usize,
        len: usize,
        retires: bool,
    ) {
        let tag = self.tag();
        let direction = &mut conn.directions[side];
        let key = direction.sink.as_ref().map(|sink| sink.slice.key);
        let owner = direction.from.other();
        let by_message = retires && self.dice.below(2) == 0 && rig.may_invalidate(owner, conn.link);
        let revoked = key.filter(|_| by_message);
        let mut work = rig[direction.from].message(tag, len);
        if let Work::Send { invalidate, .. } = &mut work {
            *invalidate = revoked;
        }
        let qp = conn.link.at(direction.from);
        match work {
            // Half of them are posted the other way.
            Work::Send {
                head, body: None, ..
            } if tag.is_multiple_of(2) => {
                let posted = rig[direction.from].post_message(qp, tag, &head, revoked);
                assert!(posted.is_ok(), "{posted:?}");
            }
            work => rig[direction.from].post(qp, tag, work),
        }
        direction.messages.push_back(Message {
            seed: tag,
            len,
            invalidate: revoked,
            retires,
        });
    }

    /// A write into the sink, which is made first if there is none.
    fn write(&mut self, rig: &mut Rig<'_>, conn: &mut Conn, side: usize) {
        if !Self::has_place(rig, conn, side) {
            return;
        }
        let direction = &mut conn.directions[side];
        let owner = direction.from.other();
        let sink = direction.sink.get_or_insert_with(|| {
            let buf = rig[owner].buf(WINDOW);
            let slice = rig[owner].expose(conn.link.at(owner), buf, Rights::REMOTE_WRITE);
            Sink {
                slice,
                model: vec![0xEE; WINDOW],
                retiring: false,
            }
        });
        if sink.retiring {
            return;
        }
        let len = length(&mut self.dice, LONGEST);
        let start = self.dice.below(WINDOW - len + 1);
        self.next_tag += 1;
        let tag = self.next_tag;
        fill(&mut sink.model[start..start + len], tag);
        let remote = part(sink.slice, start, len);
        rig[direction.from].write(conn.link.at(direction.from), tag, len, remote);
    }

    /// A read from the source, if there is one.
    fn read(&mut self, rig: &mut Rig<'_>, conn: &mut Conn, side: usize) {
        if !Self::has_place(rig, conn, side) {
            return;
        }
        let len = length(&mut self.dice, LONGEST);
        let start = self.dice.below(WINDOW - len + 1);
        let tag = self.tag();
        let direction = &mut conn.directions[side];
        if let Some(source) = &direction.source {
            let remote = part(source.slice, start, len);
            rig[direction.from].read(conn.link.at(direction.from), tag, len, remote);
            direction.reads.push_back((start, len));
        }
    }

    /// A new source in place of the old one, once that is not read any more.
    fn renew_source(&mut self, rig: &mut Rig<'_>, conn: &mut Conn, side: usize) {
        let seed = self.tag();
        let direction = &mut conn.directions[side];
        let owner = direction.from.other();
        if !direction.reads.is_empty() {
            return;
        }
        if let Some(old) = direction.source.take() {
            let buf = rig[owner].withdraw(old.slice.key);
            assert!(buf[..] == old.content[..], "what is read does not change");
        }
        let buf = rig[owner].filled(WINDOW, seed);
        let content = buf.to_vec();
        let slice = rig[owner].expose(conn.link.at(owner), buf, Rights::REMOTE_READ);
        direction.source = Some(Source { slice, content });
    }

    /// The last message for a sink: when it arrives, the sink is compared.
    pub(super) fn retire(&mut self, rig: &mut Rig<'_>, conn: &mut Conn, side: usize) {
        let direction = &mut conn.directions[side];
        if direction.sink.as_ref().is_none_or(|sink| sink.retiring) {
            return;
        }
        if !Self::has_place(rig, conn, side) {
            return;
        }
        if conn.directions[side].room.is_empty() {
            self.post_recv(rig, conn, side);
        }
        let Some(room) = conn.directions[side].room.pop_front() else {
            return;
        };
        let len = length(&mut self.dice, room);
        self.message(rig, conn, side, len, true);
        if let Some(sink) = &mut conn.directions[side].sink {
            sink.retiring = true;
        }
    }
}

/// The part of `slice` from `start` on, `len` bytes.
fn part(slice: RemoteSlice, start: usize, len: usize) -> RemoteSlice {
    RemoteSlice {
        addr: slice.addr + start as u64,
        len: u32::try_from(len).unwrap(),
        ..slice
    }
}
