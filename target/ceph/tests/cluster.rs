//! The interface of this crate with a real cluster. `cargo xtask test ceph` starts one and sets the
//! variables `NVMEOF_CEPH_*`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nvmeof_backend_spec::CephAccess;
use nvmeof_ceph::{
    Call, CephError, Cluster, Done, Features, Image, Pool, Queue, Swapped, wait_closed,
};
use nvmeof_memory::{Buf, Pages, PoolLayout};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run `cargo xtask test ceph`"))
}

fn access() -> CephAccess {
    CephAccess {
        conf: Some(variable("NVMEOF_CEPH_CONF").into()),
        user: Some(variable("NVMEOF_CEPH_USER")),
        keyring: Some(variable("NVMEOF_CEPH_KEYRING").into()),
    }
}

fn connect() -> Cluster {
    Cluster::connect(&access()).unwrap()
}

fn pool(cluster: &Cluster) -> Pool {
    Pool::open(cluster, &variable("NVMEOF_CEPH_POOL"), None).unwrap()
}

/// Runs `rbd`, which must succeed.
fn rbd(arguments: &[&str]) {
    let output = Command::new("rbd").args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "rbd {arguments:?}: {text}");
}

/// A new image of 16 MiB. Its name is new, too: the watch of a process that ended without closing
/// an image lasts 30 s, and nobody can remove the image meanwhile.
fn new_image(name: &str) {
    let image = format!("rbd/{}", unique(name));
    rbd(&["create", "--size", "16M", &image]);
}

fn unique(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

fn open(cluster: &Cluster, name: &str) -> Image {
    Image::open(pool(cluster), &unique(name), None, false, name).unwrap()
}

fn buffers(count: usize) -> nvmeof_memory::Pool {
    let layout = PoolLayout {
        count,
        stride: 4096,
        lead: 0,
    };
    nvmeof_memory::Pool::new(layout, Pages::Normal).unwrap()
}

/// A queue, and what its wake-ups send.
fn queue(image: &Image, slots: usize) -> (Queue, Receiver<()>) {
    let (sender, receiver) = channel();
    let wake = move || {
        let _ = sender.send(());
    };
    (Queue::new(image, slots, Box::new(wake)), receiver)
}

/// Executes one call, sleeping until it has completed.
fn run((queue, woken): &mut (Queue, Receiver<()>), call: Call) -> Done {
    queue.start(7, call).unwrap();
    let mut done = None;
    while done.is_none() {
        if queue.may_sleep(1) {
            woken.recv_timeout(LIMIT).unwrap();
        }
        queue.take_completed(|one| done = Some(one));
    }
    let done = done.unwrap();
    assert_eq!((done.tag, queue.in_flight()), (7, 0));
    done
}

fn filled(pool: &nvmeof_memory::Pool, byte: u8) -> Buf {
    let mut buf = pool.take().unwrap();
    buf.fill(byte);
    buf
}

#[test]
fn connection_knows_cluster_and_own_address() {
    let (one, other) = (connect(), connect());
    assert_eq!((one.fsid().len(), one.fsid()), (36, other.fsid()));
    assert!(one.address().contains("127.0.0.1:0/"), "{}", one.address());
    assert_ne!(one.address(), other.address());
    let shared = [0; 2].map(|_| Cluster::shared(&access()).unwrap());
    assert_eq!(shared[0].address(), shared[1].address());
    shared[0].retire();
    let next = Cluster::shared(&access()).unwrap();
    assert_ne!(next.address(), shared[0].address());
}

/// An exit of the process must have its status also while a connection is open.
#[test]
fn process_may_exit_with_an_open_connection() {
    let cluster = connect();
    std::mem::forget(pool(&cluster));
    std::mem::forget(cluster);
}

#[test]
fn failed_connection_names_its_call() {
    let fails = |access: &CephAccess| Cluster::connect(access).map(drop).unwrap_err();
    let missing = CephAccess {
        conf: Some("/nonexistent/ceph.conf".into()),
        ..access()
    };
    let error = fails(&missing);
    assert!(
        error.to_string().starts_with("rados_conf_read_file"),
        "{error}"
    );
    assert_eq!(error.errno(), Some(Errno::ENOENT));
    let keyring = CephAccess {
        keyring: Some("/nonexistent/keyring".into()),
        ..access()
    };
    assert!(fails(&keyring).to_string().starts_with("rados_connect"));
    let user = CephAccess {
        user: Some("nobody\0".into()),
        ..access()
    };
    assert!(matches!(fails(&user), CephError::Nul(_)));
}

#[test]
fn value_is_replaced_only_if_it_is_the_expected_one() {
    let cluster = connect();
    let (pool, object) = (pool(&cluster), "swapped");
    pool.remove(object).unwrap();
    assert_eq!(pool.get(object, "a").unwrap(), None);
    assert_eq!(pool.list(object).unwrap(), []);
    let swap = |key: &str, expected: Option<&[u8]>, new: Option<&[u8]>| {
        pool.swap(object, key, expected, new).unwrap()
    };
    assert_eq!(swap("a", Some(b"x"), Some(b"1")), Swapped::Changed);
    assert_eq!(swap("a", None, Some(b"1")), Swapped::Yes);
    assert_eq!(swap("a", None, Some(b"2")), Swapped::Changed);
    assert_eq!(swap("a", Some(b"1"), Some(b"2")), Swapped::Yes);
    assert_eq!(pool.get(object, "a").unwrap().as_deref(), Some(&b"2"[..]));
    for n in 0..300 {
        assert_eq!(swap(&format!("n{n:03}"), None, Some(b"v")), Swapped::Yes);
    }
    let all = pool.list(object).unwrap();
    assert_eq!((all.len(), all[0].0.as_str()), (301, "a"));
    assert!(all.is_sorted());
    assert_eq!(swap("a", Some(b"2"), None), Swapped::Yes);
    assert_eq!(pool.get(object, "a").unwrap(), None);
    pool.remove(object).unwrap();
}

/// Writers of one value count together without losing a step.
/// The record of a namespace with all registrants and long NQNs is longer than 1 MiB.
#[test]
fn long_value_is_kept_and_one_over_the_limit_is_refused() {
    let cluster = connect();
    let (pool, object) = (pool(&cluster), "long");
    pool.remove(object).unwrap();
    let longest = vec![7; 16 << 20];
    let swapped = pool.swap(object, "a", None, Some(&longest)).unwrap();
    assert_eq!(swapped, Swapped::Yes);
    assert_eq!(pool.get(object, "a").unwrap().unwrap().len(), 16 << 20);
    let more = vec![7; (16 << 20) + 1];
    let error = pool.swap(object, "a", Some(&longest), Some(&more));
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("16777217") && error.contains("16777216"),
        "{error}"
    );
    assert_eq!(pool.get(object, "a").unwrap().unwrap().len(), 16 << 20);
    pool.remove(object).unwrap();
}

