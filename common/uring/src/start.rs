//! Setting up a ring: features of the kernel, and errors when it refuses.

use std::io;
use std::path::Path;
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode};
use nix::errno::Errno;

use crate::errno::errno_of;
use crate::lent::MAX_PIECES;

/// Sizes of a ring, fixed when it is made. Where the limit on locked memory does not allow
/// queues of this length, they are shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingConfig {
    /// Operations passed to the kernel in one system call. A longer batch takes several.
    /// The kernel rounds up to a power of two.
    pub entries: u32,
    /// Maximum number of operations in flight. The completion queue has this length, so
    /// that it cannot overflow.
    pub in_flight: u32,
    /// Maximum number of registered files.
    pub files: u32,
    /// A kernel thread that polls the submission queue, so that submitting takes no system
    /// call (`SQPOLL`). `None`: the owner of the ring submits with system calls.
    pub thread: Option<KernelThread>,
    /// Maximum number of pieces of lent memory, 2 MiB each, that are registered as fixed
    /// buffers at a time; at most 512.
    pub lent: u16,
}

/// The kernel thread that polls the submission queue (`SQPOLL`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelThread {
    /// It sleeps after this time without an operation.
    pub idle: Duration,
    /// The CPU that it runs on. `None`: one within the affinity of the ring's owner
    /// (`sched_setaffinity`) on Linux 6.2 and later, any CPU on older kernels.
    pub cpu: Option<u32>,
}

impl Default for RingConfig {
    fn default() -> Self {
        Self {
            entries: 256,
            in_flight: 4096,
            files: 256,
            thread: None,
            lent: MAX_PIECES,
        }
    }
}

/// How completions are delivered. The best mode that the kernel supports is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Only when the owner asks for them (`DEFER_TASKRUN`, Linux 6.1).
    Deferred,
    /// With any system call, without interrupting the owner (`COOP_TASKRUN`, 5.19).
    Cooperative,
    /// At any time, with an interrupt.
    Plain,
    /// As `Plain`; a kernel thread polls for operations (`SQPOLL`; 5.11 for processes
    /// without privileges).
    Thread,
}

/// Why a ring could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The system call does not exist.
    #[error(
        "io_uring is not available (ENOSYS): the kernel is older than Linux 5.6, built without \
         CONFIG_IO_URING, or a sandbox hides it; use another kernel or sandbox"
    )]
    Missing,
    /// An administrator disabled it.
    #[error(
        "io_uring is disabled on this machine: the sysctl kernel.io_uring_disabled is {value}; \
         run `sysctl -w kernel.io_uring_disabled=0` as root, and put the line \
         kernel.io_uring_disabled=0 into a file in /etc/sysctl.d to keep it{}",
        if *.value == 1 {
            " (or add the user to the group that kernel.io_uring_group names)"
        } else {
            ""
        }
    )]
    Disabled {
        /// 1: only the group in `kernel.io_uring_group` may use it, 2: no process may.
        value: u8,
    },
    /// A seccomp filter or a security module denies it.
    #[error(
        "io_uring is denied to this process ({0}), and no sysctl of this kernel forbids it: a \
         seccomp filter or a security module does; allow io_uring_setup, io_uring_enter and \
         io_uring_register there (docker: --security-opt seccomp=FILE, systemd: \
         SystemCallFilter=@aio)"
    )]
    Forbidden(Errno),
    /// It is denied, and the sysctl cannot be read.
    #[error(
        "io_uring is denied to this process ({0}) for an unknown reason: \
         kernel.io_uring_disabled is hidden from it or none of 0, 1, 2; check `sysctl \
         kernel.io_uring_disabled` outside its sandbox: with 1 or 2 run `sysctl -w \
         kernel.io_uring_disabled=0` as root, and put kernel.io_uring_disabled=0 into a file in \
         /etc/sysctl.d; otherwise allow io_uring_setup, io_uring_enter and io_uring_register in \
         its seccomp filter"
    )]
    Unseen(Errno),
    /// The kernel requires privileges for the submission thread.
    #[error(
        "the kernel denies this process an io_uring submission thread (SQPOLL, {0}); remove \
         storage.sqpoll, or use Linux 5.11 or later"
    )]
    Thread(Errno),
    /// The submission thread cannot run on that CPU.
    #[error(
        "the io_uring submission thread (SQPOLL) cannot run on CPU {cpu} ({errno}): the CPU \
         is offline, or not in the cpuset of this process; set others in storage.sqpoll_cores"
    )]
    ThreadCpu {
        /// The requested CPU.
        cpu: u32,
        /// The error number of the kernel.
        errno: Errno,
    },
    /// The kernel charges the queues as locked memory, beyond the limit.
    #[error(
        "not enough memory for an io_uring of {entries} entries (ENOMEM); most kernels charge it \
         as locked memory: raise `ulimit -l` (LimitMEMLOCK= in a systemd unit), or free memory"
    )]
    LockedMemory {
        /// Entries requested.
        entries: u32,
    },
    /// An operation that the ring requires is missing.
    #[error("io_uring of this kernel has no {name} operation; use Linux 5.6 or later")]
    MissingOperation {
        /// Name in io_uring(7).
        name: &'static str,
    },
    /// Files could not be registered.
    #[error(
        "cannot allocate a table of {files} registered files ({errno}); raise `ulimit -n` \
         (LimitNOFILE= in a systemd unit)"
    )]
    FileTable {
        /// Slots requested.
        files: u32,
        /// The error number of the kernel.
        errno: Errno,
    },
    /// The eventfd to sleep on could not be made.
    #[error(
        "cannot create an eventfd for io_uring ({0}); raise `ulimit -n` (LimitNOFILE= in a \
         systemd unit)"
    )]
    EventFd(Errno),
    /// Another error of `io_uring_setup`.
    #[error(
        "cannot create an io_uring of {entries} entries ({errno}); {}",
        setup_remedy(*.errno)
    )]
    Setup {
        /// Entries requested.
        entries: u32,
        /// The error number of the kernel.
        errno: Errno,
    },
    /// The kernel accepts no operations from the ring.
    #[error(
        "io_uring accepts no more operations (io_uring_enter: {0}); restart the program, and \
         report it with the output of `dmesg` and `uname -r`"
    )]
    Enter(Errno),
}

