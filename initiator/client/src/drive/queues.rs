//! [`Drive`] for admin and I/O queues.

use std::sync::Arc;
use std::time::Duration;

use nvmeof_initiator_core::dhchap::HostKeys;
use nvmeof_rdma::Refused;

use super::Drive;
use crate::error::Error;
use crate::polled::{AdminQueue, Call, IoQueue, SubmitError, Withdrawn};

impl Drive for IoQueue {
    fn submit(&mut self, call: Call, now: Duration) -> Result<(), Refused<Call, SubmitError>> {
        Self::submit_call(self, call, now)
    }
    fn submit_now(&mut self, now: Duration) {
        Self::submit_now(self, now);
    }
    fn in_flight(&self) -> usize {
        self.connection().in_flight()
    }
    fn is_ready(&self) -> bool {
        Self::is_ready(self)
    }
    fn reauthenticate(&mut self, keys: Option<Arc<HostKeys>>) -> Result<(), Error> {
        Self::reauthenticate(self, keys)
    }
    fn has_reauthentication(&self) -> bool {
        Self::has_reauthentication(self)
    }
    fn withdraw(&mut self, user: u64) -> Option<Withdrawn> {
        Self::withdraw(self, user)
    }
    fn take_reauthentication(&mut self) -> Option<Result<(), Error>> {
        Self::take_reauthentication(self)
    }
    fn finish(&mut self, _now: Duration) {
        self.close();
    }
    fn fail(&mut self, why: Error) {
        self.close_because(why);
    }
    fn abandon(&mut self) {
        self.close_without_runtime();
    }
}

/// Time-out of the shutdown of a controller.
const SHUTDOWN: Duration = Duration::from_secs(5);

impl Drive for AdminQueue {
    fn submit(&mut self, call: Call, now: Duration) -> Result<(), Refused<Call, SubmitError>> {
        Self::submit(self, call, now)
    }
    fn submit_now(&mut self, now: Duration) {
        Self::submit_now(self, now);
    }
    fn in_flight(&self) -> usize {
        self.connection().in_flight()
    }
    fn is_ready(&self) -> bool {
        self.info().is_some()
    }
    fn has_event(&self) -> bool {
        Self::has_event(self)
    }
    fn reauthenticate(&mut self, keys: Option<Arc<HostKeys>>) -> Result<(), Error> {
        Self::reauthenticate(self, keys)
    }
    fn has_reauthentication(&self) -> bool {
        Self::has_reauthentication(self)
    }
    fn withdraw(&mut self, user: u64) -> Option<Withdrawn> {
        Self::withdraw(self, user)
    }
    fn take_reauthentication(&mut self) -> Option<Result<(), Error>> {
        Self::take_reauthentication(self)
    }
    fn finish(&mut self, now: Duration) {
        self.shutdown(now, SHUTDOWN);
    }
    fn fail(&mut self, why: Error) {
        self.close_because(why);
    }
    fn abandon(&mut self) {
        self.close_without_runtime();
    }
}
