//! What a service manager hears, and what it is given to know the daemon by.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use nvmeof_e2e::{Setup, target_command};

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The next message of the daemon's that has `words`; others are skipped.
#[track_caller]
fn hear(manager: &UnixDatagram, words: &str) -> String {
    let mut bytes = [0; 4096];
    for _ in 0..1000 {
        let len = manager.recv(&mut bytes).unwrap();
        let text = String::from_utf8_lossy(bytes.get(..len).unwrap()).into_owned();
        if text.contains(words) {
            return text;
        }
    }
    panic!("never heard {words}");
}

#[test]
fn the_service_manager_hears_of_readiness_life_and_stopping() {
    let setup = Setup::new().file(1 << 20);
    let socket = setup.path("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = target_command();
    command.arg("serve").arg("--config").arg(setup.config());
    command.env("NOTIFY_SOCKET", &socket);
    // The daemon tells that it lives every 50 ms.
    command.env("WATCHDOG_USEC", "100000");
    let target = setup.start_as(&mut command);
    let ready = hear(&manager, "READY=1");
    let port = target.address().port().to_string();
    assert!(
        ready.contains("STATUS=serving 1 namespace") && ready.contains(&port),
        "{ready}"
    );
    for _ in 0..3 {
        hear(&manager, "WATCHDOG=1");
    }
    // Also while hosts do I/O.
    let _ = target.read(1, 0, Some(8));
    hear(&manager, "WATCHDOG=1");
    target.stop();
    let stopping = hear(&manager, "STOPPING=1");
    assert!(stopping.contains("STATUS=stopping"), "{stopping}");
}

#[test]
fn without_a_service_manager_nothing_is_told() {
    let setup = Setup::new().file(1 << 20);
    let mut command = target_command();
    command.arg("serve").arg("--config").arg(setup.config());
    command.env_remove("NOTIFY_SOCKET");
    let target = setup.start_as(&mut command);
    assert_eq!(target.lines(&["service manager"]), Vec::<String>::new());
    target.stop();
}

#[test]
fn a_service_manager_that_is_not_there_is_told_of_in_the_log() {
    let setup = Setup::new().file(1 << 20);
    let mut command = target_command();
    command.arg("serve").arg("--config").arg(setup.config());
    command.env("NOTIFY_SOCKET", setup.path("nobody"));
    let mut target = setup.start_as(&mut command);
    let line = target.wait_for_log("the service manager could not be told");
    assert!(
        line.contains("WARN") && line.contains("NOTIFY_SOCKET"),
        "{line}"
    );
    target.stop();
}
