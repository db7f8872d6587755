//! Owners of streams.

use nvmeof_rdma::QpId;

use crate::StreamId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Conn(QpId),
    /// No connection any more: the stream waits for its peer to end it too.
    Linger,
}

/// The owner of each stream, by slot.
#[derive(Debug, Default)]
pub(super) struct Owners {
    slots: Vec<Option<(StreamId, Owner)>>,
}

impl Owners {
    #[inline]
    pub(super) fn get(&self, stream: StreamId) -> Option<Owner> {
        match self.slots.get(stream.slot()) {
            Some(Some((name, owner))) if *name == stream => Some(*owner),
            _ => None,
        }
    }

    pub(super) fn insert(&mut self, stream: StreamId, owner: Owner) {
        let slot = stream.slot();
        if slot >= self.slots.len() {
            self.slots.resize(slot.saturating_add(1), None);
        }
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some((stream, owner));
        }
    }

    pub(super) fn remove(&mut self, stream: StreamId) {
        if self.get(stream).is_some()
            && let Some(place) = self.slots.get_mut(stream.slot())
        {
            *place = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_stream_has_no_owner() {
        let mut owners = Owners::default();
        let (old, new) = (StreamId(3), StreamId(1 << 32 | 3));
        let conn = Owner::Conn(QpId(7));
        owners.insert(old, conn);
        assert_eq!((owners.get(old), owners.get(new)), (Some(conn), None));
        owners.insert(new, Owner::Linger);
        // The slot belongs to another stream now.
        owners.remove(old);
        assert_eq!(
            (owners.get(old), owners.get(new)),
            (None, Some(Owner::Linger))
        );
        owners.remove(new);
        assert_eq!(owners.get(new), None);
    }
}
