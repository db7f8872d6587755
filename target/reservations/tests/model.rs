//! The implementation beside a model: lists instead of maps, and one rule of the specification
//! (NVMe Base 2.1, 8.1.22) after the other.
#![allow(
    clippy::match_same_arms,
    clippy::unwrap_used,
    clippy::panic,
    missing_docs,
    reason = "tests"
)]

use nvmeof_target_reservations::{
    Access, Change, HostId, InvalidField, Refused, Reservations, Rules,
};
use nvmeof_wire::reservation::{
    AcquireAction, NoticeType, PersistChange, Register, RegisterAction, ReleaseAction,
    ReservationType, Reserve,
};
use proptest::prelude::*;

/// Hosts of the tests; the last one never registers.
const HOSTS: u8 = 4;

fn host(number: u8) -> HostId {
    [number + 1; 16]
}

/// A command of a host.
#[derive(Clone, Copy, Debug)]
enum Command {
    Register(Register, (u64, u64)),
    Acquire(Reserve, (u64, u64)),
    Release(Reserve, u64),
}

fn run(state: &Reservations, by: u8, command: Command) -> Result<Change, Refused> {
    match command {
        Command::Register(command, keys) => {
            state.register(host(by), &command, keys, &Rules::default())
        }
        Command::Acquire(command, keys) => state.acquire(host(by), &command, keys),
        Command::Release(command, key) => state.release(host(by), &command, key),
    }
}

/// The model.
#[derive(Clone, Debug, Default)]
struct Model {
    registered: Vec<(u8, u64)>,
    /// Type and holder. The holder of a type of all registrants is whoever is registered.
    held: Option<(u8, u8)>,
    generation: u32,
    persists: bool,
    notices: Vec<(u8, NoticeType)>,
}

const CONFLICT: Refused = Refused::Conflict;

fn invalid<T>(field: InvalidField) -> Result<T, Refused> {
    Err(Refused::Field(field))
}

impl Model {
    fn key(&self, host: u8) -> Option<u64> {
        let mut all = self.registered.iter();
        all.find(|(its, _)| *its == host).map(|(_, key)| *key)
    }

    fn holds(&self, host: u8) -> bool {
        match self.held {
            None => false,
            Some((5 | 6, _)) => self.key(host).is_some(),
            Some((_, holder)) => holder == host,
        }
    }

    fn tell(&mut self, hosts: Vec<u8>, issuer: u8, notice: NoticeType) {
        for host in hosts {
            if host != issuer {
                self.notices.retain(|(other, _)| *other != host);
                self.notices.push((host, notice));
            }
        }
    }

    fn hosts(&self) -> Vec<u8> {
        self.registered.iter().map(|(host, _)| *host).collect()
    }

    fn run(&mut self, by: u8, command: Command) -> Result<(), Refused> {
        self.notices.clear();
        match command {
            Command::Register(command, keys) => self.register(by, command, keys),
            Command::Acquire(command, keys) => self.acquire(by, command, keys),
            Command::Release(command, key) => self.release(by, command, key),
        }
    }

    fn register(
        &mut self,
        by: u8,
        command: Register,
        (current, new): (u64, u64),
    ) -> Result<(), Refused> {
        if command.persist.0 == 1 {
            return invalid(InvalidField::Persist);
        }
        let key = self.key(by);
        let is_right = key.is_some_and(|key| key == current || command.ignores_key);
        let mut leaves = false;
        match command.action.0 {
            0 if new == 0 => return invalid(InvalidField::NewKey),
            0 if key.is_some_and(|key| key != new) => return Err(CONFLICT),
            0 if key.is_none() => self.registered.push((by, new)),
            0 => {}
            1 | 2 if !is_right => return Err(CONFLICT),
            // Linux unregisters by a replacement with 0.
            2 if new != 0 => {
                self.registered.retain(|(host, _)| *host != by);
                self.registered.push((by, new));
            }
            1 | 2 => leaves = true,
            _ => return invalid(InvalidField::Action),
        }
        if leaves {
            let held_it = self.holds(by);
            self.registered.retain(|(host, _)| *host != by);
            match self.held {
                Some((1 | 2, _)) if held_it => self.held = None,
                Some((3 | 4, _)) if held_it => {
                    self.held = None;
                    self.tell(self.hosts(), by, NoticeType::RESERVATION_RELEASED);
                }
                Some((5 | 6, _)) if self.registered.is_empty() => self.held = None,
                _ => {}
            }
        }
        match command.persist.0 {
            2 => self.persists = false,
            3 => self.persists = true,
            _ => {}
        }
        self.generation += 1;
        Ok(())
    }

