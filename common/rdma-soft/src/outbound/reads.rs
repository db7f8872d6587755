//! Responses to RDMA Reads of this side: they must match the oldest one.

use super::Outbound;
use crate::iwarp::{Header, WireFault, codes};

impl Outbound {
    /// Checks a segment of a Read Response: it must be the next piece of the oldest Read (RFC
    /// 5040, section 5.2: responses are in order).
    pub(crate) fn check_response(
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
        // RFC 5040, section 5.2: the tag of a response without bytes is not checked.
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
                format!(
                    "an RDMA Read Response brings {} bytes for a Read of none",
                    header.payload
                ),
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

    pub(crate) fn response_place(&mut self, remaining: usize) -> Option<&mut [u8]> {
        let read = self.reads.front()?;
        let (number, start) = (read.number, read.arrived);
        let local = self.entry_mut(number)?.buf.as_mut()?;
        local.get_mut(start..start.checked_add(remaining)?)
    }

    /// Missing bytes of the oldest Read.
    pub(crate) fn response_left(&self) -> usize {
        let read = self.reads.front();
        read.map_or(0, |read| read.len.saturating_sub(read.arrived))
    }

    /// Grows with each byte of Read Responses.
    pub(crate) fn response_progress(&self) -> u64 {
        // Completed Reads leave the queue in order: the number of the oldest one counts for
        // more than any bytes that it may get.
        let read = self.reads.front();
        read.map_or(u64::MAX, |read| read.number << 32 | read.arrived as u64)
    }

    pub(crate) fn response_advance(&mut self, len: usize) {
        if let Some(read) = self.reads.front_mut() {
            read.arrived += len;
        }
    }

    pub(crate) fn response_done(&mut self) {
        if let Some(read) = self.reads.pop_front()
            && let Some(entry) = self.entry_mut(read.number)
        {
            entry.responded = true;
        }
    }
}
