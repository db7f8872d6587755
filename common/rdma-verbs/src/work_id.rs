//! Work request IDs: the queue pair and the number of a work request.

use nvmeof_rdma::QpId;

use crate::outstanding::NUMBER_BITS;

/// Bits of a queue pair's index in the table.
pub(crate) const SLOT_BITS: u32 = 17;
pub(crate) const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
/// Bits of its generation that a completion carries.
const GENERATION_BITS: u32 = 21;
pub(crate) const GENERATION_MASK: u64 = (1 << GENERATION_BITS) - 1;
/// Set in completions of receives.
const RECV: u64 = 1 << 63;
/// Set in completions of shared receives, besides their number.
const SHARED: u64 = 1 << 62;

const _: () = assert!(2 + SLOT_BITS + GENERATION_BITS + NUMBER_BITS == 64);

/// Limit of queue pairs that a work request ID can identify.
pub(crate) const MOST_QPS: u32 = 1 << SLOT_BITS;

/// Contents of a work request ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkId {
    pub(crate) recv: bool,
    pub(crate) slot: u64,
    pub(crate) generation: u64,
    /// Number in its `Outstanding`.
    pub(crate) number: u64,
}

impl WorkId {
    /// The IDs of a queue of `qp`, to each of which a number is added.
    pub(crate) fn of(qp: QpId, recv: bool) -> u64 {
        let (slot, generation) = (qp.0 & SLOT_MASK, qp.0 >> SLOT_BITS);
        let kind = if recv { RECV } else { 0 };
        let generation = generation & GENERATION_MASK;
        kind | slot << (GENERATION_BITS + NUMBER_BITS) | generation << NUMBER_BITS
    }

    /// The ID of a shared receive.
    pub(crate) fn of_shared(number: u64) -> u64 {
        SHARED | number
    }

    /// The number of a shared receive, if it is one.
    pub(crate) fn shared(id: u64) -> Option<u64> {
        (id & SHARED != 0).then_some(id & !SHARED)
    }

    pub(crate) fn parse(id: u64) -> Self {
        Self {
            recv: id & RECV != 0,
            slot: id >> (GENERATION_BITS + NUMBER_BITS) & SLOT_MASK,
            generation: id >> NUMBER_BITS & GENERATION_MASK,
            number: id & ((1 << NUMBER_BITS) - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_ids_hold_slot_generation_and_number() {
        let qp = QpId(0x1234_5678 << SLOT_BITS | 0x1_5678);
        for (recv, number) in [(false, 0), (true, (1 << NUMBER_BITS) - 1), (false, 77)] {
            let id = WorkId::of(qp, recv) | number;
            assert_eq!(WorkId::shared(id), None);
            let id = WorkId::parse(id);
            assert_eq!((id.recv, id.number), (recv, number));
            assert_eq!(id.slot, 0x1_5678);
            assert_eq!(id.generation, 0x1234_5678 & GENERATION_MASK);
        }
        let all = QpId(u64::MAX);
        assert_eq!(WorkId::shared(WorkId::of(all, true)), None);
        assert_eq!(WorkId::shared(WorkId::of_shared(77)), Some(77));
    }
}
