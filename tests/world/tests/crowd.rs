//! Service of an honest host beside hostile peers: the bounds of `docs/security.md`.
//!
//! `NVMEOF_CROWDS=count` runs each mix with that many seeds instead of the short form.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nvmeof_world::crowd::{Addresses, Crowd, Habit, Service, run};

/// Maximum latency of a command of an honest host.
const LONGEST: Duration = Duration::from_secs(1);

/// Bytes of a command, outstanding commands, and duration.
const WORKS: [(u32, usize, u64); 3] = [(4096, 8, 1500), (64 << 10, 4, 1500), (1 << 20, 2, 1500)];

/// Reads whose data a turncoat takes before it stops. A peer that moves data takes part in
/// fair queueing, whatever it does later. With more reads, this phase lasts longer, and the
/// honest host has a quarter of its throughput only after it.
const GOOD: usize = 2;

/// All mixes with some seeds, or a few of each habit.
fn crowds(addresses: Addresses) -> Vec<Crowd> {
    let of = |seed, hostile, habit, (length, depth, millis)| Crowd {
        seed,
        hostile,
        habit,
        good: GOOD,
        addresses,
        length,
        depth,
        time: Duration::from_millis(millis),
        pause: Duration::ZERO,
    };
    let Ok(seeds) = std::env::var("NVMEOF_CROWDS") else {
        let habits = Habit::ALL.into_iter().zip(WORKS.into_iter().cycle());
        let many = habits.map(|(habit, work)| of(0, 64, habit, work));
        let habits = Habit::ALL
            .into_iter()
            .zip(WORKS.into_iter().cycle().skip(1));
        // Commands for short buffers are served between those for long ones.
        let mixed = WORKS.map(|work| of(0, 16, Habit::Mixed, work));
        return many
            .chain(habits.map(|(habit, work)| of(0, 2, habit, work)))
            .chain(mixed)
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

/// Runs all crowds, on as many threads as there are CPUs, and fails with all violations
/// that `check` reports.
fn all(crowds: &[Crowd], check: impl Fn(&Crowd, Service) -> Option<String> + Sync) {
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(crowd) = crowds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let message = match run(crowd) {
                        Ok(service) => {
                            check(crowd, service).map(|why| format!("{why} {service:?}"))
                        }
                        Err(error) => Some(error),
                    };
                    if let Some(message) = message {
                        wrong.lock().unwrap().push(format!("{message}: {crowd:?}"));
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
fn hostile_peers_on_other_addresses_leave_a_quarter_of_the_throughput() {
    let quiet = WORKS.map(|(length, depth, millis)| {
        let alone = Crowd {
            seed: 0,
            hostile: 0,
            habit: Habit::Silent,
            good: 0,
            addresses: Addresses::Own,
            length,
            depth,
            time: Duration::from_millis(millis),
            pause: Duration::ZERO,
        };
        (length, run(&alone).unwrap().completed)
    });
    let mut mixes = crowds(Addresses::Own);
    // Names cost nothing: many peers at one address count as one.
    let names = crowds(Addresses::OneElsewhere).into_iter();
    mixes.extend(names.filter(|crowd| crowd.hostile == 64));
    all(&mixes, |crowd, service| {
        let (_, alone) = quiet.iter().find(|(length, _)| *length == crowd.length)?;
        let little = service.completed * 4 < *alone;
        let little = little.then(|| format!("of {alone} commands without them"));
        little.or_else(|| too_long(service))
    });
}

#[test]
fn hostile_peers_on_the_same_address_do_not_starve_commands() {
    all(&crowds(Addresses::Shared), |_, service| too_long(service));
}

/// A lost segment delays a connection for 200 ms and more. It must not be closed because
/// others wait for its buffers.
#[test]
fn network_pause_does_not_disconnect_an_honest_host() {
    let habits = Habit::ALL
        .into_iter()
        .zip(WORKS.into_iter().cycle().skip(1));
    for (habit, (length, depth, millis)) in habits {
        let crowd = Crowd {
            seed: 0,
            hostile: 8,
            habit,
            good: GOOD,
            addresses: Addresses::Own,
            length,
            depth,
            time: Duration::from_millis(millis),
            pause: Duration::from_millis(300),
        };
        let service = run(&crowd).unwrap();
        assert!(service.longest < LONGEST, "{service:?}: {crowd:?}");
    }
}
