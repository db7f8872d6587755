//! The discovery subsystem's own name, and referrals to others (Base 2.1,
//! 3.1.3.3 and 5.1.12.3.1).

use nvmeof_wire::admin::{Cns, GetLogPage, LogId, SetFeatures, bare};
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::features::{AsyncEventConfig, FeatureId};
use nvmeof_wire::identify::{ControllerType, IdentifyController};
use nvmeof_wire::log::discovery::{
    DiscoveryFlags, DiscoveryLsp, EntryFlags, RdmaProviderType, SubsystemType, Treq,
};
use nvmeof_wire::log::{CommandEffects, DiscoveryEntry, DiscoveryHeader, DiscoveryPage};
use nvmeof_wire::opcode::Opcode;
use nvmeof_wire::opcode::admin::{ASYNC_EVENT_REQUEST, KEEP_ALIVE};
use nvmeof_wire::{Nqn, Status};
use zerocopy::FromBytes;

use super::discovery;
use crate::testing::{Host, SUBNQN, connect_data, port, subsystem, target};
use crate::{DiscoverySpec, Limits, Model, Order, PortSpec, ReferralSpec, Target};

const FINDER: &str = "nqn.2026-11.org.example:finder";
const ELSEWHERE: &str = "nqn.2026-11.org.example:elsewhere";

fn referral(traddr: &str, nqn: Option<&str>) -> ReferralSpec {
    ReferralSpec {
        traddr: traddr.parse().unwrap(),
        trsvcid: 8009,
        port_id: Some(7),
        nqn: nqn.map(Into::into),
    }
}

fn with_name_and_referrals() -> DiscoverySpec {
    DiscoverySpec {
        nqn: Some(FINDER.into()),
        referrals: vec![
            referral("192.0.2.1", None),
            referral("2001:db8::1", Some(ELSEWHERE)),
            referral("127.0.0.9", None),
        ],
    }
}

fn model(spec: &DiscoverySpec) -> Model {
    let model = Model::build(Limits::default(), &[port()], &[subsystem()]).unwrap();
    model.with_discovery(spec).unwrap()
}

fn entries(host: &mut Host) -> Vec<DiscoveryEntry> {
    let command = GetLogPage::new(LogId::DISCOVERY, 0, 0, 8192);
    let completion = host.read(command.to_sqe(), 8192);
    let page = DiscoveryPage::parse(&completion.data).unwrap();
    assert!(page.is_complete());
    page.entries.to_vec()
}

/// A discovery controller, connected with this NQN.
fn asked_by(target: &Target, name: &str, kato_ms: u32) -> Host {
    let mut data = connect_data(0xffff);
    data.subnqn = Nqn::new(name).unwrap().to_field();
    Host::admin_with(target, kato_ms, &data).0
}

fn name(field: &[u8; 256]) -> String {
    Nqn::from_field(field).unwrap().as_str().to_owned()
}

/// Base 2.1, figure 199: "greater than the size of the log page requested".
#[test]
fn nothing_is_read_beyond_the_end_of_the_log() {
    let target = Target::new(model(&with_name_and_referrals()));
    let mut host = asked_by(&target, FINDER, 0);
    let mut read = |offset, lsp: DiscoveryLsp| {
        let mut command = GetLogPage::new(LogId::DISCOVERY, 0, offset, 1024);
        command.lsp = lsp.bits();
        host.read(command.to_sqe(), 1024)
    };
    for lsp in [DiscoveryLsp::empty(), DiscoveryLsp::EXTDLPE] {
        let header = read(0, lsp).data;
        let header = DiscoveryHeader::read_from_bytes(&header).ok().unwrap();
        let end = match lsp.is_empty() {
            true => 1024 + header.numrec.get() * 1024,
            false => header.tdlpl.get().into(),
        };
        let last = read(end - 4, lsp);
        assert_eq!((last.status(), last.data[1023]), (Status::SUCCESS, 0));
        assert_eq!(read(end, lsp).status(), Status::SUCCESS);
        for beyond in [end + 4, 1 << 40] {
            assert_eq!(read(beyond, lsp).status(), Status::INVALID_FIELD);
        }
    }
}

#[test]
fn discovery_controller_reports_its_unique_nqn() {
    let target = Target::new(model(&with_name_and_referrals()));
    for asked in [nvmeof_wire::nqn::DISCOVERY, FINDER] {
        let mut host = asked_by(&target, asked, 0);
        let id = host.identify(Cns::CONTROLLER, 0);
        let id = IdentifyController::read_from_bytes(&id.data).ok().unwrap();
        assert_eq!(id.cntrltype, ControllerType::DISCOVERY);
        assert_eq!(name(&id.subnqn), FINDER);
    }
    // They do not count as I/O controllers.
    assert_eq!(target.controllers(), 0, "both are gone with their queues");
}

