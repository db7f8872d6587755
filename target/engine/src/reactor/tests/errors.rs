//! The error log names the block that failed.

use nix::errno::Errno;
use nvmeof_wire::admin::{GetLogPage, LogId};
use nvmeof_wire::log::ErrorEntry;
use nvmeof_wire::nvm::{Copy, CopyRange, DatasetManagement, DsmRange, flush};
use nvmeof_wire::opcode::io;
use nvmeof_wire::{Sqe, Status};
use zerocopy::{FromBytes, IntoBytes};

use super::host::{Host, ready, run};
use super::io::command;
use super::{BLOCKS, Bench};

/// The newest entry.
fn newest(bench: &mut Bench, host: &mut Host, admin: nvmeof_rdma::QpId) -> ErrorEntry {
    let page = GetLogPage::new(LogId::ERROR, 0, 0, 64).to_sqe();
    let sent = host.send_with(admin, page, &[0; 64]);
    let (cqe, data) = run(bench, host, sent);
    assert!(cqe.status().is_success());
    ErrorEntry::read_from_bytes(&data).unwrap()
}

/// Base 2.1, 5.1.12.1.2.
#[test]
fn error_log_names_the_first_failed_block() {
    let mut bench = Bench::new(1);
    let mut host = bench.host();
    let (admin, qp) = ready(&mut bench, &mut host);
    let copy = Copy {
        nsid: 1,
        slba: 1100,
        ranges: 2,
        format: 0,
        protected: false,
        fua: false,
    };
    let copied = [CopyRange::new(100, 60), CopyRange::new(3, 2)];
    let trim = DatasetManagement {
        nsid: 1,
        ranges: 2,
        deallocate: true,
    };
    let trimmed = [DsmRange::new(40, 0), DsmRange::new(70, 9)];
    let mut different = vec![0; 8192];
    different[5 * 512 + 3] = 1;
    let none = &[][..];
    let rows: [(Sqe, &[u8], u64, u64); 9] = [
        (command(io::READ, 100, 16), &[0; 8192], 5 * 512, 105),
        (command(io::WRITE, 100, 16), &[0; 8192], 15 * 512 + 511, 115),
        (command(io::VERIFY, 100, 600), none, 200 * 512, 300),
        (command(io::WRITE_ZEROES, 0, 2000), none, 1999 * 512, 1999),
        (copy.to_sqe(), copied.as_bytes(), 7 * 512, 107),
        (trim.to_sqe(), trimmed.as_bytes(), 0, 70),
        (flush(1), none, 0, 0),
        // Not for lack of a backing store.
        (command(io::COMPARE, 20, 16), &different, u64::MAX, 25),
        (
            command(io::READ, BLOCKS - 1, 2),
            &[0; 1024],
            u64::MAX,
            BLOCKS,
        ),
    ];
    for (sqe, data, after, lba) in rows {
        let stores = bench.reactor.stores_mut();
        stores.fails = (after != u64::MAX).then_some(Errno::EIO);
        stores.fails_after = after;
        let opcode = sqe.opcode;
        let sent = match data {
            [] => host.send(qp, sqe, &[]),
            data => host.send_with(qp, sqe, data),
        };
        let status = run(&mut bench, &mut host, sent).0.status();
        let entry = newest(&mut bench, &mut host, admin);
        assert!(entry.status().is(status.kind()) && status.kind() != Status::SUCCESS);
        assert_eq!(entry.lba.get(), lba, "{opcode:?} {status}");
    }
}
