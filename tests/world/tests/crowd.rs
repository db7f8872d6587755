//! What hostile peers leave to an honest host: what `docs/security.md` promises.
//!
//! `NVMEOF_CROWDS=count` runs every mix with so many seeds instead of the short form.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nvmeof_world::crowd::{Crowd, Habit, Service, run};

/// No command of an honest host waits longer.
const LONGEST: Duration = Duration::from_secs(1);

/// Bytes of a command, those that are outstanding, how long the host works.
const WORKS: [(u32, usize, u64); 3] = [(4096, 8, 1500), (64 << 10, 4, 1500), (1 << 20, 2, 2500)];

/// All mixes with some seeds, or two of each habit.
fn crowds(same_address: bool) -> Vec<Crowd> {
    let of = |seed, hostile, habit, (length, depth, millis)| Crowd {
        seed,
        hostile,
        habit,
        same_address,
        length,
        depth,
        time: Duration::from_millis(millis),
    };
    let Ok(seeds) = std::env::var("NVMEOF_CROWDS") else {
        let habits = Habit::ALL.into_iter().zip(WORKS.into_iter().cycle());
        let many = habits.map(|(habit, work)| of(0, 64, habit, work));
        let habits = Habit::ALL
            .into_iter()
            .zip(WORKS.into_iter().cycle().skip(1));
        return many
            .chain(habits.map(|(habit, work)| of(0, 2, habit, work)))
            .collect();
    };
    let mut crowds = Vec::new();
    for seed in 0..seeds.parse().unwrap() {
        for habit in Habit::ALL {
            for work in WORKS {
                let sizes = [1, 2, 3, 4, 8, 16, 32, 48, 64];
                crowds.extend(sizes.map(|hostile| of(seed, hostile, habit, work)));
            }
        }
    }
    crowds
}

/// Runs all, on as many threads as there are processors, and fails with all that
/// `check` has something to say about.
fn all(crowds: &[Crowd], check: impl Fn(&Crowd, Service) -> Option<String> + Sync) {
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(crowd) = crowds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let said = match run(crowd) {
                        Ok(service) => {
                            check(crowd, service).map(|why| format!("{why} {service:?}"))
                        }
                        Err(error) => Some(error),
                    };
                    if let Some(said) = said {
                        wrong.lock().unwrap().push(format!("{said}: {crowd:?}"));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(
        wrong.is_empty(),
        "{} of {} crowds:\n{}",
        wrong.len(),
        crowds.len(),
        wrong.join("\n")
    );
}

fn too_long(service: Service) -> Option<String> {
    (service.longest > LONGEST).then(|| format!("a command took more than {LONGEST:?}"))
}

#[test]
fn hostile_peers_elsewhere_leave_a_quarter_of_the_throughput() {
    let quiet = WORKS.map(|(length, depth, millis)| {
        let alone = Crowd {
            seed: 0,
            hostile: 0,
            habit: Habit::Silent,
            same_address: false,
            length,
            depth,
            time: Duration::from_millis(millis),
        };
        (length, run(&alone).unwrap().answered)
    });
    all(&crowds(false), |crowd, service| {
        let (_, alone) = quiet.iter().find(|(length, _)| *length == crowd.length)?;
        let little = service.answered * 4 < *alone;
        let little = little.then(|| format!("of {alone} commands without them"));
        little.or_else(|| too_long(service))
    });
}

#[test]
fn hostile_peers_of_the_same_address_leave_every_command_its_turn() {
    all(&crowds(true), |_, service| too_long(service));
}
