//! A verified load over two paths runs without an error while paths and the target fail at random.
//!
//! NVMEOF_SOAK_FAULTS and NVMEOF_SOAK_SECONDS limit the faults, NVMEOF_SOAK_SEED chooses them.
//! `cargo xtask soak` sets all three.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

#[path = "soak/faults.rs"]
mod faults;
#[path = "soak/load.rs"]
mod load;
#[path = "soak/report.rs"]
mod report;

use std::str::FromStr;
use std::time::{Duration, Instant};

use nvmeof_e2e::{Setup, eventually, pattern};

use faults::{Fault, Kind, PATHS, Scene};
use load::Load;
use report::Report;

/// When no more faults begin, whichever comes first, and the choice of faults.
struct Limits {
    faults: usize,
    seconds: u64,
    seed: u64,
}

impl Limits {
    /// Those of the environment; by default a few faults in less than a minute.
    fn from_environment() -> Self {
        Self {
            faults: variable("NVMEOF_SOAK_FAULTS", 6),
            seconds: variable("NVMEOF_SOAK_SECONDS", 40),
            seed: variable("NVMEOF_SOAK_SEED", 1),
        }
    }
}

fn variable<T: FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}: `{text}` is not a number")),
        Err(_) => default,
    }
}

/// Random numbers: SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ bits >> 31) % limit
    }

    fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

/// Chooses faults: each kind once in random order, and again.
struct Deck {
    random: Random,
    kinds: Vec<Kind>,
}

impl Deck {
    fn next(&mut self) -> Kind {
        if self.kinds.is_empty() {
            self.kinds = Kind::ALL.to_vec();
        }
        let count = u64::try_from(self.kinds.len()).unwrap();
        let at = usize::try_from(self.random.below(count)).unwrap();
        self.kinds.swap_remove(at)
    }

    fn path(&mut self) -> usize {
        usize::try_from(self.random.below(2)).unwrap() % PATHS
    }
}

#[test]
fn verified_load_runs_through_random_faults() {
    let limits = Limits::from_environment();
    println!(
        "at most {} faults in {} s, seed {}",
        limits.faults, limits.seconds, limits.seed
    );
    let mut scene = Scene::start();
    let mut load = Load::start(&scene.addresses());
    load.wait_for("connected");
    let faults = inject(&limits, &mut scene, &mut load);
    // All paths recover, and the load continues over each.
    load.wait_for(&format!("paths {PATHS} of {PATHS}"));
    let ended = load.finish();
    scene.stop();
    let report = Report::new(limits.seed, &faults, &ended);
    println!("{report}");
    assert!(!faults.is_empty());
    report.assert_stalls_are_bounded();
}

/// Injects faults until a limit, and heals all of them.
fn inject(limits: &Limits, scene: &mut Scene, load: &mut Load) -> Vec<Fault> {
    let mut deck = Deck {
        random: Random(limits.seed),
        kinds: Vec::new(),
    };
    let end = Instant::now() + Duration::from_secs(limits.seconds);
    let mut faults: Vec<Fault> = Vec::new();
    while faults.len() < limits.faults && Instant::now() < end {
        let kind = deck.next();
        let path = deck.path();
        let (lasts, pause) = (kind.lasts(&mut deck.random), deck.random.ms(100, 1500));
        // Every second fault may overlap others.
        let overlaps = deck.random.below(2) == 0;
        while !faults
            .iter()
            .filter(|other| other.is_active())
            .all(|other| overlaps && !kind.excludes(path, other))
        {
            load.assert_running();
            heal(&mut faults, scene);
        }
        let number = faults.len() + 1;
        println!(
            "{number}: {kind} on path {path} for {} ms",
            lasts.as_millis()
        );
        faults.push(scene.begin(kind, path, lasts));
        let next = Instant::now() + pause;
        while Instant::now() < next {
            load.assert_running();
            heal(&mut faults, scene);
        }
    }
    while faults.iter().any(Fault::is_active) {
        load.assert_running();
        heal(&mut faults, scene);
    }
    faults
}

/// Heals faults whose time is over, after a short sleep.
fn heal(faults: &mut [Fault], scene: &mut Scene) {
    std::thread::sleep(Duration::from_millis(10));
    for fault in faults.iter_mut() {
        if fault.is_active() && Instant::now() >= fault.heal_at {
            scene.heal(fault);
        }
    }
}

#[test]
fn verified_load_fails_when_its_blocks_are_overwritten() {
    let setup = Setup::new().file(16 << 20);
    let target = setup.start();
    let mut load = Load::start(&[target.address()]);
    load.wait_for("paths 1 of 1");
    target.write(1, 0, &pattern(3, 8 << 20));
    let failed = eventually(|| load.failure()).expect("it noticed nothing");
    assert!(failed.contains("was acknowledged"), "{failed}");
    target.stop();
}
