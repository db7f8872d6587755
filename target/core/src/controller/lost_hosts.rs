//! Controllers of the same host and subsystem that lost communication with the host, as log
//! page 1Fh reports them (NVMe Base 2.3, 5.2.12.3.2).
//!
//! What is not in that text as far as it was available is an assumption: an entry stays while
//! the controller that reports it does, and a controller reports those that were lost since it
//! was connected.

use std::collections::VecDeque;

use nvmeof_wire::log::LostHostEntry;
use nvmeof_wire::log::controllers::CONTROLLER_ENTRIES_MAX;

/// The lost controllers, oldest first.
#[derive(Debug, Default)]
pub(crate) struct LostHosts(VecDeque<LostHostEntry>);

impl LostHosts {
    /// Controller `cntlid`, of which that was the incarnation, lost its host.
    pub(crate) fn add(&mut self, cntlid: u16, ciu: u8) {
        if let Some(entry) = self.0.iter_mut().find(|one| one.cntlid.get() == cntlid) {
            entry.lc = entry.lc.saturating_add(1);
            entry.ciu = ciu;
            return;
        }
        if self.0.len() >= CONTROLLER_ENTRIES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(LostHostEntry {
            cntlid: cntlid.into(),
            lc: 1,
            ciu,
            rsvd4: [0; 4],
        });
    }

    /// The entries of the log page.
    pub(crate) fn entries(&self) -> impl ExactSizeIterator<Item = LostHostEntry> {
        self.0.iter().copied()
    }
}
