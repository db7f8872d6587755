//! Get and Set Features (Base 2.1, 5.1.11 and 5.1.25).

use nvmeof_wire::Status;
use nvmeof_wire::admin::{GetFeatures, NSID_ALL, Select, SetFeatures};
use nvmeof_wire::fabrics::Connect;
use nvmeof_wire::features::{FeatureId, Timestamp};
use zerocopy::{FromBytes, IntoBytes};

use super::discovery;
use crate::SubsystemSpec;
use crate::testing::{Completion, HOST_ID, Host, apply, closed, connect_data, subsystem, target};

fn get(host: &mut Host, fid: FeatureId, select: Select) -> Completion {
    let (cdw11, nsid) = (1, 0);
    let command = GetFeatures {
        fid,
        select,
        cdw11,
        nsid,
    };
    match fid {
        FeatureId::HOST_BEHAVIOR if select != Select::Capabilities => {
            host.read(command.to_sqe(), 512)
        }
        FeatureId::HOST_IDENTIFIER if select != Select::Capabilities => {
            host.read(command.to_sqe(), 16)
        }
        FeatureId::TEMPERATURE_THRESHOLD => host.plain(
            GetFeatures {
                cdw11: 0,
                ..command
            }
            .to_sqe(),
        ),
        _ => host.plain(command.to_sqe()),
    }
}

fn set(host: &mut Host, fid: FeatureId, value: u32) -> Status {
    host.plain(SetFeatures::new(fid, value).to_sqe()).status()
}

#[test]
fn set_value_is_read_back_and_default_is_kept() {
    let (mut host, _) = Host::admin(&target());
    let rows = [
        (FeatureId::ARBITRATION, 0x0102_0307, 0),
        (FeatureId::POWER_MANAGEMENT, 0x20, 0),
        (FeatureId::TEMPERATURE_THRESHOLD, 350, 0x157),
        (FeatureId::VOLATILE_WRITE_CACHE, 0, 1),
        (FeatureId::WRITE_ATOMICITY, 1, 0),
        (FeatureId::ASYNC_EVENT_CONFIG, 0x100, 0),
        (FeatureId::KEEP_ALIVE_TIMER, 5000, 0),
    ];
    for (fid, value, default) in rows {
        assert_eq!(
            get(&mut host, fid, Select::Current).result(),
            default,
            "{fid:?}"
        );
        assert_eq!(set(&mut host, fid, value), Status::SUCCESS, "{fid:?}");
        let current = get(&mut host, fid, Select::Current).result();
        assert_eq!(current, u64::from(value), "{fid:?}");
        // Connect of this host set 0.
        let keep_alive = fid == FeatureId::KEEP_ALIVE_TIMER;
        let default = if keep_alive { 120_000 } else { default };
        for select in [Select::Default, Select::Saved] {
            assert_eq!(get(&mut host, fid, select).result(), default, "{fid:?}");
        }
        assert_eq!(
            get(&mut host, fid, Select::Capabilities).result(),
            4,
            "{fid:?}"
        );
    }
    // A reset keeps only the Keep Alive Timeout.
    host.set_cc(0);
    host.set_cc(nvmeof_wire::registers::Cc::ENABLE.0);
    for (fid, value, default) in rows {
        let kept = fid == FeatureId::KEEP_ALIVE_TIMER;
        let expected = if kept { value.into() } else { default };
        assert_eq!(
            get(&mut host, fid, Select::Current).result(),
            expected,
            "{fid:?}"
        );
    }
}

#[test]
fn invalid_feature_values_are_refused() {
    let (mut host, _) = Host::admin(&target());
    for (fid, value) in [
        (FeatureId::POWER_MANAGEMENT, 1),
        (FeatureId::TEMPERATURE_THRESHOLD, 1 << 16),
        (FeatureId::TEMPERATURE_THRESHOLD, 2 << 20),
        (FeatureId::NUMBER_OF_QUEUES, 0xffff),
        (FeatureId::NUMBER_OF_QUEUES, 0xffff_0000),
        (FeatureId::INTERRUPT_COALESCING, 0),
        (FeatureId::INTERRUPT_VECTOR_CONFIG, 0),
        (FeatureId(0), 0),
        (FeatureId(0xff), 0),
    ] {
        assert_eq!(
            set(&mut host, fid, value),
            Status::INVALID_FIELD,
            "{fid:?} {value:#x}"
        );
    }
    let reserved = get(&mut host, FeatureId::ARBITRATION, Select::Reserved(4));
    assert_eq!(reserved.status(), Status::INVALID_FIELD);
}

