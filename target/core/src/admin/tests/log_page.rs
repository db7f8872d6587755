//! Get Log Page (Base 2.1, 5.1.12).

use std::time::Duration;

use nvmeof_wire::Status;
use nvmeof_wire::admin::{
    Cns, GetFeatures, GetLogPage, Identify, LogId, NSID_ALL, Select, SetFeatures,
};
use nvmeof_wire::fabrics::Connect;
use nvmeof_wire::features::FeatureId;
use nvmeof_wire::log::discovery::TransportType;
use nvmeof_wire::log::discovery::{AddressFamily, RdmaProviderType, RdmaTsas};
use nvmeof_wire::log::{
    CommandEffects, DiscoveryPage, ErrorEntry, FirmwareSlots, SmartLog, SupportedPages,
};
use nvmeof_wire::nvm::{Io, IoFlags};
use nvmeof_wire::opcode::{Opcode, admin, io};
use zerocopy::FromBytes;

use super::discovery;
use crate::testing::{Completion, Host, SUBNQN, namespace, subsystem, target, target_of};
use crate::{Carrier, Executed, Fabric, Limits, Model, PortSpec, Target, Traddr};

fn get(host: &mut Host, lid: LogId, offset: u64, len: u32) -> Completion {
    let command = GetLogPage::new(lid, 0, offset, len);
    host.read(command.to_sqe(), usize::try_from(len).unwrap())
}

fn page<T: FromBytes>(host: &mut Host, lid: LogId) -> T {
    let len = u32::try_from(size_of::<T>()).unwrap();
    let completion = get(host, lid, 0, len);
    assert_eq!(completion.status(), Status::SUCCESS, "{lid:?}");
    T::read_from_bytes(&completion.data).ok().unwrap()
}

#[test]
fn supported_pages_can_be_read() {
    let (mut host, _) = Host::admin(&target());
    let supported: SupportedPages = page(&mut host, LogId::SUPPORTED);
    for lid in (0..=u8::MAX).map(LogId) {
        let completion = get(&mut host, lid, 0, 512);
        let expected = if supported.iter().any(|one| one == lid) {
            Status::SUCCESS
        } else {
            Status::INVALID_LOG_PAGE
        };
        assert_eq!(completion.status(), expected, "{lid:?}");
    }
}

#[test]
fn pages_are_cut_and_padded_to_the_requested_length() {
    let (mut host, _) = Host::admin(&target());
    let whole = get(&mut host, LogId::FIRMWARE, 0, 512).data;
    assert_eq!(get(&mut host, LogId::FIRMWARE, 0, 16).data, whole[..16]);
    assert_eq!(get(&mut host, LogId::FIRMWARE, 8, 16).data, whole[8..24]);
    let longer = get(&mut host, LogId::FIRMWARE, 0, 1024).data;
    assert_eq!(longer[..512], whole);
    assert!(longer[512..].iter().all(|byte| *byte == 0));
    for offset in [2, 516, 1 << 40] {
        let completion = get(&mut host, LogId::FIRMWARE, offset, 16);
        assert_eq!(completion.status(), Status::INVALID_FIELD, "{offset}");
    }
    let mut index = GetLogPage::new(LogId::FIRMWARE, 0, 0, 16);
    index.index_offset = true;
    assert_eq!(
        host.read(index.to_sqe(), 16).status(),
        Status::INVALID_FIELD
    );
    let completion = get(&mut host, LogId::FIRMWARE, 0, 512 << 10);
    assert_eq!(completion.status(), Status::INVALID_FIELD);
    let slots: FirmwareSlots = page(&mut host, LogId::FIRMWARE);
    assert_eq!(
        slots.active().unwrap().to_string(),
        env!("CARGO_PKG_VERSION")
    );
}