#[test]
fn concurrent_swaps_lose_nothing() {
    let cluster = connect();
    let pool = pool(&cluster);
    pool.remove("counter").unwrap();
    let start = Barrier::new(4);
    let count = |pool: &Pool| {
        let value = pool.get("counter", "n").unwrap();
        let number = value.as_deref().map_or(0, |value| {
            std::str::from_utf8(value).unwrap().parse::<u32>().unwrap()
        });
        (value, number)
    };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                start.wait();
                let mut done = 0;
                while done < 25 {
                    let (value, number) = count(&pool);
                    let next = (number + 1).to_string();
                    let next = Some(next.as_bytes());
                    let swapped = pool.swap("counter", "n", value.as_deref(), next);
                    done += u32::from(swapped.unwrap() == Swapped::Yes);
                }
            });
        }
    });
    assert_eq!(count(&pool).1, 100);
    pool.remove("counter").unwrap();
}

#[test]
fn namespaces_of_a_pool_are_separate() {
    let cluster = connect();
    let named = Pool::open(&cluster, "rbd", Some("separate")).unwrap();
    named.swap("o", "k", None, Some(b"v")).unwrap();
    assert_eq!(pool(&cluster).get("o", "k").unwrap(), None);
    named.remove("o").unwrap();
    let missing = Pool::open(&cluster, "no-such-pool", None).unwrap_err();
    assert_eq!(missing.errno(), Some(Errno::ENOENT));
}

