//! Asymmetric namespace access, and namespaces restricted to some hosts.

use nvmeof_wire::admin::SetFeatures;
use nvmeof_wire::admin::{Cns, GetFeatures, GetLogPage, Identify, LogId, NSID_ALL, Select};
use nvmeof_wire::features::FeatureId;
use nvmeof_wire::identify::capabilities::Anacap;
use nvmeof_wire::identify::{
    Cmic, ControllerList, IdentifyController, IdentifyNamespace, IdentifyNamespaceIndependent,
    NamespaceList, Oaes,
};
use nvmeof_wire::log::ana::{
    ANA_GROUP_LEN, ANA_HEADER_LEN, AnaGroup, AnaHeader, AnaState, RETURN_GROUPS_ONLY,
};
use nvmeof_wire::nvm::{Io, flush};
use nvmeof_wire::opcode::io;
use nvmeof_wire::{Nqn, Sqe, Status};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use crate::testing::{
    Completion, HOST, Host, SUBNQN, closed, connect_data, namespace, port, port_in, subsystem,
    target, target_with,
};
use crate::{
    IoKind, Limits, Model, NamespaceState, PortSpec, Preferred, Revision, SubsystemSpec, Target,
};

const OTHER: &str = "nqn.2026-11.org.example:other";

/// The page: its change count, and identifier, state, namespaces and change count of
/// each group.
pub(crate) type Page = (u64, Vec<(u32, AnaState, Vec<u32>, u64)>);

fn get(host: &mut Host, lsp: u8, offset: u64, len: u32) -> Completion {
    let command = GetLogPage {
        lsp,
        nsid: NSID_ALL,
        ..GetLogPage::new(LogId::ANA, 0, offset, len)
    };
    host.read(command.to_sqe(), usize::try_from(len).unwrap())
}

fn parsed(page: &[u8]) -> Page {
    let (header, mut rest) = AnaHeader::read_from_prefix(page).unwrap();
    let groups = (0..header.ngrps.get()).map(|_| {
        let (group, nsids) = AnaGroup::read_from_prefix(rest).unwrap();
        let count = usize::try_from(group.nnsids.get()).unwrap();
        let (nsids, after) = <[U32]>::ref_from_prefix_with_elems(nsids, count).unwrap();
        rest = after;
        let nsids = nsids.iter().map(|nsid| nsid.get()).collect();
        (group.agid.get(), group.state, nsids, group.chgcnt.get())
    });
    let groups = groups.collect();
    (header.chgcnt.get(), groups)
}

/// Reads the page, which clears its event.
pub(crate) fn page(host: &mut Host) -> Page {
    parsed(&get(host, 0, 0, 4096).data)
}

/// Namespaces 1 and 4 in group 1, 2 and 3 in group 2.
pub(crate) fn two_groups() -> SubsystemSpec {
    let mut namespaces: Vec<_> = (1..=4).map(namespace).collect();
    namespaces[1].ana_group = 2;
    namespaces[2].ana_group = 2;
    SubsystemSpec {
        namespaces,
        ..subsystem()
    }
}

pub(crate) fn served(ports: &[PortSpec], subsystem: SubsystemSpec) -> Target {
    Target::new(Model::build(Limits::default(), ports, &[subsystem]).unwrap())
}

fn identify<T: FromBytes>(host: &mut Host, cns: Cns, nsid: u32) -> T {
    let completion = host.identify(cns, nsid);
    assert_eq!(completion.status(), Status::SUCCESS, "{cns:?} {nsid}");
    T::read_from_bytes(&completion.data).ok().unwrap()
}

fn read(nsid: u32) -> Sqe {
    Io::new(nsid, 0, 1).to_sqe(io::READ)
}

