//! SMART / Health Information (Base 2.1, 5.1.12.1.3) of one namespace, and which
//! the commands that it counts.

use nvmeof_wire::Status;
use nvmeof_wire::admin::{GetLogPage, LogId, NSID_ALL};
use nvmeof_wire::identify::{IdentifyController, Lpa};
use nvmeof_wire::log::ErrorEntry;
use nvmeof_wire::log::SmartLog;
use nvmeof_wire::nvm::{Copy, CopyRange, Io};
use nvmeof_wire::opcode::io;
use zerocopy::{FromBytes, IntoBytes};

use crate::metrics::MetricsRegistry;
use crate::testing::{Completion, Host, apply, closed, namespace, subsystem, target};
use crate::{Executed, NamespaceSpec, NamespaceState, SubsystemSpec};

fn get(host: &mut Host, nsid: u32) -> Completion {
    let command = GetLogPage {
        nsid,
        ..GetLogPage::new(LogId::SMART, 0, 0, 512)
    };
    host.read(command.to_sqe(), 512)
}

fn smart(host: &mut Host, nsid: u32) -> SmartLog {
    let completion = get(host, nsid);
    assert_eq!(completion.status(), Status::SUCCESS, "{nsid}");
    SmartLog::read_from_bytes(&completion.data).unwrap()
}

/// DUR, DUW, HRC, HWC, media errors and entries of the error log.
fn counts(host: &mut Host, nsid: u32) -> [u128; 6] {
    let page = smart(host, nsid);
    let all = [
        page.dur, page.duw, page.hrc, page.hwc, page.mdie, page.neile,
    ];
    all.map(|one| one.get())
}

#[test]
fn smart_of_a_namespace_sums_all_reactors() {
    let target = target();
    let metrics_registry = MetricsRegistry::default();
    let [first, second] = [0, 1].map(|reactor| metrics_registry.reactor_metrics(reactor));
    let (mut admin, cntlid) = Host::counted(&target, &first, 0, 0xffff);
    let (mut one, _) = Host::counted(&target, &first, 1, cntlid);
    let (mut other, _) = Host::counted(&target, &second, 2, cntlid);
    let command = |nsid, blocks| Io::new(nsid, 0, blocks);
    for _ in 0..250 {
        one.read(command(1, 2).to_sqe(io::READ), 1024);
        other.read(command(1, 2).to_sqe(io::READ), 1024);
    }
    // 1,000 units of 512 bytes so far: one more begins the next thousand.
    assert_eq!(counts(&mut admin, 1), [1, 0, 500, 0, 0, 0]);
    other.read(command(1, 1).to_sqe(io::READ), 512);
    other.write(command(1, 1).to_sqe(io::WRITE), &[0; 512]);
    other.read(command(3, 1).to_sqe(io::READ), 4096);
    one.outcomes = vec![Executed::Failed];
    one.read(command(3, 1).to_sqe(io::READ), 4096);
    other.outcomes = vec![Executed::Failed];
    other.write(command(1, 1).to_sqe(io::WRITE), &[0; 512]);
    other.read(Io::new(1, 5000, 1).to_sqe(io::READ), 512);
    assert_eq!(counts(&mut admin, 1), [2, 1, 501, 1, 1, 2]);
    assert_eq!(counts(&mut admin, 3), [1, 0, 1, 0, 1, 1]);
    for whole in [0, NSID_ALL] {
        assert_eq!(counts(&mut admin, whole), [2, 1, 502, 1, 2, 3]);
    }
    // Other fields are those of the controller.
    let (namespace, controller) = (smart(&mut admin, 1), smart(&mut admin, 0));
    assert_eq!(namespace.ctemp, controller.ctemp);
    assert_eq!(
        (namespace.pwrc, namespace.poh),
        (controller.pwrc, controller.poh)
    );
    drop((one, other));
    assert_eq!(counts(&mut admin, 1), [2, 1, 501, 1, 1, 2], "queues went");
}

