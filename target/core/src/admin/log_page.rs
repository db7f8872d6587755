//! Get Log Page (Base 2.1, 5.1.12).

use std::sync::Arc;

use nvmeof_wire::admin::{GetLogPage, LogId, NSID_ALL};
use nvmeof_wire::log::controllers::{CONTROLLER_ENTRY_LEN, REMOVE_COMPLETED};
use nvmeof_wire::log::discovery::{DiscoveryLsp, TransportType};
use nvmeof_wire::log::error::ERROR_ENTRY_LEN;
use nvmeof_wire::log::smart::data_units;
use nvmeof_wire::log::supported::PageSupport;
use nvmeof_wire::log::{EntryCount, ErrorEntry, FirmwareSlots, SmartLog, SupportedPages};
use nvmeof_wire::reservation::NoticePage;
use nvmeof_wire::{Ascii, Status};
use zerocopy::{Immutable, IntoBytes};

use super::{Admin, CDW10, CDW12, NSID, effects, log_pages};
use crate::controller::warnings::COMPOSITE_TEMPERATURE;
use crate::controller::{ColdState, ControllerKind, errors};
use crate::discovery::{self, LogReader};
use crate::model::FIRMWARE;
use crate::namespace_view::Viewer;
use crate::request::{Failure, bit};
use crate::window::Window;

// Where fields of the command are.
const NUMDL: u16 = 42;
const OT: u16 = bit(58, 7);

impl Admin<'_> {
    /// Returns the requested length in bytes.
    pub(super) fn check_log_page(&self, command: &GetLogPage) -> Result<u32, Failure> {
        let pages = log_pages(self.controller.is_discovery(), self.keeps());
        if !pages.contains(&command.lid) {
            return Err(Failure::from(Status::INVALID_LOG_PAGE).at(CDW10));
        }
        // No log page supports index offsets (Supported Log Pages).
        if command.index_offset {
            return Err(Failure::field(OT));
        }
        // Base 2.1, figure 199: the offset is a multiple of 4, and "if the host
        // specifies an offset ... that is greater than the size of the log page
        // requested ..., then the controller shall abort the command with a status of
        // Invalid Field in Command".
        if !command.offset.is_multiple_of(4) || command.offset > self.page_len(command) {
            return Err(Failure::field(CDW12));
        }
        self.check_log_nsid(command)?;
        let max = self.shared.limits.max_transfer;
        u32::try_from(command.len)
            .ok()
            .filter(|len| *len <= max)
            .ok_or(Failure::field(NUMDL))
    }

    /// Base 2.1, 5.1.12.1: "for log pages with a scope of NVM subsystem or controller (as
    /// shown in Figure 202), the controller shall abort commands that specify namespace
    /// identifiers other than 0h or FFFFFFFFh with a status code of Invalid Field in
    /// Command". With another NSID, the SMART page is that of the namespace (LPA, SMARTS), if
    /// it is active.
    fn check_log_nsid(&self, command: &GetLogPage) -> Result<(), Failure> {
        let nsid = command.nsid;
        match self.controller.namespace_view() {
            _ if is_whole(nsid) => Ok(()),
            Some(namespace_view) if command.lid == LogId::SMART => match namespace_view.get(nsid) {
                Some(_) => Ok(()),
                None => Err(Failure::no_namespace(&namespace_view, nsid)),
            },
            _ => Err(Failure::field(NSID)),
        }
    }

    /// Length of a page in bytes.
    fn page_len(&self, command: &GetLogPage) -> u64 {
        let len = match command.lid {
            LogId::ANA => return self.access_len(command),
            LogId::DISCOVERY => {
                return self.write_discovery(command, &mut Window::new(0, &mut []));
            }
            LogId::SUPPORTED | LogId::FEATURE_EFFECTS => 1024,
            LogId::ERROR => errors::CAPACITY * ERROR_ENTRY_LEN,
            LogId::SMART | LogId::FIRMWARE => 512,
            LogId::RESERVATION => size_of::<NoticePage>(),
            // As long as they can be: an offset that was right stays so.
            LogId::CHANGED_NAMESPACES
            | LogId::EFFECTS
            | LogId::CROSS_CONTROLLER_RESET
            | LogId::LOST_HOST_COMMUNICATION => 4096,
            _ => 0,
        };
        len as u64
    }

    pub(super) fn write_log_page(&self, command: &GetLogPage, window: &mut Window<'_>) {
        match command.lid {
            LogId::SUPPORTED => {
                let pages = log_pages(self.controller.is_discovery(), self.keeps());
                let mut page = SupportedPages::new(pages);
                if self.controller.is_discovery() {
                    page.set(LogId::DISCOVERY, discovery_support());
                }
                window.put(0, &page);
            }
            LogId::ERROR => write_errors(&self.controller.lock(), window),
            LogId::SMART => window.put(0, &self.smart(command.nsid)),
            LogId::FIRMWARE => {
                // Identify Controller, FR: "the same revision information".
                let subsystem = self.controller.subsystem();
                let revision = subsystem.map(|it| it.firmware_revision);
                let revision = revision.unwrap_or(Ascii::new(FIRMWARE));
                window.put(0, &FirmwareSlots::single(revision));
            }
            LogId::CHANGED_NAMESPACES => {
                let changed = self.controller.changed(command.retain_event);
                window.put(0, &changed.to_page());
            }
            LogId::ANA => self.write_access(command, window),
            LogId::EFFECTS => {
                let discovery = self.controller.is_discovery();
                window.put(0, &effects::commands(discovery, self.keeps(), command.csi));
            }
            LogId::FEATURE_EFFECTS => effects::write_features(self.features(), window),
            LogId::DISCOVERY => {
                self.write_discovery(command, window);
            }
            LogId::CROSS_CONTROLLER_RESET => self.write_resets(command, window),
            LogId::RESERVATION => window.put(0, &self.next_reservation_notice()),
            LogId::LOST_HOST_COMMUNICATION => {
                write_entries(self.controller.lock().lost_hosts.entries(), window);
            }
            _ => {}
        }
    }

    fn write_resets(&self, command: &GetLogPage, window: &mut Window<'_>) {
        let mut cold = self.controller.lock();
        write_entries(cold.resets.entries(self.controller.cntlid), window);
        if command.lsp & REMOVE_COMPLETED != 0 {
            cold.resets.remove_completed();
        }
    }

    /// Returns the length of the page in bytes, which depends on the host.
    fn write_discovery(&self, command: &GetLogPage, window: &mut Window<'_>) -> u64 {
        let Viewer { hostnqn, port, .. } = &*self.controller.viewer;
        let served = self.shared.served();
        let model = Arc::clone(&served.model);
        let generation = served.generations.of(hostnqn);
        drop(served);
        let lsp = DiscoveryLsp::from_bits_retain(command.lsp);
        let only = port.as_ref().filter(|_| lsp.contains(DiscoveryLsp::PLEO));
        let reader = LogReader {
            hostnqn,
            local: self.local,
            only,
            extended: lsp.contains(DiscoveryLsp::EXTDLPE),
        };
        discovery::write((&model, generation), &reader, window)
    }

    /// The page of a namespace has the counts of its commands. Other fields are those of
    /// the controller: critical warnings are "for the state of the controller".
    fn smart(&self, nsid: u32) -> SmartLog {
        let ControllerKind::Nvm(live) = &self.controller.kind else {
            return SmartLog::zeroed();
        };
        let mut counts = live.health.counts(self.now);
        if !is_whole(nsid) {
            let totals = self.metrics_registry.namespace(&live.nqn, nsid);
            counts.moved = totals.done();
            counts.media_errors = totals.media_errors();
            counts.error_entries = totals.failures();
        }
        let features = self.controller.lock().features.clone();
        let warnings = self.warnings(&features);
        SmartLog {
            cw: warnings.bits(),
            ctemp: COMPOSITE_TEMPERATURE.into(),
            avsp: 100,
            avspt: 10,
            dur: data_units(counts.moved.bytes_read.into()).into(),
            duw: data_units(counts.moved.bytes_written.into()).into(),
            hrc: u128::from(counts.moved.reads).into(),
            hwc: u128::from(counts.moved.writes).into(),
            cbt: u128::from(counts.busy_minutes).into(),
            // Like all counters, these count from the start of the program, which is a power
            // cycle. There were no unsafe shutdowns since.
            pwrc: 1.into(),
            poh: u128::from(self.now.as_secs() / 3600).into(),
            mdie: u128::from(counts.media_errors).into(),
            neile: u128::from(counts.error_entries).into(),
            ..SmartLog::zeroed()
        }
    }
}