/// Base 2.1, 5.1.25.1.4 and 5.1.25.1.5: interrupts are of controllers of memory-based transports;
/// those of message-based ones have none to coalesce. Linux's target refuses 08h alike.
#[test]
fn interrupt_features_are_refused_with_the_field() {
    let (mut host, _) = Host::admin(&target());
    for fid in [
        FeatureId::INTERRUPT_COALESCING,
        FeatureId::INTERRUPT_VECTOR_CONFIG,
    ] {
        for select in [Select::Current, Select::Default, Select::Capabilities] {
            let completion = get(&mut host, fid, select);
            assert_eq!(completion.status(), Status::INVALID_FIELD, "{fid:?}");
            assert!(completion.cqe.status().dnr(), "{fid:?}");
        }
    }
}

#[test]
fn nothing_is_saved() {
    let (mut host, _) = Host::admin(&target());
    let save = SetFeatures {
        save: true,
        ..SetFeatures::new(FeatureId::ARBITRATION, 0)
    };
    assert_eq!(
        host.plain(save.to_sqe()).status(),
        Status::FEATURE_NOT_SAVEABLE
    );
}

/// Base 2.1, 4.4: `nsid` of a feature that is not of namespaces.
#[test]
fn controller_feature_rejects_a_namespace() {
    let target = target();
    let (mut host, _) = Host::admin(&target);
    let mut finder = discovery(&target);
    let specific = Status::FEATURE_NOT_NAMESPACE_SPECIFIC;
    let invalid = Status::INVALID_NAMESPACE;
    // Each row: the NSID, and the status of Set and Get Features.
    for (nsid, sets, gets) in [
        (0, Status::SUCCESS, Status::SUCCESS),
        (NSID_ALL, Status::SUCCESS, Status::SUCCESS),
        (1, specific, Status::SUCCESS),
        (2, specific, Status::SUCCESS),
        (1024, specific, Status::SUCCESS),
        (1025, invalid, invalid),
        (NSID_ALL - 1, invalid, invalid),
    ] {
        assert_eq!(set_of(&mut host, TIMER, nsid, 5000), sets, "{nsid}");
        assert_eq!(get_of(&mut host, TIMER, nsid).status(), gets, "{nsid}");
        // A discovery controller has no namespaces at all.
        let none = match nsid {
            0 | NSID_ALL => Status::SUCCESS,
            _ => invalid,
        };
        assert_eq!(set_of(&mut finder, TIMER, nsid, 5000), none, "{nsid}");
        assert_eq!(get_of(&mut finder, TIMER, nsid).status(), none, "{nsid}");
    }
}

const TIMER: FeatureId = FeatureId::KEEP_ALIVE_TIMER;
const RECOVERY: FeatureId = FeatureId::ERROR_RECOVERY;

fn set_of(host: &mut Host, fid: FeatureId, nsid: u32, value: u32) -> Status {
    let command = SetFeatures {
        nsid,
        ..SetFeatures::new(fid, value)
    };
    host.plain(command.to_sqe()).status()
}

fn get_of(host: &mut Host, fid: FeatureId, nsid: u32) -> Completion {
    let (select, cdw11) = (Select::Current, 0);
    let command = GetFeatures {
        fid,
        select,
        cdw11,
        nsid,
    };
    host.plain(command.to_sqe())
}

