//! A snapshot of the state for queries, which do not wait for a change in progress.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_target_config::Config;

use super::State;
use super::awaited_keys::AwaitedKey;
use super::drain::Drained;
use super::pool::NamespaceStore;
use crate::held::HeldGroups;
use crate::ports::Port;

/// The state as it was after the last change.
#[derive(Clone)]
pub(super) struct Snapshot {
    /// Ports that listen.
    pub(super) ports: Vec<Port>,
    /// Ports that wait.
    pub(super) awaited_ports: Vec<Port>,
    pub(super) stores: Vec<NamespaceStore>,
    pub(super) held: HeldGroups,
    pub(super) drained: Drained,
    /// The configuration that is served.
    pub(super) config: Arc<Config>,
    /// Keys that could not be read.
    pub(super) awaited_keys: Vec<AwaitedKey>,
}

/// The locked state. Its drop updates the snapshot.
pub(super) struct Changing<'a> {
    state: MutexGuard<'a, State>,
    snapshot: &'a Mutex<Snapshot>,
}

impl<'a> Changing<'a> {
    pub(super) fn new(state: &'a Mutex<State>, snapshot: &'a Mutex<Snapshot>) -> Self {
        // After a panic during a change, the state is that before or after the change.
        let state = state.lock().unwrap_or_else(PoisonError::into_inner);
        Self { state, snapshot }
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
        let mut snapshot = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        *snapshot = self.state.snapshot();
    }
}

impl State {
    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot {
            ports: self.served_ports.ports().cloned().collect(),
            awaited_ports: self
                .served_ports
                .all()
                .filter(|port| port.waits.is_some())
                .cloned()
                .collect(),
            stores: self.pool.stores().to_vec(),
            held: self.pool.held().clone(),
            drained: self.drained.clone(),
            config: Arc::clone(&self.config),
            awaited_keys: self.awaited_keys.clone(),
        }
    }
}
