//! Authentication over the async interface, with minimal targets over loopback TCP.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::fake::{Requirement, key, keys};
use crate::host::{Target, host};
use nvmeof_initiator::dhchap::{HostKeys, mark_reactor_thread};
use nvmeof_initiator::discovery::{ConnectAllOptions, DiscoveryChange, DiscoveryOptions};
use nvmeof_initiator::multipath::{Multipath, MultipathOptions};
use nvmeof_initiator::{Awaited, ConnectOptions, Error, ErrorKind, Nqn, Status, WriteOptions};
use nvmeof_wire::auth::GroupId;
use nvmeof_wire::opcode::io;

/// No test takes longer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A time limit that passes in a test.
const SHORT: Duration = Duration::from_millis(50);

/// Waits until `is_so`, which other threads cause.
async fn until(is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, wait).await.unwrap();
}

/// A target that requires one of these keys, and options with the first one.
fn target(required: &[u8]) -> (Target, ConnectOptions) {
    let target = Target::start();
    let requirement = Requirement::of(required);
    target.change(move |fake| fake.manners.authentication = Some(requirement));
    let mut options = target.options();
    options.keys = Some(keys(required[0], None));
    (target, options)
}

/// The target has these keys from now on, for connected and for new queues.
fn require(target: &Target, requirement: Requirement) {
    target.change(move |fake| {
        fake.authentications.change(&requirement);
        fake.manners.authentication = Some(requirement);
    });
}