#[test]
fn discovery_log_has_itself_and_referrals() {
    let target = Target::new(model(&with_name_and_referrals()));
    let all = entries(&mut discovery(&target));
    let reported: Vec<_> = all
        .iter()
        .map(|one| {
            let at = (one.traddr.to_string(), one.trsvcid.to_string());
            (one.subtype, name(&one.subnqn), at, one.portid.get())
        })
        .collect();
    let at = |ip: &str, port: &str| (ip.to_owned(), port.to_owned());
    let well_known = nvmeof_wire::nqn::DISCOVERY;
    let referral = SubsystemType::REFERRAL;
    let here = at("127.0.0.1", "4420");
    assert_eq!(
        reported,
        [
            (
                SubsystemType::CURRENT_DISCOVERY,
                FINDER.into(),
                here.clone(),
                1
            ),
            (SubsystemType::NVM, SUBNQN.into(), here, 1),
            (referral, well_known.into(), at("192.0.2.1", "8009"), 7),
            (referral, ELSEWHERE.into(), at("2001:db8::1", "8009"), 7),
            (referral, well_known.into(), at("127.0.0.9", "8009"), 7),
        ]
    );
    let eflags: Vec<_> = all.iter().map(DiscoveryEntry::eflags).collect();
    let none = EntryFlags::empty();
    assert_eq!(eflags, [EntryFlags::EPCSD, none, none, none, none]);
    assert_eq!(all[1].treq(), Treq::DISABLE_SQFC);
    let elsewhere = all[2];
    assert_eq!(elsewhere.tsas.prtype, RdmaProviderType::NOT_SPECIFIED);
    assert_eq!(elsewhere.treq(), Treq::empty());
    assert_eq!(
        (elsewhere.cntlid.get(), elsewhere.asqsz.get()),
        (0xffff, 32)
    );
}

#[test]
fn loopback_referral_is_reported_to_local_hosts_only() {
    let target = Target::new(model(&with_name_and_referrals()));
    let mut host = discovery(&target);
    host.queue.set_local("192.0.2.44".parse().unwrap());
    let all = entries(&mut host);
    let reported: Vec<_> = all.iter().map(|one| one.traddr.to_string()).collect();
    assert_eq!(reported, ["192.0.2.1", "2001:db8::1"]);
}

/// Base 2.1, 5.1.12.3.1, PLEO.
#[test]
fn port_local_entries_only_is_honoured() {
    let other = PortSpec {
        trsvcid: 4421,
        ..port()
    };
    let model = Model::build(Limits::default(), &[port(), other], &[subsystem()]);
    let model = model.unwrap().with_discovery(&with_name_and_referrals());
    let target = Target::new(model.unwrap());
    let address = target.model().ports()[1].address();
    let mut host = Host::open(&target, 0, 32);
    host.queue.set_port(address);
    let mut data = connect_data(0xffff);
    data.subnqn = Nqn::discovery().to_field();
    host.connect(&nvmeof_wire::fabrics::Connect::new(0, 32, 0), &data);
    host.set_cc(nvmeof_wire::registers::Cc::ENABLE.0);
    assert_eq!(entries(&mut host).len(), 2 + 2 + 3);
    let mut command = GetLogPage::new(LogId::DISCOVERY, 0, 0, 8192);
    command.lsp = DiscoveryLsp::PLEO.bits();
    let completion = host.read(command.to_sqe(), 8192);
    let page = DiscoveryPage::parse(&completion.data).unwrap();
    let reported: Vec<_> = page
        .entries
        .iter()
        .map(|one| (one.subtype, one.trsvcid.to_string()))
        .collect();
    assert_eq!(
        reported,
        [
            (SubsystemType::CURRENT_DISCOVERY, "4421".to_owned()),
            (SubsystemType::NVM, "4421".to_owned()),
        ]
    );
    let supported = host.read(GetLogPage::new(LogId::SUPPORTED, 0, 0, 1024).to_sqe(), 1024);
    assert_eq!(supported.data[0x70 * 4..0x71 * 4], [1, 0, 3, 0]);
    // Base 2.1, 5.1.12.3.1: "that Discovery controller shall set the Port Local
    // (PORTLCL) bit to '1' in the DLPF field".
    assert_eq!(page.header.dlpf, DiscoveryFlags::PORTLCL.bits());
}

