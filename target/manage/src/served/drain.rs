//! Letting go of hosts: of one, or of all for a while.
//!
//! ```text
//!   No ─ drain ─► Underway ─ every reactor let go ─► Done
//!   ▲                └ one did not in time ─► Failed ─ drain ─► Underway
//!   └──────────── resume: Done, Failed ────────────────┘
//! ```

use std::fmt;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use nvmeof_target_core::{Connected, DisconnectReason, Disconnected};
use nvmeof_wire::Nqn;

use super::{ApplyError, Manager, Reactors};
use nvmeof_target_config::Config;
use nvmeof_target_engine::Order;

/// Whether all hosts were let go. Displays as what is to be added to what is
/// served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Drained {
    /// Hosts are served.
    #[default]
    No,
    /// They are being let go.
    Underway,
    /// Nobody is served.
    Done,
    /// Not all were, for this reason.
    Failed(String),
}

impl Drained {
    /// Whether what is served may be changed.
    ///
    /// # Errors
    /// [`ApplyError::Refused`] says what to do first.
    pub(crate) fn check(&self) -> Result<(), ApplyError> {
        let what = match self {
            Self::No => return Ok(()),
            Self::Underway => {
                "the target is being drained; wait for the end of that, then `nvmeof-target ctl \
                 resume`"
                    .to_owned()
            }
            Self::Done => {
                "the target is drained and accepts no hosts; `nvmeof-target ctl resume` first"
                    .to_owned()
            }
            Self::Failed(why) => format!(
                "the target was to be drained, but {why}; `nvmeof-target ctl drain` tries again, \
                 `nvmeof-target ctl resume` takes it back"
            ),
        };
        Err(ApplyError::Refused(what))
    }

    /// Why it did not come about, if it did not.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        match self {
            Self::Failed(why) => Some(why),
            Self::No | Self::Underway | Self::Done => None,
        }
    }
}

impl fmt::Display for Drained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::No => Ok(()),
            Self::Underway => f.write_str(", being drained"),
            Self::Done => f.write_str(", drained"),
            Self::Failed(why) => write!(f, ", not drained ({why})"),
        }
    }
}

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

    /// Listens nowhere any more, lets commands in flight finish within
    /// `reactor.drain_s`, and lets go of every host. What is served stays as it
    /// is until [`resume`](Self::resume). `config` is what is served. Returns
    /// the controllers that hosts had.
    ///
    /// # Errors
    /// When a reactor does not answer: some may be drained then. It is known as
    /// failed until retrying or taken back.
    pub fn drain(&self, config: &Config) -> Result<Vec<Disconnected>, ApplyError> {
        {
            let mut state = self.lock();
            match &state.drained {
                Drained::Done => return Ok(Vec::new()),
                Drained::Underway => return state.drained.check().map(|()| Vec::new()),
                Drained::No | Drained::Failed(_) => state.drained = Drained::Underway,
            }
        }
        // Others ask and are answered, and disks are looked after meanwhile.
        let had = self.target.connected();
        let patience = config.running().drain * 2 + self.reactors.patience();
        let done = self.reactors.drain(patience);
        self.lock().drained = match &done {
            Ok(()) => Drained::Done,
            Err(why) => Drained::Failed(why.clone()),
        };
        if let Err(why) = done {
            tracing::error!("not drained: {why}");
            return Err(ApplyError::Refused(format!(
                "not drained: {why}; hosts of other reactors are gone; `nvmeof-target ctl drain` \
                 tries again, `nvmeof-target ctl resume` takes it back"
            )));
        }
        let lost = had.into_iter().map(|one| Disconnected {
            cntlid: one.cntlid,
            hostnqn: one.hostnqn,
            subnqn: one.subnqn,
            peer: one.peer,
            reason: DisconnectReason::Drained,
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
        match &state.drained {
            Drained::No => return Ok(()),
            Drained::Underway => return state.drained.check(),
            Drained::Done | Drained::Failed(_) => {}
        }
        state
            .served_ports
            .all_fresh()
            .listen(config, &self.reactors)?;
        state.drained = Drained::No;
        Ok(())
    }

    /// Whether it is drained.
    #[must_use]
    pub fn drained(&self) -> Drained {
        self.seen().drained
    }
}

impl Reactors {
    /// Every reactor lets go of its hosts, or it is said which does not.
    fn drain(&self, patience: Duration) -> Result<(), String> {
        let answers: Vec<_> = self
            .mailboxes()
            .map(|mailbox| {
                let (answer, hears) = channel();
                mailbox.order(Order::Detach { answer });
                hears
            })
            .collect();
        let until = Instant::now() + patience;
        let mut silent = Vec::new();
        for (reactor, hears) in answers.iter().enumerate() {
            let left = until.saturating_duration_since(Instant::now());
            if hears.recv_timeout(left).is_err() {
                silent.push(format!("reactor {reactor}"));
            }
        }
        if silent.is_empty() {
            return Ok(());
        }
        Err(format!(
            "{} did not disconnect its hosts within {} s; the log says what it waits for",
            silent.join(" and "),
            patience.as_secs()
        ))
    }
}