/// Whether this NSID stands for the controller, not for one namespace.
fn is_whole(nsid: u32) -> bool {
    nsid == 0 || nsid == NSID_ALL
}

/// The supported options of the discovery log. ALLSUBES, All NVM Subsystem Entries
/// Supported, is not one: for it "a Discovery controller may require authentication"
/// (Base 2.1, 5.1.12.3.1), which is not supported.
fn discovery_support() -> PageSupport {
    let options = DiscoveryLsp::PLEO | DiscoveryLsp::EXTDLPE;
    let options = u32::from(options.bits()) << 16;
    PageSupport::LSUPP | PageSupport::from_bits_retain(options)
}

/// Writes a page that names controllers.
fn write_entries<E: IntoBytes + Immutable>(
    entries: impl ExactSizeIterator<Item = E>,
    window: &mut Window<'_>,
) {
    window.put(0, &EntryCount::new(entries.len()));
    let mut at = CONTROLLER_ENTRY_LEN as u64;
    for entry in entries {
        window.put(at, &entry);
        at += CONTROLLER_ENTRY_LEN as u64;
    }
}

fn write_errors(cold: &ColdState, window: &mut Window<'_>) {
    let mut at = 0;
    for entry in cold.errors.iter() {
        let mut wire = ErrorEntry::new(entry.count, entry.status);
        wire.sqid = entry.sqid.into();
        wire.cid = entry.cid.into();
        if let Some(location) = entry.location {
            wire.pel = location.into();
        }
        wire.lba = entry.lba.into();
        wire.nsid = entry.nsid.into();
        wire.trtype = TransportType::RDMA;
        window.put(at, &wire);
        at += ERROR_ENTRY_LEN as u64;
    }
}
