//! State that outlives the served namespace, and the target.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::*;
use crate::testing::{KeptBook, SUBNQN, without_keeper};
use crate::{Limits, PendingSave, SavedSettings, SubsystemSpec};

/// A target, and the saved protections of its subsystem.
struct Scene {
    target: Target,
    reactor_metrics: Arc<KeptBook>,
}

fn scene() -> Scene {
    let (target, reactor_metrics) = (target(), Arc::<KeptBook>::default());
    target.set_settings_keeper(Arc::clone(&reactor_metrics) as Arc<dyn SettingsKeeper>);
    Scene {
        target,
        reactor_metrics,
    }
}

fn nqn() -> Nqn {
    Nqn::new(SUBNQN).unwrap()
}

impl Scene {
    fn admin(&self) -> Host {
        let (mut admin, _) = Host::admin(&self.target);
        admin.reactor_metrics = Arc::clone(&self.reactor_metrics);
        admin
    }

    fn ready(&self) -> (Host, Host) {
        let (mut admin, queue) = Host::ready(&self.target);
        admin.reactor_metrics = Arc::clone(&self.reactor_metrics);
        (admin, queue)
    }

    fn full(&self, full: bool) {
        self.reactor_metrics.full.store(full, Ordering::Relaxed);
    }

    /// The last saved state.
    fn kept(&self) -> Vec<SavedProtection> {
        let kept = self.reactor_metrics.kept.lock().unwrap();
        kept.1.get(&nqn()).cloned().unwrap_or_default()
    }

    /// Number of saves, and the namespaces of the last one.
    fn numbers(&self) -> (usize, Vec<u32>) {
        let times = self.reactor_metrics.kept.lock().unwrap().0;
        (times, self.kept().iter().map(|one| one.nsid).collect())
    }

    /// An administrator removes namespaces. Returns whether that was saved, if there was
    /// anything to save.
    fn forget(&self, nsid: Option<u32>) -> Option<bool> {
        let keeping = self.target.forget_settings(&nqn(), nsid);
        self.reactor_metrics.write(&self.target);
        (!keeping.is_none()).then(|| keeping.outcome().unwrap().is_ok())
    }
}

fn protected(protected: Vec<SavedProtection>) -> SavedSettings {
    SavedSettings {
        protected,
        ..SavedSettings::default()
    }
}

/// Base 2.1, 8.1.16.1, figure 621: of the states that there are, Write Protect is
/// persistent across power cycles.
#[test]
fn permanent_protection_is_saved_before_completion() {
    let scene = scene();
    let mut admin = scene.admin();
    let numbers = || scene.numbers();
    let (request, _) = begin_set(&mut admin, 1, WriteProtection::PROTECTED);
    assert_eq!(numbers(), (0, vec![]), "it may still fail");
    assert!(end(&mut admin, request, Executed::Ok).is_success());
    assert_eq!(numbers(), (1, vec![1]));
    let kept = scene.kept()[0];
    // Restart.
    let again = target();
    let other = SavedProtection { nsid: 2, ..kept };
    again.restore(&nqn(), protected(vec![kept, other]));
    let (mut after, mut queue) = Host::ready(&again);
    assert_eq!(state(&mut after, 1), WriteProtection::PROTECTED);
    assert_eq!(write(&mut queue), Status::NAMESPACE_WRITE_PROTECTED);
    set(&mut after, 1, WriteProtection::NONE);
    assert_eq!(write(&mut queue), Status::SUCCESS);
    // The states that are not persistent.
    set(&mut admin, 1, WriteProtection::UNTIL_POWER_CYCLE);
    assert_eq!(numbers(), (2, vec![]));
    // A failed save is not granted.
    scene.full(true);
    let mut spec = subsystem();
    spec.namespaces[0].uuid = Some([9; 16]);
    let _ = apply(&scene.target, &[spec, closed()]);
    let completion = set(&mut admin, 1, WriteProtection::PROTECTED);
    assert_eq!(
        completion.cqe.status().without_more(),
        Status::INTERNAL_ERROR
    );
    scene.full(false);
    let completion = set(&mut admin, 1, WriteProtection::PROTECTED);
    assert_eq!(completion.status(), Status::SUCCESS);
    assert_eq!(numbers(), (3, vec![1]));
}

