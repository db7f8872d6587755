//! `nvmeof bench`: measures IOPS, throughput and latency of a namespace. One thread for
//! each queue polls it; the main thread sends Keep Alive and shows progress. With the
//! async interface one thread does everything.

mod awaited;
mod job;
mod pattern;
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

/// Minimum size of a queue. nvmet sizes a send queue by the number of commands and never
/// completes a command whose data need more work requests: 1 MiB on a queue of 2 entries
/// stalls.
const SMALLEST_QUEUE: u16 = 32;

/// State that the threads share.
#[derive(Debug)]
struct Shared {
    /// Bytes transferred, for the progress bar.
    bytes: AtomicU64,
    /// Completed reads and writes, for the progress bar.
    operations: AtomicU64,
    /// Stops all threads: one failed, or a signal arrived.
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

/// The failure of an interrupted benchmark, whose results so far are printed before it.
fn interrupted(signal: Signal, time: Duration) -> Failure {
    Failure::new(format!(
        "interrupted by {} after {:.1} s: the results cover this time",
        signal.name(),
        time.as_secs_f64()
    ))
    .beside_result()
    .with_status(signal.exit_status())
}

/// The first signal ends the benchmark with the results so far, a second one immediately.
fn watch_signals() -> Result<Interrupt, Failure> {
    Interrupt::watch(|_| {})
}

/// Entries of each queue, of which one stays empty.
fn queue_size(args: &args::Bench) -> u16 {
    (args.iodepth + 1).max(SMALLEST_QUEUE)
}

/// Checks that the controller grants the requested queues.
fn check(args: &args::Bench, info: &ControllerInfo) -> Result<(), Failure> {
    args.queues.check(info.io_queues)?;
    let most = info.max_queue_size.saturating_sub(1);
    if args.iodepth > most {
        return Err(Failure::new(format!(
            "a queue of the controller holds {most} commands, --iodepth is {}",
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
            Err(_panic) => return Err(Failure::new("internal error: a benchmark thread panicked")),
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

/// Sends Keep Alive and shows progress until all threads are done.
fn watch<T>(
    admin: &mut BlockingAdmin,
    threads: &[JoinHandle<T>],
    shared: &Shared,
    runtime: Duration,
) {
    let bar = progress(runtime);
    let start = Instant::now();
    while threads.iter().any(|thread| !thread.is_finished()) {
        // Until the next tick, or until a thread is done.
        std::thread::park_timeout(TICK);
        admin.poll();
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

/// Interval at which the admin queue and the progress bar are served.
const TICK: Duration = Duration::from_millis(100);

/// A progress bar on a terminal, none on a pipe.
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
    /// Whether offsets are random.
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