/// The remedy when no ring can be made.
fn setup_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::EMFILE => "raise `ulimit -n` (LimitNOFILE= in a systemd unit)",
        Errno::ENFILE => "raise `sysctl fs.file-max`",
        Errno::EINVAL => {
            "the kernel is older than Linux 5.6, or a sandbox emulates it; use another kernel or \
             sandbox"
        }
        _ => "report it with the output of `dmesg` and `uname -r`",
    }
}

/// Operations that a ring requires of the kernel.
const NEEDED: [(&str, u8); 7] = [
    ("READ", opcode::Read::CODE),
    ("WRITE", opcode::Write::CODE),
    ("READ_FIXED", opcode::ReadFixed::CODE),
    ("WRITE_FIXED", opcode::WriteFixed::CODE),
    ("FSYNC", opcode::Fsync::CODE),
    ("FALLOCATE", opcode::Fallocate::CODE),
    ("ASYNC_CANCEL", opcode::AsyncCancel::CODE),
];

/// All modes, best first.
pub(crate) const MODES: [Mode; 3] = [Mode::Deferred, Mode::Cooperative, Mode::Plain];

/// Minimum number of entries when the ring is shortened.
const FEWEST: u32 = 32;

/// Makes a ring in the first of `modes` that the kernel supports, and an empty file table.
/// With `polls` it polls devices for completions (`IOPOLL`).
pub(crate) fn start(
    config: RingConfig,
    modes: &[Mode],
    polls: bool,
) -> Result<(IoUring, Mode), RingError> {
    let entries = config.entries;
    let modes = match config.thread {
        Some(_) => &[Mode::Thread][..],
        None => modes,
    };
    let made = largest_ring(config, modes, polls);
    let (ring, mode) = made.map_err(|errno| match explain(errno, entries) {
        error @ (RingError::Forbidden(_) | RingError::Unseen(_) | RingError::Setup { .. }) => {
            let blamed = config
                .thread
                .and_then(|it| kernel_thread_error(it, errno, config, polls));
            blamed.unwrap_or(error)
        }
        other => other,
    })?;
    let mut probe = Probe::new();
    if let Err(error) = ring.submitter().register_probe(&mut probe) {
        let errno = errno_of(&error);
        return Err(RingError::Setup { entries, errno });
    }
    for (name, code) in NEEDED {
        if !probe.is_supported(code) {
            return Err(RingError::MissingOperation { name });
        }
    }
    let files = config.files;
    let empty = vec![-1; files as usize];
    ring.submitter().register_files(&empty).map_err(|error| {
        let errno = errno_of(&error);
        RingError::FileTable { files, errno }
    })?;
    Ok((ring, mode))
}

