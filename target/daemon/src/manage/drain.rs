//! Letting go of hosts: of one, or of all for a while.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use nvmeof_target_core::{Connected, Disconnected, Why};
use nvmeof_wire::Nqn;

use super::{ApplyError, Manager, Reactors};
use crate::config::Config;
use crate::mailbox::Order;

/// Beyond the time that commands may take, a reactor may take so long.
const PATIENCE: Duration = Duration::from_secs(10);
pub(crate) const DRAINED: &str =
    "the target is drained and serves nobody; `nvmeof-target ctl resume` first";

impl Manager {
    /// The controllers that hosts have connected.
    #[must_use]
    pub fn connected(&self) -> Vec<Connected> {
        self.target.connected()
    }

    /// The host loses its controllers, of that subsystem or of all. It may
    /// connect again, and most hosts do so at once: deny it first to keep it
    /// away.
    #[must_use]
    pub fn disconnect(&self, host: &Nqn, subsystem: Option<&Nqn>) -> Vec<Disconnected> {
        let lost = self.target.disconnect(host, subsystem);
        self.reactors.poll_all();
        lost
    }

    /// Listens nowhere any more, lets commands in work finish within
    /// `reactor.drain_s`, and lets go of every host. What is served stays as it
    /// is until [`resume`](Self::resume). `config` is what is served. Returns
    /// the controllers that hosts had.
    ///
    /// # Errors
    /// When a reactor does not answer: some may be drained then.
    pub fn drain(&self, config: &Config) -> Result<Vec<Disconnected>, ApplyError> {
        let mut state = self.lock();
        if state.drained {
            return Ok(Vec::new());
        }
        let had = self.target.connected();
        state.drained = true;
        self.reactors.drain(config.running().drain * 2 + PATIENCE)?;
        let lost = had.into_iter().map(|one| Disconnected {
            cntlid: one.cntlid,
            hostnqn: one.hostnqn,
            subnqn: one.subnqn,
            why: Why::Drained,
        });
        Ok(lost.collect())
    }

    /// Listens again where it did before [`drain`](Self::drain). `config` is
    /// what is served.
    ///
    /// # Errors
    /// [`ApplyError`] names the port that cannot be listened on any more; then
    /// none is.
    pub fn resume(&self, config: &Config) -> Result<(), ApplyError> {
        let mut state = self.lock();
        if !state.drained {
            return Ok(());
        }
        state.doors.all_fresh().listen(config, &self.reactors)?;
        state.drained = false;
        Ok(())
    }

    /// Whether it is drained.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.lock().drained
    }
}

impl Reactors {
    /// Every reactor lets go of its hosts.
    fn drain(&self, patience: Duration) -> Result<(), ApplyError> {
        let answers: Vec<_> = self
            .mailboxes()
            .map(|mailbox| {
                let (answer, hears) = channel();
                mailbox.order(Order::LetGo { answer });
                hears
            })
            .collect();
        let until = Instant::now() + patience;
        for hears in answers {
            let left = until.saturating_duration_since(Instant::now());
            if hears.recv_timeout(left).is_err() {
                let what = format!(
                    "a reactor did not let go of its hosts within {patience:?}; see the log for \
                     what it hangs in"
                );
                return Err(ApplyError::Refused(what));
            }
        }
        Ok(())
    }
}
