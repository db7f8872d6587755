//! A benchmark with the async interface: a task for each operation in flight, and one
//! thread for all tasks and queues.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use indicatif::ProgressBar;
use nvmeof_initiator::{
    Buf, Controller, Error, Failed, Geometry, Host, MultipathNamespace, Namespace, WriteOptions,
};
use tokio::runtime::Builder;

use super::job::{Plan, Tally};
use super::pattern::Pattern;
use super::{check, no_runtime, queue_size, watch_signals};
use crate::args;
use crate::failure::Failure;
use crate::interrupt::{Interrupt, Signal};
use crate::paths::Disk;

/// Measures without showing progress, which would disturb the measurement.
pub(super) fn run(args: &args::Bench) -> Result<(Tally, Option<Signal>), Failure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| no_runtime(&error))?;
    runtime.block_on(measure(args))
}

async fn measure(args: &args::Bench) -> Result<(Tally, Option<Signal>), Failure> {
    let tasks = u64::from(args.iodepth) * u64::from(args.queues.nr_io_queues);
    let calls = usize::try_from(tasks).unwrap_or(usize::MAX);
    let bytes = usize::try_from(args.bs).unwrap_or(usize::MAX);
    let host = args.subsystem.target.host_for(calls, bytes)?;
    let connection = Connection::open(host.clone(), args).await?;
    let namespace = connection.namespace();
    let identify = match namespace {
        Either::One(namespace) => namespace.identify(),
        Either::Several(namespace) => namespace.identify(),
    };
    let geometry = Geometry::of(args.namespace_id, identify).map_err(Error::from)?;
    let plan = Arc::new(Plan::new(args, geometry)?);

    let interrupt = watch_signals()?;
    let tally = Arc::new(Mutex::new(Tally::default()));
    let mut lanes = Vec::with_capacity(calls);
    for at in 0..tasks {
        let mut pattern = Pattern::new(&plan, at, tasks);
        let mut buf = host.buffer(bytes)?;
        pattern.fill(&mut buf);
        lanes.push(Lane {
            namespace: namespace.clone(),
            plan: Arc::clone(&plan),
            pattern,
            tally: Arc::clone(&tally),
            buf: Some(buf),
            interrupt: interrupt.clone(),
        });
    }
    let begin = Instant::now();
    let lanes: Vec<_> = lanes
        .into_iter()
        .map(|lane| tokio::spawn(lane.run(begin)))
        .collect();
    for lane in lanes {
        let ended = lane.await;
        ended.map_err(|_panic| Failure::new("internal error: a benchmark task panicked"))??;
    }
    let mut tally = std::mem::take(&mut *tally.lock().unwrap_or_else(PoisonError::into_inner));
    tally.time = begin.elapsed();
    connection.close().await;
    Ok((tally, interrupt.signal()))
}

/// The namespace over one path or several.
#[derive(Clone)]
enum Either {
    One(Namespace),
    Several(MultipathNamespace),
}

/// What is to be disconnected at the end.
enum Connection {
    One(Controller, Either),
    Several(Box<Disk>, Either),
}

impl Connection {
    /// Connects over the path of `args`, or over several.
    async fn open(host: Host, args: &args::Bench) -> Result<Self, Failure> {
        let mut paths = args.paths()?;
        for path in &mut paths {
            path.queue_size = queue_size(args);
        }
        if let [only] = paths.as_slice() {
            let controller = host.connect(only.clone()).await?;
            check(args, controller.info())?;
            let namespace = controller.namespace(args.namespace_id).await?;
            return Ok(Self::One(controller, Either::One(namespace)));
        }
        let (reconnects, bar) = (&args.reconnects, ProgressBar::hidden());
        let wanted = (&args.queues, args.namespace_id);
        let disk = Disk::connect(host, &paths, reconnects, wanted, bar).await?;
        let namespace = Either::Several(disk.namespace().clone());
        Ok(Self::Several(Box::new(disk), namespace))
    }

    fn namespace(&self) -> &Either {
        match self {
            Self::One(_, namespace) | Self::Several(_, namespace) => namespace,
        }
    }

    async fn close(self) {
        match self {
            Self::One(controller, _) => controller.disconnect().await,
            Self::Several(disk, _) => {
                // It returns the result that it gets.
                let _ = disk.close(Ok(())).await;
            }
        }
    }
}

impl Either {
    async fn read(&self, lba: u64, buf: Buf) -> Result<Buf, Failed> {
        match self {
            Self::One(namespace) => namespace.read(lba, buf).await,
            Self::Several(namespace) => namespace.read(lba, buf).await,
        }
    }

    async fn write(&self, lba: u64, buf: Buf) -> Result<Buf, Failed> {
        let options = WriteOptions::default();
        match self {
            Self::One(namespace) => namespace.write(lba, buf, options).await,
            Self::Several(namespace) => namespace.write(lba, buf, options).await,
        }
    }
}

/// A task with one operation in flight.
struct Lane {
    namespace: Either,
    plan: Arc<Plan>,
    pattern: Pattern,
    tally: Arc<Mutex<Tally>>,
    buf: Option<Buf>,
    interrupt: Interrupt,
}

impl Lane {
    /// Runs for the time of the plan, from `begin` on.
    async fn run(mut self, begin: Instant) -> Result<(), Error> {
        let mut now = begin;
        while now.saturating_duration_since(begin) < self.plan.runtime
            && self.interrupt.signal().is_none()
        {
            let Some(buf) = self.buf.take() else { break };
            let (reads, lba) = self.pattern.next(&self.plan);
            let ended = if reads {
                self.namespace.read(lba, buf).await
            } else {
                self.namespace.write(lba, buf).await
            };
            self.buf = Some(ended.map_err(Error::from)?);
            let before = std::mem::replace(&mut now, Instant::now());
            let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
            let side = if reads {
                &mut tally.read
            } else {
                &mut tally.write
            };
            side.record(now.saturating_duration_since(before), self.plan.bytes);
        }
        Ok(())
    }
}
