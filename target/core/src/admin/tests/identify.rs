//! Identify (Base 2.1, 5.1.13).

use nvmeof_wire::Ascii;
use nvmeof_wire::Status;
use nvmeof_wire::admin::{Cns, GetLogPage, Identify, LogId, NSID_ALL};
use nvmeof_wire::identify::capabilities::Fuses;
use nvmeof_wire::identify::namespace::Nsfeat;
use nvmeof_wire::identify::{
    ControllerList, ControllerType, Ctratt, DescriptorList, IdentifyController,
    IdentifyControllerNvm, IdentifyNamespace, IdentifyNamespaceIndependent, Lpa,
    NamespaceIdentifiers, NamespaceList, Oncs, Sgls,
};
use nvmeof_wire::log::FirmwareSlots;
use nvmeof_wire::nvm::{DatasetManagement, DsmRange, Io};
use nvmeof_wire::opcode::io;
use zerocopy::{FromBytes, IntoBytes};

use super::discovery;
use crate::model::FIRMWARE;
use crate::testing::{
    Host, SUBNQN, apply, closed, connect_data, namespace, port, subsystem, target, target_of,
    target_with,
};
use crate::{IoKind, Limits, Model, NamespaceState, PortBounds, Preferred, SubsystemSpec, Target};

fn identify<T: FromBytes>(host: &mut Host, cns: Cns, nsid: u32) -> T {
    let completion = host.identify(cns, nsid);
    assert_eq!(completion.status(), Status::SUCCESS, "{cns:?} {nsid}");
    T::read_from_bytes(&completion.data).ok().unwrap()
}

#[test]
fn identify_controller_satisfies_linux() {
    let (mut host, cntlid) = Host::admin(&target());
    let id: IdentifyController = identify(&mut host, Cns::CONTROLLER, 0);
    assert_eq!(
        (id.cntlid.get(), id.cntrltype),
        (cntlid, ControllerType::IO)
    );
    assert_eq!(id.command_capsule_len(), 64 + 4096);
    assert_eq!((id.iorcsz.get(), id.icdoff.get(), id.msdbd), (1, 0, 16));
    assert!(
        id.sgls()
            .contains(Sgls::SUPPORTED | Sgls::KSDBDS | Sgls::OFFSET)
    );
    assert!(id.ctratt().contains(Ctratt::TBKAS));
    assert_eq!(
        (id.kas.get(), id.maxcmd.get(), id.nn.get()),
        (10, 128, 1024)
    );
    assert_eq!(id.max_transfer_len(4096), Some(256 << 10));
    assert_eq!((id.sqes, id.cqes), (0x66, 0x44));
    assert_eq!(&id.subnqn[..SUBNQN.len()], SUBNQN.as_bytes());
    assert_eq!((id.async_event_limit(), id.elpe), (4, 63));
    assert_eq!(id.sn.to_string().len(), 20);
}

/// Base 2.1, 5.1.13.2.1, FR and IEEE. The log page has "the same revision information".
#[test]
fn subsystem_reports_configured_firmware_and_vendor() {
    let target = target();
    let (mut host, _) = Host::admin(&target);
    let id: IdentifyController = identify(&mut host, Cns::CONTROLLER, 0);
    assert_eq!((id.fr, id.ieee), (Ascii::new(FIRMWARE), [0; 3]));
    let chosen = SubsystemSpec {
        firmware_revision: Some("lab-7".to_owned()),
        ieee_oui: Some("00-a0-b8".to_owned()),
        ..subsystem()
    };
    let change = apply(&target, &[chosen, closed()]);
    assert!(change.disconnected.is_empty(), "{change:?}");
    let id: IdentifyController = identify(&mut host, Cns::CONTROLLER, 0);
    assert_eq!((id.fr, id.ieee), (Ascii::new("lab-7"), [0xb8, 0xa0, 0]));
    let page = GetLogPage::new(LogId::FIRMWARE, 0, 0, 512).to_sqe();
    let slots = FirmwareSlots::read_from_bytes(&host.read(page, 512).data).unwrap();
    assert_eq!(slots.active(), Some(&id.fr));
}

/// Linux hosts 5.4 to 5.12 corrupt long in-capsule data otherwise.
#[test]
fn msdbd_is_one_with_long_in_capsule_data() {
    let limits = Limits {
        in_capsule: 8192,
        max_descriptors: 1,
        ..Limits::default()
    };
    let (mut host, _) = Host::admin(&target_with(limits));
    let id: IdentifyController = identify(&mut host, Cns::CONTROLLER, 0);
    assert_eq!(id.msdbd, 1);
}