/// NVM Command Set 1.2, 1.4.2.7 to 1.4.2.10.
#[test]
fn smart_counts_the_commands_that_the_command_set_names() {
    let target = target();
    let metrics_registry = MetricsRegistry::default();
    let (mut admin, cntlid) =
        Host::counted(&target, &metrics_registry.reactor_metrics(0), 0, 0xffff);
    let (mut queue, _) = Host::counted(&target, &metrics_registry.reactor_metrics(0), 1, cntlid);
    let expect = |admin: &mut Host, expected: [u128; 4], what: &str| {
        for nsid in [1, 0, NSID_ALL] {
            assert_eq!(counts(admin, nsid)[..4], expected, "{what} {nsid}");
        }
    };
    // Each is half of a thousand units, so that two of them are one and three two.
    let half = Io::new(1, 0, 500);
    let data = vec![0xda; 256_000];
    queue.plain(half.to_sqe(io::VERIFY));
    expect(&mut admin, [1, 0, 0, 0], "verify");
    queue.write(half.to_sqe(io::COMPARE), &data);
    expect(&mut admin, [1, 0, 1, 0], "compare");
    queue.read(half.to_sqe(io::READ), 256_000);
    expect(&mut admin, [2, 0, 2, 0], "read");
    queue.write(half.to_sqe(io::WRITE), &data);
    expect(&mut admin, [2, 1, 2, 1], "write");
    let ranges = [CopyRange::new(0, 300), CopyRange::new(300, 201)];
    let copy = Copy {
        nsid: 1,
        slba: 501,
        ranges: 2,
        format: 0,
        protected: false,
        fua: false,
    };
    let wrong = queue.write(copy.to_sqe(), ranges.as_bytes());
    assert_eq!(wrong.status(), Status::LBA_OUT_OF_RANGE);
    expect(&mut admin, [2, 1, 2, 1], "copy that failed");
    let copy = Copy { slba: 499, ..copy };
    let ranges = [CopyRange::new(0, 300), CopyRange::new(300, 199)];
    let done = queue.write(copy.to_sqe(), ranges.as_bytes());
    assert_eq!(done.status(), Status::SUCCESS);
    expect(&mut admin, [2, 1, 3, 2], "copy");
    queue.write(Io::new(1, 0, 2).to_sqe(io::WRITE), &[0; 1024]);
    expect(&mut admin, [2, 2, 3, 3], "the copied units count");
    queue.outcomes = vec![Executed::Miscompare];
    queue.write(half.to_sqe(io::COMPARE), &data);
    queue.outcomes = vec![Executed::Failed];
    queue.plain(half.to_sqe(io::VERIFY));
    // Enough for any rounding of the unit before.
    for _ in 0..2 {
        queue.plain(half.to_sqe(io::WRITE_ZEROES));
    }
    queue.plain(nvmeof_wire::nvm::flush(1));
    expect(
        &mut admin,
        [2, 2, 3, 3],
        "what failed, and what is not user data",
    );
}

/// Base 2.1, 5.1.12.1: "the rules for namespace identifier usage in Figure 92 apply".
#[test]
fn smart_of_a_namespace_that_is_not_active_is_refused() {
    let target = target();
    let hidden = NamespaceSpec {
        hosts: Some(vec!["nqn.2026-11.org.example:friend".into()]),
        ..namespace(4)
    };
    let beyond = NamespaceSpec {
        nsid: 2000,
        ..hidden.clone()
    };
    let off = NamespaceSpec {
        state: NamespaceState::Disabled,
        ..namespace(5)
    };
    let gone = NamespaceSpec {
        state: NamespaceState::Faulted,
        ..namespace(6)
    };
    let spec = SubsystemSpec {
        namespaces: vec![namespace(1), hidden, beyond, off, gone],
        ..subsystem()
    };
    let _ = apply(&target, &[spec, closed()]);
    let (mut admin, _) = Host::admin(&target);
    let id = admin.identify(nvmeof_wire::admin::Cns::CONTROLLER, 0);
    let id = IdentifyController::read_from_bytes(&id.data).unwrap();
    assert!(id.lpa().contains(Lpa::SMARTS));
    for (nsid, status) in [
        (1, Status::SUCCESS),
        (6, Status::SUCCESS),
        (2, Status::INVALID_FIELD),
        (4, Status::INVALID_FIELD),
        (5, Status::INVALID_FIELD),
        (1025, Status::INVALID_NAMESPACE),
        (2000, Status::INVALID_NAMESPACE),
    ] {
        assert_eq!(get(&mut admin, nsid).status(), status, "{nsid}");
        if status != Status::SUCCESS {
            let log = GetLogPage::new(LogId::ERROR, 0, 0, 64);
            let newest = admin.read(log.to_sqe(), 64).data;
            let newest = ErrorEntry::read_from_bytes(&newest).unwrap();
            assert_eq!(newest.parameter(), Some((4, 0)), "{nsid}");
        }
    }
}