    fn acquire(
        &mut self,
        by: u8,
        command: Reserve,
        (current, preempted): (u64, u64),
    ) -> Result<(), Refused> {
        let kind = command.kind.0;
        let of_all = matches!(self.held, Some((5 | 6, _)));
        if command.action > 2 {
            return invalid(InvalidField::Action);
        }
        if command.ignores_key {
            return invalid(InvalidField::IgnoresKey);
        }
        if !(1..=6).contains(&kind) {
            return invalid(InvalidField::Kind);
        }
        if command.action != 0 && preempted == 0 && !of_all {
            return invalid(InvalidField::PreemptKey);
        }
        if self.key(by) != Some(current) {
            return Err(CONFLICT);
        }
        if command.action == 0 {
            return match self.held {
                None => {
                    self.held = Some((kind, by));
                    Ok(())
                }
                Some((held, _)) if held == kind && self.holds(by) => Ok(()),
                Some(_) => Err(CONFLICT),
            };
        }
        let before = self.hosts();
        let with_key: Vec<u8> = before
            .iter()
            .copied()
            .filter(|host| self.key(*host) == Some(preempted))
            .collect();
        let (gone, takes): (Vec<u8>, bool) = match self.held {
            None => (with_key, false),
            Some((5 | 6, _)) if preempted == 0 => (before, true),
            Some((5 | 6, _)) => (with_key, false),
            Some((_, holder)) => (with_key, self.key(holder) == Some(preempted)),
        };
        let gone: Vec<u8> = match takes {
            true => gone.into_iter().filter(|host| *host != by).collect(),
            false if gone.is_empty() => return Err(CONFLICT),
            false => gone,
        };
        self.registered.retain(|(host, _)| !gone.contains(host));
        let former = self.held;
        if takes {
            self.held = Some((kind, by));
            if former.is_some_and(|(former, _)| former != kind) {
                self.tell(self.hosts(), by, NoticeType::RESERVATION_RELEASED);
            }
        } else if self.registered.is_empty() {
            self.held = None;
        }
        self.tell(gone, by, NoticeType::REGISTRATION_PREEMPTED);
        self.generation += 1;
        Ok(())
    }

    fn release(&mut self, by: u8, command: Reserve, current: u64) -> Result<(), Refused> {
        if command.action > 1 {
            return invalid(InvalidField::Action);
        }
        if command.ignores_key {
            return invalid(InvalidField::IgnoresKey);
        }
        if command.action == 0 && !(1..=6).contains(&command.kind.0) {
            return invalid(InvalidField::Kind);
        }
        if self.key(by) != Some(current) {
            return Err(CONFLICT);
        }
        if command.action == 1 {
            self.tell(self.hosts(), by, NoticeType::RESERVATION_PREEMPTED);
            self.registered.clear();
            self.held = None;
            self.generation += 1;
            return Ok(());
        }
        let Some((kind, _)) = self.held.filter(|_| self.holds(by)) else {
            return Ok(());
        };
        if kind != command.kind.0 {
            return invalid(InvalidField::Kind);
        }
        self.held = None;
        if kind > 2 {
            self.tell(self.hosts(), by, NoticeType::RESERVATION_RELEASED);
        }
        Ok(())
    }

    /// The table "Command Behavior in the Presence of a Reservation".
    fn may(&self, host: u8, access: Access) -> bool {
        let Some((kind, _)) = self.held else {
            return true;
        };
        if self.holds(host) {
            return true;
        }
        let registered = self.key(host).is_some();
        match (kind, access) {
            (1, Access::Read) => true,
            (1 | 2, _) => false,
            (3 | 5, Access::Read) => true,
            _ => registered,
        }
    }
}

fn keys() -> impl Strategy<Value = u64> {
    0..4_u64
}

fn command() -> impl Strategy<Value = Command> {
    let register = (0..4_u8, any::<bool>(), 0..4_u8, keys(), keys());
    let register = register.prop_map(|(action, ignores_key, persist, current, new)| {
        let command = Register {
            nsid: 1,
            action: RegisterAction(action),
            ignores_key,
            persist: PersistChange(persist),
        };
        Command::Register(command, (current, new))
    });
    let reserve =
        (0..4_u8, prop::bool::weighted(0.05), 0..8_u8).prop_map(|(action, ignores_key, kind)| {
            Reserve {
                nsid: 1,
                action,
                ignores_key,
                kind: ReservationType(kind),
            }
        });
    let acquire = (reserve.clone(), keys(), keys());
    let acquire =
        acquire.prop_map(|(command, current, other)| Command::Acquire(command, (current, other)));
    let release = (reserve, keys()).prop_map(|(command, key)| Command::Release(command, key));
    prop_oneof![3 => register, 3 => acquire, 1 => release]
}