/// The error if the kernel refused the submission thread; `None` if it refused the ring.
#[cold]
fn kernel_thread_error(
    asked: KernelThread,
    errno: Errno,
    config: RingConfig,
    polls: bool,
) -> Option<RingError> {
    let starts =
        |thread, modes| largest_ring(RingConfig { thread, ..config }, modes, polls).is_ok();
    let anywhere = KernelThread { cpu: None, ..asked };
    match asked.cpu {
        // EINVAL for one that is offline, and on newer kernels for one that is not in the
        // cpuset of the caller.
        // Source: io_sq_offload_create() in io_uring/sqpoll.c of Linux.
        Some(cpu) if errno == Errno::EINVAL && starts(Some(anywhere), &[Mode::Thread]) => {
            Some(RingError::ThreadCpu { cpu, errno })
        }
        _ if starts(None, &MODES) => Some(RingError::Thread(errno)),
        _ => None,
    }
}

/// A ring of the requested size, or of the largest that the limit on locked memory allows:
/// before Linux 5.12 and again in late versions of 6 the queues are charged to it.
fn largest_ring(
    mut config: RingConfig,
    modes: &[Mode],
    polls: bool,
) -> Result<(IoUring, Mode), Errno> {
    loop {
        match of_size(config, modes, polls) {
            Err(Errno::ENOMEM) if config.entries > FEWEST => {
                if config.in_flight / 2 <= config.entries {
                    config.entries /= 2;
                }
                config.in_flight = config.in_flight.min(config.entries.saturating_mul(2));
            }
            done => return done,
        }
    }
}

fn of_size(config: RingConfig, modes: &[Mode], polls: bool) -> Result<(IoUring, Mode), Errno> {
    let mut last = Errno::EINVAL;
    for &mode in modes {
        let mut builder = IoUring::builder();
        builder
            .dontfork()
            .setup_clamp()
            .setup_cqsize(config.in_flight.max(config.entries));
        if polls {
            builder.setup_iopoll();
        }
        if let Some(cpu) = config.thread.and_then(|thread| thread.cpu) {
            builder.setup_sqpoll_cpu(cpu);
        }
        match mode {
            // Completions are pending until this thread enters the kernel for them; the
            // flag shows without a system call that some are.
            Mode::Deferred => builder
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_taskrun_flag()
                .setup_submit_all(),
            Mode::Cooperative => builder
                .setup_coop_taskrun()
                .setup_taskrun_flag()
                .setup_submit_all(),
            Mode::Plain => &mut builder,
            // The other flags concern tasks that enter the kernel.
            Mode::Thread => builder
                .setup_sqpoll(idle_ms(config.thread))
                .setup_submit_all(),
        };
        match builder.build(config.entries) {
            Ok(ring) => return Ok((ring, mode)),
            Err(error) => last = errno_of(&error),
        }
        // An unknown flag is EINVAL; other errors are the same in each mode.
        if last != Errno::EINVAL {
            break;
        }
    }
    Err(last)
}

/// At least a millisecond: 0 means the kernel's default, which is a second.
fn idle_ms(thread: Option<KernelThread>) -> u32 {
    let ms = thread.map_or(0, |thread| thread.idle.as_millis());
    u32::try_from(ms).unwrap_or(u32::MAX).max(1)
}

/// The value of the sysctl `kernel.io_uring_disabled`, which exists since Linux 6.6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sysctl {
    /// Only the group in `kernel.io_uring_group` (1) or no process (2) may make a ring.
    Disabled(u8),
    /// It allows all processes, or this kernel does not have it.
    Allows,
    /// This process cannot read it: `ProcSubset=pid` of a systemd unit and some containers
    /// hide `/proc/sys`.
    Hidden,
}

