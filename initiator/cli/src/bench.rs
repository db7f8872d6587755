//! `nvmeof bench`: measures IOPS, throughput and latency of a namespace. One thread for
//! each queue polls it; the main thread sends Keep Alive and shows progress. Over several paths,
//! each thread has controllers of its own, with a queue on each path. With the async interface one
//! thread does everything.

mod awaited;
mod job;
mod pace;
mod pattern;
mod queues;
mod report;

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use nvmeof_initiator::blocking::BlockingAdmin;
use nvmeof_initiator::polled::{IoConfig, IoQueue};
use nvmeof_initiator::{ControllerInfo, Error, QueueShape};
use nvmeof_wire::text::Lines;

use self::job::{Job, Plan, Tally};
use self::queues::{Paths, Queues};
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
    /// To be printed on standard error.
    lines: Mutex<Vec<String>>,
}

impl Shared {
    fn new(interrupt: Interrupt) -> Self {
        Self {
            bytes: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            interrupt,
            lines: Mutex::default(),
        }
    }

    /// Has the main thread print a line above the progress bar.
    fn print(&self, line: String) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push(line);
    }

    fn print_lines(&self, bar: &ProgressBar) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        for line in lines.drain(..) {
            // A write error has no other place to be reported.
            bar.suspend(|| {
                let _ = io::stderr().write_all(Lines(&line).to_string().as_bytes());
            });
        }
    }
}

/// Runs a benchmark.
pub(crate) fn run(args: &args::Bench) -> Result<(), Failure> {
    let (tally, signal) = match args.interface {
        Interface::Polled if args.subsystem.target.paths() > 1 => polled_paths(args)?,
        Interface::Polled => polled(args)?,
        Interface::Async => match args.rate {
            Some(rate) => return Err(rate_of_async(rate)),
            None => awaited::run(args)?,
        },
    };
    report::print(args, &tally, signal)?;
    match signal {
        Some(signal) => Err(interrupted(signal, tally.time)),
        None => Ok(()),
    }
}

fn rate_of_async(rate: u32) -> Failure {
    Failure::usage(format!("--rate {rate}: requires the polled interface"))
        .with_remedy("omit --interface async")
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
    check_depth(args, info)
}

/// Checks that a queue of the controller holds all operations in flight.
fn check_depth(args: &args::Bench, info: &ControllerInfo) -> Result<(), Failure> {
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
    args.queues.complete(&mut options);
    options.in_capsule = args.in_capsule;
    let identity = args.subsystem.target.identity()?;
    let route = args.subsystem.target.route(options.addr)?;
    let config = options.admin_config(&identity);
    let names = config.setup.names.clone();
    let mut admin = BlockingAdmin::connect(route.provider()?, options.addr, config, start)?;
    let info = Arc::clone(admin.info());
    let namespace = admin.namespace(args.namespace_id)?;
    let plan = Plan::new(args, namespace)?;
    check(args, &info)?;
    let mut jobs = Vec::new();
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
            trusts_target: options.trusts_target,
        };
        let provider = route.provider()?;
        let mut queue = IoQueue::connect(provider, options.addr, &info, config, start.elapsed())?;
        queue.join(admin.association());
        let queues = Queues::One(Box::new(queue));
        jobs.push(Job::new(queues, &plan, qid - 1, start)?);
    }
    let ended = run_jobs(jobs, &plan, || admin.poll());
    admin.shutdown();
    ended
}

/// Measures over several paths, with a thread for each queue on each of them.
fn polled_paths(args: &args::Bench) -> Result<(Tally, Option<Signal>), Failure> {
    let start = Instant::now();
    let mut paths = args.paths()?;
    for path in &mut paths {
        path.io_queues = 1;
    }
    let mut jobs = Vec::new();
    let mut plan = None;
    for at in 0..args.queues.nr_io_queues {
        // All jobs use the same paths: one of them reports.
        let (paths, namespace) = Paths::connect(args, &paths, at == 0, start)?;
        let plan = match &plan {
            Some(plan) => plan,
            None => plan.insert(Plan::new(args, namespace)?),
        };
        jobs.push(Job::new(Queues::Several(Box::new(paths)), plan, at, start)?);
    }
    let Some(plan) = plan else {
        return Err(Failure::new("internal error: a benchmark without queues"));
    };
    run_jobs(jobs, &plan, || ())
}

/// Runs each job on a thread, and adds their results. `poll` is called meanwhile.
fn run_jobs(
    jobs: Vec<Job>,
    plan: &Plan,
    poll: impl FnMut(),
) -> Result<(Tally, Option<Signal>), Failure> {
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
    for job in jobs {
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
    watch(poll, &threads, &shared, plan.runtime);
    let mut total = Tally::default();
    let mut failure = None;
    for thread in threads {
        match thread.join() {
            Ok(Ok(tally)) => total.add(&tally),
            Ok(Err(error)) => failure = failure.or(Some(Failure::from(error))),
            Err(_panic) => return Err(Failure::new("internal error: a benchmark thread panicked")),
        }
    }
    match failure {
        Some(failure) => Err(failure),
        None => Ok((total, shared.interrupt.signal())),
    }
}

fn no_runtime(error: &io::Error) -> Failure {
    let why = nvmeof_rdma::explain(error);
    Failure::new(format!("cannot start a runtime: {why}"))
}

/// Calls `poll` and shows progress until all threads are done.
fn watch<T>(mut poll: impl FnMut(), threads: &[JoinHandle<T>], shared: &Shared, runtime: Duration) {
    let bar = progress(runtime);
    let start = Instant::now();
    while threads.iter().any(|thread| !thread.is_finished()) {
        // Until the next tick, or until a thread is done.
        std::thread::park_timeout(TICK);
        poll();
        shared.print_lines(&bar);
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
    shared.print_lines(&bar);
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