/// NVM 1.0, 4.1.3.2; Base 2.1, 4.4.
#[test]
fn each_namespace_has_its_own_error_recovery() {
    let target = target();
    let (mut host, _) = Host::admin(&target);
    let limits = |host: &mut Host| [1, 3].map(|nsid| get_of(host, RECOVERY, nsid).result());
    assert_eq!(limits(&mut host), [0, 0]);
    assert_eq!(set_of(&mut host, RECOVERY, 3, 7), Status::SUCCESS);
    assert_eq!(limits(&mut host), [0, 7]);
    let default = get(&mut host, RECOVERY, Select::Capabilities);
    assert_eq!(default.result(), 0b110, "changeable, and of a namespace");
    assert_eq!(set_of(&mut host, RECOVERY, NSID_ALL, 5), Status::SUCCESS);
    assert_eq!(limits(&mut host), [5, 5]);
    for (nsid, sets, gets) in [
        (0, Status::INVALID_NAMESPACE, Status::INVALID_NAMESPACE),
        (2, Status::INVALID_FIELD, Status::INVALID_FIELD),
        (1025, Status::INVALID_NAMESPACE, Status::INVALID_NAMESPACE),
        (NSID_ALL, Status::SUCCESS, Status::INVALID_NAMESPACE),
    ] {
        assert_eq!(set_of(&mut host, RECOVERY, nsid, 5), sets, "{nsid}");
        assert_eq!(get_of(&mut host, RECOVERY, nsid).status(), gets, "{nsid}");
    }
    // Deallocated blocks are no error (NSFEAT).
    assert_eq!(
        set_of(&mut host, RECOVERY, 1, 1 << 16),
        Status::INVALID_FIELD
    );
    // A later namespace with this NSID has the default; a reset clears all.
    let mut without = subsystem();
    without.namespaces.retain(|namespace| namespace.nsid != 3);
    let _ = apply(&target, &[without, closed()]);
    let _ = apply(&target, &[subsystem(), closed()]);
    assert_eq!(limits(&mut host), [5, 0]);
    let mut other = subsystem();
    other.namespaces[0].uuid = Some([9; 16]);
    let _ = apply(&target, &[other, closed()]);
    assert_eq!(limits(&mut host), [0, 0]);
    assert_eq!(set_of(&mut host, RECOVERY, 1, 5), Status::SUCCESS);
    host.set_cc(0);
    host.set_cc(nvmeof_wire::registers::Cc::ENABLE.0);
    assert_eq!(limits(&mut host), [0, 0]);
}

/// Identify with CNS 1Ch has combination 0 only. A host that requests all command sets (CC.CSS
/// 110b) is served like one that requests the NVM command set.
#[test]
fn one_command_set_combination_is_reported() {
    let (mut host, _) = Host::admin(&target());
    host.set_cc(0);
    host.set_cc(nvmeof_wire::registers::Cc::ENABLE.0 | 0b110 << 4);
    let profile = FeatureId::IO_COMMAND_SET_PROFILE;
    assert_eq!(set(&mut host, profile, 0), Status::SUCCESS);
    let rejected = Status::COMMAND_SET_COMBINATION_REJECTED;
    for index in [1, 2, 511] {
        assert_eq!(set(&mut host, profile, index), rejected, "{index}");
    }
    for select in [Select::Current, Select::Default, Select::Saved] {
        assert_eq!(get(&mut host, profile, select).result(), 0);
    }
}

#[test]
fn queues_are_granted_up_to_the_limit_and_before_any_connects() {
    let target = target();
    let (mut host, cntlid) = Host::admin(&target);
    for (asked, granted) in [
        (0x0000_0000, 0),
        (0x0001_0003, 0x1_0001),
        (0x00ff_00ff, 0x3_0003),
    ] {
        let completion = host.plain(SetFeatures::new(FeatureId::NUMBER_OF_QUEUES, asked).to_sqe());
        assert_eq!(completion.result(), granted);
        let current = get(&mut host, FeatureId::NUMBER_OF_QUEUES, Select::Current);
        assert_eq!(current.result(), granted);
    }
    let _io = Host::io(&target, 1, cntlid);
    let status = set(&mut host, FeatureId::NUMBER_OF_QUEUES, 0);
    assert_eq!(status, Status::COMMAND_SEQUENCE_ERROR);
}

/// A granted number remains; later requests get the present limit.
#[test]
fn a_subsystem_may_grant_fewer_queues_than_others() {
    let few = |io_queues| SubsystemSpec {
        io_queues,
        ..subsystem()
    };
    let target = target();
    let _ = apply(&target, &[few(Some(3)), closed()]);
    let (mut host, cntlid) = Host::admin(&target);
    let number = FeatureId::NUMBER_OF_QUEUES;
    for select in [Select::Current, Select::Default] {
        assert_eq!(get(&mut host, number, select).result(), 0x2_0002);
    }
    let ask = SetFeatures::new(number, 0xff_00ff).to_sqe();
    assert_eq!(host.plain(ask).result(), 0x2_0002);
    let change = apply(&target, &[few(Some(1)), closed()]);
    assert!(change.disconnected.is_empty(), "{change:?}");
    let _third = Host::io(&target, 3, cntlid);
    assert_eq!(get(&mut host, number, Select::Current).result(), 0x2_0002);
    assert_eq!(get(&mut host, number, Select::Default).result(), 0);
    let (mut other, cntlid) = Host::admin(&target);
    assert_eq!(get(&mut other, number, Select::Current).result(), 0);
    let mut second = Host::open(&target, 2, 128);
    let completion = second.connect(&Connect::new(2, 128, 0), &connect_data(cntlid));
    assert_eq!(completion.status(), Status::CONNECT_INVALID_PARAMETERS);
    let _ = apply(&target, &[few(None), closed()]);
    assert_eq!(other.plain(ask).result(), 0x3_0003);
}