#[test]
fn in_capsule_data_size_is_that_of_the_port() {
    let model = Model::build(Limits::default(), &[port()], &[subsystem()]);
    let bounds = PortBounds {
        in_capsule: Some(512),
        ..PortBounds::default()
    };
    let model = model.unwrap().with_port_bounds([bounds]).unwrap();
    let address = model.ports()[0].address();
    let target = Target::new(model);
    let mut host = Host::open(&target, 0, 32);
    host.queue.set_port(address.clone());
    assert_eq!(host.queue.capsule_len(), 64 + 512);
    let connect = nvmeof_wire::fabrics::Connect::new(0, 32, 0);
    let cntlid = host.connect(&connect, &connect_data(0xffff)).result();
    host.set_cc(nvmeof_wire::registers::Cc::ENABLE.0);
    let id: IdentifyController = identify(&mut host, Cns::CONTROLLER, 0);
    assert_eq!((id.command_capsule_len(), id.msdbd), (64 + 512, 16));
    let mut queue = Host::open(&target, 1, 128);
    queue.queue.set_port(address);
    let connect = nvmeof_wire::fabrics::Connect::new(1, 128, 0);
    queue.connect(&connect, &connect_data(u16::try_from(cntlid).unwrap()));
    let write = |blocks| Io::new(1, 0, blocks).to_sqe(io::WRITE);
    let completion = queue.write_in_capsule(write(1), &[0; 512]);
    assert_eq!(completion.status(), Status::SUCCESS);
    // Shared receives may have room for more than the reported size.
    let completion = queue.write_in_capsule(write(2), &[0; 1024]);
    assert_eq!(completion.status(), Status::DATA_SGL_LENGTH_INVALID);
}

#[test]
fn identify_reports_only_what_is_supported() {
    let of = |host: &mut Host| identify::<IdentifyController>(host, Cns::CONTROLLER, 0);
    let (mut host, _) = Host::admin(&target());
    let mut hosts = [
        host.identify(Cns::CONTROLLER, 0),
        discovery(&target()).identify(Cns::CONTROLLER, 0),
    ];
    for completion in &mut hosts {
        let id = IdentifyController::read_from_bytes(&completion.data)
            .ok()
            .unwrap();
        assert_eq!(id.lpa & Lpa::MLPS.bits(), 0, "no scopes in log page 05h");
    }
    let nvm: IdentifyControllerNvm = identify(&mut host, Cns::CSI_CONTROLLER, 0);
    assert_eq!(nvm.wzsl, 13);
    assert_eq!((nvm.vsl, nvm.wusl), (13, 0));
    // NVM 1.0, 3.2.3.1: all three, or none.
    let dsm = (nvm.dmrl, nvm.dmrsl.get(), nvm.dmsl.get());
    assert_eq!(dsm, (0, 0, 0));
    let one: IdentifyNamespace = identify(&mut host, Cns::NAMESPACE, 1);
    let copy = (one.msrc, one.mssrl.get(), one.mcl.get());
    assert_eq!(copy, (127, 65535, 131_072));
    // A fused Compare and Write has at most 4096 bytes.
    assert!(one.nsfeat().contains(Nsfeat::NSABP));
    assert_eq!(
        (one.nawun.get(), one.nawupf.get(), one.nacwu.get()),
        (0, 0, 7)
    );
    let id = of(&mut host);
    assert!(id.fuses().contains(Fuses::FCWS));
    assert_eq!(id.cdfs.get(), 1);
    assert_eq!((id.awun.get(), id.awupf.get(), id.acwu.get()), (0, 0, 0));
}

/// Identify Controller without CIU and CIRN, which differ between any two controllers.
fn without_instance(mut page: Vec<u8>) -> Vec<u8> {
    page[135..144].fill(0);
    page
}

