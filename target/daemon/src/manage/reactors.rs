//! The reactors, as somebody outside them sees them: orders go in, answers
//! come back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError, TryRecvError, channel};
use std::time::{Duration, Instant};

use nvmeof_backend::{Claim, OpenError};
use nvmeof_rdma::{Address, ListenError, ListenerId};
use nvmeof_target_core::Disconnected;

use super::ApplyError;
use crate::config::{Config, ConfigError, ProviderName};
use crate::mailbox::{Mail, Mailbox, Order};
use crate::ports::{Listens, Member, Port, listen_at};

/// Every reactor of the target.
pub(crate) struct Reactors {
    mailboxes: Arc<[Mailbox]>,
    /// The providers that each of them has, by their numbers.
    providers: Vec<ProviderName>,
    /// Within this time a reactor answers, unless it hangs.
    patience: Duration,
}

/// One provider of one reactor.
struct Remote<'a> {
    mailbox: &'a Mailbox,
    provider: usize,
    patience: Duration,
    /// What it was told to listen on.
    listened: Option<(ListenerId, Address)>,
}

/// A disk that reactors are closing.
pub(crate) struct Closing {
    /// One of each reactor that has not answered.
    waits: Vec<Receiver<u32>>,
}

/// Why reactors did not open what they were to.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error("{1}")]
    Disk(u32, OpenError),
    #[error(
        "a reactor did not answer within {} s; see the log for what it hangs in",
        .0.as_secs()
    )]
    Silent(Duration),
    #[error("the target is about to stop")]
    Ended,
}

/// Within this time a reactor answers, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(10);

impl Reactors {
    pub(crate) fn new(mailboxes: Arc<[Mailbox]>, providers: Vec<ProviderName>) -> Self {
        Self {
            mailboxes,
            providers,
            patience: PATIENCE,
        }
    }

    /// The same with another idea of when a reactor hangs.
    #[cfg(test)]
    pub(super) fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Within this time a reactor answers, unless it hangs.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// Port number `at` of `config`, without those optional providers that do
    /// not run.
    pub(super) fn possible(
        &self,
        config: &Config,
        at: usize,
        mut port: Port,
    ) -> Result<Port, ConfigError> {
        let runs = |name: ProviderName| self.providers.contains(&name);
        let missing = port
            .parts
            .iter()
            .find(|part| !part.optional && !runs(part.provider));
        if let Some(part) = missing {
            let name = part.provider;
            let what = format!(
                "{name} serves none of the ports that the target was started with; restart the \
                 target, or name what serves others"
            );
            return Err(config.provider_error(at, &what));
        }
        port.parts.retain(|part| runs(part.provider));
        Ok(port)
    }

    /// Has every reactor listen on port number `at` of `config`, or none. The
    /// port's address is the one in use afterwards.
    pub(super) fn listen(
        &self,
        config: &Config,
        at: usize,
        port: &mut Port,
    ) -> Result<(), ConfigError> {
        let members = self.providers.iter().enumerate();
        let mut members: Vec<_> = members
            .map(|(provider, name)| Member {
                name: *name,
                readies: self.remotes(provider).collect(),
            })
            .collect();
        listen_at(config, at, port, &mut members)
    }

    /// No reactor listens on the port any more, and what came by it is closed.
    /// Returns the controllers concerned.
    pub(super) fn unlisten(&self, port: &Port) -> Vec<Disconnected> {
        let providers = self.providers.iter().enumerate();
        let its = providers.filter(|(_, name)| port.parts.iter().any(|it| it.provider == **name));
        let remotes = its.flat_map(|(provider, _)| self.remotes(provider));
        let answers: Vec<_> = remotes.map(|remote| remote.leave(port.address)).collect();
        let heard = answers
            .iter()
            .filter_map(|answer| answer.recv_timeout(self.patience).ok());
        heard.flatten().collect()
    }

