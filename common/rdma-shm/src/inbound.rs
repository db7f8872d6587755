//! The receiving side of a connection: posted receives, and placement of records.

use std::collections::VecDeque;

use nvmeof_memory::Buf;
use nvmeof_rdma::{Event, Fault, Outcome, QpId, Received, RemoteKey, Rights, Tag};
use nvmeof_rdma_soft::{Access, KeyTable};

use crate::channel::Channel;
use crate::fault::{codes, fault, key_fault};
use crate::grant::PeerMemory;
use crate::outbound::Outbound;
use crate::record::{GRANTS, INVALIDATES, Kind, LAST, Record, SOLICITED, count, wrong};
use crate::shared_regions::SharedRegions;

/// Limits on records and bytes per call, so that other connections are served as well.
const RECORDS: usize = 256;
const BYTES: usize = 512 << 10;
/// Limit on records per call with next to no payload: such a record costs the receiver as
/// much as another, and its sender hardly anything.
const IDLE_RECORDS: usize = 32;
/// Minimum payload of a record that does not count as idle, if it does not end a message.
const SOME: u32 = 64;

/// The receiving state of a connection.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    recvs: VecDeque<(Tag, Buf)>,
    /// Bytes of the current message in the first receive.
    filled: usize,
    /// Maximum RDMA Reads of the peer in flight.
    reads: usize,
}

impl Inbound {
    pub(crate) fn prepare(&mut self, recvs: usize, reads: usize) {
        self.recvs.reserve_exact(recvs);
        self.reads = reads;
    }

    pub(crate) fn posted(&self) -> usize {
        self.recvs.len()
    }

    pub(crate) fn post(&mut self, tag: Tag, buf: Buf) {
        self.recvs.push_back((tag, buf));
    }

    /// Returns all receives.
    pub(crate) fn flush(&mut self, qp: QpId, events: &mut Vec<Event>) {
        for (tag, buf) in self.recvs.drain(..) {
            events.push(Event::Received(Received {
                qp,
                tag,
                buf,
                len: 0,
                invalidated: None,
                solicited: false,
                outcome: Outcome::Flushed,
            }));
        }
    }
}

/// The receiving state of a connection together with everything that its records change.
pub(crate) struct Receiver<'a> {
    pub(crate) qp: QpId,
    pub(crate) channel: &'a mut Channel,
    pub(crate) inbound: &'a mut Inbound,
    pub(crate) peer_memory: Option<&'a mut PeerMemory>,
    pub(crate) outbound: &'a mut Outbound,
    pub(crate) keys: &'a mut KeyTable,
    pub(crate) shared_regions: &'a mut SharedRegions,
    pub(crate) events: &'a mut Vec<Event>,
}

impl Receiver<'_> {
    /// Processes records, up to a limit. Returns whether there were any.
    pub(crate) fn receive(&mut self) -> Result<bool, Fault> {
        let (mut bytes, mut idle) = (0usize, 0);
        for processed in 0..RECORDS {
            if !self.channel.is_ready()? {
                return Ok(processed > 0);
            }
            let record = match self.channel.record() {
                Ok(record) => record,
                Err(words) => return Err(wrong(words)),
            };
            match record.kind {
                Kind::Send => self.on_send(&record)?,
                Kind::Write => self.on_write(&record)?,
                Kind::Read => self.on_read(&record)?,
                Kind::Response => self.outbound.on_response(&record, self.channel)?,
                Kind::Grant => self.on_grant(&record),
            }
            self.channel.release(&record);
            bytes = bytes.saturating_add(count(record.len));
            idle += usize::from(is_idle(&record));
            if bytes >= BYTES || idle >= IDLE_RECORDS {
                break;
            }
        }
        Ok(true)
    }

    /// Ignored if the peer's memory is not mapped.
    fn on_grant(&mut self, record: &Record) {
        if let Some(peer_memory) = &mut self.peer_memory {
            peer_memory.grant(record);
        }
    }

    fn on_send(&mut self, record: &Record) -> Result<(), Fault> {
        if record.has(GRANTS) {
            self.on_grant(record);
        }
        let filled = self.inbound.filled;
        let Some((_, buf)) = self.inbound.recvs.front_mut() else {
            let text = "a message arrived and no receive is posted";
            return Err(fault(codes::NO_RECEIVE, text));
        };
        let end = filled.saturating_add(count(record.len));
        let room = buf.len();
        let Some(place) = buf.get_mut(filled..end) else {
            let text = format!("a message of {end} bytes or more for a receive of {room}");
            return Err(fault(codes::TOO_LONG, text));
        };
        self.channel.payload(place)?;
        self.inbound.filled = end;
        if !record.has(LAST) {
            return Ok(());
        }
        let invalidates = record.has(INVALIDATES) && !record.has(GRANTS);
        let invalidated = invalidates.then_some(RemoteKey(record.key));
        if let Some(RemoteKey(key)) = invalidated {
            let done = self.keys.invalidate(self.qp, key);
            done.map_err(|why| key_fault(why, key))?;
            self.shared_regions.take_back(key);
        }
        self.inbound.filled = 0;
        if let Some((tag, buf)) = self.inbound.recvs.pop_front() {
            self.events.push(Event::Received(Received {
                qp: self.qp,
                tag,
                buf,
                len: end,
                invalidated,
                solicited: record.has(SOLICITED),
                outcome: Outcome::Success,
            }));
        }
        Ok(())
    }

    fn on_write(&mut self, record: &Record) -> Result<(), Fault> {
        // Checked for all remaining bytes, so that a write that does not fit changes nothing.
        let access = self.access(record, Rights::REMOTE_WRITE);
        let place = self.keys.bytes_mut(&access);
        let place = place.map_err(|why| key_fault(why, record.key))?;
        let Some(place) = place.get_mut(..count(record.len)) else {
            let text = format!("{} bytes of a write of {}", record.len, record.rest);
            return Err(fault(codes::RECORD, text));
        };
        self.channel.payload(place)
    }

    fn on_read(&mut self, record: &Record) -> Result<(), Fault> {
        if self.outbound.responding() >= self.inbound.reads {
            let text = format!("more than {} reads in flight", self.inbound.reads);
            return Err(fault(codes::TOO_MANY_READS, text));
        }
        let access = self.access(record, Rights::REMOTE_READ);
        let start = self.keys.check(&access);
        let start = start.map_err(|why| key_fault(why, record.key))?;
        self.keys.begin_read(record.key);
        self.outbound.respond(record.key, start, record.rest);
        Ok(())
    }

    fn access(&self, record: &Record, rights: Rights) -> Access {
        Access {
            owner: self.qp,
            key: record.key,
            rights,
            addr: record.addr,
            len: count(record.rest),
        }
    }
}

/// Whether a record has next to no payload. Ends of messages and Reads do not count as idle,
/// because their number is limited anyway.
fn is_idle(record: &Record) -> bool {
    record.len < SOME && !record.has(LAST) && record.kind != Kind::Read
}
