//! What admin and I/O queues have in common for code that polls them.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::error::Error;
use crate::polled::{AdminQueue, Done, IoQueue};

/// A queue that must be polled.
pub(crate) trait Pollable {
    fn poll(&mut self, now: Duration, done: &mut Vec<Done>) -> bool;
    fn is_closed(&self) -> bool;
    fn error(&self) -> Option<&Error>;
    fn next_deadline(&self) -> Option<Duration>;
    fn rest(&mut self);
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;
}

impl Pollable for IoQueue {
    fn poll(&mut self, now: Duration, done: &mut Vec<Done>) -> bool {
        Self::poll(self, now, done)
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
}

impl Pollable for AdminQueue {
    fn poll(&mut self, now: Duration, done: &mut Vec<Done>) -> bool {
        Self::poll(self, now, done)
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
}