fn assert_equal(state: &Reservations, model: &Model) {
    let mut registered: Vec<_> = model
        .registered
        .iter()
        .map(|(by, key)| (host(*by), *key))
        .collect();
    registered.sort_unstable();
    let found: Vec<_> = state
        .registrants()
        .map(|(host, key)| (*host, key))
        .collect();
    assert_eq!(found, registered);
    assert_eq!(state.generation(), model.generation);
    assert_eq!(state.persists(), model.persists);
    let kind = state.reservation().map(|one| one.kind.0);
    assert_eq!(kind, model.held.map(|(kind, _)| kind));
    for number in 0..HOSTS {
        assert_eq!(state.is_holder(&host(number)), model.holds(number));
        for access in [Access::Read, Access::Write] {
            let may = state.accesses(&host(number)).has(access);
            assert_eq!(may, model.may(number, access), "host {number}, {access:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn commands_do_what_the_model_does(
        commands in prop::collection::vec((0..HOSTS - 1, command()), 1..40)
    ) {
        let (mut state, mut model) = (Reservations::default(), Model::default());
        for (by, command) in commands {
            let before = model.clone();
            let expected = model.run(by, command);
            match run(&state, by, command) {
                Ok(change) => {
                    prop_assert_eq!(expected, Ok(()), "{:?}", command);
                    let mut notices = model.notices.clone();
                    notices.sort_unstable();
                    let notices: Vec<_> =
                        notices.iter().map(|(by, notice)| (host(*by), *notice)).collect();
                    prop_assert_eq!(&change.notices, &notices, "{:?}", command);
                    let lost = |access| (0..HOSTS)
                        .any(|one| before.may(one, access) && !model.may(one, access));
                    // The holder acquires again: what others may not do must have ended then, too.
                    let again = change.next == state && matches!(command, Command::Acquire(..));
                    let denied = |access| again && !model.may(HOSTS - 1, access);
                    for access in [Access::Read, Access::Write] {
                        let ends = lost(access) || denied(access);
                        prop_assert_eq!(change.ends.has(access), ends, "{:?}", command);
                    }
                    state = change.next;
                }
                Err(refused) => prop_assert_eq!(expected, Err(refused), "{:?}", command),
            }
            assert_equal(&state, &model);
            prop_assert_eq!(
                Reservations::restore(
                    state.generation(),
                    state.persists(),
                    state.registrants().map(|(host, key)| (*host, key)).collect(),
                    state.reservation().copied(),
                ),
                Some(state.clone())
            );
        }
    }
}

/// Commands of hosts with these keys, each of which succeeds.
fn after(commands: &[(u8, Command)]) -> Reservations {
    let mut state = Reservations::default();
    for (by, command) in commands {
        state = run(&state, *by, *command).unwrap().next;
    }
    state
}

fn registers(key: u64) -> Command {
    let command = Register {
        nsid: 1,
        action: RegisterAction::REGISTER,
        ignores_key: false,
        persist: PersistChange::KEEP,
    };
    Command::Register(command, (0, key))
}

fn acquires(action: AcquireAction, kind: ReservationType, keys: (u64, u64)) -> Command {
    let command = Reserve {
        nsid: 1,
        action: action.0,
        ignores_key: false,
        kind,
    };
    Command::Acquire(command, keys)
}

/// The trace of blktests 054, as of the specification: each row is a command, and the generation
/// after it.
#[test]
fn generation_counts_registrations_and_preemptions() {
    let kind = ReservationType::WRITE_EXCLUSIVE;
    let release = Reserve {
        nsid: 1,
        action: ReleaseAction::RELEASE.0,
        ignores_key: false,
        kind,
    };
    let clear = Reserve {
        action: ReleaseAction::CLEAR.0,
        ..release
    };
    let trace = [
        (0, registers(1), 1),
        (1, registers(2), 2),
        (0, acquires(AcquireAction::ACQUIRE, kind, (1, 0)), 2),
        (1, acquires(AcquireAction::PREEMPT, kind, (2, 1)), 3),
        (1, Command::Release(release, 2), 3),
        (0, registers(1), 4),
        (0, registers(1), 5),
        (0, Command::Release(clear, 1), 6),
    ];
    let mut state = Reservations::default();
    for (by, command, generation) in trace {
        state = run(&state, by, command).unwrap().next;
        assert_eq!(state.generation(), generation, "{command:?}");
    }
    assert!(state.registrants().len() == 0);
}

/// Each row of the table of the specification: type, then what a holder, another registrant and
/// any other host may do.
#[test]
fn accesses_are_those_of_the_specification() {
    let (rw, r, none) = ("rw", "r", "");
    let table = [
        (ReservationType::WRITE_EXCLUSIVE, rw, r, r),
        (ReservationType::EXCLUSIVE_ACCESS, rw, none, none),
        (ReservationType::WRITE_EXCLUSIVE_REGISTRANTS, rw, rw, r),
        (ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS, rw, rw, none),
        (ReservationType::WRITE_EXCLUSIVE_ALL, rw, rw, r),
        (ReservationType::EXCLUSIVE_ACCESS_ALL, rw, rw, none),
    ];
    for (kind, holder, registrant, stranger) in table {
        let state = after(&[
            (0, registers(1)),
            (1, registers(2)),
            (0, acquires(AcquireAction::ACQUIRE, kind, (1, 0))),
        ]);
        for (number, expected) in [(0, holder), (1, registrant), (2, stranger)] {
            let may = state.accesses(&host(number));
            let text = [(may.reads, 'r'), (may.writes, 'w')];
            let text: String = text
                .iter()
                .filter(|(has, _)| *has)
                .map(|(_, c)| c)
                .collect();
            assert_eq!(text, expected, "{} of host {number}", kind.name());
        }
    }
}

#[test]
fn registration_sets_whether_they_persist() {
    let state = after(&[(0, registers(1))]);
    assert!(!state.persists());
    let persist = Register {
        nsid: 1,
        action: RegisterAction::REGISTER,
        ignores_key: false,
        persist: PersistChange::SET,
    };
    let state = run(&state, 0, Command::Register(persist, (0, 1)))
        .unwrap()
        .next;
    assert!(state.persists());
}

#[test]
fn registrants_are_limited() {
    let rules = Rules {
        most_registrants: 1,
        replace_with_zero_unregisters: false,
    };
    let register = |action| Register {
        nsid: 1,
        action,
        ignores_key: false,
        persist: PersistChange::KEEP,
    };
    let state = after(&[(0, registers(1))]);
    let again = state.register(host(1), &register(RegisterAction::REGISTER), (0, 1), &rules);
    assert_eq!(again, Err(Refused::Full));
    let replace = register(RegisterAction::REPLACE);
    let zero = state.register(host(0), &replace, (1, 0), &rules);
    assert_eq!(zero, Err(Refused::Field(InvalidField::NewKey)));
}

#[test]
fn impossible_records_are_refused() {
    let one = || [(host(0), 1)].into_iter().collect();
    let held = |kind, holder| Some(nvmeof_target_reservations::Reservation { kind, holder });
    let cases = [
        (one(), held(ReservationType(7), Some(host(0)))),
        (one(), held(ReservationType::WRITE_EXCLUSIVE, None)),
        (one(), held(ReservationType::WRITE_EXCLUSIVE, Some(host(1)))),
        (
            one(),
            held(ReservationType::WRITE_EXCLUSIVE_ALL, Some(host(0))),
        ),
        ([].into(), held(ReservationType::WRITE_EXCLUSIVE_ALL, None)),
        ([(host(0), 0)].into(), None),
        ([([0; 16], 1)].into(), None),
    ];
    for (registrants, reservation) in cases {
        assert_eq!(
            Reservations::restore(1, true, registrants, reservation),
            None
        );
    }
}

#[test]
fn report_has_all_registrants_and_who_holds() {
    let kind = ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS;
    let state = after(&[
        (0, registers(1)),
        (1, registers(0x0203)),
        (1, acquires(AcquireAction::ACQUIRE, kind, (0x0203, 0))),
    ]);
    let report = state.report();
    assert_eq!(report.len(), 64 + 2 * 64);
    assert_eq!(report[..10], [2, 0, 0, 0, 4, 2, 0, 0, 0, 0]);
    assert_eq!(report[128..128 + 3], [0xff, 0xff, 1]);
    assert_eq!(report[136..138], [3, 2]);
    assert_eq!(report[144..160], host(1));
    assert_eq!(report[66], 0);
}
