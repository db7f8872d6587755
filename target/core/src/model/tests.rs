//! All errors of a description.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use nvmeof_wire::log::ana::AnaState;

use super::*;
use crate::testing::{SUBNQN, namespace, port, subsystem};

fn build(
    limits: Limits,
    ports: &[PortSpec],
    subsystems: &[SubsystemSpec],
) -> Result<Model, ModelError> {
    Model::build(limits, ports, subsystems)
}

/// Location and key of the error of a modified subsystem.
fn refused(change: impl FnOnce(&mut SubsystemSpec)) -> (Location, &'static str) {
    let mut spec = subsystem();
    change(&mut spec);
    let error = build(Limits::default(), &[port()], &[spec]).unwrap_err();
    assert!(error.to_string().contains(error.key) && !error.why.is_empty());
    (error.location, error.key)
}

#[test]
fn model_has_described_and_derived_values() {
    let build = || build(Limits::default(), &[port()], &[subsystem()]).unwrap();
    let model = build();
    let store = &model.subsystems()[0];
    assert_eq!(store.nqn.as_str(), SUBNQN);
    assert_eq!(store.namespaces().len(), 2);
    assert_eq!(store.namespace(3).unwrap().block_size(), 4096);
    assert!(store.namespace(2).is_none());
    assert_eq!(store.namespace(3).unwrap().bytes(), 4096 * 1000);
    let again = build();
    assert_eq!(again.subsystems()[0].serial, store.serial);
    assert_eq!(again.subsystems()[0].namespaces(), store.namespaces());
}

#[test]
fn names_and_hosts() {
    let here = Location::Subsystem(0);
    assert_eq!(refused(|spec| spec.nqn = "di\nsk".into()), (here, "nqn"));
    let discovery = nvmeof_wire::nqn::DISCOVERY;
    assert_eq!(refused(|spec| spec.nqn = discovery.into()), (here, "nqn"));
    assert_eq!(
        refused(|spec| spec.serial = Some("x".repeat(21))),
        (here, "serial")
    );
    assert_eq!(
        refused(|spec| spec.serial = Some(String::new())),
        (here, "serial")
    );
    assert_eq!(
        refused(|spec| spec.model = Some("\u{e4}".into())),
        (here, "model")
    );
    let host = |spec: &mut SubsystemSpec| spec.allowed_hosts = vec![SUBNQN.into()];
    assert_eq!(refused(host), (here, "allow_any_host"));
    let bad = |spec: &mut SubsystemSpec| spec.allowed_hosts = vec!["a\nb".into()];
    assert_eq!(refused(bad), (here, "allowed_hosts"));
    let twice = build(Limits::default(), &[port()], &[subsystem(), subsystem()]).unwrap_err();
    assert_eq!((twice.location, twice.key), (Location::Subsystem(1), "nqn"));
    // Subsystems may come later.
    let none = build(Limits::default(), &[port()], &[]).unwrap();
    assert!(none.subsystems().is_empty());
}

#[test]
fn namespaces() {
    let second = Location::Namespace {
        subsystem: 0,
        namespace: 1,
    };
    assert_eq!(
        refused(|spec| spec.namespaces[1].nsid = 1),
        (second, "nsid")
    );
    for nsid in [0, 65537, u32::MAX] {
        assert_eq!(
            refused(|spec| spec.namespaces[1].nsid = nsid),
            (second, "nsid")
        );
    }
    for size in [0, 256, 520, 1536, 8192] {
        let change = |spec: &mut SubsystemSpec| spec.namespaces[1].block_size = size;
        assert_eq!(refused(change), (second, "block_size"));
    }
    for blocks in [0, 1 << 51, u64::MAX] {
        let change = |spec: &mut SubsystemSpec| spec.namespaces[1].blocks = blocks;
        assert_eq!(refused(change), (second, "blocks"));
    }
    let same = |key: &'static str| {
        move |spec: &mut SubsystemSpec| {
            for one in &mut spec.namespaces {
                match key {
                    "uuid" => one.uuid = Some([1; 16]),
                    "nguid" => one.nguid = Some([1; 16]),
                    _ => one.eui64 = Some([1; 8]),
                }
            }
        }
    };
    for key in ["uuid", "nguid", "eui64"] {
        assert_eq!(refused(same(key)), (second, key));
    }
    assert_eq!(namespace(1).nsid, 1);
}

