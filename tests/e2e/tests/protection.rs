//! Write protection by hosts, and a target that is killed at any moment.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use nvmeof_e2e::{Peer, Setup, Target, eventually};
use nvmeof_wire::admin::{GetFeatures, Select, SetFeatures};
use nvmeof_wire::fabrics::PropertyAccess;
use nvmeof_wire::features::{FeatureId, WriteProtection};
use nvmeof_wire::registers::{Cc, Property, PropertyValue};
use nvmeof_wire::{Cqe, Sqe, Status};

const FID: FeatureId = FeatureId::NAMESPACE_WRITE_PROTECTION;
const NONE: WriteProtection = WriteProtection::NONE;
const PROTECTED: WriteProtection = WriteProtection::PROTECTED;

/// A target that saves write protection.
fn setup() -> Setup {
    let setup = Setup::new().file(1 << 20);
    let state = setup.path("state.json");
    setup.head(&format!("[control]\nstate = '{}'\n", state.display()))
}

/// An admin queue that is connected and enabled.
fn admin(target: &Target) -> Peer {
    let (mut peer, _) = Peer::connected(target.address(), 0, 0xffff);
    let enable = PropertyAccess::set(Property::CC, PropertyValue::Dword(Cc::ENABLE.0));
    assert!(ask(&mut peer, enable).status().is_success());
    peer
}

fn ask(peer: &mut Peer, sqe: Sqe) -> Cqe {
    peer.capsule(&sqe.to_bytes());
    peer.response()
}

fn command(cid: u16, to: WriteProtection) -> Sqe {
    let command = SetFeatures {
        nsid: 1,
        ..SetFeatures::new(FID, to.to_dword())
    };
    let mut sqe = command.to_sqe();
    sqe.cid = cid.into();
    sqe
}

fn state(peer: &mut Peer) -> WriteProtection {
    let command = GetFeatures {
        fid: FID,
        select: Select::Current,
        cdw11: 0,
        nsid: 1,
    };
    let response = ask(peer, command.to_sqe());
    assert!(response.status().is_success(), "{response:?}");
    WriteProtection::from_dword(response.dw0())
}

#[test]
fn acknowledged_protection_is_kept_after_kill() {
    let setup = setup();
    let mut target = setup.start();
    for to in [PROTECTED, NONE, PROTECTED, PROTECTED, NONE] {
        let response = ask(&mut admin(&target), command(1, to));
        assert!(response.status().is_success(), "{response:?}");
        target.kill();
        target = setup.start();
        assert_eq!(state(&mut admin(&target)), to);
    }
    target.stop();
}

/// Outstanding commands may succeed or not, but acknowledged ones remain effective.
#[test]
fn acknowledged_protections_survive_a_kill() {
    let setup = setup();
    let mut target = setup.start();
    for responses in 0..12 {
        let mut peer = admin(&target);
        let before = state(&mut peer);
        // All of them request the same state, so any response decides it.
        let to = if before == NONE { PROTECTED } else { NONE };
        for cid in 0..12 {
            peer.capsule(&command(cid, to).to_bytes());
        }
        for _ in 0..responses {
            assert!(peer.response().status().is_success());
        }
        target.kill();
        target = setup.start();
        let after = state(&mut admin(&target));
        assert!(after == to || (responses == 0 && after == before));
    }
    target.stop();
}

#[test]
fn hosts_get_error_if_protection_cannot_be_saved() {
    let setup = setup();
    let mut target = setup.start();
    let mut peer = admin(&target);
    // A file has no files in it.
    let records = setup.path("state.json.namespaces");
    std::fs::write(&records, "").unwrap();
    let response = ask(&mut peer, command(1, PROTECTED));
    assert_eq!(response.status().without_more(), Status::INTERNAL_ERROR);
    assert_eq!(state(&mut peer), NONE);
    target.write(1, 0, &[7; 512]);
    let reported = eventually(|| {
        let words = ["cannot save what a host set"];
        (!target.lines(&words).is_empty()).then_some(())
    });
    assert!(reported.is_some(), "{}", target.log());
    std::fs::remove_file(&records).unwrap();
    let response = ask(&mut peer, command(2, PROTECTED));
    assert!(response.status().is_success(), "{response:?}");
    target.assert_healthy();
    target.stop();
}

#[test]
fn protection_without_state_file_is_refused() {
    let setup = Setup::new().file(1 << 20);
    let target = setup.start();
    let response = ask(&mut admin(&target), command(1, PROTECTED));
    assert_eq!(response.status().kind(), Status::INVALID_FIELD);
    target.stop();
}