/// Hosts read it once, and namespaces change while they are connected.
#[test]
fn identify_controller_does_not_depend_on_namespaces() {
    let nothing = crate::NamespaceSpec {
        readonly: true,
        deallocate: false,
        volatile_cache: false,
        block_size: 4096,
        ..namespace(7)
    };
    let hidden = crate::NamespaceSpec {
        hosts: Some(vec!["nqn.2026-11.org.example:friend".into()]),
        ..namespace(1)
    };
    let off = crate::NamespaceSpec {
        state: NamespaceState::Disabled,
        ..namespace(9)
    };
    let targets = [
        target_of(namespace(1)),
        target_of(nothing),
        target_of(hidden),
    ];
    let mut pages = targets.map(|target| {
        let completion = Host::admin(&target).0.identify(Cns::CONTROLLER, 0);
        without_instance(completion.data)
    });
    let mut spec = subsystem();
    spec.namespaces = vec![off];
    let model = Model::build(Limits::default(), &[port()], &[spec]).unwrap();
    let target = Target::new(model);
    let (mut admin, cntlid) = Host::admin(&target);
    let of_none = without_instance(admin.identify(Cns::CONTROLLER, 0).data);
    for page in &mut pages {
        assert_eq!(*page, of_none);
    }
    let id = IdentifyController::read_from_bytes(&of_none).ok().unwrap();
    let promised = Oncs::NVMDSMSV | Oncs::NVMWZSV;
    assert!(Oncs::from_bits_retain(id.oncs.get()).contains(promised));
    // A later namespace that cannot deallocate does not change it.
    let mut spec = subsystem();
    spec.namespaces = vec![crate::NamespaceSpec {
        deallocate: false,
        ..namespace(1)
    }];
    let _ = apply(&target, &[spec]);
    let mut queue = Host::io(&target, 1, cntlid);
    let zeroes = Io::new(1, 0, 8).to_sqe(io::WRITE_ZEROES);
    assert_eq!(queue.plain(zeroes).status(), Status::SUCCESS);
    let trim = DatasetManagement {
        nsid: 1,
        ranges: 1,
        deallocate: true,
    };
    let completion = queue.write(trim.to_sqe(), DsmRange::new(0, 8).as_bytes());
    assert_eq!(completion.status(), Status::SUCCESS);
    let kinds: Vec<_> = queue.ops.iter().map(|op| op.kind).collect();
    assert_eq!(kinds, [IoKind::WriteZeroes { deallocate: false }]);
}

#[test]
fn discovery_controller_reports_its_type() {
    let mut host = discovery(&target());
    let id: IdentifyController = identify(&mut host, Cns::CONTROLLER, 0);
    assert_eq!(id.cntrltype, ControllerType::DISCOVERY);
    assert_eq!(&id.subnqn[..36], nvmeof_wire::nqn::DISCOVERY.as_bytes());
    for cns in [Cns::NAMESPACE, Cns::ACTIVE_NAMESPACES, Cns::DESCRIPTORS] {
        assert_eq!(host.identify(cns, 1).status(), Status::INVALID_FIELD);
    }
}

#[test]
fn namespaces_have_their_sizes() {
    let (mut host, _) = Host::admin(&target());
    for cns in [Cns::NAMESPACE, Cns::ALLOCATED_NAMESPACE] {
        let id: IdentifyNamespace = identify(&mut host, cns, 1);
        assert_eq!((id.nsze.get(), id.format().unwrap().lbads), (1000, 9));
        assert_eq!((id.nmic, id.nsattr, id.nvmcap.get()), (1, 0, 512_000));
        let id: IdentifyNamespace = identify(&mut host, cns, 3);
        assert_eq!((id.format().unwrap().lbads, id.nsattr), (12, 1));
        // Valid, but not active.
        assert!(host.identify(cns, 2).data.iter().all(|byte| *byte == 0));
        for nsid in [0, 1025, NSID_ALL] {
            assert_eq!(host.identify(cns, nsid).status(), Status::INVALID_NAMESPACE);
        }
    }
    let id: IdentifyNamespaceIndependent = identify(&mut host, Cns::INDEPENDENT_NAMESPACE, 3);
    assert_eq!((id.nsattr, id.nmic, id.nstat), (1, 1, 1));
}

