//! The keeper thread, with a writer that the test controls.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::mpsc::{Receiver, Sender, channel};

use nvmeof_target_core::{
    Limits, Model, NamespaceSpec, PendingSave as Waiting, SavedProtection, SubsystemSpec,
};

use super::*;

const SUBNQN: &str = "nqn.2026-11.org.example:disk";
/// Longer than any step of a test that succeeds.
const LONG: Duration = Duration::from_secs(600);

/// Sends the namespace that it is to write, and waits for the result.
struct Slow {
    started: Sender<u32>,
    ends: Receiver<io::Result<()>>,
    /// Attempts of [`Write::retry`] until it succeeds.
    unwritten: u32,
    retried: Sender<()>,
}

/// With such an error, [`Slow`] panics.
const PANICS: io::ErrorKind = io::ErrorKind::Unsupported;

impl Write for Slow {
    fn write(&mut self, _: &Nqn, nsid: u32, settings: &SavedSettings) -> io::Result<()> {
        assert_eq!(*settings, SavedSettings::default(), "it is removed");
        self.started.send(nsid).unwrap();
        let ended = self.ends.recv();
        let ended = ended.unwrap_or_else(|_| Err(io::Error::other("the test ended")));
        if let Err(error) = &ended {
            assert_ne!(error.kind(), PANICS, "the test demands it");
            self.unwritten = 2;
        }
        ended
    }

    /// The second attempt succeeds.
    fn retry(&mut self) -> Retried {
        match self.unwritten {
            0 => return Retried::All,
            _ => self.unwritten -= 1,
        }
        self.retried.send(()).unwrap();
        match self.unwritten {
            0 => Retried::One,
            _ => Retried::Failed,
        }
    }
}

struct Scene {
    target: Target,
    mailbox: Mailbox,
    started: Receiver<u32>,
    retried: Receiver<()>,
    end: Sender<io::Result<()>>,
    keeper: KeeperHandle,
}

/// Two namespaces, both protected.
fn scene() -> Scene {
    let namespace = |nsid: u8| NamespaceSpec {
        nsid: nsid.into(),
        blocks: 1000,
        store: nsid.into(),
        uuid: Some([nsid; 16]),
        ..NamespaceSpec::default()
    };
    let subsystem = SubsystemSpec {
        nqn: SUBNQN.into(),
        namespaces: vec![namespace(1), namespace(2)],
        ..SubsystemSpec::default()
    };
    let target = Target::new(Model::build(Limits::default(), &[], &[subsystem]).unwrap());
    let protected = [1, 2].map(|nsid: u8| SavedProtection {
        nsid: nsid.into(),
        uuid: [nsid; 16],
    });
    let saved = SavedSettings {
        protected: protected.into(),
        ..SavedSettings::default()
    };
    target.restore(&nqn(), saved);
    let ((starts, started), (end, ends)) = (channel(), channel());
    let (retries, retried) = channel();
    let slow = Slow {
        started: starts,
        ends,
        unwritten: 0,
        retried: retries,
    };
    let mailbox = Mailbox::new().unwrap();
    let keeper = Keeper::of(slow, &target);
    let keeper = keeper.start(Arc::from([mailbox.clone()])).unwrap();
    Scene {
        target,
        mailbox,
        started,
        retried,
        end,
        keeper,
    }
}

fn nqn() -> Nqn {
    Nqn::new(SUBNQN).unwrap()
}

impl Scene {
    fn forget(&self, nsid: u32) -> Waiting {
        self.target.forget_settings(&nqn(), Some(nsid))
    }
}

#[test]
fn request_during_a_save_is_in_the_next_save() {
    let scene = scene();
    let first = scene.forget(1);
    assert_eq!(scene.started.recv(), Ok(1));
    // No thread waits for the writer.
    let later: Vec<_> = (0..500).map(|_| scene.forget(2)).collect();
    assert!(first.outcome().is_none());
    assert!(!scene.mailbox.holds(Mail::POLL));
    scene.end.send(Ok(())).unwrap();
    assert!(first.wait(LONG).unwrap().is_ok());
    assert_eq!(scene.started.recv(), Ok(2));
    assert!(scene.mailbox.holds(Mail::POLL), "reactors go on");
    assert!(later.iter().all(|one| !one.is_complete()));
    scene.end.send(Ok(())).unwrap();
    assert!(later.iter().all(|one| one.wait(LONG).unwrap().is_ok()));
    assert!(scene.target.forget_settings(&nqn(), None).is_none());
    assert!(scene.started.try_recv().is_err(), "one write of all");
}

/// Hosts that change one namespace all the time do not delay another one.
#[test]
fn namespaces_are_saved_in_the_order_of_their_requests() {
    let scene = scene();
    let first = scene.forget(1);
    assert_eq!(scene.started.recv(), Ok(1));
    let (second, third) = (scene.forget(2), scene.forget(1));
    let _ = scene.forget(2);
    scene.end.send(Err(io::Error::other("no room"))).unwrap();
    assert!(first.wait(LONG).unwrap().is_err());
    assert_eq!(scene.started.recv(), Ok(2));
    // The failure of the first one is no failure of others.
    scene.end.send(Ok(())).unwrap();
    assert!(second.wait(LONG).unwrap().is_ok());
    assert_eq!(scene.started.recv(), Ok(1));
    scene.end.send(Ok(())).unwrap();
    assert!(third.wait(LONG).unwrap().is_ok());
}

#[test]
fn removal_of_all_waits_for_the_save_of_each() {
    let scene = scene();
    let all = scene.target.forget_settings(&nqn(), None);
    for (nsid, result) in [(1, Ok(())), (2, Err(io::Error::other("no room")))] {
        assert_eq!(scene.started.recv(), Ok(nsid));
        assert!(all.outcome().is_none() && all.wait(Duration::ZERO).is_none());
        scene.end.send(result).unwrap();
    }
    assert!(all.wait(LONG).unwrap().is_err());
}

#[test]
fn failed_save_is_reported_to_waiting_command() {
    let scene = scene();
    let waits = scene.forget(1);
    scene.end.send(Err(io::Error::other("no room"))).unwrap();
    assert_eq!(
        waits.wait(LONG).unwrap().unwrap_err().to_string(),
        "no room"
    );
    let again = scene.forget(1);
    scene.end.send(Ok(())).unwrap();
    assert!(again.wait(LONG).unwrap().is_ok());
}

/// Nobody changes anything meanwhile.
#[test]
fn record_that_could_not_be_restored_is_retried() {
    let scene = scene();
    let waits = scene.forget(1);
    scene.end.send(Err(io::Error::other("no room"))).unwrap();
    assert!(waits.wait(LONG).unwrap().is_err());
    for _ in 0..2 {
        scene.retried.recv_timeout(LONG).unwrap();
    }
}

#[test]
fn panic_fails_the_commands_that_wait_for_this_save_alone() {
    let scene = scene();
    let (first, second) = (scene.forget(1), scene.forget(2));
    scene.end.send(Err(PANICS.into())).unwrap();
    let error = first.wait(LONG).unwrap().unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");
    scene.end.send(Ok(())).unwrap();
    assert!(second.wait(LONG).unwrap().is_ok());
}

#[test]
fn target_ends_while_its_file_is_unresponsive() {
    let scene = scene();
    let waits = scene.forget(1);
    assert_eq!(scene.started.recv(), Ok(1));
    let Scene { keeper, end, .. } = scene;
    drop(keeper);
    assert!(waits.outcome().is_none());
    // The abandoned thread ends when the file is responsive again.
    end.send(Ok(())).unwrap();
    assert!(waits.wait(LONG).unwrap().is_ok());
}
