//! Answers to our RDMA Reads: they must fit the oldest one.

use super::Outbound;
use crate::iwarp::{Header, WireFault, codes};

impl Outbound {
    /// A segment of an answer to one of our Reads: it must be the next piece
    /// of the oldest one (RFC 5040, section 5.2: answers come in order).
    pub(crate) fn check_answer(
        &self,
        stag: u32,
        to: u64,
        header: &Header,
    ) -> Result<(), WireFault> {
        let Some(read) = self.reads.front() else {
            return Err(WireFault::new(
                codes::RDMAP_OPCODE,
                "an RDMA Read Response arrived and no Read is in flight",
            ));
        };
        // RFC 5040, section 5.2: an answer of nothing names nothing.
        if read.len > 0 {
            if stag != read.sink_stag {
                return Err(WireFault::new(
                    codes::DDP_STAG,
                    format!(
                        "an RDMA Read Response names tag {stag:#010x}, {:#010x} was next",
                        read.sink_stag
                    ),
                ));
            }
            let expected = read.sink_to.wrapping_add(read.arrived as u64);
            if to != expected || header.payload > read.len - read.arrived {
                return Err(WireFault::new(
                    codes::DDP_BOUNDS,
                    format!(
                        "an RDMA Read Response brings {} bytes for {to:#x}, up to {} for \
                            {expected:#x} were next",
                        header.payload,
                        read.len - read.arrived
                    ),
                ));
            }
        } else if header.payload > 0 {
            return Err(WireFault::new(
                codes::DDP_BOUNDS,
                format!("{} bytes answer an RDMA Read of none", header.payload),
            ));
        }
        if header.last != (read.arrived + header.payload == read.len) {
            return Err(WireFault::new(
                codes::RDMAP_UNSPECIFIED,
                format!(
                    "an RDMA Read of {} bytes got {} and last is {}",
                    read.len,
                    read.arrived + header.payload,
                    header.last
                ),
            ));
        }
        Ok(())
    }

    pub(crate) fn answer_place(&mut self, remaining: usize) -> Option<&mut [u8]> {
        let read = self.reads.front()?;
        let (number, start) = (read.number, read.arrived);
        let local = self.entry_mut(number)?.buf.as_mut()?;
        local.get_mut(start..start.checked_add(remaining)?)
    }

    /// Bytes of the oldest Read that are missing.
    pub(crate) fn answer_left(&self) -> usize {
        let read = self.reads.front();
        read.map_or(0, |read| read.len.saturating_sub(read.arrived))
    }

    /// Grows with each byte that answers our Reads.
    pub(crate) fn answer_progress(&self) -> u64 {
        // Reads that are answered leave the row in order: the number of the oldest one
        // counts for more than any that it may bring.
        let read = self.reads.front();
        read.map_or(u64::MAX, |read| read.number << 32 | read.arrived as u64)
    }

    pub(crate) fn answer_advance(&mut self, len: usize) {
        if let Some(read) = self.reads.front_mut() {
            read.arrived += len;
        }
    }

    pub(crate) fn answer_done(&mut self) {
        if let Some(read) = self.reads.pop_front()
            && let Some(entry) = self.entry_mut(read.number)
        {
            entry.answered = true;
        }
    }
}