#[test]
fn smart_counts_what_was_done() {
    let (mut host, mut queue) = Host::ready(&target());
    let command = Io::new(1, 0, 4);
    for _ in 0..250 {
        queue.read(command.to_sqe(io::READ), 2048);
    }
    queue.write(command.to_sqe(io::WRITE), &[0; 2048]);
    queue.outcomes = vec![Executed::Failed];
    queue.write(command.to_sqe(io::WRITE), &[0; 2048]);
    let smart: SmartLog = page(&mut host, LogId::SMART);
    assert_eq!((smart.hrc.get(), smart.hwc.get()), (250, 1));
    assert_eq!((smart.dur.get(), smart.duw.get()), (1, 1));
    assert_eq!((smart.mdie.get(), smart.neile.get()), (1, 1));
    assert_eq!(smart.celsius(), Some(25));
}

#[test]
fn failures_are_in_the_error_log_newest_first() {
    let (mut host, mut queue) = Host::ready(&target());
    let command = Io::new(1, 5000, 1);
    let failed = queue.read(command.to_sqe(io::READ), 512);
    host.plain(nvmeof_wire::Sqe::new(Opcode(0xff)));
    let [newest, older, none]: [ErrorEntry; 3] = page(&mut host, LogId::ERROR);
    assert_eq!((newest.ecnt.get(), newest.sqid.get()), (2, 0));
    assert_eq!(newest.parameter(), Some((0, 0)));
    assert_eq!(newest.trtype, TransportType::RDMA);
    assert_eq!(
        (older.ecnt.get(), older.sqid.get(), older.lba.get()),
        (1, 1, 5000)
    );
    assert_eq!(older.cid, failed.cqe.cid);
    assert!(older.status().is(Status::LBA_OUT_OF_RANGE));
    assert_eq!(none.ecnt.get(), 0);
}

/// Base 2.1, 4.2.3, More.
#[test]
fn more_bit_is_set_when_the_error_log_has_entries() {
    let (mut host, mut queue) = Host::ready(&target());
    let beyond = Io::new(1, 5000, 1).to_sqe(io::READ);
    let last = |host: &mut Host| -> ErrorEntry {
        let [newest]: [ErrorEntry; 1] = page(host, LogId::ERROR);
        newest
    };
    let failed = queue.read(beyond, 512).cqe.status();
    assert!(failed.more() && failed.dnr());
    assert_eq!(last(&mut host).status(), failed);
    queue.outcomes = vec![Executed::Gone];
    let failed = queue.read(Io::new(1, 0, 1).to_sqe(io::READ), 512);
    assert!(failed.cqe.status().more() && !failed.cqe.status().dnr());
    let failed = host.plain(nvmeof_wire::Sqe::new(Opcode(0xff)));
    assert!(failed.cqe.status().more());
    assert_eq!(last(&mut host).status(), failed.cqe.status());
    // Without an entry the bit is clear.
    let fine = queue.read(Io::new(1, 0, 1).to_sqe(io::READ), 512);
    assert_eq!(fine.cqe.status().to_field(), 0);
    let mut stranger = Host::open(&target(), 0, 32);
    let refused = Connect::new(0, 32, 0).to_sqe();
    let refused = stranger.write(refused, &[0; 1024]).cqe.status();
    assert!(!refused.is_success() && !refused.more());
}

/// Base 2.1, 5.1.12.1: of pages of the controller and of the subsystem.
#[test]
fn page_without_namespace_scope_rejects_a_namespace() {
    let target = target();
    let (host, _) = Host::admin(&target);
    for mut host in [host, discovery(&target)] {
        let supported: SupportedPages = page(&mut host, LogId::SUPPORTED);
        for lid in supported.iter() {
            for (nsid, status) in [
                (0, Status::SUCCESS),
                (NSID_ALL, Status::SUCCESS),
                (2, Status::INVALID_FIELD),
                (0xffff_fffe, Status::INVALID_FIELD),
                (1, Status::INVALID_FIELD),
            ] {
                let of_namespaces = lid == LogId::SMART;
                if of_namespaces && !matches!(nsid, 0 | NSID_ALL) {
                    continue;
                }
                let command = GetLogPage::new(lid, nsid, 0, 512);
                let completion = host.read(command.to_sqe(), 512);
                assert_eq!(completion.status(), status, "{lid:?} {nsid}");
            }
        }
    }
}