#[test]
fn port_identifiers_are_unique() {
    let numbered = |id, trsvcid| PortSpec {
        id,
        trsvcid,
        ..port()
    };
    let ids = |ports: &[PortSpec]| -> Result<Vec<u16>, ModelError> {
        let model = build(Limits::default(), ports, &[subsystem()])?;
        Ok(model.ports().iter().map(|port| port.id).collect())
    };
    let ports = [numbered(None, 1), numbered(Some(7), 2), numbered(None, 3)];
    assert_eq!(ids(&ports).unwrap(), [1, 7, 3]);
    for ports in [
        [numbered(Some(2), 1), numbered(None, 2)],
        [numbered(None, 1), numbered(Some(0), 2)],
    ] {
        let error = ids(&ports).unwrap_err();
        assert_eq!((error.location, error.key), (Location::Port(1), "id"));
    }
}

#[test]
fn groups_and_hosts_of_namespaces() {
    let second = Location::Namespace {
        subsystem: 0,
        namespace: 1,
    };
    for group in [0, 129, u32::MAX] {
        let change = |spec: &mut SubsystemSpec| spec.namespaces[1].ana_group = group;
        assert_eq!(refused(change), (second, "ana_group"));
    }
    for hosts in [vec![], vec!["a\nb".to_owned()]] {
        let change = |spec: &mut SubsystemSpec| spec.namespaces[1].hosts = Some(hosts);
        assert_eq!(refused(change), (second, "hosts"));
    }
    let group = |id| AnaGroup {
        id,
        state: AnaState::CHANGE,
    };
    for groups in [vec![group(0)], vec![group(129)], vec![group(2), group(2)]] {
        let port = PortSpec {
            ana_groups: groups,
            ..port()
        };
        let error = build(Limits::default(), &[port], &[subsystem()]).unwrap_err();
        assert_eq!(
            (error.location, error.key),
            (Location::Port(0), "ana_group")
        );
    }
}

#[test]
fn ports_and_limits() {
    let error = build(Limits::default(), &[port(), port()], &[subsystem()]).unwrap_err();
    assert_eq!((error.location, error.key), (Location::Port(1), "traddr"));
    let here = |name: &str| PortSpec {
        traddr: Traddr::Host(name.into()),
        trsvcid: 0,
        ..port()
    };
    for ports in [
        [port(), here("unix:/\u{e4}")],
        [here("unix:/a"), here("unix:/a")],
    ] {
        let error = build(Limits::default(), &ports, &[subsystem()]).unwrap_err();
        assert_eq!((error.location, error.key), (Location::Port(1), "traddr"));
    }
    let good = Limits::default;
    for (limits, key) in [
        (
            Limits {
                queue_depth: 1,
                ..good()
            },
            "queue_depth",
        ),
        (
            Limits {
                queue_depth: 1025,
                ..good()
            },
            "queue_depth",
        ),
        (
            Limits {
                io_queues: 0,
                ..good()
            },
            "io_queues",
        ),
        (
            Limits {
                controllers: 0,
                ..good()
            },
            "controllers",
        ),
        (
            Limits {
                max_transfer: 4096,
                ..good()
            },
            "max_transfer",
        ),
        (
            Limits {
                max_transfer: 12288,
                ..good()
            },
            "max_transfer",
        ),
        (
            Limits {
                in_capsule: 8,
                ..good()
            },
            "in_capsule",
        ),
        (
            Limits {
                max_descriptors: 0,
                ..good()
            },
            "max_descriptors",
        ),
        (
            Limits {
                max_descriptors: 17,
                ..good()
            },
            "max_descriptors",
        ),
        (
            Limits {
                in_capsule: 8192,
                max_descriptors: 2,
                ..good()
            },
            "in_capsule",
        ),
    ] {
        let error = build(limits, &[port()], &[subsystem()]).unwrap_err();
        assert_eq!((error.location, error.key), (Location::Limits, key));
    }
}

#[test]
fn subsystem_without_hosts_permits_none() {
    let spec = SubsystemSpec {
        allow_any_host: false,
        allowed_hosts: Vec::new(),
        ..subsystem()
    };
    let model = build(Limits::default(), &[port()], &[spec]).unwrap();
    let one = &model.subsystems()[0];
    assert!(!one.allows(&Nqn::new(SUBNQN).unwrap()));
}

#[test]
fn order_of_ana_groups_does_not_matter() {
    let group = |id| AnaGroup {
        id,
        state: AnaState::INACCESSIBLE,
    };
    let of = |ids: [u32; 2]| {
        let port = PortSpec {
            ana_groups: ids.map(group).to_vec(),
            ..port()
        };
        Model::build(Limits::default(), &[port], &[]).unwrap()
    };
    assert_eq!(of([2, 3]).ports(), of([3, 2]).ports());
}
