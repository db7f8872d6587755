//! Probe whether a process on this host serves an address.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::ShmConfig;
use crate::link::Link;
use crate::listening;
use crate::message::{Message, ROOM};

/// Why no process serves an address over shared memory.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// No process listens on the address.
    #[error("{0}")]
    Absent(io::Error),
    /// One of the two processes does not permit the user of the other.
    #[error("{0}")]
    Refused(String),
    /// The listener does not respond.
    #[error("the process that listens on {addr} did not respond within {waited:?}")]
    Silent {
        /// The address.
        addr: SocketAddr,
        /// Time waited.
        waited: Duration,
    },
}

/// Asks whether a process on this host serves `addr` and permits this user. Waits at most
/// `timeout` for the response.
///
/// # Errors
/// [`ProbeError`] if not.
pub fn probe(addr: SocketAddr, config: &ShmConfig, timeout: Duration) -> Result<(), ProbeError> {
    let refused = |why: &str| ProbeError::Refused(why.to_owned());
    let (link, _) = listening::connect(addr, config).map_err(|why| match why.kind() {
        io::ErrorKind::PermissionDenied => refused(&why.to_string()),
        _ => ProbeError::Absent(why),
    })?;
    // A listener that is gone is detected below.
    let _ = link.send(&Message::Probe.to_bytes(), None);
    if !wait(&link, timeout).map_err(ProbeError::Absent)? {
        let waited = timeout;
        return Err(ProbeError::Silent { addr, waited });
    }
    let mut room = [0; ROOM];
    let response = link.receive(&mut room).map_err(ProbeError::Absent)?;
    match response.map(Message::parse) {
        Some(Ok(Message::Probe)) => Ok(()),
        Some(Ok(Message::Fault(fault))) => Err(ProbeError::Refused(fault.text)),
        Some(_) => Err(refused(
            "the process that listens there uses another protocol",
        )),
        None => Err(refused(
            "the process that listens there closed the connection; see its log",
        )),
    }
}

/// Waits until a message can be received. False on time-out.
fn wait(link: &Link, timeout: Duration) -> io::Result<bool> {
    let until = Instant::now() + timeout;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(link.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, left) {
            Err(Errno::EINTR) => {}
            other => return Ok(other? > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    use nvmeof_rdma::Provider;

    use super::*;
    use crate::Shm;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn config(folder: &Path) -> ShmConfig {
        ShmConfig {
            folder: folder.to_owned(),
            ..ShmConfig::default()
        }
    }

    /// Probes a listener on `listens` with `config`.
    fn probed(
        listens: &str,
        config: ShmConfig,
        addr: &str,
        asks: &ShmConfig,
    ) -> Result<(), ProbeError> {
        let mut provider = Shm::new(config).unwrap();
        provider.listen(listens.parse().unwrap()).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut events = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    provider.poll(Duration::ZERO, &mut events);
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert!(events.is_empty(), "a probe causes no event: {events:?}");
                assert_eq!(provider.next_deadline(), None, "nothing is left of it");
            });
            let found = probe(addr.parse().unwrap(), asks, TIMEOUT);
            done.store(true, Ordering::Relaxed);
            found
        })
    }

    #[test]
    fn probe_of_listener_that_permits_user_succeeds() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        for (listens, at) in [
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("[::]:1", "[::1]:1"),
        ] {
            probed(listens, config.clone(), at, &config).unwrap();
        }
        // As for TCP with IPV6_V6ONLY.
        let other = probed("[::]:1", config.clone(), "127.0.0.1:1", &config).unwrap_err();
        assert!(matches!(other, ProbeError::Absent(_)), "{other}");
        let absent = probed("127.0.0.1:1", config.clone(), "127.0.0.1:2", &config).unwrap_err();
        assert!(matches!(absent, ProbeError::Absent(_)), "{absent}");
        assert!(absent.to_string().contains("127.0.0.1:2"), "{absent}");
    }

    #[test]
    fn probe_of_listener_that_denies_user_gets_reason() {
        let folder = tempfile::tempdir().unwrap();
        let ours = config(folder.path());
        let mut theirs = ours.clone();
        theirs.users = vec![54_321];
        let refused = probed("127.0.0.1:1", theirs, "127.0.0.1:1", &ours).unwrap_err();
        let user = format!("user {}", nix::unistd::geteuid());
        assert!(refused.to_string().contains(&user), "{refused}");
        assert!(matches!(refused, ProbeError::Refused(_)), "{refused}");
    }

    #[test]
    fn probe_of_silent_listener_times_out() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let mut provider = Shm::new(config.clone()).unwrap();
        let addr: SocketAddr = "127.0.0.1:1".parse().unwrap();
        provider.listen(addr.into()).unwrap();
        let silent = probe(addr, &config, Duration::from_millis(20)).unwrap_err();
        assert!(matches!(silent, ProbeError::Silent { .. }), "{silent}");
    }
}
