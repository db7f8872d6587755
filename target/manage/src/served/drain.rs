//! Disconnecting hosts: one host, or all hosts (drain).
//!
//! ```text
//!   No ─ drain ─► Underway ─ every reactor disconnected ─► Done
//!   ▲                └ one did not in time ─► Failed ─ drain ─► Underway
//!   └──────────── resume: Done, Failed ────────────────┘
//! ```

use std::fmt;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use nvmeof_target_core::{Connected, DisconnectReason, Disconnected};
use nvmeof_wire::Nqn;

use super::{ApplyError, Manager, Reactors};
use crate::ha::{HAND_OVER, HaGateway, HaGatewayState, HaOrder, HaStatus};
use nvmeof_target_config::Config;
use nvmeof_target_engine::Order;

/// How long a drain or stop waits for hosts to read the ANA log page. Commands are executed
/// meanwhile.
pub const ANNOUNCE: Duration = Duration::from_secs(1);
/// How often it checks whether they have.
pub const ANNOUNCE_POLL: Duration = Duration::from_millis(10);

/// Whether the target is drained. Displays as a suffix of the status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Drained {
    /// Hosts are served.
    #[default]
    No,
    /// They are being disconnected.
    Underway,
    /// All hosts are disconnected.
    Done,
    /// Not all hosts were disconnected, for this reason.
    Failed(String),
}

impl Drained {
    /// Checks that changes are possible.
    ///
    /// # Errors
    /// [`ApplyError::Refused`] with a remedy if the target is drained.
    pub(crate) fn check(&self) -> Result<(), ApplyError> {
        let what = match self {
            Self::No => return Ok(()),
            Self::Underway => {
                "the target is being drained; wait until it is drained, then `nvmeof-target ctl \
                 resume`"
                    .to_owned()
            }
            Self::Done => {
                "the target is drained and accepts no hosts; `nvmeof-target ctl resume` first"
                    .to_owned()
            }
            Self::Failed(why) => format!(
                "the drain of the target failed: {why}; `nvmeof-target ctl drain` tries again, \
                 `nvmeof-target ctl resume` serves hosts again"
            ),
        };
        Err(ApplyError::Refused(what))
    }

    /// Why the drain failed, if it did.
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
    /// The controllers of connected hosts.
    #[must_use]
    pub fn connected(&self) -> Vec<Connected> {
        self.target.connected()
    }

    /// Deletes the controllers of a host, of that subsystem or of all. The host may reconnect,
    /// and most do so immediately: deny it first to prevent that.
    #[must_use]
    pub fn disconnect(&self, host: &Nqn, subsystem: Option<&Nqn>) -> Vec<Disconnected> {
        let lost = self.target.disconnect(host, subsystem);
        self.reactors.poll_all();
        lost
    }

    /// Notifies hosts that the target stops, so that those with another path use that one.
    /// Returns whether to wait for them: see [`is_stop_known`](Self::is_stop_known).
    #[must_use]
    pub fn announce_stop(&self) -> bool {
        let notified = self.target.announce_stop();
        if notified {
            self.reactors.poll_all();
        }
        notified
    }

    /// Whether every host that was notified has read the ANA log page.
    #[must_use]
    pub fn is_stop_known(&self) -> bool {
        self.target.is_stop_known()
    }

