//! Controller identifiers with ranges of subsystems.

use std::collections::BTreeSet;

use nvmeof_wire::fabrics::{Connect, ConnectData};
use nvmeof_wire::{Nqn, Status};
use proptest::prelude::*;

use crate::testing::{Host, SUBNQN, apply, connect_data, port, subsystem};
use crate::{Limit, Limits, Model, SubsystemSpec, Target};

const PLAIN: &str = "nqn.2026-11.org.example:plain";
const OTHER: &str = "nqn.2026-11.org.example:other";

fn giving(nqn: &str, min: u32, max: u32) -> SubsystemSpec {
    SubsystemSpec {
        nqn: nqn.into(),
        cntlid_min: Some(min),
        cntlid_max: Some(max),
        ..subsystem()
    }
}

fn served(subsystems: &[SubsystemSpec]) -> Target {
    let limits = Limits {
        controllers: 40,
        host_controllers: 40,
        ..Limits::default()
    };
    Target::new(Model::build(limits, &[port()], subsystems).unwrap())
}

fn to(subsystem: &str) -> ConnectData {
    let mut data = connect_data(0xffff);
    data.subnqn = Nqn::new(subsystem).unwrap().to_field();
    data
}

fn controller_of(target: &Target, subsystem: &str) -> (Host, u16) {
    Host::admin_with(target, 0, &to(subsystem))
}

#[test]
fn controllers_have_identifiers_of_their_subsystem() {
    let target = served(&[giving(SUBNQN, 100, 102), giving(OTHER, 2, 9)]);
    let (_first, one) = controller_of(&target, SUBNQN);
    let (second, two) = controller_of(&target, SUBNQN);
    let (_other, its) = controller_of(&target, OTHER);
    assert_eq!([one, two, its], [100, 101, 2]);
    let _io = Host::io(&target, 1, one);
    // A freed identifier is not reused while others are free.
    drop(second);
    let (third, three) = controller_of(&target, SUBNQN);
    assert_eq!(three, 102);
    let (_fourth, four) = controller_of(&target, SUBNQN);
    assert_eq!(four, 101);
    drop(third);
    assert_eq!(controller_of(&target, SUBNQN).1, 102);
}

#[test]
fn connect_without_free_identifier_may_be_retried() {
    let target = served(&[giving(SUBNQN, 7, 8)]);
    let (first, _) = controller_of(&target, SUBNQN);
    let (_second, _) = controller_of(&target, SUBNQN);
    let mut third = Host::open(&target, 0, 32);
    let completion = third.connect(&Connect::new(0, 32, 0), &to(SUBNQN));
    assert_eq!(completion.status(), Status::CONNECT_CONTROLLER_BUSY);
    assert!(!completion.cqe.status().dnr());
    let remark = third.queue.take_remark().unwrap();
    for words in ["7 to 8", "raise its cntlid_max", SUBNQN] {
        assert!(remark.contains(words), "{remark}");
    }
    assert_eq!(target.limit_counters().get(Limit::ControllerIds), 1);
    drop(first);
    let completion = third.connect(&Connect::new(0, 32, 0), &to(SUBNQN));
    assert_eq!(
        (completion.status(), completion.result()),
        (Status::SUCCESS, 7)
    );
}

/// A subsystem without a range avoids the range of another subsystem,
/// and so do discovery controllers.
#[test]
fn identifiers_of_a_small_range_are_left_for_their_subsystem() {
    let plain = SubsystemSpec {
        nqn: PLAIN.into(),
        ..subsystem()
    };
    let target = served(&[plain, giving(SUBNQN, 1, 3), giving(OTHER, 5, 6)]);
    let mut hosts = Vec::new();
    let mut given = |subsystem: &str| {
        let (host, cntlid) = controller_of(&target, subsystem);
        hosts.push(host);
        cntlid
    };
    let discovery = nvmeof_wire::nqn::DISCOVERY;
    let others = [PLAIN, discovery, PLAIN, discovery].map(&mut given);
    assert_eq!(others, [4, 7, 8, 9]);
    assert_eq!([SUBNQN, SUBNQN, SUBNQN].map(&mut given), [1, 2, 3]);
    assert_eq!([OTHER, OTHER].map(&mut given), [5, 6]);
}