/// Error Information log page, Parameter Error Location: byte, and bit of it.
#[test]
fn failures_name_the_wrong_field() {
    let (mut host, mut queue) = Host::ready(&target());
    let identify = |cns, csi| {
        let mut command = Identify::new(cns, 1);
        command.csi = csi;
        command.to_sqe()
    };
    let log = |change: fn(&mut GetLogPage)| {
        let mut command = GetLogPage::new(LogId::EFFECTS, 0, 0, 4096);
        change(&mut command);
        command.to_sqe()
    };
    let feature = |fid, select| {
        let (cdw11, nsid) = (0, 0);
        GetFeatures {
            fid,
            select,
            cdw11,
            nsid,
        }
        .to_sqe()
    };
    let set = |fid, cdw11, save| {
        SetFeatures {
            save,
            nsid: NSID_ALL,
            ..SetFeatures::new(fid, cdw11)
        }
        .to_sqe()
    };
    let at = |host: &mut Host| {
        let [newest]: [ErrorEntry; 1] = page(host, LogId::ERROR);
        newest.parameter()
    };
    let rows = [
        (identify(Cns(0xff), 0), (40, 0)),
        (identify(Cns::CSI_NAMESPACE, 2), (47, 0)),
        (Identify::new(Cns::NAMESPACE, 0).to_sqe(), (4, 0)),
        (log(|log| log.lid = LogId(0xff)), (40, 0)),
        (log(|log| log.len = 1 << 30), (42, 0)),
        (log(|log| log.offset = 2), (48, 0)),
        (log(|log| log.index_offset = true), (58, 7)),
        (feature(FeatureId(0xff), Select::Current), (40, 0)),
        (
            feature(FeatureId::ARBITRATION, Select::Reserved(7)),
            (41, 0),
        ),
        (set(FeatureId::ARBITRATION, 0, true), (43, 7)),
        (set(FeatureId::ERROR_RECOVERY, 1 << 16, false), (46, 0)),
        (
            set(FeatureId::TEMPERATURE_THRESHOLD, 1 << 16, false),
            (46, 0),
        ),
        (set(FeatureId::POWER_MANAGEMENT, 1, false), (44, 0)),
    ];
    for (command, expected) in rows {
        host.read(command, 4096);
        assert_eq!(at(&mut host), Some(expected), "{command:?}");
    }
    let mut prps = Io::new(1, 0, 1).to_sqe(io::READ);
    prps.flags = 0;
    let mut guarded = Io::new(1, 0, 1);
    guarded.flags = IoFlags::PRINFO;
    let mut other_format = Io::new(1, 0, 1).to_sqe(io::COPY);
    other_format.cdw12 = (1 << 8).into();
    for (command, expected) in [
        (prps, (1, 6)),
        (guarded.to_sqe(io::VERIFY), (51, 5)),
        (other_format, (49, 0)),
    ] {
        queue.read(command, 512);
        assert_eq!(at(&mut host), Some(expected), "{command:?}");
    }
}

#[test]
fn effects_name_the_commands_that_are_served() {
    let (mut host, _) = Host::admin(&target());
    let effects: CommandEffects = page(&mut host, LogId::EFFECTS);
    assert!(effects.admin(admin::IDENTIFY).is_some());
    assert!(effects.io(io::COPY).is_some() && effects.io(io::WRITE_UNCORRECTABLE).is_none());
    let mut other = GetLogPage::new(LogId::EFFECTS, 0, 0, 4096);
    other.csi = 1;
    let completion = host.read(other.to_sqe(), 4096);
    let effects = CommandEffects::read_from_bytes(&completion.data).unwrap();
    assert!(effects.admin(admin::IDENTIFY).is_some());
    assert!((0..=255).all(|opcode| effects.io(Opcode(opcode)).is_none()));
}

