//! Starting a ring: what the kernel offers, and words for when it refuses.

use std::io;
use std::path::Path;
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode};
use nix::errno::Errno;

use crate::errno::errno_of;
use crate::lent::PLACES;

/// Sizes of a ring, fixed when it is made. Where the limit on locked memory
/// leaves no room for queues this long, they are shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingConfig {
    /// Operations one turn hands to the kernel in one call. More are handed
    /// over in between. The kernel rounds up to a power of two.
    pub entries: u32,
    /// Operations in flight at most. The completion queue is made this long,
    /// so that it cannot overflow.
    pub in_flight: u32,
    /// Files open in the ring at most.
    pub files: u32,
    /// Has a thread of the kernel take operations, so that handing them over is
    /// no system call (`SQPOLL`). `None`: the calls of the ring's owner hand over.
    pub thread: Option<KernelThread>,
    /// Pieces of 2 MiB of memory that other processes lend which are fixed buffers
    /// at once, at most; no more than 512.
    pub lent: u16,
}

/// A thread of the kernel that looks for operations all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelThread {
    /// It sleeps when none came for so long.
    pub idle: Duration,
    /// The CPU that it runs on. `None`: on Linux 6.2 and later one that the ring's
    /// owner may run on, as far as that was said to the kernel (`sched_setaffinity`), on
    /// older kernels any.
    pub processor: Option<u32>,
}

impl Default for RingConfig {
    fn default() -> Self {
        Self {
            entries: 256,
            in_flight: 4096,
            files: 256,
            thread: None,
            lent: PLACES,
        }
    }
}

/// How completions are brought to us: the best the kernel knows is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// When we ask for them, only (`DEFER_TASKRUN`, Linux 6.1).
    Deferred,
    /// With any system call, without interrupting us (`COOP_TASKRUN`, 5.19).
    Cooperative,
    /// At any time, with an interrupt.
    Plain,
    /// As `Plain`; a thread of the kernel takes operations (`SQPOLL`, 5.11 for
    /// whom the kernel does not trust).
    Thread,
}

/// Why a ring could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The system call is not there.
    #[error(
        "this kernel offers no io_uring (ENOSYS): it is older than Linux 5.6, built without \
         CONFIG_IO_URING, or a sandbox hides it; use another kernel or sandbox"
    )]
    Missing,
    /// An administrator switched it off.
    #[error(
        "io_uring is switched off on this machine: the sysctl kernel.io_uring_disabled is \
         {value}; as root run `sysctl -w kernel.io_uring_disabled=0`, and put the line \
         kernel.io_uring_disabled=0 in a file in /etc/sysctl.d to keep it{}",
        if *.value == 1 {
            " (or add the user to the group kernel.io_uring_group names)"
        } else {
            ""
        }
    )]
    Disabled {
        /// 1: only for the group in `kernel.io_uring_group`, 2: for everybody.
        value: u8,
    },
    /// Something else forbids it.
    #[error(
        "this process may not use io_uring ({0}), and no sysctl of this kernel forbids it: a \
         seccomp filter or a security module does; allow io_uring_setup, io_uring_enter and \
         io_uring_register there (docker: --security-opt seccomp=FILE, systemd: \
         SystemCallFilter=@aio)"
    )]
    Forbidden(Errno),
    /// The sysctl may forbid it, or something else.
    #[error(
        "this process may not use io_uring ({0}), and cannot see why: kernel.io_uring_disabled is \
         hidden from it or none of 0, 1, 2; look with `sysctl kernel.io_uring_disabled` outside \
         its sandbox: with 1 or 2 run `sysctl -w kernel.io_uring_disabled=0` as root, and put \
         that line into a file in /etc/sysctl.d; otherwise allow io_uring_setup, io_uring_enter \
         and io_uring_register in its seccomp filter"
    )]
    Unseen(Errno),
    /// It gives no thread to who is not trusted.
    #[error(
        "the kernel gives this process no thread that takes disk operations ({0}); leave \
         storage.sqpoll out, or use Linux 5.11 or later"
    )]
    Thread(Errno),
    /// It gives a thread, but none there.
    #[error(
        "the kernel runs no thread that takes disk operations on CPU {processor} ({errno}): \
         it is offline, or not in the cpuset of this process; name others in storage.sqpoll_cores"
    )]
    ThreadProcessor {
        /// The CPU asked for.
        processor: u32,
        /// What the kernel said.
        errno: Errno,
    },
    /// The kernel counts the queues as locked memory, and there is too little.
    #[error(
        "no memory for an io_uring of {entries} entries (ENOMEM); most kernels count it as \
         locked memory: raise `ulimit -l` (LimitMEMLOCK= in a systemd unit), or free memory"
    )]
    LockedMemory {
        /// Entries asked for.
        entries: u32,
    },
    /// The kernel's io_uring cannot do what we need.
    #[error("this kernel's io_uring has no {name} operation; Linux 5.6 or later has it")]
    MissingOperation {
        /// Name in io_uring(7).
        name: &'static str,
    },
    /// Files could not be registered.
    #[error(
        "no table of {files} registered files ({errno}); raise `ulimit -n` (LimitNOFILE= in a \
         systemd unit)"
    )]
    FileTable {
        /// Places asked for.
        files: u32,
        /// What the kernel said.
        errno: Errno,
    },
    /// There is no descriptor to sleep on.
    #[error(
        "no eventfd for the io_uring ({0}); raise `ulimit -n` (LimitNOFILE= in a systemd unit)"
    )]
    EventFd(Errno),
    /// Another refusal to make the ring.
    #[error(
        "the kernel refused an io_uring of {entries} entries ({errno}); {}",
        setup_remedy(*.errno)
    )]
    Setup {
        /// Entries asked for.
        entries: u32,
        /// What the kernel said.
        errno: Errno,
    },
    /// The kernel would not take operations from the ring.
    #[error(
        "the kernel takes no more disk operations (io_uring_enter: {0}); restart the program, and \
         report it with the output of `dmesg` and `uname -r`"
    )]
    Enter(Errno),
}