#[test]
fn linux_host_accepts_the_ana_attributes() {
    for max_transfer in [8192, 1 << 20] {
        let limits = Limits {
            max_transfer,
            ..Limits::default()
        };
        let (mut host, _) = Host::admin(&target_with(limits));
        let id: IdentifyController = identify(&mut host, Cns::CONTROLLER, 0);
        assert_ne!(id.cmic & Cmic::ANARS.bits(), 0);
        assert_ne!(id.oaes.get() & Oaes::ANACN.bits(), 0);
        let states = Anacap::OPTIMIZED
            | Anacap::NON_OPTIMIZED
            | Anacap::INACCESSIBLE
            | Anacap::PERSISTENT_LOSS
            | Anacap::CHANGE;
        assert_eq!((id.anacap, id.anatt), (states.bits(), 10));
        let (groups, namespaces) = (id.nanagrpid.get(), id.mnan.get());
        assert_eq!((id.anagrpmax.get(), groups), (129, 129));
        assert!((1000..=id.nn.get()).contains(&namespaces), "{namespaces}");
        // The memory that it allocates for the page must not exceed MDTS.
        let len = ANA_HEADER_LEN + 129 * ANA_GROUP_LEN + 4 * usize::try_from(namespaces).unwrap();
        assert!(len <= usize::try_from(max_transfer).unwrap(), "{len}");
    }
}

/// Hosts wait for a namespace in state Inaccessible; they give up on one that is not
/// ready.
#[test]
fn waiting_namespace_is_inaccessible_in_its_own_group() {
    let port = port_in(1, AnaState::NON_OPTIMIZED);
    let target = served(std::slice::from_ref(&port), two_groups());
    let revised = |state| {
        let revision = Revision {
            nqn: Nqn::new(SUBNQN).unwrap(),
            nsid: 2,
            store: 7,
            blocks: 1000,
            preferred: Preferred::default(),
            state,
        };
        let _ = target.apply(target.model().revised(&[revision])).unwrap();
    };
    revised(NamespaceState::Absent);
    let (mut admin, mut queue) = Host::ready_at(&target, &port, HOST);
    let list: NamespaceList = identify(&mut admin, Cns::ACTIVE_NAMESPACES, 0);
    assert_eq!(list.iter().collect::<Vec<_>>(), [1, 2, 3, 4]);
    let id: IdentifyNamespace = identify(&mut admin, Cns::NAMESPACE, 2);
    assert_eq!((id.nsze.get(), id.anagrpid.get()), (1000, 129));
    let completion = queue.read(read(2), 512);
    assert_eq!(completion.status(), Status::ANA_INACCESSIBLE);
    assert!(!completion.cqe.status().dnr());
    assert_eq!(queue.read(read(3), 512).status(), Status::SUCCESS);
    let state = |page: Page| {
        page.1
            .into_iter()
            .map(|(id, state, nsids, _)| (id, state, nsids))
    };
    let before: Vec<_> = state(page(&mut admin)).collect();
    let absent = (129, AnaState::INACCESSIBLE, vec![2]);
    assert_eq!((before.len(), before.last()), (3, Some(&absent)));
    revised(NamespaceState::Ready);
    assert_eq!(queue.read(read(2), 512).status(), Status::SUCCESS);
    let after: Vec<_> = state(page(&mut admin)).collect();
    assert_eq!((after.len(), &after[1].2), (2, &vec![2, 3]));
    let id: IdentifyNamespace = identify(&mut admin, Cns::NAMESPACE, 2);
    assert_eq!(id.anagrpid.get(), 2);
}

#[test]
fn groups_without_a_state_are_optimized() {
    let target = target();
    let (mut unknown, _) = Host::admin(&target);
    let (mut known, _) = Host::admin_at(&target, &port(), &connect_data(0xffff));
    let all = vec![(1, AnaState::OPTIMIZED, vec![1, 3], 0)];
    assert_eq!(page(&mut unknown), (0, all.clone()));
    assert_eq!(page(&mut known), (0, all));
    let id: IdentifyNamespace = identify(&mut known, Cns::NAMESPACE, 1);
    assert_eq!((id.anagrpid.get(), id.nuse.get()), (1, 1000));
}

