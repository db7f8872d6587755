//! Immediate completions are returned once, by `submit`.
#![allow(clippy::unwrap_used, reason = "tests")]

use nvmeof_backend::{
    BackingStores as _, Claim, Done, Op, RefusalReason, Request, Spec, Submitted, UringStores,
};
use nvmeof_memory::{Buf, Pages, Pool, PoolLayout};
use nvmeof_uring::RingConfig;

const BLOCK: usize = 4096;

fn read(stores: &mut UringStores, spec: &Spec, tag: u64, buf: Buf) -> Option<Done> {
    let claim = Claim::take(spec, None).unwrap();
    let number = u32::try_from(tag).unwrap();
    stores.open(number, &claim).unwrap();
    let op = Op::Read { offset: 0, buf };
    let mut request = Request { tag, op };
    match stores.submit(number, &mut request).unwrap() {
        Submitted::Done(result) => {
            let buf = request.op.into_buf();
            Some(Done { tag, buf, result })
        }
        Submitted::Pending => None,
    }
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
fn immediate_completion_is_returned_by_submit() {
    let mut stores = UringStores::new(RingConfig::default()).unwrap();
    let spec: Spec = "null:1G".parse().unwrap();
    let mut polled: Vec<Done> = Vec::new();

    let done = read(&mut stores, &spec, 1, buf()).unwrap();
    assert_eq!((done.tag, done.result), (1, Ok(())));
    assert!(done.buf.unwrap().iter().all(|byte| *byte == 0));
    assert!(!stores.poll(&mut polled).unwrap());
}

#[test]
fn kernel_completion_is_returned_by_poll() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    let size = BLOCK as u64;
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    let spec = Spec::File {
        path,
        readonly: false,
    };
    let mut stores = UringStores::new(RingConfig::default()).unwrap();
    assert!(read(&mut stores, &spec, 1, buf()).is_none());
    let mut polled = Vec::new();
    while !stores.poll(&mut polled).unwrap() {
        std::thread::yield_now();
    }
    assert_eq!(polled.pop().unwrap().tag, 1);
}

#[test]
fn batch_over_several_stores_takes_few_system_calls() {
    const EACH: u64 = 31;
    const ALL: usize = 93;
    let dir = tempfile::tempdir().unwrap();
    let mut stores = UringStores::new(RingConfig::default()).unwrap();
    let layout = PoolLayout {
        count: ALL,
        stride: BLOCK,
        lead: 0,
    };
    let pool = Pool::new(layout, Pages::Normal).unwrap();
    assert_eq!(stores.register_regions([pool.region()]).left_out, 0);
    let open = |number: u32| {
        let path = dir.path().join(format!("{number}.img"));
        std::fs::File::create(&path)
            .unwrap()
            .set_len(1 << 20)
            .unwrap();
        let spec = Spec::File {
            path,
            readonly: false,
        };
        let claim = Claim::take(&spec, None).unwrap();
        stores.open(number, &claim).unwrap();
        number
    };
    let ids: Vec<_> = (0..3).map(open).collect();
    let mut done = Vec::new();
    for round in 0..4u64 {
        let before = stores.ring().counts();
        for (tag, id) in (0..EACH).flat_map(|tag| ids.iter().map(move |id| (tag, *id))) {
            let (offset, buf) = (tag * BLOCK as u64, pool.take().unwrap());
            let op = match round % 2 {
                0 => Op::Write {
                    offset,
                    buf,
                    fua: false,
                },
                _ => Op::Read { offset, buf },
            };
            let submitted = stores.submit(id, &mut Request { tag, op });
            assert!(matches!(submitted, Ok(Submitted::Pending)));
        }
        stores.poll(&mut done).unwrap();
        let after = stores.ring().counts();
        // Batches of eight operations, and one for the last five.
        assert_eq!(after.enters, before.enters + 12, "round {round}");
        assert_eq!(after.operations, (round + 1) * 3 * EACH);
        assert_eq!(after.not_fixed, 0);
        while done.len() < ALL {
            stores.poll(&mut done).unwrap();
        }
        assert!(done.drain(..).all(|done| done.result.is_ok()));
        let idle = stores.ring().counts();
        assert!(!stores.poll(&mut done).unwrap());
        assert_eq!(stores.ring().counts(), idle);
    }
}

/// Without polling, stores behave as if they were unresponsive.
#[test]
fn unresponsive_stores_leave_room_in_ring() {
    let dir = tempfile::tempdir().unwrap();
    let config = RingConfig {
        in_flight: 64,
        ..RingConfig::default()
    };
    let mut stores = UringStores::new(config).unwrap();
    let mut open = |number: u32| {
        let path = dir.path().join(format!("{number}.img"));
        let size = BLOCK as u64;
        std::fs::File::create(&path).unwrap().set_len(size).unwrap();
        let spec = Spec::File {
            path,
            readonly: false,
        };
        let claim = Claim::take(&spec, None).unwrap();
        stores.open(number, &claim).unwrap();
        number
    };
    let ids: Vec<_> = (0..4).map(&mut open).collect();
    let pool = PoolLayout {
        count: 64,
        stride: BLOCK,
        lead: 0,
    };
    let pool = Pool::new(pool, Pages::Normal).unwrap();
    let taken = ids.iter().map(|id| {
        let mut taken = 0;
        while let Some(buf) = pool.take() {
            let op = Op::Read { offset: 0, buf };
            match stores.submit(*id, &mut Request { tag: 0, op }) {
                Ok(submitted) => assert!(matches!(submitted, Submitted::Pending)),
                Err(why) => {
                    assert_eq!(why, RefusalReason::Full);
                    break;
                }
            }
            taken += 1;
        }
        taken
    });
    assert_eq!(taken.collect::<Vec<_>>(), [32, 16, 8, 4]);
}
