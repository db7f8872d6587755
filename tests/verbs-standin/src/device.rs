//! Devices: identity, counters, faults, asynchronous events.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::path::PathBuf;

use crate::counters::Counters;
use crate::faults::Faults;
use crate::memory::Keys;
use crate::profile::Profile;
use crate::raw::{Ptr, ibv_context};
use crate::signal::Signal;

/// What an asynchronous event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Qp(usize),
    Cq(usize),
    Srq(usize),
    Device,
}

/// A device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) addr: IpAddr,
    /// The device that connects to this one, if it is not this one.
    pub(crate) from: Option<String>,
    /// The folder of the listeners that this device reaches, and in which it listens. Its peers
    /// are at the other ends of links. Otherwise, they are devices of this process.
    pub(crate) links: Option<PathBuf>,
    pub(crate) profile: Profile,
    pub(crate) context: Ptr<ibv_context>,
    /// Readable while there are `events`.
    pub(crate) signal: Signal,
    pub(crate) events: VecDeque<(Element, i32)>,
    pub(crate) keys: Keys,
    /// Registered regions, and allocated windows.
    pub(crate) regions: u32,
    pub(crate) windows: u32,
    pub(crate) counters: Counters,
    pub(crate) faults: Faults,
    /// Counts polls.
    pub(crate) time: u64,
    /// Queue pairs with work that waits.
    pub(crate) active: BTreeSet<usize>,
    pub(crate) removed: bool,
    /// Memory that is deregistered under posted work counts as misuse.
    pub(crate) audited: bool,
}

impl Device {
    /// Reports an asynchronous event.
    pub(crate) fn report(&mut self, element: Element, event: i32) {
        self.events.push_back((element, event));
        self.signal.raise();
    }

    /// Removes the events about an object that is destroyed.
    pub(crate) fn forget(&mut self, element: Element) {
        let before = self.events.len();
        self.events.retain(|(of, _)| *of != element);
        self.signal.lower(before - self.events.len());
    }
}
