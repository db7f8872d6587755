//! [`Drive`] for admin and I/O queues.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nvmeof_rdma::Refused;

use super::Drive;
use crate::error::Error;
use crate::polled::{AdminQueue, Call, Done, IoQueue, SubmitError};

impl Drive for IoQueue {
    fn submit(&mut self, call: Call, now: Duration) -> Result<(), Refused<Call, SubmitError>> {
        Self::submit_call(self, call, now)
    }
    fn submit_now(&mut self, now: Duration) {
        Self::submit_now(self, now);
    }
    fn poll(&mut self, now: Duration, done: &mut Vec<Done>) -> bool {
        Self::poll(self, now, done)
    }
    fn in_flight(&self) -> usize {
        self.connection().in_flight()
    }
    fn is_ready(&self) -> bool {
        Self::is_ready(self)
    }
    fn is_closed(&self) -> bool {
        Self::is_closed(self)
    }
    fn error(&self) -> Option<&Error> {
        Self::error(self)
    }
    fn next_deadline(&self) -> Option<Duration> {
        Self::next_deadline(self)
    }
    fn rest(&mut self) {
        Self::rest(self);
    }
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Self::wait_fd(self)
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
    fn poll(&mut self, now: Duration, done: &mut Vec<Done>) -> bool {
        Self::poll(self, now, done)
    }
    fn in_flight(&self) -> usize {
        self.connection().in_flight()
    }
    fn is_ready(&self) -> bool {
        self.info().is_some()
    }
    fn is_closed(&self) -> bool {
        Self::is_closed(self)
    }
    fn error(&self) -> Option<&Error> {
        Self::error(self)
    }
    fn next_deadline(&self) -> Option<Duration> {
        Self::next_deadline(self)
    }
    fn rest(&mut self) {
        Self::rest(self);
    }
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Self::wait_fd(self)
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
