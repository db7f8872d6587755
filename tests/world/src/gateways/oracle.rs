//! What objects may hold, and what hosts may read.
//!
//! Each object has one writer, which writes 1, 2, 3 and so on, and sends a number only when the one
//! before is acknowledged. Therefore an object never holds a lower number than before.

use std::collections::BTreeMap;

use nvmeof_target_ha::Record;

use super::ceph::{ClientId, ObjectId};

#[derive(Clone, Copy, Debug, Default)]
struct Object {
    /// What it holds.
    value: u64,
    /// The epoch of the last client that used it.
    epoch: u64,
    /// The highest number that the writer has sent.
    sent: u64,
    /// The highest number that a host knows of: acknowledged or read.
    known: u64,
}

/// The state of all objects, and of the owners by the record.
#[derive(Debug, Default)]
pub(super) struct Oracle {
    objects: BTreeMap<ObjectId, Object>,
    /// The epoch in which each client was recorded.
    epochs: BTreeMap<ClientId, u64>,
    /// The epoch of each group.
    last: BTreeMap<u32, u64>,
    pub(super) takeovers: u64,
    pub(super) given_up: u64,
    violation: Option<String>,
}

impl Oracle {
    /// The first violation.
    pub(super) fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// The record was replaced.
    pub(super) fn recorded(&mut self, before: Option<&[u8]>, after: &[u8]) {
        let parse = |bytes: &[u8]| Record::parse(bytes).unwrap();
        let before = before.map(parse).unwrap_or_default();
        let after = parse(after);
        for (id, group) in &after.groups {
            let last = self.last.entry(*id).or_default();
            let old = before.groups.get(id).cloned().unwrap_or_default();
            if group.epoch < *last
                || (group.owner != old.owner && group.owner.is_some() && group.epoch == old.epoch)
            {
                self.violation
                    .get_or_insert(format!("group {id}: the epoch did not grow"));
            }
            self.takeovers += u64::from(group.epoch > *last);
            *last = group.epoch;
            if group.failures.len() > old.failures.len() {
                self.given_up += 1;
            }
            for client in &group.clients {
                let client: ClientId = client.parse().unwrap();
                self.epochs.entry(client).or_insert(group.epoch);
            }
        }
    }

    /// A client used an object at the OSD. Returns its contents.
    pub(super) fn used(&mut self, client: ClientId, id: ObjectId, write: Option<u64>) -> u64 {
        let epoch = self.epochs.get(&client).copied();
        let object = self.objects.entry(id).or_default();
        let mut wrong = None;
        if epoch.is_some_and(|epoch| epoch < object.epoch) {
            wrong = Some(format!(
                "{id:?}: client {client} of epoch {epoch:?} used it after a client of epoch {}",
                object.epoch
            ));
        }
        object.epoch = object.epoch.max(epoch.unwrap_or(0));
        if let Some(value) = write {
            if value < object.value {
                wrong = Some(format!(
                    "{id:?}: client {client} wrote {value} after {} was written",
                    object.value
                ));
            }
            object.value = value;
        }
        let value = object.value;
        if let Some(what) = wrong {
            self.violate(what);
        }
        value
    }

    /// The next number for the writer of an object.
    pub(super) fn next(&mut self, id: ObjectId) -> u64 {
        let object = self.objects.entry(id).or_default();
        object.sent += 1;
        object.sent
    }

    /// What a read that begins now returns at least.
    pub(super) fn known(&self, id: ObjectId) -> u64 {
        self.objects.get(&id).map_or(0, |object| object.known)
    }

    /// A write was acknowledged.
    pub(super) fn acknowledged(&mut self, id: ObjectId, value: u64) {
        let object = self.objects.entry(id).or_default();
        let held = object.value;
        object.known = object.known.max(value);
        if held < value {
            self.violate(format!("{id:?}: {value} was acknowledged, it holds {held}"));
        }
    }

    /// A read returned `value`; when it began, `known` was known.
    pub(super) fn read(&mut self, id: ObjectId, value: u64, known: u64) {
        let object = self.objects.entry(id).or_default();
        let sent = object.sent;
        object.known = object.known.max(value);
        if value < known || value > sent {
            self.violate(format!(
                "{id:?}: read {value}, between {known} and {sent} are correct"
            ));
        }
    }
}