    fn remotes(&self, provider: usize) -> impl Iterator<Item = Remote<'_>> {
        self.mailboxes.iter().map(move |mailbox| Remote {
            mailbox,
            provider,
            patience: self.patience,
            listened: None,
        })
    }

    /// Opens disks on every reactor. When that failed, some may have them open:
    /// close them.
    pub(super) fn open(&self, disks: &[(u32, Claim)]) -> Result<(), Failed> {
        if disks.is_empty() {
            return Ok(());
        }
        let answers: Vec<_> = self
            .mailboxes
            .iter()
            .map(|mailbox| {
                let (answer, hears) = channel();
                let disks = disks.to_vec();
                mailbox.order(Order::Open { disks, answer });
                hears
            })
            .collect();
        let until = Instant::now() + self.patience;
        let mut result = Ok(());
        for hears in answers {
            let left = until.saturating_duration_since(Instant::now());
            match hears.recv_timeout(left) {
                Ok(Ok(())) => {}
                Ok(Err((disk, error))) => result = Err(Failed::Disk(disk, error)),
                Err(RecvTimeoutError::Timeout) => result = Err(Failed::Silent(self.patience)),
                Err(RecvTimeoutError::Disconnected) => result = Err(Failed::Ended),
            }
        }
        result
    }

    /// Has every reactor close disks when it is done with them.
    pub(super) fn close(&self, disks: &[(u32, Claim)]) -> BTreeMap<u32, Closing> {
        let closing = disks.iter().map(|disk| (disk.0, self.close_one(disk)));
        closing.collect()
    }

    fn close_one(&self, disk: &(u32, Claim)) -> Closing {
        let waits = self.mailboxes.iter().map(|mailbox| {
            let (answer, hears) = channel();
            let disks = vec![disk.clone()];
            mailbox.order(Order::Close { disks, answer });
            hears
        });
        Closing {
            waits: waits.collect(),
        }
    }

    /// How each of them is reached.
    pub(super) fn mailboxes(&self) -> impl Iterator<Item = &Mailbox> {
        self.mailboxes.iter()
    }

    /// Every reactor looks after its queues.
    pub(super) fn poll_all(&self) {
        Mailbox::send_all(&self.mailboxes, Mail::POLL);
    }
}

impl Remote<'_> {
    fn leave(&self, address: Address) -> Receiver<Vec<Disconnected>> {
        let (answer, hears) = channel();
        self.mailbox.order(Order::Unlisten {
            provider: self.provider,
            address,
            answer,
        });
        hears
    }
}

impl Listens for Remote<'_> {
    fn listen(&mut self, address: Address) -> Result<(ListenerId, Address), ListenError> {
        let (answer, hears) = channel();
        let settled = Arc::new(AtomicBool::new(false));
        self.mailbox.order(Order::Listen {
            provider: self.provider,
            address,
            answer,
            settled: Arc::clone(&settled),
        });
        let silent = |_| {
            let source = std::io::Error::other("a reactor did not answer");
            ListenError::new(address, source)
        };
        let heard = match hears.recv_timeout(self.patience) {
            // It answers in this very moment.
            Err(_) if settled.swap(true, Ordering::AcqRel) => hears.recv().map_err(silent),
            heard => heard.map_err(|_| silent(RecvError)),
        };
        let listened = heard??;
        self.listened = Some(listened);
        Ok(listened)
    }

    fn unlisten(&mut self, listener: ListenerId) {
        if let Some((_, address)) = self.listened.filter(|(one, _)| *one == listener) {
            // The answer says who was there already: nobody needs to know.
            let _ = self.leave(address);
        }
    }

    fn own(&mut self, _listener: ListenerId, _address: Address) {
        // The reactor has it already.
    }
}

impl Closing {
    /// Whether every reactor has closed it.
    pub(super) fn is_over(&mut self) -> bool {
        self.waits
            .retain(|hears| matches!(hears.try_recv(), Err(TryRecvError::Empty)));
        self.waits.is_empty()
    }
}

impl Failed {
    /// In the words of the configuration; `places` has the namespace of each
    /// disk.
    pub(super) fn of(self, config: &Config, places: &BTreeMap<u32, usize>) -> ApplyError {
        if let Self::Disk(disk, error) = &self
            && let Some(at) = places.get(disk)
        {
            return config.disk_error(*at, error).into();
        }
        ApplyError::Refused(self.to_string())
    }
}
