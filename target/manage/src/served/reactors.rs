//! The reactors as other threads use them: orders are sent, and replies are received.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvmeof_backend::{Claim, OpenError};
use nvmeof_memory::Region;
use nvmeof_rdma::{Address, ListenError, ListenerId};
use nvmeof_target_core::Disconnected;

use super::ApplyError;
use crate::lineage::{Lineage, LineageError};
use crate::open::open_error;
use crate::ports::{self, Listens, Port, ProviderFactory, ProviderGroup, Providers, listen_at};
use nvmeof_target_config::{Config, ConfigError, ProviderName};
use nvmeof_target_engine::{Mail, Mailbox, Order, Reply};

/// All reactors of the target.
pub(crate) struct Reactors {
    mailboxes: Arc<[Mailbox]>,
    pub(super) providers: Providers,
    /// What is needed to create more providers.
    pub(super) means: Mutex<ProviderFactory>,
    /// The memory of each reactor, which its providers use.
    memory: Vec<Vec<Region>>,
    /// Time limit for a reply; a reactor without one is unresponsive.
    timeout: Duration,
    lineage: Option<Arc<Lineage>>,
}

/// One provider of one reactor.
struct Remote<'a> {
    mailbox: &'a Mailbox,
    provider: usize,
    timeout: Duration,
    /// The listener and its address, if it listens.
    listened: Option<(ListenerId, Address)>,
}

/// A backing store that reactors are closing.
pub(crate) struct Closing {
    /// The receivers of the reactors that have not replied.
    waits: Vec<Receiver<u32>>,
}

/// Why reactors did not carry out an order.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error("{1}")]
    Store(u32, OpenError),
    #[error(
        "a reactor did not respond within {} s; see the log for what it waits for",
        .0.as_secs()
    )]
    Silent(Duration),
    #[error("the target is stopping")]
    Ended,
    #[error(
        "writes to a backing store may outlive this process, which cannot be recorded: {0}; \
         repair that file system, or restart the target without control.state"
    )]
    Lineage(#[from] LineageError),
}

/// Time limit for a reply of a reactor.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

impl Reactors {
    pub(crate) fn new(
        mailboxes: Arc<[Mailbox]>,
        providers: Providers,
        means: ProviderFactory,
        memory: Vec<Vec<Region>>,
    ) -> Self {
        Self {
            mailboxes,
            providers,
            means: Mutex::new(means),
            memory,
            timeout: REPLY_TIMEOUT,
            lineage: None,
        }
    }

    /// The same, which admits backing stores to that lineage.
    pub(crate) fn of_lineage(self, lineage: Option<Arc<Lineage>>) -> Self {
        Self { lineage, ..self }
    }

    /// The same with another time limit.
    #[cfg(test)]
    pub(super) fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Time limit for a reply of a reactor.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Creates the providers of the port at index `at` of `config` that no reactor has and that
    /// were not `made` for another port; each can then be [added](Self::add). An optional one
    /// that cannot be created is omitted.
    pub(super) fn make_missing(
        &self,
        config: &Config,
        at: usize,
        port: &mut Port,
        made: &mut Vec<ProviderGroup>,
    ) -> Result<(), ConfigError> {
        let running = self.providers.names();
        for provider in port.providers.clone() {
            let name = provider.name;
            if running.contains(&name) || made.iter().any(|member| member.name == name) {
                continue;
            }
            match self.make(name, made, config) {
                Ok(member) => {
                    member.check_limits(config)?;
                    made.push(member);
                }
                Err(why) if provider.optional => {
                    port.providers.retain(|provider| provider.name != name);
                    let (address, others) = (port.address, port.provider_names());
                    tracing::warn!("port {address}: served by {others} without {name}: {why}");
                }
                Err(why) => return Err(ports::of_provider(config, at, name, &why)),
            }
        }
        Ok(())
    }

    fn make(
        &self,
        name: ProviderName,
        made: &[ProviderGroup],
        config: &Config,
    ) -> Result<ProviderGroup, String> {
        let mut member = self.means().make(name, made, config)?;
        let registered = member.register(&self.memory);
        registered.map_err(|error| error.to_string())?;
        Ok(member)
    }

    /// Has every reactor use one more provider, or none of them. It stays even if nothing listens
    /// over it any more.
    pub(super) fn add(&self, member: ProviderGroup) -> Result<(), Failed> {
        let number = self.providers.names().len();
        let (name, files) = (member.name, member.files());
        for (at, (mailbox, ready)) in self.mailboxes.iter().zip(member.providers).enumerate() {
            let (reply, awaited) = Reply::new();
            let provider = ready.provider;
            mailbox.order(Order::Add { provider, reply });
            if awaited.within(self.timeout).is_none() {
                for mailbox in self.mailboxes.iter().take(at) {
                    mailbox.order(Order::TakeBack { provider: number });
                }
                return Err(Failed::Silent(self.timeout));
            }
        }
        self.means().take(files);
        self.providers.add(name);
        Ok(())
    }

    fn means(&self) -> MutexGuard<'_, ProviderFactory> {
        // A panic of a holder leaves nothing inconsistent.
        self.means.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has every reactor listen on the port at index `at` of `config`, or none of them; `others`
    /// listen already. Sets the address of the port to the one in use.
    pub(super) fn listen(
        &self,
        config: &Config,
        at: usize,
        port: &mut Port,
        others: &[Port],
    ) -> Result<(), ConfigError> {
        let mut members: Vec<_> = self
            .numbered()
            .map(|(provider, name)| ProviderGroup {
                name,
                providers: self.remotes(provider).collect(),
            })
            .collect();
        listen_at(config, at, port, others, &mut members)
    }