/// A configuration without it, or a missing file, does not permit hosts to write
/// again.
#[test]
fn protection_returns_with_the_namespace() {
    let scene = scene();
    let target = &scene.target;
    let again = |without: &[SubsystemSpec]| {
        let _ = apply(target, without);
        let _ = apply(target, &[subsystem(), closed()]);
        let (mut admin, mut queue) = scene.ready();
        (state(&mut admin, 1), write(&mut queue))
    };
    let protected = (
        WriteProtection::PROTECTED,
        Status::NAMESPACE_WRITE_PROTECTED,
    );
    let mut admin = scene.admin();
    set(&mut admin, 1, WriteProtection::PROTECTED);
    let mut spec = subsystem();
    spec.namespaces.remove(0);
    assert_eq!(again(&[spec.clone(), closed()]), protected);
    assert_eq!(again(&[closed()]), protected);
    // Requests for other namespaces meanwhile do not affect it.
    let _ = apply(target, &[closed()]);
    let mut other = spec.clone();
    other.namespaces[0].readonly = false;
    let _ = apply(target, &[other.clone(), closed()]);
    let mut admin = scene.admin();
    let nsid = other.namespaces[0].nsid;
    set(&mut admin, nsid, WriteProtection::PROTECTED);
    assert_eq!(scene.numbers().1, [1, nsid]);
    set(&mut admin, nsid, WriteProtection::NONE);
    assert_eq!(scene.numbers().1, [1]);
    // Another namespace with the same NSID is not protected.
    let mut another = subsystem();
    another.namespaces[0].uuid = Some([9; 16]);
    let _ = apply(target, &[another, closed()]);
    assert_eq!(state(&mut admin, 1), WriteProtection::NONE);
    assert_eq!(again(&[closed()]), protected);
    // Unless an administrator removes it.
    for (without, nsid) in [([spec, closed()].to_vec(), Some(1)), (vec![closed()], None)] {
        let _ = apply(target, &without);
        assert_eq!(scene.forget(Some(2)), None);
        assert_eq!(scene.numbers().1, [1]);
        scene.full(true);
        assert_eq!(scene.forget(nsid), Some(false));
        assert_eq!(again(&without), protected, "it is kept still");
        let _ = apply(target, &without);
        scene.full(false);
        assert_eq!(scene.forget(nsid), Some(true));
        assert_eq!(scene.numbers().1, []);
        assert_eq!(again(&without), (WriteProtection::NONE, Status::SUCCESS));
        let mut admin = scene.admin();
        set(&mut admin, 1, WriteProtection::PROTECTED);
    }
}

/// Deferred at start because its file is missing: it is protected when it is added.
#[test]
fn saved_protection_waits_for_its_namespace() {
    let uuid = target().model().subsystems()[0].namespace(1).unwrap().uuid;
    let mut without = subsystem();
    without.namespaces.remove(0);
    for before in [vec![closed()], vec![without, closed()]] {
        let scene = scene();
        let target = &scene.target;
        let _ = apply(target, &before);
        target.restore(&nqn(), protected(vec![SavedProtection { nsid: 1, uuid }]));
        let _ = apply(target, &[subsystem(), closed()]);
        let (mut admin, mut queue) = scene.ready();
        assert_eq!(write(&mut queue), Status::NAMESPACE_WRITE_PROTECTED);
        // A namespace that returns after it was forgotten is not protected.
        let enable = SetFeatures::new(FeatureId::ASYNC_EVENT_CONFIG, AsyncEventConfig::NSAN.bits());
        admin.plain(enable.to_sqe());
        let request = nvmeof_wire::admin::bare(nvmeof_wire::opcode::admin::ASYNC_EVENT_REQUEST);
        admin.run(request, &[], &[]);
        assert_eq!(scene.forget(Some(1)), Some(true));
        assert!(admin.queue.poll(admin.now).is_some(), "hosts are notified");
        assert_eq!(write(&mut queue), Status::SUCCESS);
    }
}

/// The command fails.
#[test]
fn protection_that_cannot_be_saved_is_unchanged() {
    let scene = scene();
    let (mut admin, mut queue) = scene.ready();
    let full = |full| scene.full(full);
    full(true);
    let completion = set(&mut admin, 1, WriteProtection::PROTECTED);
    assert_eq!(
        completion.cqe.status().without_more(),
        Status::INTERNAL_ERROR
    );
    assert_eq!(state(&mut admin, 1), WriteProtection::NONE);
    assert_eq!(write(&mut queue), Status::SUCCESS);
    full(false);
    set(&mut admin, 1, WriteProtection::PROTECTED);
    full(true);
    for to in [WriteProtection::NONE, WriteProtection::UNTIL_POWER_CYCLE] {
        let completion = set(&mut admin, 1, to);
        assert_eq!(
            completion.cqe.status().without_more(),
            Status::INTERNAL_ERROR
        );
        assert_eq!(state(&mut admin, 1), WriteProtection::PROTECTED);
        assert_eq!(write(&mut queue), Status::NAMESPACE_WRITE_PROTECTED);
    }
    full(false);
    let completion = set(&mut admin, 1, WriteProtection::NONE);
    assert_eq!(completion.status(), Status::SUCCESS);
    assert_eq!(write(&mut queue), Status::SUCCESS);
}