fn proved(target: &Target) -> Vec<Option<usize>> {
    target.change(|fake| fake.authentications.proved())
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_all_queues_change_while_calls_go_on() {
    let (target, mut options) = target(&[1]);
    options.io_queues = 3;
    let controller = host().connect(options).await.unwrap();
    require(
        &target,
        Requirement {
            group: GroupId::FFDHE2048,
            controller_key: Some(key(3)),
            ..Requirement::of(&[1, 2])
        },
    );
    let namespace = controller.namespace(1).await.unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let load = tokio::spawn({
        let (controller, is_over) = (controller.clone(), Arc::clone(&is_over));
        async move {
            let mut buf = controller.alloc(4096).unwrap();
            while !is_over.load(Ordering::Acquire) {
                let options = WriteOptions::default();
                buf = namespace.write(8, buf, options).await.unwrap();
                buf = namespace.read(8, buf).await.unwrap();
            }
        }
    });
    let both = Some(keys(2, Some(3)));
    controller.reauthenticate(both).await.unwrap();
    assert_eq!(proved(&target), [Some(1); 4]);
    // Again with the same keys, by two tasks.
    let (one, other) = (controller.clone(), controller.clone());
    let (one, other) = tokio::join!(one.reauthenticate(None), other.reauthenticate(None));
    assert!(one.is_ok() && other.is_ok(), "{one:?} {other:?}");
    is_over.store(true, Ordering::Release);
    tokio::time::timeout(TIMEOUT, load).await.unwrap().unwrap();
    controller.disconnect().await;
}

/// Neither the first authentication nor the next ones delay other connections of the thread: in a
/// debug build, an exponentiation on this one panics.
#[tokio::test]
async fn no_queue_exponentiates_on_the_thread_that_drives_it() {
    mark_reactor_thread();
    let (target, mut options) = target(&[1]);
    options.io_queues = 3;
    let requirement = Requirement {
        group: GroupId::FFDHE2048,
        controller_key: Some(key(3)),
        ..Requirement::of(&[1])
    };
    require(&target, requirement);
    options.keys = Some(keys(1, Some(3)));
    let controller = host().connect(options).await.unwrap();
    assert_eq!(proved(&target), [Some(0); 4]);
    controller.reauthenticate(None).await.unwrap();
    controller.disconnect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_change_of_keys_leaves_the_controller() {
    let (target, options) = target(&[1]);
    let controller = host().connect(options).await.unwrap();
    let namespace = controller.namespace(1).await.unwrap();
    let error = controller.reauthenticate(Some(keys(2, None))).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.remedy().unwrap().contains("compare the key"));
    target.change(|fake| fake.authentications.demand());
    namespace.flush().await.unwrap();
    controller.reauthenticate(None).await.unwrap();
    target.change(|fake| fake.hang_up());
    controller.event().await.unwrap_err();
    let error = controller.reauthenticate(None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionLost, "{error}");
}

/// With a key of the controller, a controller that does not prove it is not used.
#[tokio::test(flavor = "multi_thread")]
async fn unauthenticated_controller_is_refused() {
    let both = Some(keys(1, Some(3)));
    let refused = async |target: &Target| {
        let mut options = target.options();
        options.keys.clone_from(&both);
        host().connect(options).await.unwrap_err()
    };
    // It authenticates nobody (ATR is 0).
    let error = refused(&Target::start()).await;
    assert!(
        error
            .to_string()
            .contains("cannot prove that it has the controller's key")
    );
    // It does not have the key, or another one.
    let (target, _) = target(&[1]);
    let error = refused(&target).await;
    assert!(
        error.to_string().contains("authentication failed"),
        "{error}"
    );
    for (controller_key, omits, words) in [
        (4, false, "its response is of another key"),
        (3, true, "it sent no response"),
    ] {
        let controller_key = Some(key(controller_key));
        require(
            &target,
            Requirement {
                controller_key,
                ..Requirement::of(&[1])
            },
        );
        target.change(move |fake| fake.manners.omits_response = omits);
        let error = refused(&target).await.to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_path_returns_with_the_new_keys() {
    let (target, options) = target(&[1]);
    let host = host();
    let paths = [options];
    let multipath = Multipath::connect(&host, &paths, MultipathOptions::default());
    let multipath = multipath.await.unwrap();
    let disk = multipath.namespace(1).await.unwrap();
    // The target does not have the new key yet.
    assert!(multipath.reauthenticate(keys(2, None)).await.is_err());
    target.change(|fake| fake.hang_up());
    disk.read(0, host.buffer(4096).unwrap()).await.unwrap();

    require(&target, Requirement::of(&[2, 1]));
    multipath.reauthenticate(keys(2, None)).await.unwrap();
    assert_eq!(proved(&target), [Some(0); 2]);
    require(&target, Requirement::of(&[2]));
    target.change(|fake| fake.hang_up());
    disk.read(0, host.buffer(4096).unwrap()).await.unwrap();
    assert_eq!(multipath.paths()[0].losses, 2);
    multipath.disconnect().await;
}

/// A target without keys for a while does not end a path for ever.
#[tokio::test(flavor = "multi_thread")]
async fn path_whose_target_does_not_authenticate_for_a_while_returns() {
    let (target, mut options) = target(&[1]);
    let with_both = Requirement {
        controller_key: Some(key(3)),
        ..Requirement::of(&[1])
    };
    require(&target, with_both.clone());
    options.keys = Some(keys(1, Some(3)));
    let host = host();
    let paths = [options];
    let multipath = Multipath::connect(&host, &paths, MultipathOptions::default());
    let multipath = multipath.await.unwrap();
    let disk = multipath.namespace(1).await.unwrap();
    target.change(|fake| {
        fake.manners.authentication = None;
        fake.hang_up();
    });
    let mut changes = multipath.changes();
    let refused = |multipath: &Multipath| {
        let error = multipath.paths()[0].last_error.clone();
        error.is_some_and(|error| error.to_string().contains("cannot prove"))
    };
    while !refused(&multipath) {
        assert!(changes.changed().await);
    }
    assert!(!multipath.paths()[0].is_given_up);
    require(&target, with_both);
    let read = disk.read(0, host.buffer(4096).unwrap());
    tokio::time::timeout(TIMEOUT, read).await.unwrap().unwrap();
    multipath.disconnect().await;
}

/// The keys change while a path is being connected with the former ones.
#[tokio::test(flavor = "multi_thread")]
async fn path_that_is_being_connected_gets_the_new_keys() {
    let (first, options) = target(&[1]);
    let (second, other) = target(&[1]);
    for target in [&first, &second] {
        require(target, Requirement::of(&[1, 2]));
    }
    second.change(|fake| {
        fake.persona.cntlid = 2;
        fake.manners.stalls_messages = true;
    });
    let host = host();
    let paths = [options, other];
    let multipath = Multipath::connect(&host, &paths, MultipathOptions::default());
    let multipath = multipath.await.unwrap();
    until(|| second.change(|fake| fake.stalled()) == 1).await;
    multipath.reauthenticate(keys(2, None)).await.unwrap();
    assert_eq!(proved(&first), [Some(1); 2]);
    second.change(|fake| fake.release());
    until(|| proved(&second) == [Some(1); 2]).await;
    multipath.disconnect().await;
}

/// A write that the controller refused until the queue is authenticated is not sent after its
/// caller has given up: it would undo later ones.
#[tokio::test(flavor = "multi_thread")]
async fn refused_write_is_withdrawn_when_its_caller_gives_up() {
    let (target, options) = target(&[1]);
    let host = host();
    let controller = host.connect(options).await.unwrap();
    let disk = controller.namespace(1).await.unwrap();
    let free = host.buffers().available();
    let impatient = disk.with_timeout(SHORT);
    let buf = || host.buffer(8192).unwrap();
    target.change(|fake| {
        fake.authentications.demand();
        fake.manners.stalls_messages = true;
    });
    let write = impatient.write(0, buf(), WriteOptions::default());
    let failed = write.await.unwrap_err();
    let Error::TimedOut(why) = &failed.error else {
        panic!("{}", failed.error);
    };
    assert_eq!(why.waiting_for, Awaited::Authentication);
    assert!(!failed.error.outcome_is_unknown() && failed.buf.is_some());
    drop(failed);
    // The future is dropped.
    let write = disk.write(0, buf(), WriteOptions::default());
    assert!(tokio::time::timeout(SHORT, write).await.is_err());
    assert_eq!(host.buffers().available(), free);
    target.change(|fake| fake.release());
    disk.flush().await.unwrap();
    let served = target.change(|fake| fake.served.clone());
    assert!(!served.contains(&io::WRITE.0), "{served:?}");
}

/// The same if it is refused only then.
#[tokio::test(flavor = "multi_thread")]
async fn write_that_is_refused_after_its_caller_has_given_up_is_not_sent_again() {
    let (target, options) = target(&[1]);
    let host = host();
    let controller = host.connect(options).await.unwrap();
    let disk = controller.namespace(1).await.unwrap();
    target.change(|fake| fake.manners.holds = true);
    let buf = host.buffer(8192).unwrap();
    let write = disk.with_timeout(SHORT);
    let failed = write.write(0, buf, WriteOptions::default()).await;
    assert!(failed.unwrap_err().error.outcome_is_unknown());
    let messages = target.change(|fake| {
        fake.manners.status = Some(Status::AUTHENTICATION_REQUIRED);
        fake.release();
        fake.manners.status = None;
        fake.authentications.messages
    });
    disk.flush().await.unwrap();
    let (served, now) = target.change(|fake| (fake.served.clone(), fake.authentications.messages));
    let writes = served.iter().filter(|opcode| **opcode == io::WRITE.0);
    assert_eq!((writes.count(), now), (1, messages));
}

/// A queue that cannot be authenticated again does not keep commands from other paths.
#[tokio::test(flavor = "multi_thread")]
async fn commands_leave_a_path_that_cannot_be_authenticated() {
    let (first, options) = target(&[1]);
    let (second, other) = target(&[1]);
    second.change(|fake| fake.persona.cntlid = 2);
    let host = host();
    let paths = [options, other];
    let multipath = Multipath::connect(&host, &paths, MultipathOptions::default());
    let multipath = multipath.await.unwrap();
    let mut changes = multipath.changes();
    while !multipath.paths().iter().all(|path| path.is_live) {
        assert!(changes.changed().await);
    }
    let disk = multipath.namespace(1).await.unwrap();
    require(&first, Requirement::of(&[9]));
    first.change(|fake| fake.authentications.demand());
    for _ in 0..8 {
        disk.read(0, host.buffer(4096).unwrap()).await.unwrap();
    }
    multipath.disconnect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_service_authenticates() {
    let (target, options) = target(&[1]);
    let with = |keys| DiscoveryOptions {
        keys,
        ..DiscoveryOptions::default()
    };
    let discover = async |keys: Option<Arc<HostKeys>>| {
        let found = host().discover_with(target.addr, &with(keys)).await;
        found.map(|found| found.entries.len())
    };
    require(
        &target,
        Requirement {
            subnqn: Nqn::discovery(),
            ..Requirement::of(&[1])
        },
    );
    assert!(
        discover(None)
            .await
            .unwrap_err()
            .to_string()
            .contains("has no key")
    );
    let wrong = discover(Some(keys(2, None))).await.unwrap_err();
    assert!(
        wrong.to_string().contains("authentication failed"),
        "{wrong}"
    );
    assert_eq!(discover(options.keys.clone()).await.unwrap(), 5);
    // It proves nothing to a host that requires that.
    assert!(discover(Some(keys(1, Some(3)))).await.is_err());

    let host = host();
    let watched = host.watch_discovery(target.addr, with(options.keys.clone()));
    let mut watch = watched.await.unwrap();
    for _ in 0..5 {
        let change = tokio::time::timeout(TIMEOUT, watch.next()).await.unwrap();
        assert!(
            matches!(change, Some(DiscoveryChange::Added(_))),
            "{change:?}"
        );
    }
    let all = ConnectAllOptions {
        discovery: with(options.keys),
        ..ConnectAllOptions::default()
    };
    let found = host.connect_all(target.addr, &all).await.unwrap();
    assert!(found.services[0].generation.is_ok());
}