#[test]
fn calls_complete_with_their_buffers() {
    new_image("calls");
    let cluster = connect();
    let image = open(&cluster, "calls");
    let properties = image.properties().unwrap();
    assert_eq!(
        (properties.size, properties.object_size),
        (16 * MIB, 4 * MIB)
    );
    assert_eq!(properties.stripe_unit, 4 * MIB);
    assert!(properties.features.contains(Features::EXCLUSIVE_LOCK));
    assert!(!properties.features.contains(Features::JOURNALING) && !properties.has_parent);
    assert_eq!(image.option("rbd_cache").unwrap().as_deref(), Some("false"));
    assert_eq!(image.option("no_such_option").unwrap(), None);
    let (buffers, mut queue) = (buffers(2), queue(&image, 4));
    let (offset, buf) = (MIB, filled(&buffers, 0xab));
    let done = run(&mut queue, Call::Write { offset, buf });
    assert_eq!(done.result, Ok(0));
    drop(done);
    run(&mut queue, Call::Flush).result.unwrap();
    let read = |queue: &mut (Queue, Receiver<()>), offset| {
        let buf = filled(&buffers, 1);
        let done = run(queue, Call::Read { offset, buf });
        (done.result, done.call.into_buf().unwrap().to_vec())
    };
    assert_eq!(read(&mut queue, offset), (Ok(4096), vec![0xab; 4096]));
    let allocate = true;
    for (len, allocate) in [(1024, allocate), (2048, false)] {
        let call = Call::WriteZeroes {
            offset,
            len,
            allocate,
        };
        run(&mut queue, call).result.unwrap();
        let (_, bytes) = read(&mut queue, offset);
        let zeroes = usize::try_from(len).unwrap();
        assert!(bytes[..zeroes].iter().all(|byte| *byte == 0));
        assert!(bytes[zeroes..].iter().all(|byte| *byte == 0xab));
    }
    // Beyond the end: fewer bytes.
    let (result, _) = read(&mut queue, 16 * MIB - 1024);
    assert_eq!(result, Ok(1024));
    let mut bytes = [1; 4096];
    assert_eq!(image.read(offset, &mut bytes).unwrap(), 4096);
    assert_eq!((bytes[0], bytes[4095]), (0, 0xab));
    assert_eq!(buffers.available(), 2);
}

#[test]
fn full_queue_returns_the_call() {
    new_image("full");
    let cluster = connect();
    let image = open(&cluster, "full");
    let (mut queue, _woken) = queue(&image, 1);
    let buffers = buffers(2);
    let write = |byte| Call::Write {
        offset: 0,
        buf: filled(&buffers, byte),
    };
    queue.start(1, write(1)).unwrap();
    assert!(queue.is_full());
    let refused = queue.start(2, write(2)).unwrap_err();
    assert_eq!(refused.errno, Errno::EAGAIN);
    assert_eq!(refused.call.into_buf().unwrap()[0], 2);
    // The queue waits for the call, whose buffer is returned.
    drop(queue);
    assert_eq!(buffers.available(), 2);
}

/// Several threads with queues of one image, each with many calls in flight.
#[test]
fn queues_of_one_image_are_independent() {
    new_image("many");
    let cluster = connect();
    let image = open(&cluster, "many");
    thread::scope(|scope| {
        for number in 0..3u8 {
            let image = &image;
            scope.spawn(move || {
                let (mut queue, woken) = queue(image, 16);
                let buffers = buffers(16);
                let place = |tag: u64| (u64::from(number) * 1024 + tag) * 4096;
                for round in 0..20 {
                    let byte = number * 20 + round;
                    for writes in [true, false] {
                        for tag in 0..16 {
                            let (offset, buf) = (place(tag), filled(&buffers, byte));
                            let call = match writes {
                                true => Call::Write { offset, buf },
                                false => Call::Read { offset, buf },
                            };
                            queue.start(tag, call).unwrap();
                        }
                        let mut seen = 0u32;
                        while seen != 0xffff {
                            if queue.may_sleep(1) {
                                woken.recv_timeout(LIMIT).unwrap();
                            }
                            queue.take_completed(|done| {
                                assert_eq!(seen & 1 << done.tag, 0, "completed twice");
                                seen |= 1 << done.tag;
                                assert!(done.result.is_ok());
                                let buf = done.call.into_buf().unwrap();
                                assert!(buf.iter().all(|one| *one == byte));
                            });
                        }
                    }
                }
            });
        }
    });
}

