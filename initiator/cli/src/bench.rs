//! `nvmeof bench`: how fast a namespace is. One thread for each queue drives
//! it by polling; this one keeps the controller alive and shows progress. With
//! the async interface one thread does it all.

mod awaited;
mod course;
mod job;
mod report;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use nvmeof_initiator::blocking::BlockingAdmin;
use nvmeof_initiator::polled::{IoConfig, IoQueue};
use nvmeof_initiator::{ControllerInfo, Error, QueueShape};

use self::job::{Job, Tally};
use crate::args::{self, Interface, Kind};
use crate::failure::Failure;
use crate::interrupt::{Interrupt, Signal};

/// Entries of a queue that has room for fewer. The kernel's target sizes a
/// send queue by the number of commands, and never answers a command whose
/// data need more work requests than that: 1 MiB on a queue of 2 hangs.
const SMALLEST_QUEUE: u16 = 32;

/// What the threads share.
#[derive(Debug)]
struct Shared {
    /// Bytes moved, for the progress bar.
    bytes: AtomicU64,
    /// Reads and writes done, for the progress bar.
    operations: AtomicU64,
    /// Set when one thread failed or a signal came: all stop.
    stop: AtomicBool,
    interrupt: Interrupt,
}

impl Shared {
    fn new(interrupt: Interrupt) -> Self {
        Self {
            bytes: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            interrupt,
        }
    }
}

/// Runs a benchmark.
pub(crate) fn run(args: &args::Bench) -> Result<(), Failure> {
    let (tally, signal) = match args.interface {
        Interface::Polled => polled(args)?,
        Interface::Async => awaited::run(args)?,
    };
    report::print(args, &tally, signal)?;
    match signal {
        Some(signal) => Err(interrupted(signal, tally.time)),
        None => Ok(()),
    }
}

/// The figures are those until then; they are printed before.
fn interrupted(signal: Signal, time: Duration) -> Failure {
    Failure::new(format!(
        "interrupted by {} after {:.1} s: the figures are of that time",
        signal.name(),
        time.as_secs_f64()
    ))
    .beside_result()
    .with_status(signal.exit_status())
}

/// Ends on the first signal, with what is measured by then; on a second one at once.
fn watch_signals() -> Result<Interrupt, Failure> {
    Interrupt::watch(|_| {})
}

/// Entries of each queue; one of them stays empty.
fn queue_size(args: &args::Bench) -> u16 {
    (args.iodepth + 1).max(SMALLEST_QUEUE)
}

/// Whether the controller grants what was asked for.
fn check(args: &args::Bench, info: &ControllerInfo) -> Result<(), Failure> {
    args.queues.check(info)?;
    let most = info.max_queue_size.saturating_sub(1);
    if args.iodepth > most {
        return Err(Failure::new(format!(
            "the controller's queues take {most} commands at a time, --iodepth says {}",
            args.iodepth
        ))
        .with_remedy(format!(
            "use --iodepth {most}, more --nr-io-queues, or raise the target's queue size"
        )));
    }
    Ok(())
}

/// Measures with a thread for each queue.
fn polled(args: &args::Bench) -> Result<(Tally, Option<Signal>), Failure> {
    let start = Instant::now();
    let mut options = args.subsystem.options()?;
    options.io_queues = args.queues.nr_io_queues;
    options.in_capsule = args.in_capsule;
    let identity = args.subsystem.target.identity()?;
    let route = args.subsystem.target.route(options.addr)?;
    let config = options.admin_config(&identity);
    let names = config.setup.names.clone();
    let mut admin = BlockingAdmin::connect(route.provider()?, options.addr, config, start)?;
    let info = Arc::clone(admin.info());
    let namespace = admin.namespace(args.namespace_id)?;
    let plan = job::Plan::new(args, namespace)?;
    check(args, &info)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| no_runtime(&error))?;
    let shared = {
        let _within = runtime.enter();
        Arc::new(Shared::new(watch_signals()?))
    };
    let mut threads: Vec<JoinHandle<Result<Tally, Error>>> = Vec::new();
    for qid in 1..=args.queues.nr_io_queues {
        let queue = QueueShape {
            qid,
            size: queue_size(args).min(info.max_queue_size),
            flow_control: true,
        };
        let config = IoConfig {
            names: names.clone(),
            queue,
            command_timeout: options.command_timeout,
            connect_timeout: options.connect_timeout,
        };
        let provider = route.provider()?;
        let mut queue = IoQueue::connect(provider, options.addr, &info, config, start.elapsed())?;
        queue.join(admin.association());
        let job = Job::new(queue, &plan, qid, start)?;
        let (shared, watcher) = (Arc::clone(&shared), std::thread::current());
        threads.push(std::thread::spawn(move || {
            let result = job.run(&shared);
            if result.is_err() {
                shared.stop.store(true, Ordering::Relaxed);
            }
            watcher.unpark();
            result
        }));
    }
    watch(&mut admin, &threads, &shared, plan.runtime);
    let mut total = Tally::default();
    let mut failure = None;
    for thread in threads {
        match thread.join() {
            Ok(Ok(tally)) => total.add(&tally),
            Ok(Err(error)) => failure = failure.or(Some(Failure::from(error))),
            Err(_panic) => return Err(Failure::new("a benchmark thread broke down")),
        }
    }
    admin.shutdown();
    match failure {
        Some(failure) => Err(failure),
        None => Ok((total, shared.interrupt.signal())),
    }
}

fn no_runtime(error: &io::Error) -> Failure {
    let why = nvmeof_rdma::explain(error);
    Failure::new(format!("cannot start a runtime: {why}"))
}

/// Keeps the controller alive and shows progress until all threads are done.
fn watch<T>(
    admin: &mut BlockingAdmin,
    threads: &[JoinHandle<T>],
    shared: &Shared,
    runtime: Duration,
) {
    let bar = progress(runtime);
    let start = Instant::now();
    while threads.iter().any(|thread| !thread.is_finished()) {
        // Until then or until a thread is done.
        std::thread::park_timeout(TICK);
        admin.turn();
        if shared.interrupt.signal().is_some() {
            shared.stop.store(true, Ordering::Relaxed);
        }
        let seconds = start.elapsed().as_secs_f64().max(f64::EPSILON);
        bar.set_position(start.elapsed().min(runtime).as_secs());
        let per_second = |n: &AtomicU64| report::rate(n.load(Ordering::Relaxed), seconds);
        let iops = report::short(per_second(&shared.operations));
        let bytes = report::binary(per_second(&shared.bytes));
        bar.set_message(format!("{iops} IOPS {bytes}/s"));
    }
    bar.finish_and_clear();
}

/// How often the admin queue and the bar are looked after.
const TICK: Duration = Duration::from_millis(100);

/// A bar on a terminal, nothing on a pipe.
fn progress(runtime: Duration) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(runtime.as_secs());
    if let Ok(style) = ProgressStyle::with_template("{pos:>4} of {len} s {bar:30} {msg}") {
        bar.set_style(style);
    }
    bar
}

impl Kind {
    /// Whether places are chosen by chance.
    fn is_random(self) -> bool {
        matches!(self, Self::Randread | Self::Randwrite | Self::Randrw)
    }

    /// Percentage of reads.
    fn reads(self, mix: u8) -> u8 {
        match self {
            Self::Read | Self::Randread => 100,
            Self::Write | Self::Randwrite => 0,
            Self::Randrw => mix,
        }
    }

    /// Its name on the command line.
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Randread => "randread",
            Self::Randwrite => "randwrite",
            Self::Randrw => "randrw",
        }
    }
}
