//! Log lines about a change.

use std::io;
use std::sync::{Arc, Mutex};

use nvmeof_target_core::{DisconnectReason, Disconnected};
use nvmeof_wire::Nqn;

use super::*;

/// Collects the log.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What `act` logs on this thread.
pub(super) fn logged(act: impl FnOnce()) -> String {
    let written = Written::default();
    let writer = written.clone();
    let log = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .without_time()
        .finish();
    tracing::subscriber::with_default(log, act);
    let written = written.0.lock().unwrap();
    String::from_utf8(written.clone()).unwrap()
}

/// The log may be the only record of a host that was disconnected.
#[test]
fn controller_lost_by_a_change_is_logged_with_peer_host_and_subsystem() {
    let lost = Disconnected {
        cntlid: 7,
        hostnqn: Nqn::new(HOST).unwrap(),
        subnqn: Nqn::new(NQN).unwrap(),
        peer: Arc::from("10.0.0.2:4711"),
        reason: DisconnectReason::Asked,
    };
    let outcome = Outcome {
        report: Report {
            disconnected: vec![lost],
            ..Report::default()
        },
        ..Outcome::default()
    };
    let lines = logged(|| outcome.log("reload"));
    let host = format!("host={HOST}");
    let subsystem = format!("subsystem={NQN}");
    for words in [
        "reload: disconnected: controller",
        "peer=10.0.0.2:4711",
        &host,
        &subsystem,
        "cntlid=7",
        "queue=0",
    ] {
        assert!(lines.contains(words), "{words} is not in: {lines}");
    }
}