/// Linux resets a controller with a group in state Change for too long.
#[test]
fn groups_without_a_namespace_of_the_host_are_hidden() {
    let port = port_in(1, AnaState::CHANGE);
    let target = served(std::slice::from_ref(&port), subsystem());
    let (mut host, _) = Host::admin_at(&target, &port, &connect_data(0xffff));
    let reported = page(&mut host).1;
    assert_eq!(reported, [(1, AnaState::OPTIMIZED, vec![1, 3], 0)]);
}

#[test]
fn ana_log_page_reports_states_of_its_own_port() {
    let ports = [
        port_in(1, AnaState::OPTIMIZED),
        port_in(2, AnaState::INACCESSIBLE),
    ];
    let target = served(&ports, two_groups());
    for (port, state) in ports
        .iter()
        .zip([AnaState::OPTIMIZED, AnaState::INACCESSIBLE])
    {
        let (mut host, _) = Host::admin_at(&target, port, &connect_data(0xffff));
        let groups = vec![
            (1, AnaState::OPTIMIZED, vec![1, 4], 0),
            (2, state, vec![2, 3], 0),
        ];
        assert_eq!(page(&mut host), (0, groups));
        // Groups only.
        let groups = parsed(&get(&mut host, RETURN_GROUPS_ONLY, 0, 4096).data).1;
        assert_eq!(groups[1], (2, state, vec![], 0));
        // In pieces it is the same page.
        let whole = get(&mut host, 0, 0, 96).data;
        for (offset, len) in [(0, 16), (16, 36), (48, 8), (92, 4)] {
            let at = usize::try_from(offset).unwrap();
            let part = get(&mut host, 0, offset, len).data;
            assert_eq!(part, whole[at..at + part.len()]);
        }
        // 16 bytes, two groups of 32 and four namespaces of 4.
        assert_eq!(get(&mut host, 0, 96, 4).status(), Status::SUCCESS);
        assert_eq!(get(&mut host, 0, 100, 4).status(), Status::INVALID_FIELD);
        let beyond = get(&mut host, RETURN_GROUPS_ONLY, 84, 4);
        assert_eq!(beyond.status(), Status::INVALID_FIELD);
    }
}

#[test]
fn commands_fail_by_ana_state_and_may_be_retried() {
    for (state, expected) in [
        (AnaState::OPTIMIZED, Status::SUCCESS),
        (AnaState::NON_OPTIMIZED, Status::SUCCESS),
        (AnaState::INACCESSIBLE, Status::ANA_INACCESSIBLE),
        (AnaState::PERSISTENT_LOSS, Status::ANA_PERSISTENT_LOSS),
        (AnaState::CHANGE, Status::ANA_TRANSITION),
    ] {
        let port = port_in(1, state);
        let target = served(std::slice::from_ref(&port), two_groups());
        let (mut admin, mut queue) = Host::ready_at(&target, &port, HOST);
        let completion = queue.read(read(2), 512);
        assert_eq!(completion.status(), expected);
        assert!(!completion.cqe.status().dnr(), "{state}");
        assert_eq!(queue.plain(flush(3)).status(), expected);
        let write = Io::new(2, 0, 1).to_sqe(io::WRITE);
        assert_eq!(queue.write(write, &[0; 512]).status(), expected);
        assert_eq!(queue.read(read(1), 512).status(), Status::SUCCESS);
        // Identify works, but capacities may be unknown.
        let unknown = matches!(state, AnaState::INACCESSIBLE | AnaState::PERSISTENT_LOSS);
        let id: IdentifyNamespace = identify(&mut admin, Cns::NAMESPACE, 2);
        let used = if unknown { 0 } else { 1000 };
        assert_eq!((id.nsze.get(), id.nuse.get()), (1000, used));
        assert_eq!(id.nvmcap.get() == 0, unknown);
        let id: IdentifyNamespaceIndependent = identify(&mut admin, Cns::INDEPENDENT_NAMESPACE, 2);
        assert_eq!(id.anagrpid.get(), 2);
    }
}

