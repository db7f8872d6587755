//! The start of a target: checks what can never be served first, then starts reactors, which
//! serve until they are stopped.

use std::io;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use nvmeof_backend::{BackingStoresError, Claim, UringStores, UringStoresError};
use nvmeof_memory::Region;
use nvmeof_rdma::{Steering, explain};
use nvmeof_rdma_shm::Borrowed;
use nvmeof_target_config::{
    Config, ConfigError, ProviderName, ReactorSettings, UnreadKey, on_unusual_names,
};
use nvmeof_target_core::metrics::MetricsRegistry;
use nvmeof_target_core::{IncarnationKey, ModelError, Target};
use nvmeof_target_engine::{
    Clock, Counters, Failures, Mail, Mailbox, Reactor, ReactorConfig, ShutdownError,
    ShutdownProgress, WorkerPool,
};
use nvmeof_uring::RingConfig;

use crate::buffers::buffers;
use crate::cpus::{self, ReactorCpu};
use crate::files;
use crate::ha::HaControl;
use crate::host_settings::{KeeperHandle, Records};
use crate::lineage::Lineage;
use crate::open::{model_of, open_with};
use crate::ports::{self, Listening, Port, ProviderFactory, Providers, ReactorProvider};
use crate::ring::ring_config;
use crate::served::{Manager, Pool, Reactors, Remembered};
use crate::takeover::HaStart;
use crate::workers;

