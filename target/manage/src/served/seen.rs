//! What is known of the daemon without waiting for whoever changes it.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::State;
use super::drain::Drained;
use super::pool::Disk;
use crate::ports::Port;

/// The state as it was after the last change.
#[derive(Clone, Default)]
pub(super) struct Seen {
    /// Those that are listened on.
    pub(super) ports: Vec<Port>,
    /// Those that are waited for.
    pub(super) awaited_ports: Vec<Port>,
    pub(super) disks: Vec<Disk>,
    pub(super) drained: Drained,
}

/// The state, and the right to change it. What came of it is seen when it is
/// dropped.
pub(super) struct Changing<'a> {
    state: MutexGuard<'a, State>,
    seen: &'a Mutex<Seen>,
}

impl<'a> Changing<'a> {
    pub(super) fn new(state: &'a Mutex<State>, seen: &'a Mutex<Seen>) -> Self {
        // Whoever panicked was about to change the target; what is written
        // here is what was before or what is now.
        let state = state.lock().unwrap_or_else(PoisonError::into_inner);
        Self { state, seen }
    }
}

impl Deref for Changing<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Changing<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        *seen = self.state.seen();
    }
}

impl State {
    pub(super) fn seen(&self) -> Seen {
        Seen {
            ports: self.served_ports.ports().cloned().collect(),
            awaited_ports: self
                .served_ports
                .all()
                .filter(|port| port.waits.is_some())
                .cloned()
                .collect(),
            disks: self.pool.disks().to_vec(),
            drained: self.drained.clone(),
        }
    }
}