/// Base 2.2, figure 589, and NVM 1.2, figure 133.
#[test]
fn features_fail_by_ana_state() {
    let not = Status::FEATURE_NOT_NAMESPACE_SPECIFIC;
    for (state, recovery, all, other) in [
        (AnaState::OPTIMIZED, Status::SUCCESS, Status::SUCCESS, not),
        (
            AnaState::INACCESSIBLE,
            Status::ANA_INACCESSIBLE,
            Status::ANA_INACCESSIBLE,
            not,
        ),
        (
            AnaState::CHANGE,
            Status::ANA_TRANSITION,
            Status::ANA_TRANSITION,
            not,
        ),
        (
            AnaState::PERSISTENT_LOSS,
            Status::ANA_PERSISTENT_LOSS,
            Status::ANA_PERSISTENT_LOSS,
            Status::ANA_PERSISTENT_LOSS,
        ),
    ] {
        let port = port_in(1, state);
        let target = served(std::slice::from_ref(&port), two_groups());
        let (mut host, _) = Host::admin_at(&target, &port, &connect_data(0xffff));
        let mut set = |fid, nsid| {
            let command = SetFeatures {
                nsid,
                ..SetFeatures::new(fid, 0)
            };
            host.plain(command.to_sqe()).status()
        };
        assert_eq!(set(FeatureId::ERROR_RECOVERY, 2), recovery, "{state}");
        let elsewhere = set(FeatureId::ERROR_RECOVERY, 1);
        assert_eq!(elsewhere, Status::SUCCESS, "{state}");
        assert_eq!(set(FeatureId::ERROR_RECOVERY, NSID_ALL), all, "{state}");
        assert_eq!(set(FeatureId::ARBITRATION, NSID_ALL), all, "{state}");
        assert_eq!(set(FeatureId::ARBITRATION, 2), other, "{state}");
        assert_eq!(set(FeatureId::ARBITRATION, 0), Status::SUCCESS, "{state}");
        let get = GetFeatures {
            fid: FeatureId::ERROR_RECOVERY,
            select: Select::Current,
            cdw11: 0,
            nsid: 2,
        };
        let expected = state.refusal().unwrap_or(Status::SUCCESS);
        assert_eq!(host.plain(get.to_sqe()).status(), expected, "{state}");
    }
}

#[test]
fn counts_exclude_namespaces_of_other_hosts() {
    let hidden = crate::NamespaceSpec {
        hosts: Some(vec![OTHER.into()]),
        ..namespace(5000)
    };
    let switched_off = crate::NamespaceSpec {
        state: NamespaceState::Disabled,
        ..namespace(2000)
    };
    let mut spec = two_groups();
    spec.namespaces.extend([switched_off, hidden]);
    let elsewhere = PortSpec {
        trsvcid: 4421,
        subsystems: Some(vec![closed().nqn]),
        ..port()
    };
    let model = Model::build(Limits::default(), &[port(), elsewhere], &[spec, closed()]);
    let target = Target::new(model.unwrap());
    for (name, highest) in [(HOST, 2000), (OTHER, 5000)] {
        let (mut host, _) = Host::ready_at(&target, &port(), name);
        let id: IdentifyController = identify(&mut host, Cns::CONTROLLER, 0);
        assert_eq!((id.nn.get(), id.mnan.get()), (highest, highest), "{name}");
        // Nor do other fields, for ports that offer other subsystems or may be added.
        assert_ne!(id.cmic & Cmic::MPORTS.bits(), 0);
        let mut status = |nsid| host.identify(Cns::NAMESPACE, nsid).status();
        assert_eq!(status(highest), Status::SUCCESS);
        assert_eq!(status(highest + 1), Status::INVALID_NAMESPACE);
    }
}