    /// Notifies hosts that the target stops, stops listening, completes commands in flight
    /// within `reactor.drain_s`, and disconnects all hosts. Subsystems and namespaces stay as
    /// they are until [`resume`](Self::resume). `config` is the configuration that is served.
    /// Returns the controllers that were deleted.
    ///
    /// # Errors
    /// If a reactor does not respond: others may be drained then. The state is
    /// [`Drained::Failed`] until the next drain or resume.
    pub fn drain(&self, config: &Config) -> Result<Vec<Disconnected>, ApplyError> {
        {
            let mut state = self.lock();
            match &state.drained {
                Drained::Done => return Ok(Vec::new()),
                Drained::Underway => return state.drained.check().map(|()| Vec::new()),
                Drained::No | Drained::Failed(_) => state.drained = Drained::Underway,
            }
        }
        // Without the lock: queries get responses and backing stores are monitored meanwhile.
        self.hand_over();
        if self.announce_stop() {
            let until = Instant::now() + ANNOUNCE;
            while Instant::now() < until && !self.is_stop_known() {
                std::thread::sleep(ANNOUNCE_POLL);
            }
        }
        let had = self.target.connected();
        let timeout = config.reactor_settings().drain * 2 + self.reactors.timeout();
        let done = self.reactors.drain(timeout);
        self.lock().drained = match &done {
            Ok(()) => Drained::Done,
            Err(why) => Drained::Failed(why.clone()),
        };
        if let Err(why) = done {
            tracing::error!("drain failed: {why}");
            return Err(ApplyError::Refused(format!(
                "drain failed: {why}; hosts of other reactors are disconnected; `nvmeof-target ctl \
                 drain` tries again, `nvmeof-target ctl resume` serves hosts again"
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

    /// Hands the groups of `[[ha.group]]` over to other gateways, as far as there are some, and
    /// takes none until [`resume`](Self::resume).
    fn hand_over(&self) {
        let Some(ha) = &self.ha else {
            return;
        };
        let gateway = ha.status().gateway;
        if let Err(error) = ha.order(HaOrder::Drain { gateway }) {
            tracing::warn!("drain: groups are not handed over: {error}");
            return;
        }
        let until = Instant::now() + HAND_OVER;
        while ha.serves_any() && Instant::now() < until {
            std::thread::sleep(ANNOUNCE_POLL);
        }
        if ha.serves_any() {
            tracing::warn!(
                "drain: groups are still served here after {} s: no other gateway takes them",
                HAND_OVER.as_secs()
            );
        }
    }

    /// Takes groups of `[[ha.group]]` again, if this gateway is drained.
    fn resume_groups(&self) -> Result<(), ApplyError> {
        let Some(ha) = &self.ha else {
            return Ok(());
        };
        let HaStatus {
            gateway, gateways, ..
        } = ha.status();
        let is_drained = |it: &HaGateway| it.state == HaGatewayState::Drained && it.name == gateway;
        if !gateways.iter().any(is_drained) {
            return Ok(());
        }
        let resumed = ha.order(HaOrder::Resume { gateway });
        resumed.map_err(|error| {
            ApplyError::Refused(format!(
                "this gateway is drained, and takes no groups: {error}; repeat `nvmeof-target ctl \
                 resume` when the record can be changed"
            ))
        })
    }

    /// Listens again on all ports after [`drain`](Self::drain). `config` is the configuration
    /// that is served.
    ///
    /// # Errors
    /// [`ApplyError`] names the port that cannot be listened on any more; then no port listens.
    pub fn resume(&self, config: &Config) -> Result<(), ApplyError> {
        self.resume_groups()?;
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
        // A drain that failed left hosts connected.
        if self.target.withdraw_stop() {
            self.reactors.poll_all();
        }
        Ok(())
    }

    /// Whether it is drained.
    #[must_use]
    pub fn drained(&self) -> Drained {
        self.snapshot().drained
    }
}

impl Reactors {
    /// Has every reactor disconnect its hosts.
    ///
    /// # Errors
    /// The reactors that did not do so in time.
    fn drain(&self, timeout: Duration) -> Result<(), String> {
        let replies: Vec<_> = self
            .mailboxes()
            .map(|mailbox| {
                let (reply, receiver) = channel();
                mailbox.order(Order::Detach { reply });
                receiver
            })
            .collect();
        let until = Instant::now() + timeout;
        let mut silent = Vec::new();
        for (reactor, receiver) in replies.iter().enumerate() {
            let left = until.saturating_duration_since(Instant::now());
            if receiver.recv_timeout(left).is_err() {
                silent.push(format!("reactor {reactor}"));
            }
        }
        if silent.is_empty() {
            return Ok(());
        }
        Err(format!(
            "{} did not disconnect its hosts within {} s; see the log for what it waits for",
            silent.join(" and "),
            timeout.as_secs()
        ))
    }
}