#[test]
fn host_identifier_is_that_of_connect() {
    let (mut host, _) = Host::admin(&target());
    assert_eq!(
        get(&mut host, FeatureId::HOST_IDENTIFIER, Select::Current).data,
        HOST_ID
    );
    let short = GetFeatures {
        fid: FeatureId::HOST_IDENTIFIER,
        select: Select::Current,
        cdw11: 0,
        nsid: 0,
    };
    assert_eq!(host.read(short.to_sqe(), 8).status(), Status::INVALID_FIELD);
    let status = set(&mut host, FeatureId::HOST_IDENTIFIER, 1);
    assert_eq!(status, Status::COMMAND_SEQUENCE_ERROR);
}

#[test]
fn host_behavior_support_is_set_and_read() {
    let (mut host, _) = Host::admin(&target());
    let command = SetFeatures::new(FeatureId::HOST_BEHAVIOR, 0).to_sqe();
    let mut data = [0; 512];
    data[0] = 1;
    data[2] = 1;
    assert_eq!(host.write(command, &data).status(), Status::SUCCESS);
    assert_eq!(
        get(&mut host, FeatureId::HOST_BEHAVIOR, Select::Current).data,
        data
    );
    let default = get(&mut host, FeatureId::HOST_BEHAVIOR, Select::Default);
    assert_eq!(default.data, [0; 512]);
    data[1] = 2;
    assert_eq!(host.write(command, &data).status(), Status::INVALID_FIELD);
    assert_eq!(
        host.write(command, &[0; 511]).status(),
        Status::DATA_SGL_LENGTH_INVALID
    );
}

/// Base 2.1, 5.1.25.1.7.
#[test]
fn timestamp_advances_from_set_value_or_reset() {
    use std::time::Duration;
    let (mut host, _) = Host::admin(&target());
    let reported = |host: &mut Host, select| {
        let command = GetFeatures {
            fid: FeatureId::TIMESTAMP,
            select,
            cdw11: 0,
            nsid: 0,
        };
        let data = host.read(command.to_sqe(), 8).data;
        let timestamp = Timestamp::read_from_bytes(&data).ok().unwrap();
        (timestamp.ms(), timestamp.attributes)
    };
    host.now += Duration::from_millis(700);
    let since_reset = (700, Timestamp::ORIGIN_RESET);
    assert_eq!(reported(&mut host, Select::Current), since_reset);
    let set = SetFeatures::new(FeatureId::TIMESTAMP, 0).to_sqe();
    // The attributes are those of the controller.
    let now = Timestamp::new(1_790_000_000_000, 0xff);
    assert_eq!(host.write(set, now.as_bytes()).status(), Status::SUCCESS);
    host.now += Duration::from_millis(25);
    let went_on = (1_790_000_000_025, Timestamp::ORIGIN_HOST);
    assert_eq!(reported(&mut host, Select::Current), went_on);
    assert_eq!(reported(&mut host, Select::Default), (0, 0));
    let short = host.write(set, &[0; 7]);
    assert_eq!(short.status(), Status::DATA_SGL_LENGTH_INVALID);
    host.set_cc(0);
    host.set_cc(nvmeof_wire::registers::Cc::ENABLE.0);
    host.now += Duration::from_millis(3);
    assert_eq!(
        reported(&mut host, Select::Current),
        (3, Timestamp::ORIGIN_RESET)
    );
}

#[test]
fn a_discovery_controller_has_few_features() {
    let mut host = discovery(&target());
    assert_eq!(
        set(&mut host, FeatureId::KEEP_ALIVE_TIMER, 1000),
        Status::SUCCESS
    );
    for fid in [FeatureId::NUMBER_OF_QUEUES, FeatureId::HOST_IDENTIFIER] {
        assert_eq!(set(&mut host, fid, 0), Status::INVALID_FIELD, "{fid:?}");
        let completion = get(&mut host, fid, Select::Current);
        assert_eq!(completion.status(), Status::INVALID_FIELD, "{fid:?}");
    }
}
