//! Features and log page of reservations (Base 2.1, 5.1.25.1.29, 5.1.25.1.30 and 5.1.12.1.31).

use nvmeof_wire::admin::{GetFeatures, NSID_ALL, Select, SetFeatures};
use nvmeof_wire::reservation::{NoticeMask, NoticePage};

use super::features::{SEL, capabilities};
use super::protection::{check_reservation, not_kept};
use super::{Admin, CDW11};
use crate::live::{NotChanged, NotReserved};
use crate::namespace_view::VisibleNamespace;
use crate::persist::PendingSave;
use crate::request::{Epoch, Failure, Next, Request, Stage};

/// Bit 0 of dword 11 of the feature Reservation Persistence: Persist Through Power Loss (PTPL).
const PTPL: u32 = 1;

impl Admin<'_> {
    /// Get Features, Reservation Persistence. By default, reservations do not persist.
    pub(super) fn get_persistence(&self, command: &GetFeatures) -> Result<Next, Failure> {
        let value = match command.select {
            Select::Capabilities => capabilities(command.fid).bits(),
            Select::Current => {
                let seen = self.visible(command.nsid)?;
                u32::from(self.live()?.persists(&seen.namespace))
            }
            Select::Default | Select::Saved => 0,
            Select::Reserved(_) => return Err(Failure::field(SEL)),
        };
        Ok(Next::Done(value.into()))
    }

    /// Set Features, Reservation Persistence, of one namespace or of all that the host can access.
    /// It completes when that has been saved.
    pub(super) fn set_persistence(
        &self,
        request: &mut Request,
        command: &SetFeatures,
    ) -> Result<Next, Failure> {
        if command.cdw11 & !PTPL != 0 {
            return Err(Failure::field(CDW11));
        }
        let persists = command.cdw11 & PTPL != 0;
        let namespace_view = self.namespace_view()?;
        let named =
            |seen: &&VisibleNamespace| [seen.namespace.nsid, NSID_ALL].contains(&command.nsid);
        let named = namespace_view.list().iter().filter(named);
        let mut nsids = Vec::new();
        for seen in named {
            // A host that is fenced must not end that with the next loss of power.
            check_reservation(seen)?;
            nsids.push(seen.namespace.nsid);
        }
        let (live, save_queue) = (self.live()?, &self.shared.save_queue);
        let mut saves = Vec::new();
        for nsid in nsids {
            // One that was removed meanwhile does not concern the others.
            match live.set_persistence(save_queue, nsid, persists) {
                Ok(pending) => saves.push(pending),
                Err(NotReserved::Now(NotChanged::Gone)) if command.nsid == NSID_ALL => {}
                Err(NotReserved::Now(NotChanged::NotReady)) => return Err(Failure::not_ready()),
                Err(_) => return Err(not_kept()),
            }
        }
        let pending = PendingSave::all(saves);
        if pending.is_none() {
            return Ok(Next::Done(0));
        }
        let (protects, epoch) = (None, Epoch::default());
        request.stage = Stage::Keep { protects, epoch };
        self.deferred.keeping.set(Some(pending));
        Ok(Next::Keep)
    }

    /// Set Features, Reservation Notification Mask, of one namespace or of all that the host can
    /// access.
    pub(super) fn set_notice_mask(&self, command: &SetFeatures) -> Result<Next, Failure> {
        let mask = NoticeMask::from_bits(command.cdw11).ok_or(Failure::field(CDW11))?;
        let namespace_view = self.namespace_view()?;
        let masks = &mut self.controller.lock().features.notice_masks;
        let nsids = namespace_view.list().iter().map(|one| one.namespace.nsid);
        for nsid in nsids.filter(|nsid| [*nsid, NSID_ALL].contains(&command.nsid)) {
            masks.insert(nsid, mask);
        }
        Ok(Next::Done(0))
    }

    /// The oldest notification, which is removed from the queue.
    pub(super) fn next_reservation_notice(&self) -> NoticePage {
        self.controller.lock().reservation_notices.next_page()
    }
}