    /// The providers with their indices, in the order in which they start to listen.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (usize, ProviderName)> {
        let mut numbered: Vec<_> = self.providers.names().into_iter().enumerate().collect();
        numbered.sort_by_key(|(_, name)| ProviderName::ALL.iter().position(|one| one == name));
        numbered.into_iter()
    }

    /// Has every reactor stop listening on the port and close its connections. Returns the
    /// controllers that were deleted.
    pub(super) fn unlisten(&self, port: &Port) -> Vec<Disconnected> {
        let has = |name: ProviderName| port.providers.iter().any(|it| it.name == name);
        let its = self.numbered().filter(|(_, name)| has(*name));
        let remotes = its.flat_map(|(provider, _)| self.remotes(provider));
        let replies: Vec<_> = remotes
            .map(|remote| remote.send_unlisten(port.address))
            .collect();
        let received = replies
            .iter()
            .filter_map(|reply| reply.recv_timeout(self.timeout).ok());
        received.flatten().collect()
    }

    fn remotes(&self, provider: usize) -> impl Iterator<Item = Remote<'_>> {
        self.mailboxes.iter().map(move |mailbox| Remote {
            mailbox,
            provider,
            timeout: self.timeout,
            listened: None,
        })
    }

    /// Opens backing stores on every reactor. If that fails, some reactors may have them open: the
    /// caller must close them.
    pub(super) fn open(&self, stores: &[(u32, Claim)]) -> Result<(), Failed> {
        if stores.is_empty() {
            return Ok(());
        }
        if let Some(lineage) = &self.lineage {
            lineage.admit(stores.iter().map(|(_, claim)| claim))?;
        }
        let replies: Vec<_> = self
            .mailboxes
            .iter()
            .map(|mailbox| {
                let (reply, receiver) = channel();
                let stores = stores.to_vec();
                mailbox.order(Order::Open { stores, reply });
                receiver
            })
            .collect();
        let until = Instant::now() + self.timeout;
        let mut result = Ok(());
        for receiver in replies {
            let left = until.saturating_duration_since(Instant::now());
            match receiver.recv_timeout(left) {
                Ok(Ok(())) => {}
                Ok(Err((store, error))) => result = Err(Failed::Store(store, error)),
                Err(RecvTimeoutError::Timeout) => result = Err(Failed::Silent(self.timeout)),
                Err(RecvTimeoutError::Disconnected) => result = Err(Failed::Ended),
            }
        }
        result
    }

    /// Has every reactor close backing stores when no command uses them.
    pub(super) fn close(&self, stores: &[(u32, Claim)]) -> BTreeMap<u32, Closing> {
        let closing = stores.iter().map(|store| (store.0, self.close_one(store)));
        closing.collect()
    }

    fn close_one(&self, store: &(u32, Claim)) -> Closing {
        let waits = self.mailboxes.iter().map(|mailbox| {
            let (reply, receiver) = channel();
            let stores = vec![store.clone()];
            mailbox.order(Order::Close { stores, reply });
            receiver
        });
        Closing {
            waits: waits.collect(),
        }
    }

    /// Has every reactor close connections with commands on these backing stores, which are being
    /// closed and whose operations do not end.
    pub(super) fn abandon(&self, stores: &[u32]) {
        for mailbox in self.mailboxes.iter() {
            let stores = stores.to_vec();
            mailbox.order(Order::Abandon { stores });
        }
    }

    /// The mailbox of each reactor.
    pub(super) fn mailboxes(&self) -> impl Iterator<Item = &Mailbox> {
        self.mailboxes.iter()
    }

    /// Has every reactor poll its queues.
    pub(super) fn poll_all(&self) {
        Mailbox::send_all(&self.mailboxes, Mail::POLL);
    }
}

impl Remote<'_> {
    fn send_unlisten(&self, address: Address) -> Receiver<Vec<Disconnected>> {
        let (reply, receiver) = channel();
        self.mailbox.order(Order::Unlisten {
            provider: self.provider,
            address,
            reply,
        });
        receiver
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
            let source = std::io::Error::other("a reactor did not respond");
            ListenError::new(address, source)
        };
        let listened = awaited.within(self.timeout).ok_or_else(silent)??;
        self.listened = Some(listened);
        Ok(listened)
    }

    fn unlisten(&mut self, listener: ListenerId) {
        if let Some((_, address)) = self.listened.filter(|(one, _)| *one == listener) {
            // The reply lists controllers that were deleted, which is of no interest here.
            let _ = self.send_unlisten(address);
        }
    }

    fn own(&mut self, _listener: ListenerId, _address: Address) {
        // The reactor has it already.
    }
}

impl Closing {
    /// Whether every reactor has closed it.
    pub(super) fn is_complete(&mut self) -> bool {
        self.waits
            .retain(|receiver| matches!(receiver.try_recv(), Err(TryRecvError::Empty)));
        self.waits.is_empty()
    }
}

impl Failed {
    /// The error for the configuration; `places` has the index of the namespace of each backing
    /// store.
    pub(super) fn of(self, config: &Config, places: &BTreeMap<u32, usize>) -> ApplyError {
        if let Self::Store(store, error) = &self
            && let Some(at) = places.get(store)
        {
            return open_error(config, *at, error).into();
        }
        ApplyError::Refused(self.to_string())
    }
}
