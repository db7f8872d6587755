//! The reactors, as somebody outside them sees them: orders go in, answers
//! come back.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvmeof_backend::{Claim, OpenError};
use nvmeof_memory::Region;
use nvmeof_rdma::{Address, ListenError, ListenerId};
use nvmeof_target_core::Disconnected;

use super::ApplyError;
use crate::open::disk_error;
use crate::ports::{self, Listens, Means, Member, Port, Providers, listen_at};
use nvmeof_target_config::{Config, ConfigError, ProviderName};
use nvmeof_target_engine::{Mail, Mailbox, Order, Reply};

/// Every reactor of the target.
pub(crate) struct Reactors {
    mailboxes: Arc<[Mailbox]>,
    pub(super) providers: Providers,
    /// What more of them are made of.
    pub(super) means: Mutex<Means>,
    /// The memory of each reactor, which its providers use.
    memory: Vec<Vec<Region>>,
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
        "a reactor did not answer within {} s; the log says what it waits for",
        .0.as_secs()
    )]
    Silent(Duration),
    #[error("the target is about to stop")]
    Ended,
}

/// Within this time a reactor answers, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(10);

impl Reactors {
    pub(crate) fn new(
        mailboxes: Arc<[Mailbox]>,
        providers: Providers,
        means: Means,
        memory: Vec<Vec<Region>>,
    ) -> Self {
        Self {
            mailboxes,
            providers,
            means: Mutex::new(means),
            memory,
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

    /// Makes those providers of port number `at` of `config` that no reactor has and
    /// that were not `made` for another port; each can be [added](Self::add) then.
    /// An optional one that cannot be had is left out.
    pub(super) fn make_missing(
        &self,
        config: &Config,
        at: usize,
        port: &mut Port,
        made: &mut Vec<Member>,
    ) -> Result<(), ConfigError> {
        let running = self.providers.names();
        for part in port.parts.clone() {
            let name = part.provider;
            if running.contains(&name) || made.iter().any(|member| member.name == name) {
                continue;
            }
            match self.make(name, made, config) {
                Ok(member) => {
                    member.check_limits(config)?;
                    made.push(member);
                }
                Err(why) if part.optional => {
                    port.parts.retain(|part| part.provider != name);
                    let (address, others) = (port.address, port.provider_names());
                    tracing::warn!("{address}: served by {others}, without {name}: {why}");
                }
                Err(why) => return Err(ports::of_provider(config, at, name, &why)),
            }
        }
        Ok(())
    }

    fn make(&self, name: ProviderName, made: &[Member], config: &Config) -> Result<Member, String> {
        let mut member = self.means().make(name, made, config)?;
        let registered = member.register(&self.memory);
        registered.map_err(|error| error.to_string())?;
        Ok(member)
    }

    /// Has every reactor serve over one more provider, or none. It stays when
    /// nothing listens over it any more.
    pub(super) fn add(&self, member: Member) -> Result<(), Failed> {
        let number = self.providers.names().len();
        let (name, files) = (member.name, member.files());
        for (at, (mailbox, ready)) in self.mailboxes.iter().zip(member.readies).enumerate() {
            let (reply, awaited) = Reply::new();
            let provider = ready.provider;
            mailbox.order(Order::Add { provider, reply });
            if awaited.within(self.patience).is_none() {
                for mailbox in self.mailboxes.iter().take(at) {
                    mailbox.order(Order::TakeBack { provider: number });
                }
                return Err(Failed::Silent(self.patience));
            }
        }
        self.means().take(files);
        self.providers.add(name);
        Ok(())
    }

    fn means(&self) -> MutexGuard<'_, Means> {
        // Nothing is left half done when a holder panics.
        self.means.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has every reactor listen on port number `at` of `config`, or none; `others` are
    /// listened on already. The port's address is the one in use afterwards.
    pub(super) fn listen(
        &self,
        config: &Config,
        at: usize,
        port: &mut Port,
        others: &[Port],
    ) -> Result<(), ConfigError> {
        let mut members: Vec<_> = self
            .numbered()
            .map(|(provider, name)| Member {
                name,
                readies: self.remotes(provider).collect(),
            })
            .collect();
        listen_at(config, at, port, others, &mut members)
    }

    /// The providers with their numbers, in the order in which they begin to
    /// listen.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (usize, ProviderName)> {
        let mut numbered: Vec<_> = self.providers.names().into_iter().enumerate().collect();
        numbered.sort_by_key(|(_, name)| ProviderName::ALL.iter().position(|one| one == name));
        numbered.into_iter()
    }

    /// No reactor listens on the port any more, and what came by it is closed.
    /// Returns the controllers concerned.
    pub(super) fn unlisten(&self, port: &Port) -> Vec<Disconnected> {
        let has = |name: ProviderName| port.parts.iter().any(|it| it.provider == name);
        let its = self.numbered().filter(|(_, name)| has(*name));
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
        let (reply, awaited) = Reply::new();
        self.mailbox.order(Order::Listen {
            provider: self.provider,
            address,
            reply,
        });
        let silent = || {
            let source = std::io::Error::other("a reactor did not answer");
            ListenError::new(address, source)
        };
        let listened = awaited.within(self.patience).ok_or_else(silent)??;
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
            return disk_error(config, *at, error).into();
        }
        ApplyError::Refused(self.to_string())
    }
}