/// A command that waits for a save, and the save.
fn begin_keep(host: &mut Host, state: WriteProtection) -> (Request, PendingSave) {
    let (mut request, mut action) = begin_set(host, 1, state);
    if let Action::Execute(_) = action {
        let (outcome, data) = (Executed::Ok, &[][..]);
        let event = Event::Executed { outcome, data };
        action = host.queue.step(host.now, &mut request, event);
    }
    match action {
        Action::AwaitSave(keeping) => (request, keeping),
        other => panic!("{other:?}"),
    }
}

/// The outcome, once it is known.
fn after_keep(host: &mut Host, (mut request, keeping): (Request, PendingSave)) -> Action {
    let kept = keeping.outcome().unwrap().is_ok();
    host.queue
        .step(host.now, &mut request, Event::Saved { saved: kept })
}

fn is_answered(action: &Action, status: Status) -> bool {
    matches!(action, Action::Respond(response) if response.cqe.status().without_more() == status)
}

/// The keeper may stall forever. Nothing else waits for it.
#[test]
fn only_the_command_waits_for_its_save() {
    let scene = scene();
    let (mut admin, mut queue) = scene.ready();
    let waits = begin_keep(&mut admin, WriteProtection::PROTECTED);
    // Taken, and not saved.
    let save = scene.target.next_save().unwrap();
    let later = begin_keep(&mut admin, WriteProtection::NONE);
    assert!(scene.target.next_save().is_none(), "one after the other");
    assert_eq!(state(&mut admin, 1), WriteProtection::PROTECTED);
    assert_eq!(write(&mut queue), Status::NAMESPACE_WRITE_PROTECTED);
    let _ = apply(&scene.target, &[closed()]);
    let _ = apply(&scene.target, &[subsystem(), closed()]);
    let forgotten = scene.target.forget_settings(&nqn(), Some(1));
    let (mut other, mut queue) = scene.ready();
    assert_eq!(write(&mut queue), Status::NAMESPACE_WRITE_PROTECTED);
    assert!(other.identify(Cns::CONTROLLER, 0).data.len() == 4096);
    for (_, keeping) in [&waits, &later] {
        assert!(keeping.outcome().is_none());
    }
    assert!(forgotten.wait(std::time::Duration::ZERO).is_none());
    save.end(&Ok(()));
    assert!(waits.1.outcome().unwrap().is_ok());
    assert!(later.1.outcome().is_none());
    scene.reactor_metrics.write(&scene.target);
    assert!(forgotten.wait(std::time::Duration::MAX).unwrap().is_ok());
    assert_eq!(write(&mut queue), Status::SUCCESS);
}

/// Any number of requests is saved at once.
#[test]
fn pending_requests_are_saved_together() {
    let scene = scene();
    let mut admins = [scene.admin(), scene.admin()];
    let first = begin_keep(&mut admins[0], WriteProtection::PROTECTED);
    let save = scene.target.next_save().unwrap();
    let mut waiting = Vec::new();
    for _ in 0..100 {
        for state in [WriteProtection::NONE, WriteProtection::PROTECTED] {
            waiting.push(begin_keep(&mut admins[1], state));
        }
    }
    save.end(&Ok(()));
    assert!(is_answered(
        &after_keep(&mut admins[0], first),
        Status::SUCCESS
    ));
    assert!(waiting.iter().all(|(_, one)| one.outcome().is_none()));
    scene.reactor_metrics.write(&scene.target);
    assert_eq!(scene.numbers(), (1, vec![1]));
    for one in waiting {
        let answered = is_answered(&after_keep(&mut admins[1], one), Status::SUCCESS);
        assert!(answered);
    }
    assert!(scene.target.next_save().is_none());
}