#[test]
fn preferred_sizes_are_reported_per_namespace() {
    let mut spec = subsystem();
    spec.namespaces[0].preferred = Preferred {
        write: 4096,
        deallocate: 65536,
        optimal_write: 1 << 20,
        atomic: 4096,
    };
    // A command transfers 1 MiB with the first limits, less with the second.
    for (max_transfer, nows) in [(1 << 20, 2047), (512 << 10, 7)] {
        let limits = Limits {
            max_transfer,
            ..Limits::default()
        };
        let model = Model::build(limits, &[port()], &[spec.clone()]).unwrap();
        let (mut host, _) = Host::admin(&Target::new(model));
        for cns in [Cns::NAMESPACE, Cns::ALLOCATED_NAMESPACE] {
            let id: IdentifyNamespace = identify(&mut host, cns, 1);
            assert_eq!(id.nsfeat(), Nsfeat::NSABP | Nsfeat::OPTPERF);
            assert_eq!((id.npwg.get(), id.npwa.get()), (7, 7));
            assert_eq!((id.npdg.get(), id.npda.get()), (127, 127));
            assert_eq!(id.nows.get(), nows);
            let atomic = [id.nawun, id.nawupf, id.nabsn, id.nabspf];
            assert_eq!(atomic.map(|one| one.get()), [7; 4]);
            let other: IdentifyNamespace = identify(&mut host, cns, 3);
            assert_eq!((other.nsfeat(), other.npwg.get()), (Nsfeat::NSABP, 0));
        }
    }
}

/// NVM 1.0, figure 97: cleared to 0h when there is none; then no descriptor says one.
#[test]
fn zero_nguid_means_none() {
    let mut spec = subsystem();
    for nsid in [1, 2] {
        spec.namespaces.retain(|namespace| namespace.nsid != nsid);
        spec.namespaces.push(crate::NamespaceSpec {
            nguid: Some(crate::NO_NGUID),
            ..namespace(nsid)
        });
    }
    let model = Model::build(Limits::default(), &[port()], &[spec]).unwrap();
    let (mut host, _) = Host::admin(&Target::new(model));
    for nsid in [1, 2] {
        let list: DescriptorList = identify(&mut host, Cns::DESCRIPTORS, nsid);
        let found = NamespaceIdentifiers::parse(&list).unwrap();
        let id: IdentifyNamespace = identify(&mut host, Cns::NAMESPACE, nsid);
        assert_eq!((found.nguid, id.nguid), (None, [0; 16]));
        assert!(found.uuid.is_some());
    }
}

#[test]
fn namespace_identifiers_agree_with_descriptors() {
    let (mut host, _) = Host::admin(&target());
    let list: DescriptorList = identify(&mut host, Cns::DESCRIPTORS, 1);
    let found = NamespaceIdentifiers::parse(&list).unwrap();
    let id: IdentifyNamespace = identify(&mut host, Cns::NAMESPACE, 1);
    assert_eq!(
        (found.nguid, found.csi, found.eui64),
        (Some(id.nguid), Some(0), None)
    );
    assert!(found.uuid.is_some());
    for nsid in [0, 2, NSID_ALL] {
        let completion = host.identify(Cns::DESCRIPTORS, nsid);
        assert_eq!(completion.status(), Status::INVALID_NAMESPACE);
    }
}

#[test]
fn lists_start_after_the_namespace_given() {
    let (mut host, _) = Host::admin(&target());
    for cns in [
        Cns::ACTIVE_NAMESPACES,
        Cns::ALLOCATED_NAMESPACES,
        Cns::CSI_ACTIVE_NAMESPACES,
        Cns::CSI_ALLOCATED_NAMESPACES,
    ] {
        for (after, expected) in [(0, &[1, 3][..]), (1, &[3]), (3, &[]), (0xffff_fffd, &[])] {
            let list: NamespaceList = identify(&mut host, cns, after);
            assert_eq!(list.iter().collect::<Vec<_>>(), expected);
        }
        for nsid in [0xffff_fffe, NSID_ALL] {
            assert_eq!(host.identify(cns, nsid).status(), Status::INVALID_NAMESPACE);
        }
    }
}

#[test]
fn controllers_of_the_subsystem_are_listed() {
    let target = target();
    let (mut host, first) = Host::admin(&target);
    let (_other, second) = Host::admin(&target);
    let _discovery = discovery(&target);
    let list: ControllerList = identify(&mut host, Cns::CONTROLLERS, 0);
    assert_eq!(list.iter().collect::<Vec<_>>(), [first, second]);
    let mut from_second = Identify::new(Cns::ATTACHED_CONTROLLERS, 1);
    from_second.cntid = second;
    let completion = host.read(from_second.to_sqe(), 4096);
    let list = ControllerList::read_from_bytes(&completion.data).unwrap();
    assert_eq!(list.iter().collect::<Vec<_>>(), [second]);
    // Base 2.1, 3.2.1: inactive, and invalid. 5.1.13.2.11: FFFFFFFFh.
    for (nsid, status) in [
        (2, Status::INVALID_FIELD),
        (NSID_ALL, Status::INVALID_FIELD),
        (0, Status::INVALID_NAMESPACE),
        (1025, Status::INVALID_NAMESPACE),
    ] {
        let completion = host.identify(Cns::ATTACHED_CONTROLLERS, nsid);
        assert_eq!(completion.status(), status, "{nsid}");
    }
}