/// What to do when no ring can be made.
fn setup_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::EMFILE => "raise `ulimit -n` (LimitNOFILE= in a systemd unit)",
        Errno::ENFILE => "raise `sysctl fs.file-max`",
        Errno::EINVAL => {
            "it is older than Linux 5.6, or a sandbox stands in for it; use another kernel or \
             sandbox"
        }
        _ => "report it with the output of `dmesg` and `uname -r`",
    }
}

/// What a ring needs the kernel to know.
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

/// A ring has at least so many entries, if it is up to us.
const FEWEST: u32 = 32;

/// Makes a ring in the first of `modes` the kernel knows and an empty file
/// table.
/// With `polls` it asks devices for what is done (`IOPOLL`).
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
    let made = best(config, modes, polls);
    let (ring, mode) = made.map_err(|errno| match explain(errno, entries) {
        error @ (RingError::Forbidden(_) | RingError::Unseen(_) | RingError::Setup { .. }) => {
            let blamed = config.thread.and_then(|it| blame(it, errno, config, polls));
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

/// What of the thread it is that the kernel does not give; `None`: it is the ring.
#[cold]
fn blame(asked: KernelThread, errno: Errno, config: RingConfig, polls: bool) -> Option<RingError> {
    let starts = |thread, modes| best(RingConfig { thread, ..config }, modes, polls).is_ok();
    let anywhere = KernelThread {
        processor: None,
        ..asked
    };
    match asked.processor {
        // EINVAL for one that is offline, and on newer kernels for one that is not in the
        // cpuset of the caller.
        // Source: io_sq_offload_create() in io_uring/sqpoll.c of Linux.
        Some(processor) if errno == Errno::EINVAL && starts(Some(anywhere), &[Mode::Thread]) => {
            Some(RingError::ThreadProcessor { processor, errno })
        }
        _ if starts(None, &MODES) => Some(RingError::Thread(errno)),
        _ => None,
    }
}

/// A ring of the size asked for, or of the largest that locked memory allows:
/// before Linux 5.12 and again in late versions of 6 the queues count as such.
fn best(mut config: RingConfig, modes: &[Mode], polls: bool) -> Result<(IoUring, Mode), Errno> {
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
        if let Some(processor) = config.thread.and_then(|thread| thread.processor) {
            builder.setup_sqpoll_cpu(processor);
        }
        match mode {
            // Completions wait until we enter the kernel for them; the flag
            // tells without a system call that some wait.
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
            // The other flags are about tasks that enter the kernel.
            Mode::Thread => builder
                .setup_sqpoll(idle_ms(config.thread))
                .setup_submit_all(),
        };
        match builder.build(config.entries) {
            Ok(ring) => return Ok((ring, mode)),
            Err(error) => last = errno_of(&error),
        }
        // An unknown flag is EINVAL; anything else will not get better.
        if last != Errno::EINVAL {
            break;
        }
    }
    Err(last)
}

/// At least a millisecond: 0 stands for the kernel's default, which is a second.
fn idle_ms(thread: Option<KernelThread>) -> u32 {
    let ms = thread.map_or(0, |thread| thread.idle.as_millis());
    u32::try_from(ms).unwrap_or(u32::MAX).max(1)
}

/// What the sysctl `kernel.io_uring_disabled` says. Linux 6.6 was the first to have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sysctl {
    /// Only the group in `kernel.io_uring_group` (1) or nobody (2) may make a ring.
    Disabled(u8),
    /// It lets everybody, or this kernel has none.
    Allows,
    /// This process does not see it: `ProcSubset=pid` of a systemd unit and some
    /// containers hide `/proc/sys`.
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
        // The sysctl says EPERM, EACCES comes from elsewhere.
        (Errno::EPERM | Errno::EACCES, _) => RingError::Forbidden(errno),
        (Errno::ENOMEM, _) => RingError::LockedMemory { entries },
        (errno, _) => RingError::Setup { entries, errno },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_what_to_change() {
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
                RingError::ThreadProcessor {
                    processor: 3,
                    errno,
                },
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
                let objects = ["io_uring", "registered files", "disk operations"];
                assert!(
                    objects.iter().any(|object| cause.contains(object)),
                    "{message}"
                );
                assert!(!remedy.is_empty(), "{message}");
            }
        }
    }

    #[test]
    fn what_cannot_be_seen_is_not_said_to_allow() {
        let message = explain_with(Errno::EPERM, 8, Sysctl::Hidden).to_string();
        assert!(!message.contains("no sysctl of this kernel"), "{message}");
        // Both must be named, since both are possible.
        assert!(message.contains("seccomp"), "{message}");
    }

    #[test]
    fn senseless_sizes_are_errors() {
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
