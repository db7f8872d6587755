//! The workers that authenticate hosts, beside the reactors.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread::Builder;

use nvmeof_target_engine::WorkerPool;

use crate::cpus::{self, ReactorCpu};

/// Threads. With two, an expensive computation of one host does not delay all others.
const WORKERS: usize = 2;

/// Starts the workers on CPUs that are none of `cpus`, if this process may use others: a reactor
/// that polls would share its CPU with them.
///
/// # Errors
/// If the kernel cannot create a thread.
pub(crate) fn start(reactors: &[ReactorCpu]) -> io::Result<Arc<WorkerPool>> {
    let used = reactors.iter().flat_map(|cpu| [cpu.number, cpu.sqpoll]);
    let used: BTreeSet<usize> = used.flatten().collect();
    std::thread::scope(|scope| {
        // A thread inherits the CPU affinity of its creator, whose own stays as it is.
        let starter = Builder::new().name("authenticator".into());
        let starter = starter.spawn_scoped(scope, || {
            if let Err(error) = cpus::avoid(&used) {
                tracing::debug!("cannot move authentication workers off the reactors: {error}");
            }
            WorkerPool::start(WORKERS)
        })?;
        let panicked = |_| {
            Err(io::Error::other(
                "the thread that starts the workers panicked",
            ))
        };
        starter.join().unwrap_or_else(panicked)
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// The CPUs of the workers, as text.
    fn cpus_of_workers() -> Vec<String> {
        let threads = std::fs::read_dir("/proc/self/task").unwrap();
        let statuses = threads.filter_map(|thread| {
            // Threads of other tests end meanwhile.
            let status = std::fs::read_to_string(thread.ok()?.path().join("status")).ok()?;
            let value = |key| status.lines().find_map(|line| line.strip_prefix(key));
            let list = value("Cpus_allowed_list:\t")?.to_owned();
            value("Name:\t")?
                .starts_with("authenticator-")
                .then_some(list)
        });
        statuses.collect()
    }

    /// The only test that starts workers with these CPUs; other tests start them with others.
    #[test]
    fn workers_run_beside_pinned_reactors() {
        let usable = cpus::usable();
        let [one, others @ ..] = &usable[..] else {
            panic!("no CPU");
        };
        let reactor = ReactorCpu {
            number: Some(*one),
            ..ReactorCpu::default()
        };
        let pool = start(&[reactor]).unwrap();
        let expected = if others.is_empty() { &usable } else { others };
        let expected = cpus::list(&expected.iter().copied().collect());
        let start = Instant::now();
        // A thread has its name when it starts to run.
        while !cpus_of_workers().contains(&expected) {
            let found = cpus_of_workers();
            let elapsed = start.elapsed();
            assert!(
                elapsed < Duration::from_secs(60),
                "{found:?}, not {expected:?}"
            );
            std::thread::yield_now();
        }
        assert_eq!(cpus::usable(), usable, "the caller stays where it is");
        drop(pool);
    }
}
