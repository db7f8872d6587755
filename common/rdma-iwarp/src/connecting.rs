//! Connects to Unix sockets. Their outcome is known immediately and reported by the next
//! poll.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use nvmeof_rdma::Address;
use nvmeof_rdma_soft::StreamId;

use crate::socket::ConnectOutcome;

/// Interval of retries if the listener's accept queue is full.
const RETRY: Duration = Duration::from_millis(10);

/// Connects whose outcome is to be reported, or that have to be retried.
#[derive(Debug, Default)]
pub(crate) struct PendingConnects {
    finished: VecDeque<(StreamId, io::Result<()>)>,
    /// Connects that found the accept queue full.
    full: Vec<(StreamId, Address)>,
    /// Time of the next retry; `None` until it is set.
    retry_at: Option<Duration>,
}

impl PendingConnects {
    pub(crate) fn is_empty(&self) -> bool {
        self.finished.is_empty() && self.full.is_empty()
    }

    /// Records a connect and its outcome.
    pub(crate) fn record(
        &mut self,
        id: StreamId,
        addr: Address,
        outcome: io::Result<ConnectOutcome>,
    ) {
        match outcome {
            Ok(ConnectOutcome::InProgress) => {}
            Ok(ConnectOutcome::Established) => self.finished.push_back((id, Ok(()))),
            Ok(ConnectOutcome::Full) => self.full.push((id, addr)),
            Err(error) => self.finished.push_back((id, Err(error))),
        }
    }

    /// The connects to retry now.
    pub(crate) fn due(&mut self, now: Duration) -> Vec<(StreamId, Address)> {
        if self.full.is_empty() {
            return Vec::new();
        }
        match self.retry_at {
            Some(retry_at) if now >= retry_at => {
                self.retry_at = None;
                std::mem::take(&mut self.full)
            }
            Some(_) => Vec::new(),
            None => {
                self.retry_at = Some(now.saturating_add(RETRY));
                Vec::new()
            }
        }
    }

    /// The connects whose outcome is known.
    pub(crate) fn finished(&mut self) -> VecDeque<(StreamId, io::Result<()>)> {
        std::mem::take(&mut self.finished)
    }

    /// When there is something to do; zero means immediately.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        if self.is_empty() {
            return None;
        }
        let retry_at = self.retry_at.filter(|_| self.finished.is_empty());
        Some(retry_at.unwrap_or(Duration::ZERO))
    }
}
