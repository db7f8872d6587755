//! Peers that pass invalid memory and send invalid grants.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::os::fd::{AsRawFd, OwnedFd};

use crate::stranger::*;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use nvmeof_memory::Shared;
use nvmeof_rdma::{CloseReason, Event, PrivateData, Provider, RemoteKey, RemoteSlice, Rights};
use nvmeof_rdma_shm::{Shm, ShmConfig};
use socket2::{Domain, SockAddr, Socket, Type};

const GRANTS: u32 = 2048;

fn region(number: u32, len: u64) -> Vec<u8> {
    [&[8][..], &number.to_le_bytes(), &len.to_le_bytes()].concat()
}

/// A memfd with these seals.
fn memfd(len: i64, flags: MFdFlags, seals: SealFlag) -> OwnedFd {
    let flags = flags | MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create("region", flags).unwrap();
    ftruncate(&fd, len).unwrap();
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    fd
}

#[test]
fn invalid_region_is_refused_with_reason() {
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    let none = MFdFlags::empty();
    let good = memfd(8192, none, seals);
    let loose = memfd(8192, none, SealFlag::F_SEAL_GROW);
    let fixed = memfd(8192, none, seals | SealFlag::F_SEAL_WRITE);
    let huge = memfd(2 << 20, MFdFlags::MFD_HUGETLB, seals);
    let empty = memfd(0, none, seals);
    let path = format!("/proc/self/fd/{}", good.as_raw_fd());
    let readable: OwnedFd = std::fs::File::open(path).unwrap().into();
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let most: Vec<u32> = (0..17).collect();
    let cases: [(&[u32], u64, Option<&OwnedFd>, &str); 11] = [
        (&[1], 8192, Some(&good), "number 0 was expected"),
        (&[0, 0], 8192, Some(&good), "number 1 was expected"),
        (&most, 8192, Some(&good), "at most 16 are possible"),
        (&[0], 8192, None, "without a file descriptor"),
        (&[0], 8192, Some(&null), "not sealed"),
        (&[0], 8192, Some(&loose), "not sealed"),
        (&[0], 4096, Some(&good), "bytes of memory"),
        (&[0], u64::MAX, Some(&good), "bytes of memory"),
        (&[0], 8192, Some(&fixed), "mmap failed"),
        (&[0], 8192, Some(&readable), "mmap failed"),
        (&[0], 2 << 20, Some(&huge), "not an ordinary memfd"),
    ];
    let mut host = Host::new();
    for (numbers, len, fd, text) in cases {
        let (stranger, _memory, _) = intruder_with(&mut host, GRANTS);
        for number in numbers {
            send(&stranger, &region(*number, len), fd.as_slice());
        }
        let Event::Closed { reason, .. } = host.event() else {
            panic!("the end")
        };
        let CloseReason::PeerFault(fault) = reason else {
            panic!("{text}: {reason}")
        };
        assert!(fault.code == 5 && fault.text.contains(text), "{fault}");
    }
    let (stranger, _memory, _) = intruder_with(&mut host, GRANTS);
    send(&stranger, &region(0, 0), &[&empty]);
    assert!(matches!(host.event(), Event::Closed { .. }));
    // A peer without room for grants passes no regions.
    let (stranger, _memory, _) = intruder(&mut host);
    send(&stranger, &region(0, 8192), &[&good]);
    assert!(matches!(host.event(), Event::Closed { .. }));
    assert_eq!(open_of(&[&good]), 2, "only ours, and the one to read");
    host.assert_open();
}

/// A grant: kind, key, length, and start, region and rights in one word.
fn grant(key: u32, start: u64, len: u64, number: u64) -> Record {
    Record {
        kind: 5,
        len: 0,
        key,
        rest: len,
        addr: start | number << 48 | 3 << 56,
    }
}

#[test]
fn grant_is_limited_to_region() {
    let mut host = Host::new();
    let (stranger, memory, qp) = intruder_with(&mut host, GRANTS);
    let (theirs, fd) = Shared::create(8192).unwrap();
    theirs.copy_in(4096, &[7; 4096]).unwrap();
    send(&stranger, &region(0, 8192), &[&fd]);
    let cases = [
        (grant(0x100, 4096, 4096, 0), true),
        (grant(0x200, 4097, 4096, 0), false),
        (grant(0x300, 8192, 1, 0), false),
        (grant(0x400, (1 << 48) - 1, 1, 0), false),
        (grant(0x500, 0, u64::from(u32::MAX), 0), false),
        (grant(0x600, 4096, 4096, 1), false),
        (grant(0x700, 4096, 4096, 255), false),
    ];
    put(&memory, &cases.map(|(grant, _)| grant));
    send(&stranger, &[4], &[]);
    for _ in 0..1000 {
        assert!(host.poll().is_empty());
    }
    let mut mapped = Vec::new();
    for (grant, good) in cases {
        let slice = RemoteSlice {
            key: RemoteKey(grant.key),
            addr: 1 << 20,
            len: u32::try_from(grant.rest).unwrap(),
        };
        let buf = host.provider.map_remote(qp, slice, Rights::all());
        assert_eq!(buf.is_some(), good, "{:#x}", grant.key);
        mapped.extend(buf);
    }
    // The owner may punch a hole, but not unmap the memory.
    assert!(mapped[0].to_vec().iter().all(|byte| *byte == 7));
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&fd, hole, 0, 8192).unwrap();
    assert!(mapped[0].to_vec().iter().all(|byte| *byte == 0));
    drop(stranger);
    assert!(matches!(host.event(), Event::Closed { .. }));
    mapped[0].fill(1);
    host.assert_open();
}

/// Beyond the limit nothing is mapped, and everything else works.
#[test]
fn memory_above_limit_is_not_mapped() {
    let mut host = Host::new();
    host.provider = Shm::new(ShmConfig {
        mapped: 8192,
        folder: host.folder.path().join("other"),
        ..config(&host.folder)
    })
    .unwrap();
    host.provider.listen(addr()).unwrap();
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
    let path = host.folder.path().join("other/127.0.0.1-4420.sock");
    socket.connect(&SockAddr::unix(path).unwrap()).unwrap();
    let (memory, fd) = Shared::create(TOTAL + 16 * GRANTS as usize).unwrap();
    send(&socket, &request_with(RING, GRANTS), &[&fd]);
    let Event::ConnectRequest(asked) = host.event() else {
        panic!("a request")
    };
    host.provider.prepare(asked.qp, &CONFIG).unwrap();
    host.provider
        .accept(asked.qp, &PrivateData::empty())
        .unwrap();
    let regions = [(); 2].map(|()| Shared::create(8192).unwrap());
    for (number, (_, fd)) in (0..).zip(&regions) {
        send(&socket, &region(number, 8192), &[fd]);
    }
    put(&memory, &[grant(0x100, 0, 1, 0), grant(0x200, 0, 1, 1)]);
    send(&socket, &[4], &[]);
    for _ in 0..1000 {
        host.poll();
    }
    for (key, room) in [(0x100, true), (0x200, false)] {
        let slice = RemoteSlice {
            key: RemoteKey(key),
            addr: 1 << 20,
            len: 1,
        };
        let mapped = host.provider.map_remote(asked.qp, slice, Rights::all());
        assert_eq!(mapped.is_some(), room, "{key:#x}");
    }
}
