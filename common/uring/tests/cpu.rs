//! The CPU of the submission thread of the kernel (SQPOLL).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::fs;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, gettid};
use nvmeof_uring::{KernelThread, Mode, Ring, RingConfig, RingError};

/// The calling thread, for the kernel.
const SELF: Pid = Pid::from_raw(0);

fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(SELF).unwrap();
    let all = 0..CpuSet::count();
    all.filter(|one| set.is_set(*one).unwrap()).collect()
}

fn ring_on(cpu: usize) -> Result<Ring, RingError> {
    let thread = KernelThread {
        idle: Duration::from_millis(1),
        cpu: Some(cpu.try_into().unwrap()),
    };
    Ring::new(RingConfig {
        thread: Some(thread),
        ..RingConfig::default()
    })
}

/// `Cpus_allowed_list` of the kernel's thread for a ring that the calling thread made.
/// Its name, which it sets before its CPUs, contains the id of the thread that made it.
/// Source: io_sq_thread() in io_uring/sqpoll.c of Linux.
fn cpus_of_sqpoll_thread() -> Option<String> {
    let name = format!("iou-sqp-{}", gettid());
    let mut threads = fs::read_dir("/proc/self/task").unwrap();
    let sqpoll = threads.find_map(|thread| {
        let path = thread.unwrap().path();
        // Other threads may end meanwhile.
        let comm = fs::read_to_string(path.join("comm")).unwrap_or_default();
        (comm.trim_end() == name).then_some(path)
    })?;
    let status = fs::read_to_string(sqpoll.join("status")).ok()?;
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(list.trim().to_owned())
}

/// Also on a CPU outside of the affinity of the ring's owner, which newer kernels use by
/// default.
#[test]
fn sqpoll_thread_runs_on_the_requested_cpu() {
    for (own, requested) in allowed().into_iter().zip(allowed().into_iter().rev()) {
        let mut set = CpuSet::new();
        set.set(own).unwrap();
        sched_setaffinity(SELF, &set).unwrap();
        let ring = ring_on(requested).unwrap();
        assert_eq!(ring.mode(), Mode::Thread);
        let requested = Some(requested.to_string());
        let start = Instant::now();
        while cpus_of_sqpoll_thread() != requested {
            let found = cpus_of_sqpoll_thread();
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{found:?}, not {requested:?}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn missing_cpu_is_reported_as_such() {
    let error = ring_on(1_000_000).map(drop).unwrap_err();
    let RingError::ThreadCpu { cpu, errno } = error else {
        panic!("{error}");
    };
    assert_eq!((cpu, errno), (1_000_000, Errno::EINVAL));
    let words = error.to_string();
    assert!(words.contains("CPU 1000000 (EINVAL"), "{words}");
    assert!(words.contains("storage.sqpoll_cores"), "{words}");
}
