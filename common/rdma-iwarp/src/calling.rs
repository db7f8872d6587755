//! Calls for connections to Unix sockets, whose outcome the kernel says at once
//! and whose owner hears of in the next poll.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use nvmeof_rdma::Address;
use nvmeof_rdma_soft::StreamId;

use crate::socket::Called;

/// How long to wait for room at a listener that has none.
const AGAIN: Duration = Duration::from_millis(10);

/// Calls that somebody has to be told of, or that have to be made again.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    answered: VecDeque<(StreamId, io::Result<()>)>,
    /// Those that found no room.
    full: Vec<(StreamId, Address)>,
    /// When those are made again; `None` as long as no time is known.
    again: Option<Duration>,
}

impl Calls {
    pub(crate) fn is_empty(&self) -> bool {
        self.answered.is_empty() && self.full.is_empty()
    }

    /// Somebody called.
    pub(crate) fn made(&mut self, id: StreamId, addr: Address, called: io::Result<Called>) {
        match called {
            Ok(Called::Waits) => {}
            Ok(Called::Stands) => self.answered.push_back((id, Ok(()))),
            Ok(Called::Full) => self.full.push((id, addr)),
            Err(error) => self.answered.push_back((id, Err(error))),
        }
    }

    /// Those to make again now.
    pub(crate) fn due(&mut self, now: Duration) -> Vec<(StreamId, Address)> {
        if self.full.is_empty() {
            return Vec::new();
        }
        match self.again {
            Some(again) if now >= again => {
                self.again = None;
                std::mem::take(&mut self.full)
            }
            Some(_) => Vec::new(),
            None => {
                self.again = Some(now.saturating_add(AGAIN));
                Vec::new()
            }
        }
    }

    /// Those whose outcome is known.
    pub(crate) fn answered(&mut self) -> VecDeque<(StreamId, io::Result<()>)> {
        std::mem::take(&mut self.answered)
    }

    /// When there is something to do; zero means at once.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        if self.is_empty() {
            return None;
        }
        let again = self.again.filter(|_| self.answered.is_empty());
        Some(again.unwrap_or(Duration::ZERO))
    }
}