/// Requests get the outcome also if the keeper ends, and the queue may be closed.
#[test]
fn dropped_save_is_a_failure() {
    let scene = scene();
    let (mut admin, mut queue) = scene.ready();
    let mut lost = scene.admin();
    let waits = begin_keep(&mut admin, WriteProtection::PROTECTED);
    let _ = begin_keep(&mut lost, WriteProtection::PROTECTED);
    drop(lost);
    drop(scene.target.next_save());
    let action = after_keep(&mut admin, waits);
    assert!(is_answered(&action, Status::INTERNAL_ERROR), "{action:?}");
    assert_eq!(write(&mut queue), Status::SUCCESS);
    // The request of a closed queue is saved.
    let mut lost = scene.admin();
    let _ = begin_keep(&mut lost, WriteProtection::PROTECTED);
    drop(lost);
    scene.reactor_metrics.write(&scene.target);
    assert_eq!(state(&mut admin, 1), WriteProtection::PROTECTED);
    assert_eq!(scene.numbers(), (1, vec![1]));
}

/// A change during a save is in the next one, also if the subsystem is removed and
/// added meanwhile.
#[test]
fn save_in_progress_survives_removal_of_the_subsystem() {
    for written in [true, false] {
        let scene = scene();
        let mut admin = scene.admin();
        let _ = begin_keep(&mut admin, WriteProtection::PROTECTED);
        let save = scene.target.next_save().unwrap();
        let _ = apply(&scene.target, &[closed()]);
        let result = written.then_some(());
        save.end(&result.ok_or_else(|| std::io::ErrorKind::StorageFull.into()));
        let _ = apply(&scene.target, &[subsystem(), closed()]);
        let expected = match written {
            true => WriteProtection::PROTECTED,
            false => WriteProtection::NONE,
        };
        assert_eq!(state(&mut scene.admin(), 1), expected);
    }
}

/// Base 2.1, 3.7.2: commands that are outstanding are not answered after a reset.
#[test]
fn command_waiting_across_a_reset_gets_no_response() {
    let scene = scene();
    let mut admin = scene.admin();
    let waits = begin_keep(&mut admin, WriteProtection::PROTECTED);
    let (mut settles, action) = begin_set(&mut admin, 1, WriteProtection::PROTECTED);
    assert!(matches!(action, Action::AwaitSave(_)), "{action:?}");
    admin.set_cc(0);
    admin.set_cc(Cc::ENABLE.0);
    scene.reactor_metrics.write(&scene.target);
    let action = after_keep(&mut admin, waits);
    assert!(matches!(action, Action::Hold), "{action:?}");
    let kept = Event::Saved { saved: true };
    let action = admin.queue.step(admin.now, &mut settles, kept);
    assert!(matches!(action, Action::Hold), "{action:?}");
    assert_eq!(state(&mut admin, 1), WriteProtection::PROTECTED, "it is so");
    set(&mut admin, 1, WriteProtection::NONE);
    // Earlier writes become stable meanwhile.
    let (mut request, _) = begin_set(&mut admin, 1, WriteProtection::PROTECTED);
    admin.set_cc(0);
    admin.set_cc(Cc::ENABLE.0);
    let (outcome, data) = (Executed::Failed, &[][..]);
    let event = Event::Executed { outcome, data };
    let action = admin.queue.step(admin.now, &mut request, event);
    assert!(matches!(action, Action::Hold), "{action:?}");
    assert_eq!(state(&mut admin, 1), WriteProtection::NONE);
    // A later one is.
    let completion = set(&mut admin, 1, WriteProtection::PROTECTED);
    assert_eq!(completion.status(), Status::SUCCESS);
}

/// Base 2.1, 8.1.16.1, figure 621: without a place where it is kept it would not be
/// persistent across a restart.
#[test]
fn without_a_state_file_protection_is_not_advertised() {
    let (mut admin, _) = Host::admin(&without_keeper(Limits::default()));
    let id = admin.identify(Cns::CONTROLLER, 0);
    let id = IdentifyController::read_from_bytes(&id.data).ok().unwrap();
    assert_eq!(id.nwpc, 0);
    for state in [WriteProtection::NONE, WriteProtection::PROTECTED] {
        let completion = set(&mut admin, 1, state);
        assert_eq!(completion.status(), Status::INVALID_FIELD);
    }
    let completion = get(&mut admin, 1, Select::Current);
    assert_eq!(completion.status(), Status::INVALID_FIELD);
    let effects = GetLogPage::new(LogId::FEATURE_EFFECTS, 0, 0, 1024);
    let effects = admin.read(effects.to_sqe(), 1024).data;
    assert_eq!(effects[0x84 * 4..][..4], [0; 4]);
}
