//! What a disk does at once can be taken at once, and comes out once.
#![allow(clippy::unwrap_used, reason = "tests")]

use nvmeof_backend::{Claim, Disks, Done, Op, Request, Spec};
use nvmeof_memory::{Buf, Pages, Pool, PoolLayout};
use nvmeof_uring::RingConfig;

const BLOCK: usize = 4096;

fn read(disks: &mut Disks, spec: &Spec, tag: u64, buf: Buf) {
    let claim = Claim::take(spec, None).unwrap();
    let id = disks.open(&claim).unwrap();
    let op = Op::Read { offset: 0, buf };
    disks.submit(id, Request { tag, op }).unwrap();
}

fn buf() -> Buf {
    let layout = PoolLayout {
        count: 1,
        stride: BLOCK,
        lead: 0,
    };
    let mut buf = Pool::new(layout, Pages::Normal).unwrap().take().unwrap();
    buf.fill(7);
    buf
}

#[test]
fn what_is_done_at_once_is_taken_or_polled_but_not_both() {
    let mut disks = Disks::new(RingConfig::default()).unwrap();
    let spec: Spec = "null:1G".parse().unwrap();
    let mut polled: Vec<Done> = Vec::new();

    read(&mut disks, &spec, 1, buf());
    assert!(disks.take_done(2).is_none(), "another's");
    let done = disks.take_done(1).unwrap();
    assert_eq!((done.tag, done.result), (1, Ok(())));
    assert!(done.buf.unwrap().iter().all(|byte| *byte == 0));
    assert!(disks.take_done(1).is_none());
    assert!(!disks.poll(&mut polled).unwrap());

    read(&mut disks, &spec, 3, buf());
    assert!(disks.poll(&mut polled).unwrap());
    assert_eq!(polled.pop().unwrap().tag, 3);
    assert!(disks.take_done(3).is_none());
}

#[test]
fn what_the_kernel_does_is_polled() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    let size = BLOCK as u64;
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    let spec = Spec::File {
        path,
        readonly: false,
    };
    let mut disks = Disks::new(RingConfig::default()).unwrap();
    read(&mut disks, &spec, 1, buf());
    assert!(disks.take_done(1).is_none());
    let mut polled = Vec::new();
    while !disks.poll(&mut polled).unwrap() {
        std::thread::yield_now();
    }
    assert_eq!(polled.pop().unwrap().tag, 1);
}
