//! Costs of single events with 2, 8 and 64 reactors: no event costs more than one message for
//! each reactor.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use nvmeof_world::scale::{Cost, Scale};

const REACTORS: [usize; 3] = [2, 8, 64];

/// With one host, and four queue pairs on each reactor.
fn scales() -> impl Iterator<Item = (u64, Scale)> {
    let of = |(reactors, hosts)| (reactors as u64, Scale::start(reactors, hosts).unwrap());
    let sizes = REACTORS.map(|reactors| [(reactors, 1), (reactors, 2 * reactors)]);
    sizes.into_iter().flatten().map(of)
}

/// All other reactors have to report before the pair begins. The last one wakes its reactor.
#[test]
fn fused_pair_wakes_each_reactor_once() {
    for (reactors, mut scale) in scales() {
        for _ in 0..2 {
            let Cost { wakeups, checks } = scale.compare_and_write().unwrap();
            assert!(
                wakeups <= reactors,
                "{wakeups} wake-ups of {reactors} reactors"
            );
            assert_eq!(checks, 0);
        }
    }
}
#[test]
fn print() {
    for reactors in [2, 8, 64] {
        let mut scale = Scale::start(reactors, 2 * reactors).unwrap();
        println!(
            "{reactors}: caw {:?} {:?}",
            scale.compare_and_write(),
            scale.compare_and_write()
        );
        println!("{reactors}: connect {:?}", scale.connect());
        println!("{reactors}: disconnect {:?}", scale.disconnect());
        println!("{reactors}: change {:?}", scale.change_namespace());
    }
}