/// Base 2.1, 5.1.12.1.18: FSUPP, NCC, CCC and the one scope of each.
#[test]
fn feature_effects_name_supported_features_and_scope() {
    let (mut host, _) = Host::admin(&target());
    let page: [[u8; 4]; 256] = page(&mut host, LogId::FEATURE_EFFECTS);
    for (fid, entry) in (0..=u8::MAX).zip(page) {
        let command = GetFeatures {
            fid: FeatureId(fid),
            select: Select::Capabilities,
            cdw11: 0,
            nsid: 1,
        };
        let there = host.plain(command.to_sqe()).status() == Status::SUCCESS;
        let entry = u32::from_le_bytes(entry);
        assert_eq!(entry & 1 != 0, there, "{fid:#x}");
        assert_eq!((entry >> 20).count_ones(), u32::from(there), "{fid:#x}");
    }
    let at = |fid: FeatureId| u32::from_le_bytes(page[usize::from(fid.0)]);
    assert_eq!(at(FeatureId::TIMESTAMP), 1 << 21 | 1);
    assert_eq!(at(FeatureId::ERROR_RECOVERY), 1 << 20 | 1);
    assert_eq!(at(FeatureId::NUMBER_OF_QUEUES), 1 << 21 | 1 << 4 | 1);
    assert_eq!(
        at(FeatureId::NAMESPACE_WRITE_PROTECTION),
        1 << 20 | 1 << 2 | 1
    );
}

#[test]
fn smart_counts_hours_from_the_start() {
    let (mut host, _) = Host::admin(&target());
    let hours = |host: &mut Host| {
        let smart: SmartLog = page(host, LogId::SMART);
        assert_eq!((smart.pwrc.get(), smart.upl.get()), (1, 0));
        smart.poh.get()
    };
    host.now = Duration::from_secs(3599);
    assert_eq!(hours(&mut host), 0);
    host.now = Duration::from_secs(50 * 3600);
    assert_eq!(hours(&mut host), 50);
}

#[test]
fn read_only_namespace_is_no_critical_warning() {
    let readonly = crate::NamespaceSpec {
        readonly: true,
        ..namespace(1)
    };
    let (mut host, _) = Host::admin(&target_of(readonly));
    let smart: SmartLog = page(&mut host, LogId::SMART);
    assert_eq!(smart.cw, 0);
}

#[test]
fn discovery_log_has_only_permitted_subsystems() {
    let mut host = discovery(&target());
    let completion = get(&mut host, LogId::DISCOVERY, 0, 4096);
    let page = DiscoveryPage::parse(&completion.data).unwrap();
    assert_eq!((page.header.numrec.get(), page.header.genctr.get()), (1, 1));
    let entry = page.entries[0];
    assert_eq!(&entry.subnqn[..SUBNQN.len()], SUBNQN.as_bytes());
    assert_eq!(entry.traddr.to_string(), "127.0.0.1");
    assert_eq!(
        (entry.trsvcid.to_string(), entry.asqsz.get()),
        ("4420".into(), 32)
    );
    let second = get(&mut host, LogId::DISCOVERY, 1024, 1024).data;
    assert_eq!(second, completion.data[1024..2048]);
}

#[test]
fn a_port_that_the_host_cannot_reach_is_left_out() {
    let mut host = discovery(&target());
    host.queue.set_local("10.0.0.1".parse().unwrap());
    let completion = get(&mut host, LogId::DISCOVERY, 0, 4096);
    let page = DiscoveryPage::parse(&completion.data).unwrap();
    assert_eq!(page.header.numrec.get(), 0);
}

#[test]
fn intra_host_port_is_reported_to_intra_host_connections() {
    let traddr = Traddr::Host("unix:/run/a.sock".into());
    let port = PortSpec::new(traddr, 0, vec![Fabric::Iwarp.into()]);
    let model = Model::build(Limits::default(), &[port], &[subsystem()]).unwrap();
    let mut host = discovery(&Target::new(model));
    let entries = |host: &mut Host| {
        let completion = get(host, LogId::DISCOVERY, 0, 4096);
        let page = DiscoveryPage::parse(&completion.data).unwrap();
        page.entries.to_vec()
    };
    assert!(entries(&mut host).is_empty());
    host.queue.set_local_host();
    let all = entries(&mut host);
    let [entry] = all[..] else {
        panic!("{} entries", all.len());
    };
    assert_eq!(entry.adrfam, AddressFamily::LOOP);
    assert_eq!(entry.traddr.to_string(), "unix:/run/a.sock");
    assert_eq!(entry.trsvcid.to_string(), "none");
}