impl Sysctl {
    fn read() -> Self {
        let kernel = Path::new("/proc/sys/kernel");
        match std::fs::read_to_string(kernel.join("io_uring_disabled")) {
            Ok(text) => Self::parse(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound && kernel.is_dir() => {
                Self::Allows
            }
            Err(_) => Self::Hidden,
        }
    }

    fn parse(text: &str) -> Self {
        match text.trim() {
            "0" => Self::Allows,
            "1" => Self::Disabled(1),
            "2" => Self::Disabled(2),
            _ => Self::Hidden,
        }
    }
}

fn explain(errno: Errno, entries: u32) -> RingError {
    explain_with(errno, entries, Sysctl::read())
}

fn explain_with(errno: Errno, entries: u32, sysctl: Sysctl) -> RingError {
    match (errno, sysctl) {
        (Errno::ENOSYS, _) => RingError::Missing,
        (Errno::EPERM, Sysctl::Disabled(value)) => RingError::Disabled { value },
        (Errno::EPERM, Sysctl::Hidden) => RingError::Unseen(errno),
        // The sysctl results in EPERM; EACCES has another cause.
        (Errno::EPERM | Errno::EACCES, _) => RingError::Forbidden(errno),
        (Errno::ENOMEM, _) => RingError::LockedMemory { entries },
        (errno, _) => RingError::Setup { entries, errno },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setup_error_names_remedy() {
        let (allows, hidden) = (Sysctl::Allows, Sysctl::Hidden);
        for (errno, sysctl, words) in [
            (
                Errno::EPERM,
                Sysctl::parse("2\n"),
                "kernel.io_uring_disabled=0",
            ),
            (Errno::EPERM, Sysctl::parse("1\n"), "kernel.io_uring_group"),
            (Errno::EPERM, Sysctl::parse("0\n"), "seccomp"),
            (Errno::EPERM, allows, "no sysctl of this kernel forbids it"),
            (Errno::EACCES, Sysctl::parse("2\n"), "security module"),
            (Errno::EPERM, hidden, "is hidden from it"),
            (Errno::EPERM, hidden, "sysctl kernel.io_uring_disabled"),
            (Errno::EPERM, Sysctl::parse("3"), "none of 0, 1, 2"),
            (Errno::ENOMEM, allows, "ulimit -l"),
            (Errno::ENOSYS, hidden, "CONFIG_IO_URING"),
            (Errno::EMFILE, hidden, "EMFILE"),
            (Errno::EMFILE, hidden, "ulimit -n"),
            (Errno::ENFILE, hidden, "fs.file-max"),
            (Errno::EINVAL, hidden, "Linux 5.6"),
            (Errno::EFAULT, hidden, "dmesg"),
        ] {
            let message = explain_with(errno, 8, sysctl).to_string();
            assert!(message.contains(words), "{errno}: {message}");
        }
    }

    #[test]
    fn every_ring_error_names_object_and_remedy() {
        for number in 1..134 {
            let errno = Errno::from_raw(number);
            for error in [
                RingError::Forbidden(errno),
                RingError::Unseen(errno),
                RingError::Thread(errno),
                RingError::ThreadCpu { cpu: 3, errno },
                RingError::FileTable { files: 64, errno },
                RingError::EventFd(errno),
                RingError::Setup { entries: 8, errno },
                RingError::Enter(errno),
            ] {
                let message = error.to_string();
                assert!(!message.contains("os error"), "{message}");
                let Some((cause, remedy)) = message.rsplit_once("; ") else {
                    panic!("no remedy: {message}");
                };
                let objects = ["io_uring", "registered files"];
                assert!(
                    objects.iter().any(|object| cause.contains(object)),
                    "{message}"
                );
                assert!(!remedy.is_empty(), "{message}");
            }
        }
    }

    #[test]
    fn hidden_sysctl_is_not_reported_as_allowing() {
        let message = explain_with(Errno::EPERM, 8, Sysctl::Hidden).to_string();
        assert!(!message.contains("no sysctl of this kernel"), "{message}");
        // Both causes are possible.
        assert!(message.contains("seccomp"), "{message}");
    }

    #[test]
    fn ring_without_entries_is_refused() {
        let config = RingConfig {
            entries: 0,
            ..RingConfig::default()
        };
        assert!(matches!(
            start(config, &MODES, false),
            Err(RingError::Setup {
                errno: Errno::EINVAL,
                ..
            })
        ));
    }
}