#[test]
fn sleep_ends_after_a_batch_of_completions() {
    new_image("batch");
    let image = open(&connect(), "batch");
    let (mut queue, woken) = queue(&image, 16);
    let buffers = buffers(16);
    for tag in 0..16 {
        let (offset, buf) = (tag * 4096, filled(&buffers, 1));
        queue.start(tag, Call::Write { offset, buf }).unwrap();
    }
    let mut taken = 0;
    // False if the cluster was very fast.
    if queue.may_sleep(8) {
        woken.recv_timeout(LIMIT).unwrap();
        queue.take_completed(|_| taken += 1);
        assert!(taken >= 8, "{taken}");
    }
    while queue.in_flight() > 0 {
        if queue.may_sleep(0) {
            woken.recv_timeout(LIMIT).unwrap();
        }
        queue.take_completed(|_| taken += 1);
    }
    assert_eq!(taken, 16);
}

#[test]
fn lock_has_one_owner_until_the_image_is_closed() {
    new_image("locked");
    let [one, other] = [0; 2].map(|_| connect());
    let image = open(&one, "locked");
    assert_eq!(image.lock_owner().unwrap(), None);
    let owner = image.acquire_lock().unwrap();
    let second = open(&other, "locked");
    assert_eq!(second.lock_owner().unwrap().as_ref(), Some(&owner));
    assert!(second.is_watched_by(&owner).unwrap());
    assert!(!second.is_watched_by("127.0.0.1:0/1").unwrap());
    assert!(second.acquire_lock().is_err(), "it is not handed over");
    image.set_metadata("key", "value").unwrap();
    assert_eq!(second.metadata("key").unwrap().as_deref(), Some("value"));
    assert_eq!(second.metadata("none").unwrap(), None);
    drop(image);
    assert!(wait_closed(Some("locked"), LIMIT));
    assert_ne!(second.acquire_lock().unwrap(), owner);
}

/// The client whose lock was broken executes nothing any more.
#[test]
fn client_with_broken_lock_is_blocklisted() {
    new_image("broken");
    let [one, other] = [0; 2].map(|_| connect());
    let image = open(&one, "broken");
    let owner = image.acquire_lock().unwrap();
    let buffers = buffers(1);
    let write = |queue: &mut (Queue, Receiver<()>), byte| {
        let (offset, buf) = (0, filled(&buffers, byte));
        run(queue, Call::Write { offset, buf }).result
    };
    let mut first = queue(&image, 1);
    write(&mut first, 1).unwrap();
    let second = open(&other, "broken");
    second.break_lock(&owner).unwrap();
    other.wait_for_latest_map().unwrap();
    second.acquire_lock().unwrap();
    // The first operation of the new owner brings the map to the OSD.
    write(&mut queue(&second, 1), 2).unwrap();
    assert_eq!(write(&mut first, 3), Err(Errno::ESHUTDOWN));
    let mut byte = [0];
    second.read(0, &mut byte).unwrap();
    assert_eq!(byte, [2]);
}

#[test]
fn blocklisted_client_is_refused() {
    let [one, other] = [0; 2].map(|_| connect());
    let (its, ours) = (pool(&one), pool(&other));
    its.remove("fenced").unwrap();
    its.swap("fenced", "k", None, Some(b"1")).unwrap();
    other.blocklist(one.address(), 60).unwrap();
    other.wait_for_latest_map().unwrap();
    ours.swap("fenced", "k", Some(b"1"), Some(b"2")).unwrap();
    let late = its.swap("fenced", "k", Some(b"2"), Some(b"3")).unwrap_err();
    assert_eq!(late.errno(), Some(Errno::ESHUTDOWN));
    assert_eq!(ours.get("fenced", "k").unwrap().as_deref(), Some(&b"2"[..]));
    ours.remove("fenced").unwrap();
}

/// The size is known to all that have the image open, without asking for it again.
#[test]
fn size_follows_changes_of_other_clients() {
    new_image("resized");
    let cluster = connect();
    let image = Arc::new(open(&cluster, "resized"));
    let name = format!("rbd/{}", unique("resized"));
    rbd(&["resize", "--no-progress", "--size", "32M", &name]);
    let end = std::time::Instant::now() + LIMIT;
    while image.size().unwrap() != 32 * MIB {
        assert!(std::time::Instant::now() < end);
        thread::sleep(Duration::from_millis(10));
    }
}
