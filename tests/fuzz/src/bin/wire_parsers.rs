//! All parsers of wire formats: no input panics, and parsed data serialize to the same
//! bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvmeof_fuzz::Script;
use nvmeof_wire::admin::{Abort, GetFeatures, GetLogPage, Identify, SetFeatures};
use nvmeof_wire::cm;
use nvmeof_wire::fabrics::{
    Connect, ConnectData, ConnectResult, FcType, InvalidParameter, PropertyAccess,
};
use nvmeof_wire::features::{KeepAliveTimer, NumberOfQueues};
use nvmeof_wire::identify::{
    ControllerList, DescriptorList, IdentifyController, IdentifyNamespace, NamespaceIdentifiers,
    NamespaceList,
};
use nvmeof_wire::log::discovery::DiscoveryPage;
use nvmeof_wire::log::{ErrorEntry, SmartLog};
use nvmeof_wire::nvm::{DatasetManagement, Io};
use nvmeof_wire::registers::{Cap, Cc};
use nvmeof_wire::{Cqe, Nqn, Sgl, Sqe};
use zerocopy::FromBytes;

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    match script.byte() % 5 {
        0 => command(script.rest()),
        1 => names(script.rest()),
        2 => connection(script.rest()),
        3 => pages(script.rest()),
        _ => numbers(&mut script),
    }
});

fn command(bytes: &[u8]) {
    if let Some(cqe) = Cqe::from_capsule(bytes) {
        assert_eq!(Cqe::from_capsule(&cqe.to_bytes()), Some(cqe));
        assert!(!cqe.status().to_string().is_empty());
        let _ = cqe.dw0();
    }
    let Some(sqe) = Sqe::from_capsule(bytes) else {
        assert!(bytes.len() < 64);
        return;
    };
    assert_eq!(sqe.to_bytes(), bytes[..64]);
    let _ = (sqe.is_fused(), sqe.uses_sgl());
    if let Ok(sgl) = Sgl::parse(&sqe.dptr) {
        assert_eq!(Sgl::parse(&sgl.to_descriptor()), Ok(sgl));
        let _ = sgl.data_len();
    }
    let io = Io::parse(&sqe);
    assert_eq!(Io::parse(&io.to_sqe(sqe.opcode)), io);
    let dsm = DatasetManagement::parse(&sqe);
    assert_eq!(DatasetManagement::parse(&dsm.to_sqe()), dsm);
    assert!(dsm.data_len() <= 4096);
    let identify = Identify::parse(&sqe);
    assert_eq!(Identify::parse(&identify.to_sqe()), identify);
    let log = GetLogPage::parse(&sqe);
    assert_eq!(GetLogPage::parse(&log.to_sqe()), log);
    let get = GetFeatures::parse(&sqe);
    assert_eq!(GetFeatures::parse(&get.to_sqe()), get);
    let set = SetFeatures::parse(&sqe);
    assert_eq!(SetFeatures::parse(&set.to_sqe()), set);
    let abort = Abort::parse(&sqe);
    assert_eq!(Abort::parse(&abort.to_sqe()), abort);
    let connect = Connect::parse(&sqe);
    assert_eq!(connect.to_sqe(), sqe);
    let _ = (
        connect.entries(),
        FcType::of(&sqe).name(),
        PropertyAccess::parse(&sqe),
    );
}

fn names(bytes: &[u8]) {
    if let Ok(name) = std::str::from_utf8(bytes)
        && let Ok(nqn) = Nqn::new(name)
    {
        assert_eq!(nqn.as_str(), name);
        assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn));
    }
    if let Ok((field, _rest)) = <[u8; 256]>::read_from_prefix(bytes) {
        match Nqn::from_field(&field) {
            Ok(nqn) => assert_eq!(Nqn::new(nqn.as_str()), Ok(nqn)),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    if let Ok((data, _rest)) = ConnectData::read_from_prefix(bytes) {
        let _ = (
            Nqn::from_field(&data.subnqn),
            Nqn::from_field(&data.hostnqn),
        );
    }
}

fn connection(bytes: &[u8]) {
    if let Err(status) = cm::Request::parse(bytes) {
        assert!(!status.to_string().is_empty());
    }
    if let Some(reject) = cm::Reject::parse(bytes) {
        assert!(!reject.status.to_string().is_empty());
    }
    let _ = cm::Accept::parse(bytes);
}

fn pages(bytes: &[u8]) {
    if let Some(page) = DiscoveryPage::parse(bytes) {
        assert!(page.entries.len() <= bytes.len() / 1024);
        for entry in page.entries {
            let _ = (
                Nqn::from_field(&entry.subnqn),
                entry.trtype.name(),
                entry.treq(),
            );
            let _ = (entry.trsvcid.to_string(), entry.traddr.to_string());
        }
    }
    if let Ok((entry, _rest)) = ErrorEntry::read_from_prefix(bytes) {
        let _ = (entry.status().to_string(), entry.parameter());
    }
    if let Ok((log, _rest)) = SmartLog::read_from_prefix(bytes) {
        let _ = (log.celsius(), log.critical_warning());
    }
    // Identify data have 4096 bytes; the input has the first of them.
    let mut page = bytes.to_vec();
    page.resize(4096, 0);
    let controller = IdentifyController::read_from_bytes(&page).expect("4096 bytes");
    let _ = controller.max_transfer_len(4096);
    let _ = (
        controller.command_capsule_len(),
        controller.in_capsule_data_len(),
    );
    let _ = (
        controller.async_event_limit(),
        controller.sgls(),
        controller.oncs(),
    );
    let namespace = IdentifyNamespace::read_from_bytes(&page).expect("4096 bytes");
    let _ = namespace.format().map(|format| format.block_len());
    let list = DescriptorList::read_from_bytes(&page).expect("4096 bytes");
    if let Ok(identifiers) = NamespaceIdentifiers::parse(&list) {
        assert_eq!(
            NamespaceIdentifiers::parse(&identifiers.to_list()),
            Ok(identifiers)
        );
    }
    let namespaces = NamespaceList::read_from_bytes(&page).expect("4096 bytes");
    assert!(namespaces.iter().count() <= 1024);
    let controllers = ControllerList::read_from_bytes(&page).expect("4096 bytes");
    assert!(controllers.iter().count() <= 2047);
}

fn numbers(script: &mut Script<'_>) {
    let cap = Cap(script.u64());
    let _ = (
        cap.max_queue_entries(),
        cap.ready_timeout_ms(),
        cap.min_page_shift(),
    );
    let cc = Cc(script.u32());
    assert!(cc.with_enable(true).enabled());
    let _ = (cc.shutdown(), cc.page_shift(), cc.with_normal_shutdown());
    let result = script.u64();
    let _ = ConnectResult::from_result(result);
    let _ = InvalidParameter::from_result(result).field();
    let dword = script.u32();
    if let Ok(queues) = NumberOfQueues::from_dword(dword) {
        assert_eq!(NumberOfQueues::from_dword(queues.to_dword()), Ok(queues));
        let _ = queues.pairs();
    }
    let _ = KeepAliveTimer::from_dword(dword).round_up(script.u16());
}