#[test]
fn controller_keeps_its_identifier_when_the_range_changes() {
    let target = served(&[giving(SUBNQN, 1, 3)]);
    let (mut admin, cntlid) = controller_of(&target, SUBNQN);
    let applied = apply(&target, &[giving(SUBNQN, 20, 29)]);
    assert!(applied.disconnected.is_empty(), "{applied:?}");
    let reported: Vec<_> = applied.changes.iter().map(ToString::to_string).collect();
    let another = |key| format!("subsystem {SUBNQN} is changed: {key}");
    assert_eq!(reported, ["cntlid_min", "cntlid_max"].map(another));
    // It continues, gets queues, and its identifier stays taken.
    assert_eq!(admin.csts() & 1, 1);
    let _io = Host::io(&target, 1, cntlid);
    assert_eq!(controller_of(&target, SUBNQN).1, 20);
    let applied = apply(&target, &[giving(SUBNQN, 20, 21)]);
    let reported: Vec<_> = applied.changes.iter().map(ToString::to_string).collect();
    assert_eq!(
        reported,
        [format!("subsystem {SUBNQN} is changed: cntlid_max")]
    );
    let _ = apply(&target, &[giving(SUBNQN, 1, 3)]);
    let [_two, _three] = [2, 3].map(|expected| {
        let (host, cntlid) = controller_of(&target, SUBNQN);
        assert_eq!(cntlid, expected);
        host
    });
    let mut late = Host::open(&target, 0, 32);
    let completion = late.connect(&Connect::new(0, 32, 0), &to(SUBNQN));
    assert_eq!(completion.status(), Status::CONNECT_CONTROLLER_BUSY);
}

proptest! {
    /// Each controller has an identifier of its subsystem
    /// that no other controller has, and Connect fails only if none is free.
    #[test]
    fn identifiers_are_unique_and_in_range(
        ranges in prop::collection::vec((1..12u32, 0..8u32), 3),
        steps in prop::collection::vec((0..4usize, 0..5usize), 1..80),
    ) {
        let names = [SUBNQN, OTHER, PLAIN, nvmeof_wire::nqn::DISCOVERY];
        let specs = names.iter().zip(&ranges);
        let specs: Vec<_> = specs
            .map(|(nqn, (min, len))| giving(nqn, *min, min + len))
            .collect();
        let target = served(&specs);
        let mut all: Vec<(usize, u16, Host)> = Vec::new();
        for (which, action) in steps {
            if action == 0 {
                if !all.is_empty() {
                    all.remove(which % all.len());
                }
                continue;
            }
            let mut host = Host::open(&target, 0, 32);
            let completion = host.connect(&Connect::new(0, 32, 0), &to(names[which]));
            let ids = ranges.get(which).map_or(1..=65_519, |(min, len)| *min..=min + len);
            let taken: BTreeSet<u32> = all.iter().map(|(_, id, _)| u32::from(*id)).collect();
            if completion.status() == Status::CONNECT_CONTROLLER_BUSY {
                prop_assert!(all.len() == 40 || ids.clone().all(|id| taken.contains(&id)));
                continue;
            }
            prop_assert_eq!(completion.status(), Status::SUCCESS);
            let cntlid = u16::try_from(completion.result()).unwrap();
            prop_assert!(ids.contains(&u32::from(cntlid)), "{cntlid} of {ids:?}");
            prop_assert!(!taken.contains(&u32::from(cntlid)), "{cntlid} twice");
            all.push((which, cntlid, host));
        }
        prop_assert_eq!(target.controllers(), all.len());
    }
}