/// Provider type, address and port identifier of each entry of the log of a
/// port.
fn reported(
    traddr: &str,
    carriers: Vec<Carrier>,
    local: &str,
) -> Vec<(RdmaProviderType, String, u16)> {
    let traddr: Traddr = traddr.parse().unwrap();
    let port = PortSpec::new(traddr, 4420, carriers);
    let model = Model::build(Limits::default(), &[port], &[subsystem()]).unwrap();
    let mut host = discovery(&Target::new(model));
    host.queue.set_local(local.parse().unwrap());
    let completion = get(&mut host, LogId::DISCOVERY, 0, 4096);
    let page = DiscoveryPage::parse(&completion.data).unwrap();
    assert!(page.is_complete());
    let reported = page.entries.iter().map(|entry| {
        let tsas = entry.tsas;
        assert_eq!(tsas, RdmaTsas::connected(tsas.prtype));
        assert_eq!(entry.trsvcid.to_string(), "4420");
        (tsas.prtype, entry.traddr.to_string(), entry.portid.get())
    });
    reported.collect()
}

#[test]
fn each_provider_of_a_port_has_an_entry_in_the_order_given() {
    use RdmaProviderType as Type;
    for (fabric, expected) in [
        (Fabric::InfiniBand, Type::IB),
        (Fabric::RoceV1, Type::ROCE),
        (Fabric::RoceV2, Type::ROCE_V2),
        (Fabric::Iwarp, Type::IWARP),
        (Fabric::Unspecified, Type::NOT_SPECIFIED),
    ] {
        let carriers = vec![fabric.into(), Fabric::Iwarp.into()];
        let at = "10.0.0.1".to_owned();
        assert_eq!(
            reported("10.0.0.1", carriers, "10.0.0.2"),
            [(expected, at.clone(), 1), (Type::IWARP, at, 1)]
        );
    }
}

#[test]
fn wildcard_port_reports_providers_of_the_used_address() {
    use RdmaProviderType as Type;
    let only = |fabric, addr: &str| Carrier {
        fabric,
        only: Some(addr.parse().unwrap()),
    };
    let carriers = vec![
        only(Fabric::RoceV2, "10.0.0.1"),
        only(Fabric::InfiniBand, "fd00::1"),
        Fabric::Iwarp.into(),
    ];
    for (all, local, types) in [
        ("0.0.0.0", "10.0.0.1", vec![Type::ROCE_V2, Type::IWARP]),
        ("::", "fd00::1", vec![Type::IB, Type::IWARP]),
        ("0.0.0.0", "10.0.0.2", vec![Type::IWARP]),
        // [::] does not serve IPv4, nor 0.0.0.0 IPv6.
        ("::", "10.0.0.1", vec![]),
        ("0.0.0.0", "fd00::1", vec![]),
    ] {
        let reported = reported(all, carriers.clone(), local);
        let shown: Vec<_> = reported.iter().map(|(kind, ..)| *kind).collect();
        assert_eq!(shown, types, "{local}");
        assert!(
            reported.iter().all(|(_, addr, _)| addr == local),
            "{reported:?}"
        );
    }
}

#[test]
fn io_controllers_have_no_discovery_log() {
    let (mut host, _) = Host::admin(&target());
    let completion = get(&mut host, LogId::DISCOVERY, 0, 1024);
    assert_eq!(completion.status(), Status::INVALID_LOG_PAGE);
    let completion = get(&mut discovery(&target()), LogId::SMART, 0, 512);
    assert_eq!(completion.status(), Status::INVALID_LOG_PAGE);
}
