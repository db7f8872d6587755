//! Transfers with several ranges of host memory, one after the other through one buffer:
//! such a command has no more outstanding work requests than others.

use std::ops::Range;

use nvmeof_memory::Buf;
use nvmeof_rdma::Work;
use nvmeof_target_core::{Remote, Response};

use super::path::slice;
use super::{Io, QueuePair};
use crate::tag::SlotId;

/// A transfer in progress.
#[derive(Debug)]
pub(super) struct Transfer {
    slot: SlotId,
    pieces: Vec<Remote>,
    /// The index of the next piece.
    at: usize,
    /// The part of the buffer that holds the data.
    view: Range<usize>,
    /// Where the next piece begins in the buffer.
    next: usize,
    /// The response after the data.
    response: Option<Response>,
}

impl Transfer {
    /// Sets the view of the buffer to the next piece, and returns its range in host
    /// memory.
    fn set_piece_view(&mut self, buf: &mut Buf) -> Option<Remote> {
        let piece = self.pieces.get(self.at).copied()?;
        let len = usize::try_from(piece.len).ok()?;
        let end = self
            .next
            .checked_add(len)
            .filter(|end| *end <= self.view.end)?;
        buf.set_view(self.next..end).ok()?;
        self.at += 1;
        self.next = end;
        Some(piece)
    }
}

impl QueuePair {
    /// Starts to fill `local`: from one range, or from the `pieces` if there are any.
    pub(super) fn post_read(
        &mut self,
        slot: SlotId,
        mut local: Buf,
        mut remote: Remote,
        pieces: Vec<Remote>,
        io: &mut Io<'_>,
    ) {
        if !pieces.is_empty() {
            let Some(first) = self.begin_transfer(slot, &mut local, pieces, None) else {
                return self.bug("the pieces of a list do not fit its buffer", io);
            };
            remote = first;
        }
        let remote = slice(remote);
        self.post(slot, Work::Read { local, remote }, io);
    }

    /// Starts to write `local` to the `pieces`; `response` follows.
    pub(super) fn push_pieces(
        &mut self,
        slot: SlotId,
        mut local: Buf,
        pieces: Vec<Remote>,
        response: Response,
        io: &mut Io<'_>,
    ) {
        match self.begin_transfer(slot, &mut local, pieces, Some(response)) {
            Some(first) => self.push_piece(slot, local, first, io),
            None => self.bug("the pieces of a list do not fit its buffer", io),
        }
    }

    fn begin_transfer(
        &mut self,
        slot: SlotId,
        local: &mut Buf,
        pieces: Vec<Remote>,
        response: Option<Response>,
    ) -> Option<Remote> {
        let view = local.view();
        let mut transfer = Transfer {
            slot,
            pieces,
            at: 0,
            next: view.start,
            view,
            response,
        };
        let first = transfer.set_piece_view(local);
        self.cold.transfers.push(transfer);
        first
    }

    /// Writes a piece, and the response after the last one.
    fn push_piece(&mut self, slot: SlotId, local: Buf, piece: Remote, io: &mut Io<'_>) {
        let remote = slice(piece);
        self.post(slot, Work::Write { local, remote }, io);
        let last = self.cold.transfers.iter().position(|one| {
            one.slot == slot && one.response.is_some() && one.at == one.pieces.len()
        });
        if let Some(at) = last
            && let Some(mut response) = self.cold.transfers.swap_remove(at).response
        {
            // Other responses may have been sent in the meantime.
            self.core.renew(&mut response.cqe);
            self.send(slot, &response, io);
        }
    }

    /// A write completed while some command has several: continues with its next piece.
    #[cold]
    pub(super) fn written(&mut self, slot: SlotId, buf: Option<Buf>, io: &mut Io<'_>) {
        let mut all = self.cold.transfers.iter_mut();
        let Some(transfer) = all.find(|one| one.slot == slot && one.response.is_some()) else {
            return self.pushed(slot, buf, io);
        };
        let Some(mut buf) = buf else {
            return self.bug("written without a buffer", io);
        };
        match transfer.set_piece_view(&mut buf) {
            Some(piece) => self.push_piece(slot, buf, piece, io),
            None => self.bug("a list without a next piece", io),
        }
    }

    /// A read completed while some command has several: continues with its next piece, or
    /// all data have arrived.
    #[cold]
    pub(super) fn read(&mut self, slot: SlotId, buf: Option<Buf>, io: &mut Io<'_>) {
        let Some(at) = self.cold.transfers.iter().position(|one| one.slot == slot) else {
            return self.pulled(slot, buf, io);
        };
        let Some(mut buf) = buf else {
            return self.bug("pulled without a buffer", io);
        };
        let Some(transfer) = self.cold.transfers.get_mut(at) else {
            return;
        };
        if let Some(piece) = transfer.set_piece_view(&mut buf) {
            let remote = slice(piece);
            return self.post(slot, Work::Read { local: buf, remote }, io);
        }
        let view = self.cold.transfers.swap_remove(at).view;
        let whole = buf.set_view(view);
        debug_assert!(whole.is_ok(), "the view it came with");
        self.pulled(slot, Some(buf), io);
    }
}