/// Base 2.1, figure 295.
#[test]
fn extended_entries_are_returned_on_request() {
    let target = Target::new(model(&with_name_and_referrals()));
    let mut host = discovery(&target);
    let plain = entries(&mut host);
    let mut command = GetLogPage::new(LogId::DISCOVERY, 0, 0, 8192);
    command.lsp = DiscoveryLsp::EXTDLPE.bits();
    let whole = host.read(command.to_sqe(), 8192).data;
    let (header, rest) = DiscoveryHeader::read_from_prefix(&whole).unwrap();
    assert_eq!(header.numrec.get(), plain.len() as u64);
    assert_eq!(header.dlpf, DiscoveryFlags::EXTEND.bits());
    let len = 1024 + 1032 * plain.len();
    assert_eq!(usize::try_from(header.tdlpl.get()).unwrap(), len);
    for (entry, expected) in rest.chunks_exact(1032).zip(&plain) {
        let (entry, extension) = DiscoveryEntry::read_from_prefix(entry).unwrap();
        assert_eq!(entry, *expected);
        assert_eq!(extension, [0x08, 0x04, 0, 0, 0, 0, 0, 0]);
    }
    assert!(whole[len..].iter().all(|byte| *byte == 0));
    // In pieces it is the same page.
    command.offset = 2052;
    command.len = 1200;
    let piece = host.read(command.to_sqe(), 1200).data;
    assert_eq!(piece, whole[2052..3252]);
}

/// Base 2.1, figure 31: what a discovery controller has to have.
#[test]
fn discovery_controller_reports_supported_pages() {
    let mut host = discovery(&target());
    let mut page = |lid, len| {
        let command = GetLogPage::new(lid, 0, 0, len);
        let completion = host.read(command.to_sqe(), usize::try_from(len).unwrap());
        assert_eq!(completion.status(), Status::SUCCESS, "{lid:?}");
        completion.data
    };
    let supported = page(LogId::SUPPORTED, 1024);
    let there = |lid: usize| supported[lid * 4] & 1 == 1;
    let pages: Vec<_> = (0..256).filter(|lid| there(*lid)).collect();
    assert_eq!(pages, [0x00, 0x01, 0x05, 0x12, 0x70]);
    let effects = CommandEffects::read_from_bytes(&page(LogId::EFFECTS, 4096)).unwrap();
    let mut opcodes = (0..=u8::MAX).map(Opcode);
    let admin: Vec<_> = opcodes
        .clone()
        .filter(|one| effects.admin(*one).is_some())
        .collect();
    let expected = [0x02, 0x06, 0x09, 0x0a, 0x0c, 0x18, 0x7f].map(Opcode);
    assert_eq!(admin, expected);
    assert!(opcodes.all(|one| effects.io(one).is_none()));
    let features = page(LogId::FEATURE_EFFECTS, 1024);
    let there = |fid: usize| features[fid * 4] & 1 == 1;
    let features: Vec<_> = (0..256).filter(|fid| there(*fid)).collect();
    assert_eq!(features, [0x0b, 0x0f]);
}

#[test]
fn discovery_without_unique_nqn_has_no_own_entry() {
    let all = entries(&mut discovery(&target()));
    assert!(all.iter().all(|one| one.subtype == SubsystemType::NVM));
    let mut data = connect_data(0xffff);
    data.subnqn = Nqn::new(FINDER).unwrap().to_field();
    let mut host = Host::open(&target(), 0, 32);
    let connect = nvmeof_wire::fabrics::Connect::new(0, 32, 0);
    let completion = host.connect(&connect, &data);
    assert_eq!(completion.status(), Status::CONNECT_INVALID_PARAMETERS);
}

/// Base 2.1, 3.1.3.3: a persistent connection has a keep-alive timer and is
/// notified of changes.
#[test]
fn referral_change_notifies_persistent_hosts() {
    let target = Target::new(model(&DiscoverySpec::default()));
    let mut host = asked_by(&target, nvmeof_wire::nqn::DISCOVERY, 30_000);
    let bits = AsyncEventConfig::DLPCN.bits();
    host.plain(SetFeatures::new(FeatureId::ASYNC_EVENT_CONFIG, bits).to_sqe());
    host.run(bare(ASYNC_EVENT_REQUEST), &[], &[]);
    assert_eq!(entries(&mut host).len(), 1);
    for spec in [
        with_name_and_referrals(),
        DiscoverySpec {
            referrals: Vec::new(),
            ..with_name_and_referrals()
        },
        DiscoverySpec::default(),
    ] {
        assert_ne!(target.apply(model(&spec)).unwrap().changes, []);
        let Some(Order::Respond(response)) = host.queue.poll(host.now) else {
            panic!("no event of {spec:?}");
        };
        let event = AsyncEvent::from_dword(response.cqe.dw0());
        assert_eq!(event, AsyncEvent::DISCOVERY_CHANGED);
        let expected = usize::from(spec.nqn.is_some()) + 1 + spec.referrals.len();
        assert_eq!(entries(&mut host).len(), expected);
        host.run(bare(ASYNC_EVENT_REQUEST), &[], &[]);
    }
    assert_ne!(
        target.apply(model(&DiscoverySpec::default())),
        Err(crate::LimitsChanged)
    );
    assert!(host.queue.poll(host.now).is_none(), "nothing changed");
    let alive = host.plain(bare(KEEP_ALIVE));
    assert_eq!(alive.status(), Status::SUCCESS);
}
