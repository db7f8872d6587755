//! Features and log page of reservations (Base 2.1, 5.1.25.1.29, 5.1.25.1.30 and 5.1.12.1.31).

use nvmeof_wire::admin::{GetFeatures, NSID_ALL, Select, SetFeatures};
use nvmeof_wire::reservation::{NoticeMask, NoticePage};

use super::features::{SEL, capabilities};
use super::protection::{check_reservation, not_kept};
use super::{Admin, CDW11};
use crate::live::NotReserved;
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
        let mut nsids = Vec::new();
        for seen in namespace_view.list() {
            if [seen.namespace.nsid, NSID_ALL].contains(&command.nsid) {
                // A host that is fenced must not end that with the next loss of power.
                check_reservation(seen)?;
                nsids.push(seen.namespace.nsid);
            }
        }
        let keeping = self
            .live()?
            .set_persistence(&self.shared.save_queue, &nsids, persists);
        match keeping {
            Ok(Some(keeping)) if keeping.is_complete() => Ok(Next::Done(0)),
            Ok(Some(keeping)) => {
                let epoch = Epoch::default();
                let protects = None;
                request.stage = Stage::Keep { protects, epoch };
                self.deferred.keeping.set(Some(keeping));
                Ok(Next::Keep)
            }
            // The host has no namespace.
            Ok(None) => Ok(Next::Done(0)),
            Err(NotReserved::Gone | NotReserved::Refused(_)) => Err(not_kept()),
        }
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
