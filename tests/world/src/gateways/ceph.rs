//! A model of Ceph: a monitor with a blocklist, OSDs with maps of different epochs, locks of
//! images, and the object of the record.
//!
//! An OSD refuses an operation if its own map has the client in the blocklist. It learns of a new
//! map by itself after a while, or from an operation that is tagged with a newer epoch, which then
//! waits for that map.

use std::collections::BTreeMap;
use std::mem;

use super::oracle::Oracle;

/// Address of a client.
pub(super) type ClientId = u64;

/// An object of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectId {
    pub(super) group: u32,
    pub(super) number: u64,
}

/// Where a reply goes: the gateway, its process, and the call there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplyTo {
    pub(super) gateway: usize,
    pub(super) process: u64,
    pub(super) token: u64,
}

/// An operation at an OSD.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Read(ObjectId),
    Write(ObjectId, u64),
    Lock(u32),
    Unlock(u32),
    ReadRecord,
    WriteRecord(Option<u64>, Vec<u8>),
}

/// A request to an OSD.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) client: ClientId,
    /// The epoch of the map of the client when it sent this.
    pub(super) epoch: u64,
    pub(super) op: Op,
    pub(super) reply_to: ReplyTo,
}

/// A request to the monitor.
#[derive(Clone, Debug)]
pub(super) enum Order {
    /// A new client, with the map of a monitor that is late by this number of epochs.
    Connect(u64),
    Blocklist(Vec<ClientId>),
    /// The latest map.
    LatestMap,
}

/// A reply of an OSD or of the monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Done,
    Value(u64),
    Record(Option<(u64, Vec<u8>)>),
    Version(u64),
    Conflict,
    Blocklisted,
    Busy,
    Client(ClientId),
}

#[derive(Debug, Default)]
struct Osd {
    epoch: u64,
    /// Requests that wait for a newer map, and those of the same clients behind them.
    waiting: Vec<Request>,
}

/// The cluster.
#[derive(Debug, Default)]
pub(super) struct Ceph {
    /// The epoch of the latest map.
    pub(super) epoch: u64,
    /// The epoch in which each client was blocklisted.
    blocklist: BTreeMap<ClientId, u64>,
    osds: Vec<Osd>,
    locks: BTreeMap<u32, ClientId>,
    record: Option<(u64, Vec<u8>)>,
    /// The epoch of the map of each client.
    clients: BTreeMap<ClientId, u64>,
    /// Whether locks of clients that are not blocklisted are broken.
    pub(super) breaks_locks: bool,
    pub(super) refused: u64,
}

impl Ceph {
    pub(super) fn new(osds: usize) -> Self {
        Self {
            epoch: 10,
            osds: (0..osds)
                .map(|_| Osd {
                    epoch: 10,
                    waiting: Vec::new(),
                })
                .collect(),
            ..Self::default()
        }
    }

    /// The OSD of an operation.
    pub(super) fn place(&self, op: &Op) -> usize {
        let number = match op {
            Op::Read(id) | Op::Write(id, _) => u64::from(id.group) * 7 + id.number,
            Op::Lock(group) | Op::Unlock(group) => u64::from(*group),
            Op::ReadRecord | Op::WriteRecord(..) => 0,
        };
        usize::try_from(number).unwrap() % self.osds.len()
    }

    pub(super) fn fenced(&self) -> u64 {
        u64::try_from(self.blocklist.len()).unwrap()
    }

    pub(super) fn client_epoch(&self, client: ClientId) -> u64 {
        self.clients.get(&client).copied().unwrap_or(0)
    }

    /// A client got a map.
    pub(super) fn learn(&mut self, client: ClientId, epoch: u64) {
        let known = self.clients.entry(client).or_default();
        *known = epoch.max(*known);
    }

    /// Executes an order.
    pub(super) fn order(&mut self, order: &Order) -> Reply {
        match order {
            Order::Connect(late) => {
                let client = 1 + u64::try_from(self.clients.len()).unwrap();
                self.clients
                    .insert(client, self.epoch.saturating_sub(*late));
                Reply::Client(client)
            }
            Order::Blocklist(clients) => {
                self.epoch += 1;
                for client in clients {
                    self.blocklist.entry(*client).or_insert(self.epoch);
                }
                Reply::Done
            }
            Order::LatestMap => Reply::Version(self.epoch),
        }
    }

    /// A request has arrived. Returns it if it can be executed; otherwise it waits for a map.
    pub(super) fn arrive(&mut self, at: usize, request: Request) -> Option<Request> {
        let osd = &mut self.osds[at];
        let is_behind = osd.waiting.iter().any(|it| it.client == request.client);
        if request.epoch > osd.epoch || is_behind {
            osd.waiting.push(request);
            return None;
        }
        Some(request)
    }

    /// An OSD has got a map. Returns the requests that waited for it.
    pub(super) fn handle_map(&mut self, at: usize, epoch: u64) -> Vec<Request> {
        let osd = &mut self.osds[at];
        osd.epoch = osd.epoch.max(epoch);
        let mut ready = Vec::new();
        for request in mem::take(&mut osd.waiting) {
            let is_behind = osd.waiting.iter().any(|it| it.client == request.client);
            match request.epoch <= osd.epoch && !is_behind {
                true => ready.push(request),
                false => osd.waiting.push(request),
            }
        }
        ready
    }

    pub(super) fn osd_epoch(&self, at: usize) -> u64 {
        self.osds[at].epoch
    }

    /// Executes a request.
    pub(super) fn execute(&mut self, at: usize, request: &Request, oracle: &mut Oracle) -> Reply {
        let client = request.client;
        let added = self.blocklist.get(&client).copied();
        if added.is_some_and(|epoch| epoch <= self.osds[at].epoch) {
            self.refused += 1;
            return Reply::Blocklisted;
        }
        match &request.op {
            Op::Read(id) => Reply::Value(oracle.used(client, *id, None)),
            Op::Write(id, value) => {
                oracle.used(client, *id, Some(*value));
                Reply::Done
            }
            Op::Lock(group) => self.lock(*group, client),
            Op::Unlock(group) => {
                if self.locks.get(group) == Some(&client) {
                    self.locks.remove(group);
                }
                Reply::Done
            }
            Op::ReadRecord => Reply::Record(self.record.clone()),
            Op::WriteRecord(expected, bytes) => {
                let version = self.record.as_ref().map(|(version, _)| *version);
                if version != *expected {
                    return Reply::Conflict;
                }
                let before = self.record.as_ref().map(|(_, bytes)| bytes.as_slice());
                oracle.recorded(before, bytes);
                let version = version.unwrap_or(0) + 1;
                self.record = Some((version, bytes.clone()));
                Reply::Version(version)
            }
        }
    }

    /// Takes the exclusive lock. The lock of a blocklisted client is broken, as librbd does.
    fn lock(&mut self, group: u32, client: ClientId) -> Reply {
        let holder = self.locks.get(&group);
        let is_free = holder.is_none_or(|holder| {
            *holder == client || self.blocklist.contains_key(holder) || self.breaks_locks
        });
        if !is_free {
            return Reply::Busy;
        }
        self.locks.insert(group, client);
        Reply::Done
    }
}
