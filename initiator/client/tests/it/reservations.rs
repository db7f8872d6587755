//! Reservation commands on one path, and conflicts, with a minimal target.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use crate::fake::reservation_report;
use crate::host::{Target, host, identity};
use nvmeof_initiator::{
    Error, ErrorKind, Host, HostConfig, Namespace, PersistChange, ReservationAcquire,
    ReservationRegister, ReservationRelease, ReservationReport, ReservationType, Status,
    WriteOptions,
};
use nvmeof_wire::opcode::io;

const KIND: ReservationType = ReservationType::WRITE_EXCLUSIVE_REGISTRANTS;

async fn namespace(target: &Target, host: &Host) -> Namespace {
    let controller = host.connect(target.options()).await.unwrap();
    controller.namespace(1).await.unwrap()
}

/// Opcode, dword 10 and keys of each command that changes reservations.
fn received(target: &Target) -> Vec<(u8, u32, Vec<u64>)> {
    let commands = target.change(|fake| std::mem::take(&mut fake.reservations));
    let each = commands.into_iter().map(|(sqe, data)| {
        assert_eq!(sqe.nsid.get(), 1);
        let keys = data.chunks(8);
        let keys = keys.map(|key| u64::from_le_bytes(key.try_into().unwrap()));
        (sqe.opcode.0, sqe.cdw10.get(), keys.collect())
    });
    each.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn reservation_commands_are_io_commands_with_keys() {
    let (target, host) = (Target::start(), host());
    let disk = namespace(&target, &host).await;
    let register = ReservationRegister::register(7).with_persistence(PersistChange::SET);
    disk.reservation_register(register).await.unwrap();
    let replace = ReservationRegister::replace(7, 8).ignoring_key();
    disk.reservation_register(replace).await.unwrap();
    let preempt = ReservationAcquire::preempt_and_abort(KIND, 8, 9);
    disk.reservation_acquire(preempt).await.unwrap();
    let release = ReservationRelease::release(KIND, 8);
    disk.reservation_release(release).await.unwrap();
    let clear = ReservationRelease::clear(8);
    disk.reservation_release(clear).await.unwrap();
    let expected = [
        (io::RESERVATION_REGISTER, 0xc000_0000, vec![0, 7]),
        (io::RESERVATION_REGISTER, 0xa, vec![7, 8]),
        (io::RESERVATION_ACQUIRE, 0x302, vec![8, 9]),
        (io::RESERVATION_RELEASE, 0x300, vec![8]),
        (io::RESERVATION_RELEASE, 1, vec![8]),
    ];
    let expected = expected.map(|(opcode, cdw10, keys)| (opcode.0, cdw10, keys));
    assert_eq!(received(&target), expected);
}

/// The report for `registrants` hosts, and the number of commands for it.
async fn report(host: &Host, registrants: u16) -> (ReservationReport, usize) {
    let target = Target::start();
    let disk = namespace(&target, host).await;
    target.change(move |fake| fake.report = reservation_report(KIND, registrants));
    let report = disk.reservation_report().await.unwrap();
    (report, target.change(|fake| fake.served.len()))
}

#[tokio::test(flavor = "multi_thread")]
async fn report_that_exceeds_a_buffer_is_read_again_as_a_whole() {
    let host = host();
    for (registrants, commands) in [(0, 1), (63, 1), (64, 2), (1000, 2)] {
        let (report, sent) = report(&host, registrants).await;
        assert_eq!((report.generation, report.kind), (7, KIND));
        assert!(report.persists);
        assert_eq!(report.registered, registrants);
        assert_eq!(report.registrants.len(), usize::from(registrants));
        assert_eq!(sent, commands, "{registrants} registrants");
        let holders = report.registrants.iter().filter(|one| one.holds);
        assert!(
            holders
                .map(|one| one.key)
                .eq((registrants > 0).then_some(0x100))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn report_beyond_the_largest_transfer_has_what_fits() {
    // MDTS is 128 KiB, and the longest buffer of the second host 5000 bytes.
    let short = HostConfig::new(identity()).with_buffers_for(2, 5000);
    for (host, fit) in [(host(), 2047), (Host::new(short).unwrap(), 77)] {
        let (report, sent) = report(&host, 60_000).await;
        assert_eq!(report.registered, 60_000);
        assert_eq!((report.registrants.len(), sent), (fit, 2));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conflict_is_an_error_of_its_own() {
    let (target, host) = (Target::start(), host());
    let disk = namespace(&target, &host).await;
    target.change(|fake| fake.manners.status = Some(Status::RESERVATION_CONFLICT));
    let write = disk.write(0, host.buffer(512).unwrap(), WriteOptions::default());
    let errors = [
        Error::from(write.await.unwrap_err()),
        Error::from(disk.read(0, host.buffer(512).unwrap()).await.unwrap_err()),
        disk.reservation_acquire(ReservationAcquire::acquire(KIND, 7))
            .await
            .unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::ReservationConflict, "{error}");
        assert!(!error.outcome_is_unknown());
        assert!(error.to_string().contains("its holder"), "{error}");
    }
    assert_eq!(target.change(|fake| fake.served.len()), 3);
}