/// Base 2.1, 3.2.1: "allocated" and not active for any controller.
#[test]
fn disabled_namespace_is_attached_to_no_controller() {
    let off = crate::NamespaceSpec {
        state: NamespaceState::Disabled,
        ..namespace(2)
    };
    let hidden = crate::NamespaceSpec {
        hosts: Some(vec!["nqn.2026-11.org.example:friend".into()]),
        state: NamespaceState::Disabled,
        ..namespace(4)
    };
    let mut spec = subsystem();
    spec.namespaces.extend([off, hidden]);
    let model = Model::build(Limits::default(), &[port()], &[spec]).unwrap();
    let (mut host, cntlid) = Host::admin(&Target::new(model));
    let attached = |host: &mut Host, nsid| -> Vec<u16> {
        let list: ControllerList = identify(host, Cns::ATTACHED_CONTROLLERS, nsid);
        list.iter().collect()
    };
    assert_eq!(attached(&mut host, 1), [cntlid]);
    assert_eq!(attached(&mut host, 2), []);
    let list: NamespaceList = identify(&mut host, Cns::ALLOCATED_NAMESPACES, 0);
    assert_eq!(list.iter().collect::<Vec<_>>(), [1, 2, 3]);
    // The structure of the allocated namespace has all but its size, which is not
    // known; that of the active one is "a zero filled data structure".
    let id: IdentifyNamespace = identify(&mut host, Cns::ALLOCATED_NAMESPACE, 2);
    assert_eq!((id.nsze.get(), id.nvmcap.get(), id.nmic), (0, 0, 1));
    assert_eq!(id.format().unwrap().block_len(), Some(512));
    assert!(id.nguid != [0; 16] && id.anagrpid.get() == 1);
    for (cns, nsid) in [
        (Cns::NAMESPACE, 2),
        (Cns::INDEPENDENT_NAMESPACE, 2),
        (Cns::CSI_NAMESPACE, 2),
        (Cns::CSI_ALLOCATED_NAMESPACE, 2),
        // Restricted to other hosts: unallocated for this host.
        (Cns::ALLOCATED_NAMESPACE, 4),
    ] {
        let completion = host.identify(cns, nsid);
        assert_eq!(completion.status(), Status::SUCCESS, "{cns:?}");
        assert!(completion.data.iter().all(|byte| *byte == 0), "{cns:?}");
    }
    for (cns, nsid, status) in [
        (Cns::ATTACHED_CONTROLLERS, 4, Status::INVALID_FIELD),
        (Cns::DESCRIPTORS, 2, Status::INVALID_NAMESPACE),
    ] {
        assert_eq!(host.identify(cns, nsid).status(), status, "{cns:?}");
    }
}

#[test]
fn the_nvm_command_set_is_the_only_one() {
    let (mut host, _) = Host::admin(&target());
    let sets: [u8; 4096] = identify(&mut host, Cns::COMMAND_SETS, 0);
    assert_eq!(
        (sets[0], sets[1..].iter().all(|byte| *byte == 0)),
        (1, true)
    );
    // Base 2.1, 5.1.13.2.5: "a status code of Invalid Field in Command".
    for cns in [
        Cns::CSI_NAMESPACE,
        Cns::CSI_CONTROLLER,
        Cns::CSI_ALLOCATED_NAMESPACE,
        Cns::CSI_ACTIVE_NAMESPACES,
        Cns::CSI_ALLOCATED_NAMESPACES,
    ] {
        assert_eq!(host.identify(cns, 1).status(), Status::SUCCESS);
        let mut zoned = Identify::new(cns, 1);
        zoned.csi = 2;
        let completion = host.read(zoned.to_sqe(), 4096);
        assert_eq!(completion.status(), Status::INVALID_FIELD, "{cns:?}");
    }
}

#[test]
fn unknown_structures_are_refused() {
    let (mut host, _) = Host::admin(&target());
    for cns in [0x04, 0x09, 0x14, 0x15, 0xff] {
        assert_eq!(host.identify(Cns(cns), 0).status(), Status::INVALID_FIELD);
    }
}
