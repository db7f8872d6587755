//! A peer's process is killed during traffic, also while one side accesses the other's
//! memory. The survivor gets all its buffers back, once, and keeps nothing of the connection
//! except memory that is still in use.
//!
//! The peer is this program, started again with the name of one test.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

mod player;

use std::path::Path;
use std::process::{Child, Command, Stdio};

use nvmeof_rdma::{Address, CloseReason, Provider};
use player::Player;
use tempfile::TempDir;

const FOLDER: &str = "NVMEOF_SHM_TEST_FOLDER";
const ROLE: &str = "NVMEOF_SHM_TEST_ROLE";

fn meeting_point() -> Address {
    "127.0.0.1:4420".parse().unwrap()
}

/// The peer process. Dropping it kills it as well.
struct Peer(Child);

impl Peer {
    fn start(role: &str, folder: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "the_peer", "--ignored"]);
        command.env(FOLDER, folder).env(ROLE, role);
        let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(quiet.spawn().unwrap())
    }

    /// SIGKILL: it cannot send anything.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "the other process of the tests below, not a test"]
fn the_peer() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let mut player = Player::new(Path::new(&folder));
    match std::env::var(ROLE).unwrap().as_str() {
        "caller" => player.call(meeting_point()),
        "server" => {
            player.provider.listen(meeting_point()).unwrap();
        }
        "sleeping server" => {
            player.provider.listen(meeting_point()).unwrap();
            std::thread::sleep(player::TIMEOUT);
        }
        role => panic!("{role}"),
    }
    // Until it is killed; the end of the survivor ends it too.
    while player.closed.is_none() {
        player.poll_once();
    }
}

/// Descriptors and mappings of connections in this process.
fn held() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|line| line.contains("nvmeof-shared"));
    (
        std::fs::read_dir("/proc/self/fd").unwrap().count(),
        shared.count(),
    )
}

fn survive(peer_role: &str) {
    let folder = TempDir::new().unwrap();
    let mut lent = 0;
    // Number of events before the kill.
    for events in [0, 1, 3, 20, 100, 500, 2000] {
        let mut player = Player::new(folder.path());
        let serves = peer_role == "caller";
        if serves {
            player.provider.listen(meeting_point()).unwrap();
        }
        let before = held();
        let mut peer = Peer::start(peer_role, folder.path());
        if !serves {
            player.call_until_established(meeting_point());
        }
        // The connecting side lends memory. The longer runs wait for it.
        let lends = peer_role == "caller" && events >= 100;
        while player.qp.is_none() || player.seen < events || lends && player.lent.is_empty() {
            player.poll_once();
        }
        peer.kill();
        while player.closed.is_none() {
            player.poll_once();
        }
        let reason = player.closed.take().unwrap();
        assert!(
            matches!(reason, CloseReason::Network { .. }),
            "after {events} events: {reason}"
        );
        // Memory of a dead owner stays mapped as long as it is in use.
        lent += player.lent.len();
        player.work_in_place();
        assert_eq!(held().1 > before.1, !player.lent.is_empty());
        player.lent.clear();
        player.assert_all_back();
        assert_eq!(held(), before, "after {events} events");
    }
    assert_eq!(lent > 0, peer_role == "caller");
}

// One test, so that nothing else opens descriptors meanwhile.
#[test]
fn survivor_gets_everything_back() {
    survive("caller");
    survive("server");
    connection_to_silent_server_ends();
}

/// The server dies before it reads from the connection.
fn connection_to_silent_server_ends() {
    let folder = TempDir::new().unwrap();
    let mut player = Player::new(folder.path());
    let before = held();
    let mut peer = Peer::start("sleeping server", folder.path());
    loop {
        player.call(meeting_point());
        // It is detected immediately that no process listens.
        player.look();
        if player.closed.take().is_none() {
            break;
        }
        player.forget_failure();
    }
    peer.kill();
    while player.closed.is_none() {
        player.poll_once();
    }
    player.assert_all_back();
    assert_eq!(held(), before);
}