/// With the smallest MDTS, the present namespaces are the maximum
/// (MNAN).
#[test]
fn mnan_excludes_namespaces_of_other_hosts() {
    let mut spec = two_groups();
    spec.namespaces = (1..=1500).map(namespace).collect();
    for hidden in &mut spec.namespaces[1400..] {
        hidden.hosts = Some(vec![OTHER.into()]);
    }
    let limits = Limits {
        max_transfer: 8192,
        ..Limits::default()
    };
    let target = Target::new(Model::build(limits, &[port()], &[spec]).unwrap());
    for (name, most) in [(HOST, 1400), (OTHER, 1500)] {
        let (mut host, _) = Host::ready_at(&target, &port(), name);
        let id: IdentifyController = identify(&mut host, Cns::CONTROLLER, 0);
        assert_eq!((id.nn.get(), id.mnan.get()), (most, most), "{name}");
    }
}

#[test]
fn namespace_is_hidden_from_other_hosts() {
    let mut spec = two_groups();
    spec.namespaces[2].hosts = Some(vec![OTHER.into()]);
    spec.namespaces[3].hosts = Some(vec![OTHER.into(), HOST.into()]);
    let target = served(&[port()], spec);
    let (mut other, mut its_queue) = Host::ready_at(&target, &port(), OTHER);
    let (mut host, mut queue) = Host::ready_at(&target, &port(), HOST);
    for cns in [
        Cns::ACTIVE_NAMESPACES,
        Cns::ALLOCATED_NAMESPACES,
        Cns::CSI_ACTIVE_NAMESPACES,
    ] {
        let list: NamespaceList = identify(&mut host, cns, 0);
        assert_eq!(list.iter().collect::<Vec<_>>(), [1, 2, 4]);
        let list: NamespaceList = identify(&mut other, cns, 0);
        assert_eq!(list.iter().collect::<Vec<_>>(), [1, 2, 3, 4]);
    }
    for cns in [
        Cns::NAMESPACE,
        Cns::ALLOCATED_NAMESPACE,
        Cns::INDEPENDENT_NAMESPACE,
    ] {
        let inactive = host.identify(cns, 3);
        assert!(inactive.data.iter().all(|byte| *byte == 0), "{cns:?}");
        assert!(other.identify(cns, 3).data.iter().any(|byte| *byte != 0));
    }
    for (cns, status) in [
        (Cns::DESCRIPTORS, Status::INVALID_NAMESPACE),
        (Cns::ATTACHED_CONTROLLERS, Status::INVALID_FIELD),
    ] {
        // As for one that does not exist.
        for nsid in [3, 5] {
            assert_eq!(host.identify(cns, nsid).status(), status, "{cns:?} {nsid}");
        }
    }
    let attached = |host: &mut Host, nsid| -> usize {
        let completion = host.read(
            Identify::new(Cns::ATTACHED_CONTROLLERS, nsid).to_sqe(),
            4096,
        );
        let list = ControllerList::read_from_bytes(&completion.data).unwrap();
        list.iter().count()
    };
    assert_eq!((attached(&mut other, 3), attached(&mut other, 4)), (1, 2));
    let completion = queue.read(read(3), 512);
    assert_eq!(completion.status(), Status::INVALID_FIELD);
    assert!(completion.cqe.status().dnr());
    assert_eq!(its_queue.read(read(3), 512).status(), Status::SUCCESS);
    // A flush of all covers the accessible ones.
    queue.ops.clear();
    assert_eq!(queue.plain(flush(NSID_ALL)).status(), Status::SUCCESS);
    let flushed: Vec<_> = queue.ops.iter().map(|op| (op.kind, op.store)).collect();
    assert_eq!(flushed, [10, 20, 40].map(|store| (IoKind::Flush, store)));
    // Nor are groups reported with it.
    assert_eq!(page(&mut host).1[1].2, [2]);
    assert_eq!(page(&mut other).1[1].2, [2, 3]);
}