/// Why the target did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration, or an object that it names.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The machine, at the start.
    #[error("{what}: {why}")]
    Start {
        /// The resource or the setting.
        what: &'static str,
        /// The cause.
        why: String,
    },
    /// The backing stores, while serving.
    #[error(transparent)]
    Storage(#[from] BackingStoresError),
    /// Reactors did not stop.
    #[error(transparent)]
    ShutdownError(#[from] ShutdownError),
    /// A bug.
    #[error("a reactor ended unexpectedly; please report this with the log")]
    Panicked,
}

/// A target that is ready: connections are accepted.
pub struct Server {
    manager: Arc<Manager>,
    sources: MetricsSources,
    ports: Vec<Port>,
    mailboxes: Arc<[Mailbox]>,
    /// Failures of backing stores that reactors report.
    failures: Failures,
    threads: Vec<JoinHandle<Result<(), ServeError>>>,
    stopping: Arc<ShutdownProgress>,
    /// How long commands in flight may take to complete when it stops.
    drain: Duration,
    /// Saves what hosts set.
    _keeper: Option<KeeperHandle>,
    /// Receives mail when a reactor has ended.
    ended: Mailbox,
}

/// The sources of the metrics of a target. Clones share them.
#[derive(Clone)]
pub struct MetricsSources {
    /// Model and controllers.
    pub target: Target,
    /// Mailbox and counters of each reactor.
    pub reactors: Vec<(Mailbox, Arc<Counters>)>,
    /// The metrics registry of the counters.
    pub registry: MetricsRegistry,
    /// The providers of each reactor.
    pub providers: Providers,
    /// Lent memory of hosts on this machine.
    pub borrowed: Borrowed,
}

impl MetricsSources {
    fn of(
        target: &Target,
        reactors: Vec<(Mailbox, Arc<Counters>)>,
        registry: MetricsRegistry,
        providers: &Providers,
        means: &ProviderFactory,
    ) -> Self {
        Self {
            target: target.clone(),
            reactors,
            registry,
            providers: providers.clone(),
            borrowed: means.borrowed.clone(),
        }
    }
}

/// What the thread of a reactor starts with.
struct Start {
    cpu: ReactorCpu,
    /// One for all reactors: they compare the times of commands with each other.
    clock: Clock,
    config: ReactorConfig,
    target: Target,
    providers: Vec<ReactorProvider>,
    claims: Vec<(u32, Claim)>,
    /// The steering of connections, and the index of this reactor in it.
    steering: (Steering, usize),
    mailbox: Mailbox,
    peers: Arc<[Mailbox]>,
    failures: Failures,
    counters: Arc<Counters>,
    stopping: Arc<ShutdownProgress>,
    ring: RingConfig,
    lineage: Option<Arc<Lineage>>,
    /// The workers that authenticate hosts. They end with the last reactor.
    workers: Arc<WorkerPool>,
    /// Whether this reactor logs what applies to all of them.
    first: bool,
}

/// The index of a reactor that started, and its memory.
type Started = (usize, Vec<Region>);

/// Logs warnings about `config` that are not errors.
fn remark(config: &Config, ports: &[Port], cpus: &[ReactorCpu]) {
    let remarks = [
        ports::unused_devices(config, ports),
        cpus::sqpoll_remark(config, cpus),
        on_unusual_names(config.unusual_names()),
    ];
    let of_hosts = config.authentication_remarks();
    for remark in remarks.into_iter().flatten().chain(of_hosts) {
        tracing::warn!("{remark}");
    }
    if config.subsystems().next().is_none() {
        tracing::warn!("no [[subsystem]] is configured: hosts find nothing until one is added");
    }
}

/// Restores what hosts set in `target`, and lets them change it if it can be saved.
fn keep_settings(
    records: &Arc<Records>,
    target: &Target,
    pool: &Pool,
    mailboxes: &Arc<[Mailbox]>,
) -> Result<Option<KeeperHandle>, ServeError> {
    records.restore_in(target);
    let keeper = records.keeper(target, pool.specs());
    let keeper = keeper.map(|keeper| keeper.start(Arc::clone(mailboxes)));
    keeper
        .transpose()
        .map_err(|error| no_resource("thread", error))
}

/// Waits until `count` reactors have started. Returns the memory of each.
fn all_started(
    started: &mpsc::Receiver<Result<Started, StartFailure>>,
    count: usize,
    config: &Config,
    ports: &[Port],
) -> Result<Vec<Vec<Region>>, ServeError> {
    let mut memory = vec![Vec::new(); count];
    for _ in 0..count {
        let started = started.recv().map_err(|_| ServeError::Panicked)?;
        let (at, regions) = started.map_err(|failure| failure.of(config, ports))?;
        if let Some(of_reactor) = memory.get_mut(at) {
            *of_reactor = regions;
        }
    }
    Ok(memory)
}

/// What exists before the first reactor starts.
struct Opened {
    cpus: Vec<ReactorCpu>,
    remembered: Remembered,
    pool: Pool,
    means: ProviderFactory,
    /// The listening providers of each reactor.
    ready: Vec<Vec<ReactorProvider>>,
    ports: Vec<Port>,
    providers: Providers,
    target: Target,
    mailboxes: Arc<[Mailbox]>,
    keeper: Option<KeeperHandle>,
    workers: Arc<WorkerPool>,
    /// Keys of hosts that could not be read.
    unread: Vec<UnreadKey>,
}

impl Opened {
    fn open(config: &Config, lineage: Option<&Arc<Lineage>>) -> Result<Self, ServeError> {
        files::raise_limit();
        let ports = ports::plan_present(config)?;
        let cpus = cpus::place(config, &ports)?;
        remark(config, &ports, &cpus);
        let count = cpus.len();
        let state = config.control().state.as_deref();
        let remembered = Remembered::beside(state);
        let records = Arc::new(Records::beside(state));
        if let Some(state) = state {
            records.convert_legacy(state)?;
        }
        let (present, former) = open_with(config, &records)?;
        let pool = Pool::new(config, present, &remembered, Arc::clone(&records))?;
        let key = key_of(lineage, &pool)?;
        // Includes backing stores that wait: each needs a descriptor later.
        let files = files::share(config, count, pool.served().count(), &ports);
        let mut means = ProviderFactory::new(count, files);
        let Listening { reactors, ports } = ports::listen(config, ports, &mut means)?;
        let names = reactors.iter().take(1).flatten().map(|ready| ready.name);
        let providers = Providers::new(names.collect());
        let specs: Vec<_> = ports.iter().map(Port::to_spec).collect();
        let (keys, unread) = config.available_authentication()?;
        let model = model_of(config, pool.served(), &specs, pool.held(), keys)?;
        let target = Target::with_incarnations(model, key);
        let mailboxes = (0..count).map(|_| Mailbox::new());
        let mailboxes = mailboxes.collect::<Result<Arc<[Mailbox]>, _>>();
        let mailboxes = mailboxes.map_err(|error| no_resource("eventfd", error))?;
        let keeper = keep_settings(&records, &target, &pool, &mailboxes)?;
        let workers = workers::start(&cpus).map_err(|error| no_resource("thread", error))?;
        records.remove_former(former);
        Ok(Self {
            cpus,
            remembered,
            pool,
            means,
            ready: reactors,
            ports,
            providers,
            target,
            mailboxes,
            keeper,
            workers,
            unread,
        })
    }
}

/// The key with which hosts learn later that nothing of this process is in flight, if that can be
/// proven with all backing stores of `pool`.
fn key_of(
    lineage: Option<&Arc<Lineage>>,
    pool: &Pool,
) -> Result<Option<IncarnationKey>, ServeError> {
    let Some(lineage) = lineage else {
        return Ok(None);
    };
    let admitted = lineage.admit(pool.claims().iter().map(|(_, claim)| claim));
    admitted.map_err(|error| start_error("control.state", &error))?;
    Ok(lineage.key())
}

/// Why a reactor did not start.
enum StartFailure {
    Serve(ServeError),
    /// A provider cannot register its memory.
    Register {
        name: ProviderName,
        why: String,
    },
}

impl Server {
    /// Opens and locks the backing stores of `config`, listens on its ports, and starts the
    /// reactors. When it returns, hosts can connect. The threads inherit the signal mask of the
    /// caller.
    ///
    /// # Errors
    /// [`ServeError`]; then nothing is served.
    pub fn start(config: &Config) -> Result<Self, ServeError> {
        Self::start_in(None, config)
    }

    /// As [`start`](Self::start), as the process that has this place in its lineage.
    ///
    /// # Errors
    /// [`ServeError`]; then nothing is served.
    pub fn start_in(lineage: Option<&Arc<Lineage>>, config: &Config) -> Result<Self, ServeError> {
        let Opened {
            cpus,
            remembered,
            pool,
            means,
            ready,
            ports,
            providers,
            target,
            mailboxes,
            keeper,
            workers,
            unread,
        } = Opened::open(config, lineage)?;
        let (settings, count) = (config.reactor_settings(), cpus.len());
        let ended = Mailbox::new().map_err(|error| no_resource("eventfd", error))?;
        let (failures, registry) = (Failures::default(), MetricsRegistry::default());
        let (sender, started) = mpsc::channel();
        let (stopping, mut threads, mut counting) = (Arc::default(), Vec::new(), Vec::new());
        let clock = Clock::start();
        let places = cpus.into_iter().zip(mailboxes.iter());
        for (at, ((cpu, mailbox), providers)) in places.zip(ready).enumerate() {
            let counters = Arc::new(Counters::new(&registry, at));
            let start = Start {
                cpu,
                clock,
                config: buffers(&settings, target.limits()),
                target: target.clone(),
                providers,
                claims: pool.claims(),
                steering: (means.steering.clone(), at),
                mailbox: mailbox.clone(),
                peers: Arc::clone(&mailboxes),
                failures: failures.clone(),
                counters: Arc::clone(&counters),
                stopping: Arc::clone(&stopping),
                ring: ring_config(pool.served().count(), &settings, cpu, mailboxes.len()),
                lineage: lineage.cloned(),
                workers: Arc::clone(&workers),
                first: at == 0,
            };
            counting.push((mailbox.clone(), counters));
            threads.push(spawn(at, start, &settings, sender.clone(), ended.clone())?);
        }
        drop(sender);
        let memory = all_started(&started, count, config, &ports)?;
        let sources = MetricsSources::of(&target, counting, registry, &providers, &means);
        let reactors = Reactors::new(Arc::clone(&mailboxes), providers, means, memory);
        let reactors = reactors.of_lineage(lineage.cloned());
        let manager = Manager::new(target, reactors, config, ports, pool, remembered);
        let ha = HaStart::of(config);
        let control = ha.as_ref().map(|ha| ha.control().clone());
        let manager = Arc::new(manager.awaiting(unread).with_ha(control));
        manager.remember();
        let started = ha.map_or(Ok(()), |ha| ha.start(&manager));
        started.map_err(|error| no_resource("thread", error))?;
        Ok(Self {
            drain: settings.drain,
            sources,
            ports: manager.ports(),
            manager,
            mailboxes,
            failures,
            threads,
            stopping,
            _keeper: keeper,
            ended,
        })
    }

    /// The ports that listened at the start, with their providers.
    #[must_use]
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// The manager, which applies changes.
    #[must_use]
    pub fn manager(&self) -> &Arc<Manager> {
        &self.manager
    }

    /// The sources of its metrics.
    #[must_use]
    pub fn metrics_sources(&self) -> &MetricsSources {
        &self.sources
    }

    /// Failures of backing stores that reactors report.
    #[must_use]
    pub fn failures(&self) -> &Failures {
        &self.failures
    }

    /// Progress of reactors that stop.
    #[must_use]
    pub fn stopping(&self) -> &ShutdownProgress {
        &self.stopping
    }

    /// How long commands in flight may take to complete when it stops.
    #[must_use]
    pub fn drain(&self) -> Duration {
        self.drain
    }

    /// Receives mail when a reactor has ended, shortly before its thread finishes.
    #[must_use]
    pub fn ended(&self) -> &Mailbox {
        &self.ended
    }

    /// Number of reactors that were started.
    #[must_use]
    pub fn started(&self) -> usize {
        self.threads.len()
    }

    /// Hands the groups of `[[ha.group]]` over to other gateways before the target stops. Returns
    /// whether to wait for that, at most [`HAND_OVER`](crate::ha::HAND_OVER): see
    /// [`has_handed_over`](Self::has_handed_over).
    #[must_use]
    pub fn hand_over(&self) -> bool {
        let ha = self.manager.ha();
        if let Some(ha) = ha {
            ha.stop();
        }
        ha.is_some()
    }

    /// Whether no group is served here any more, and others may take them.
    #[must_use]
    pub fn has_handed_over(&self) -> bool {
        self.manager.ha().is_none_or(HaControl::has_stopped)
    }

    /// Notifies hosts of the stop, so that those with another path use that one. Returns whether
    /// to wait for them: see [`is_stop_known`](Self::is_stop_known).
    #[must_use]
    pub fn announce_stop(&self) -> bool {
        self.manager.announce_stop()
    }

    /// Whether every host that was notified has learned of the stop.
    #[must_use]
    pub fn is_stop_known(&self) -> bool {
        self.manager.is_stop_known()
    }

    /// Completes commands in flight, then stops; [`join`](Self::join) returns when that is done.
    pub fn stop(&self) {
        Mailbox::send_all(&self.mailboxes, Mail::DRAIN);
    }

    /// The mailboxes of the reactors that have not ended, with their indices.
    pub fn reactors(&self) -> impl Iterator<Item = (usize, &Mailbox)> {
        let all = self.mailboxes.iter().enumerate().zip(&self.threads);
        let there = all.filter(|(_, thread)| !thread.is_finished());
        there.map(|(reactor, _)| reactor)
    }

    /// Waits until every reactor has ended.
    ///
    /// # Errors
    /// [`ServeError`] when a reactor failed.
    pub fn join(self) -> Result<(), ServeError> {
        let mut result = Ok(());
        for thread in self.threads {
            let ended = thread.join().unwrap_or(Err(ServeError::Panicked));
            result = result.and(ended);
        }
        result
    }
}

/// The kernel refused a resource.
fn no_resource(what: &'static str, error: impl Into<io::Error>) -> ServeError {
    start_error(what, &explain(&error.into()))
}

fn start_error(what: &'static str, why: &dyn std::fmt::Display) -> ServeError {
    let why = why.to_string();
    ServeError::Start { what, why }
}

fn spawn(
    at: usize,
    start: Start,
    settings: &ReactorSettings,
    started: mpsc::Sender<Result<Started, StartFailure>>,
    ended: Mailbox,
) -> Result<JoinHandle<Result<(), ServeError>>, ServeError> {
    let (polling, cpu, clock) = (settings.polling, start.cpu, start.clock);
    std::thread::Builder::new()
        .name(format!("reactor-{at}"))
        .spawn(move || {
            /// Sends mail even if the reactor panics, and closes its mailbox so that no thread
            /// waits for it.
            struct EndNotifier {
                ended: Mailbox,
                own: Mailbox,
            }
            impl Drop for EndNotifier {
                fn drop(&mut self) {
                    self.own.close();
                    self.ended.send(Mail::POLL);
                }
            }
            let own = start.mailbox.clone();
            let (stopping, peers) = (Arc::clone(&start.stopping), Arc::clone(&start.peers));
            let notifier = EndNotifier { ended, own };
            let mut reactor = match assemble(start) {
                Ok(reactor) => reactor,
                Err(error) => {
                    // The starter reports it.
                    let _ = started.send(Err(error));
                    return Ok(());
                }
            };
            tracing::info!("reactor {at}: {cpu}");
            let _ = started.send(Ok((at, reactor.regions().cloned().collect())));
            drop(started);
            let ended = nvmeof_target_engine::run(&mut reactor, clock, polling);
            stopping.reactor_ended(reactor.stores_mut());
            // Releasing its resources may block forever.
            notifier.ended.send(Mail::POLL);
            drop(reactor);
            // Commands of others may have waited for its reports.
            Mailbox::send_all(&peers, Mail::LOCKS);
            Ok(ended?)
        })
        .map_err(|error| no_resource("thread", error))
}

/// Creates the reactor on its own thread, which owns its io_uring. The kernel allocates memory on
/// the NUMA node that touches it first, so the thread is bound to its CPU before.
fn assemble(start: Start) -> Result<Reactor<UringStores>, StartFailure> {
    let cpu = start.cpu;
    cpus::take(cpu).map_err(|error| ServeError::Start {
        what: "reactor.cores",
        why: format!("{cpu}: {error}; the CPU became unavailable during the start"),
    })?;
    let mut stores = UringStores::with(start.ring, start.claims)
        .map_err(|error: UringStoresError| start_error("disks", &error))?;
    if let Some(lineage) = &start.lineage {
        let (name, lock) = lineage.lock();
        let held = stores.hold(&name, lock);
        held.map_err(|error| start_error("disks", &error))?;
    }
    let mut reactor = Reactor::new(
        start.config,
        start.target,
        stores,
        start.mailbox,
        start.peers,
    )
    .map_err(|error| start_error("buffers", &error))?;
    reactor.report_to(start.failures);
    reactor.set_workers(start.workers);
    reactor.count_in(start.counters);
    let (steering, number) = start.steering;
    reactor.set_steering(steering, number);
    let regions: Vec<_> = reactor.regions().cloned().collect();
    let registered = reactor.stores_mut().register_regions(&regions);
    if start.first && registered.left_out > 0 {
        tracing::warn!("{registered}");
    }
    for ready in start.providers {
        let provider =
            reactor
                .add_provider(ready.provider)
                .map_err(|error| StartFailure::Register {
                    name: ready.name,
                    why: error.to_string(),
                })?;
        for (listener, address) in ready.listeners {
            reactor.own_listener(provider, listener, address);
        }
    }
    Ok(reactor)
}

impl StartFailure {
    fn of(self, config: &Config, ports: &[Port]) -> ServeError {
        match self {
            Self::Serve(error) => error,
            Self::Register { name, why } => ports::broken(config, ports, name, &why).into(),
        }
    }
}

impl From<ServeError> for StartFailure {
    fn from(error: ServeError) -> Self {
        Self::Serve(error)
    }
}

impl From<ModelError> for ServeError {
    fn from(error: ModelError) -> Self {
        start_error("configuration", &error)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use std::time::Instant;

    use super::*;
    use crate::cpus::{first_usable, usable};
    use crate::served::Waiting;

    /// The CPUs of the SQPOLL kernel threads, as texts.
    fn sqpoll_cpus() -> Vec<String> {
        let threads = std::fs::read_dir("/proc/self/task").unwrap();
        let statuses = threads.filter_map(|thread| {
            // Threads of other tests end meanwhile.
            let status = std::fs::read_to_string(thread.ok()?.path().join("status")).ok()?;
            let value = |key| status.lines().find_map(|line| line.strip_prefix(key));
            let list = value("Cpus_allowed_list:\t")?;
            value("Name:\tiou-sqp-").map(|_| list.to_owned())
        });
        let mut all: Vec<String> = statuses.collect();
        all.sort();
        all
    }

    #[test]
    fn sqpoll_threads_run_on_configured_cpus() {
        let usable = usable();
        let (first, last) = (usable.first().unwrap(), usable.last().unwrap());
        let text = format!(
            "[reactor]\ncores = [{first}, {first}]\n\
             [storage]\nsqpoll = true\nsqpoll_cores = [{first}, {last}]\n\
             [[port]]\ntraddr = \"127.0.0.1\"\ntrsvcid = 0\nprovider = \"iwarp\"\n"
        );
        let server = Server::start(&Config::parse(Path::new("a.toml"), text).unwrap()).unwrap();
        let mut asked = [first, last].map(usize::to_string);
        asked.sort();
        let start = Instant::now();
        // They move there when they start to run.
        while sqpoll_cpus() != asked {
            let found = sqpoll_cpus();
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{found:?}, not {asked:?}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        server.stop();
        server.join().unwrap();
    }

    fn config(port: u16) -> Config {
        let core = first_usable();
        let text = format!(
            "[reactor]\ncores = [{core}, {core}]\n[[port]]\ntraddr = \"127.0.0.1\"\n\
             trsvcid = {port}\nprovider = \"iwarp\"\n[[subsystem]]\n\
             nqn = \"nqn.2026-11.org.example:disk\"\n\
             allow_any_host = true\n\
             [[subsystem.namespace]]\nnsid = 1\npath = \"null:1M\"\n"
        );
        Config::parse(Path::new("target.toml"), text).unwrap()
    }

    #[test]
    fn reactors_share_an_address_and_targets_do_not() {
        let server = Server::start(&config(0)).unwrap();
        let [port] = server.ports() else {
            panic!("{:?}", server.ports());
        };
        let address = port.address;
        assert_ne!(address.port(), Some(0));
        assert_eq!(server.manager().namespaces(), 1);
        let second = Server::start(&config(address.port().unwrap())).unwrap();
        assert!(second.ports().is_empty(), "two targets on {address}");
        let [Waiting { what, waits, .. }] = &second.manager().waiting()[..] else {
            panic!("{:?}", second.manager().waiting());
        };
        assert_eq!(what.to_string(), format!("port {address}"));
        assert!(waits.why.contains("is in use"), "{waits:?}");
        // It stays so until the first ends.
        assert!(!second.manager().retry(|_| true));
        server.stop();
        server.join().unwrap();
        assert!(second.manager().retry(|_| true));
        assert_eq!(second.manager().ports()[0].address, address);
        second.stop();
        second.join().unwrap();
    }
}
