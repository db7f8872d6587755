//! Admin commands other than Fabrics commands: parsing, checks and execution.

mod access;
mod effects;
mod features;
mod identify;
mod log_page;
mod protection;
mod reservations;
#[cfg(test)]
pub(crate) mod tests;

use std::cell::Cell;
use std::time::Duration;

use nvmeof_wire::admin::{GetFeatures, GetLogPage, IDENTIFY_LEN, Identify, LogId, SetFeatures};
use nvmeof_wire::opcode::{Opcode, admin};
use nvmeof_wire::{Sqe, Status};

pub(crate) use protection::{cancel_requests, kept};

use crate::PendingSave;
use crate::controller::Controller;
use crate::metrics::MetricsRegistry;
use crate::model::Local;
use crate::request::{Epoch, Failure, Next, Page, Request, Stage};
use crate::shared::Shared;
use crate::window::Window;

/// The controller of an admin queue, for the execution of one command.
pub(crate) struct Admin<'a> {
    pub(crate) now: Duration,
    /// Maximum length of a command capsule of the admin queue in bytes.
    pub(crate) capsule_len: u32,
    pub(crate) shared: &'a Shared,
    pub(crate) controller: &'a Controller,
    /// The counters of all reactors.
    pub(crate) metrics_registry: &'a MetricsRegistry,
    /// The local address to which the host connected, if it is known.
    pub(crate) local: Option<Local>,
    /// Work that the queue does after the command.
    pub(crate) deferred: Deferred,
}

/// Work that the queue does after a command.
#[derive(Default)]
pub(crate) struct Deferred {
    /// The save that the command waits for, if any.
    pub(crate) keeping: Cell<Option<PendingSave>>,
    /// Whether controllers have new events, which their queues send to hosts.
    pub(crate) notified: Cell<bool>,
}

/// Commands of a discovery controller (Base 2.1, figure 28), besides Fabrics commands.
const OF_DISCOVERY: [Opcode; 6] = [
    admin::GET_LOG_PAGE,
    admin::IDENTIFY,
    admin::SET_FEATURES,
    admin::GET_FEATURES,
    admin::ASYNC_EVENT_REQUEST,
    admin::KEEP_ALIVE,
];

// Where fields of a command begin, in bytes.
pub(crate) const CDW10: u16 = 40;
pub(crate) const CDW11: u16 = 44;
pub(crate) const CDW12: u16 = 48;
pub(crate) const NSID: u16 = 4;

impl Admin<'_> {
    /// Begins a command. The queue handles Abort and Asynchronous Event Request itself.
    pub(crate) fn begin(&self, request: &mut Request, sqe: &Sqe) -> Result<Next, Failure> {
        if self.controller.is_discovery() && !OF_DISCOVERY.contains(&sqe.opcode) {
            return Err(Failure::from(Status::INVALID_OPCODE).at(0));
        }
        match sqe.opcode {
            admin::IDENTIFY => self.identify(request, sqe),
            admin::GET_LOG_PAGE => self.get_log_page(request, sqe),
            admin::GET_FEATURES => self.get_features(request, &GetFeatures::parse(sqe)),
            admin::SET_FEATURES => self.set_features(request, &SetFeatures::parse(sqe)),
            admin::KEEP_ALIVE => self.keep_alive(),
            _ => Err(Failure::from(Status::INVALID_OPCODE).at(0)),
        }
    }

    /// Base 2.1, 5.1.14: a Keep Alive while the timer is disabled is an error of the
    /// host, which has a wrong assumption of its timeout.
    fn keep_alive(&self) -> Result<Next, Failure> {
        if self.controller.keep_alive_timeout().is_none() {
            return Err(Status::KEEP_ALIVE_TIMEOUT_INVALID.into());
        }
        Ok(Next::Done(0))
    }

    fn identify(&self, request: &mut Request, sqe: &Sqe) -> Result<Next, Failure> {
        let command = Identify::parse(sqe);
        self.check_identify(&command)?;
        give(request, IDENTIFY_LEN, Page::Identify(command))
    }

    fn get_log_page(&self, request: &mut Request, sqe: &Sqe) -> Result<Next, Failure> {
        let command = GetLogPage::parse(sqe);
        let len = self.check_log_page(&command)?;
        give(request, len, Page::Log(command))
    }

    /// Writes the data of a response into `out`, which has the requested length.
    pub(crate) fn produce(&self, page: &Page, out: &mut [u8]) -> Result<(), Failure> {
        match page {
            Page::Identify(command) => self.write_identify(command, &mut Window::new(0, out)),
            Page::Log(command) => {
                // Before it is written: the host is notified again of changes meanwhile.
                if !command.retain_event {
                    self.controller.page_read(command.lid);
                }
                let mut window = Window::new(command.offset, out);
                self.write_log_page(command, &mut window);
            }
            Page::Feature(command) => self.write_feature(command, &mut Window::new(0, out)),
        }
        Ok(())
    }
}

/// The command returns `len` bytes, which [`Admin::produce`] writes.
fn give(request: &mut Request, len: u32, page: Page) -> Result<Next, Failure> {
    request.gives(len)?;
    let epoch = Epoch::default();
    request.stage = Stage::Produce { page, epoch };
    Ok(Next::Produce(len))
}

/// Log pages of a kind of controller.
fn log_pages(discovery: bool, reserves: bool) -> &'static [LogId] {
    if discovery {
        // Base 2.1, figure 31: all but the error log are mandatory. Host Discovery (71h)
        // lists hosts that registered with a central discovery controller.
        &[
            LogId::SUPPORTED,
            LogId::ERROR,
            LogId::EFFECTS,
            LogId::FEATURE_EFFECTS,
            LogId::DISCOVERY,
        ]
    } else {
        let all = &[
            LogId::SUPPORTED,
            LogId::ERROR,
            LogId::SMART,
            LogId::FIRMWARE,
            LogId::CHANGED_NAMESPACES,
            LogId::EFFECTS,
            LogId::ANA,
            LogId::FEATURE_EFFECTS,
            LogId::CROSS_CONTROLLER_RESET,
            LogId::LOST_HOST_COMMUNICATION,
            LogId::RESERVATION,
        ];
        match all {
            all if reserves => all,
            [others @ .., _] => others,
        }
    }
}
