//! RBD images as backing stores, in a real cluster. `cargo xtask test ceph` starts one and sets the
//! variables `NVMEOF_CEPH_*`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvmeof_backend::{
    BlockSize, Claim, IoError, IoErrorKind, Op, OpenError, RbdClients, RbdRefusal, SharedRecord,
    Spec,
};
use nvmeof_backend_conformance::{self as conformance, Bench, Keeps};
use nvmeof_backend_layers::Delayed;
use nvmeof_backend_spec::CephAccess;

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

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {text}");
}

fn rbd(arguments: &[&str]) {
    run("rbd", arguments);
}

/// A new image of 16 MiB.
fn new_image(name: &str) -> String {
    let image = format!("rbd/{name}");
    let _ = Command::new("rbd")
        .args(["snap", "purge", "--no-progress", &image])
        .output();
    let _ = Command::new("rbd")
        .args(["rm", "--no-progress", &image])
        .output();
    rbd(&["create", "--size", "16M", &image]);
    image
}

fn spec(image: &str) -> Spec {
    let spec: Spec = format!("rbd:{image}").parse().unwrap();
    spec.with_ceph(&access())
}

fn take(image: &str) -> Result<Claim, OpenError> {
    Claim::take(&spec(image), None)
}

/// Why the image is refused; the message has all of `words`.
#[track_caller]
fn refused(spec: &Spec, words: &[&str]) -> RbdRefusal {
    let error = Claim::take(spec, None).map(drop).unwrap_err();
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "{message:?} lacks {word:?}");
    }
    match error {
        OpenError::Rbd { why, .. } => why,
        other => panic!("{other:?}"),
    }
}

fn bench(claim: &Claim) -> Bench {
    Bench::new(claim, Keeps::Bytes, |backend| backend)
}

#[test]
fn image_satisfies_the_contract() {
    let image = new_image("contract");
    for block_size in [None, Some(BlockSize::B4096)] {
        let claim = Claim::take(&spec(&image), block_size).unwrap();
        conformance::all(&claim, Keeps::Bytes, |backend| backend);
        conformance::all(&claim, Keeps::Bytes, |backend| {
            Box::new(Delayed::new(backend, 1, 5))
        });
    }
}

#[test]
fn snapshot_is_read_only_and_does_not_change() {
    let image = new_image("snapshot");
    let snapshot = format!("{image}@first");
    let claim = take(&image).unwrap();
    let mut live = bench(&claim);
    live.fill(0, 4096, 1, false);
    rbd(&["snap", "create", "--no-progress", &snapshot]);
    live.fill(0, 4096, 2, false);
    // While the image is written to.
    let claims = [0; 2].map(|_| take(&snapshot).unwrap());
    assert!(claims[0].geometry().readonly);
    conformance::readonly(&claims[0], |backend| backend);
    let mut frozen = bench(&claims[1]);
    assert_eq!(frozen.read(0, 4096), [1; 4096]);
    assert_eq!(live.read(0, 4096), [2; 4096]);
}

#[test]
fn geometry_follows_from_objects() {
    let image = new_image("geometry");
    let claim = take(&image).unwrap();
    let geometry = claim.geometry();
    assert_eq!(
        (geometry.size, geometry.block_size),
        (16 << 20, BlockSize::B512)
    );
    assert!(!geometry.volatile_write_cache && geometry.deallocate_zeroes);
    assert_eq!(geometry.hints.optimal_write, Some(4 << 20));
    assert_eq!(geometry.hints.atomic, Some(4096));
    assert!(
        !claim.ends_with_ring(),
        "a write may be on its way in the network"
    );
    let polled = Claim::take_polled(&spec(&image), None).map(drop);
    assert!(polled.is_err());
}

#[test]
fn image_is_written_by_one_client() {
    let image = new_image("exclusive");
    let claim = take(&image).unwrap();
    let why = refused(
        &spec(&image),
        &["exclusive", "in use", "127.0.0.1", "snapshot"],
    );
    assert!(matches!(why, RbdRefusal::InUse { .. }) && why.may_succeed_later());
    // It is closed in another thread; opening it again waits for that.
    drop(claim);
    let claim = take(&image).unwrap();
    let mut stores = bench(&claim);
    drop(claim);
    refused(&spec(&image), &["in use"]);
    stores.stores.close(stores.store).unwrap();
    drop(take(&image).unwrap());
}

#[test]
fn unreachable_cluster_is_reported_with_the_key() {
    let image = new_image("access");
    let with = |change: fn(&mut CephAccess)| {
        let mut access = access();
        change(&mut access);
        spec(&image).with_ceph(&access)
    };
    let conf = with(|access| access.conf = Some("/nonexistent/ceph.conf".into()));
    let why = refused(
        &conf,
        &["/nonexistent/ceph.conf", "ENOENT", "conf in [ceph]"],
    );
    assert_eq!(why.key(), Some("conf"));
    let keyring = with(|access| access.keyring = Some("/nonexistent/keyring".into()));
    let why = refused(
        &keyring,
        &["no key for client.nvmeof", "/nonexistent/keyring"],
    );
    assert_eq!(
        (why.key(), why.may_succeed_later()),
        (Some("keyring"), true)
    );
    let user = with(|access| {
        access.user = Some("stranger".into());
    });
    let why = refused(&user, &["client.stranger"]);
    assert!(
        matches!(why, RbdRefusal::NoKey { .. } | RbdRefusal::Denied { .. }),
        "{why:?}"
    );
    let dir = tempfile::tempdir().unwrap();
    let wrong_key = dir.path().join("keyring");
    let text = "[client.nvmeof]\n\tkey = AQBSdFhkwG0SERAAsTrSIWBeWVRUoA0CtwvuQQ==\n";
    std::fs::write(&wrong_key, text).unwrap();
    let access = CephAccess {
        keyring: Some(wrong_key),
        ..access()
    };
    let why = refused(
        &spec(&image).with_ceph(&access),
        &["client.nvmeof", "another key"],
    );
    assert_eq!(why.key(), Some("user"));
    let access = CephAccess {
        user: Some(variable("NVMEOF_CEPH_UNPRIVILEGED_USER")),
        keyring: Some(variable("NVMEOF_CEPH_UNPRIVILEGED_KEYRING").into()),
        ..access
    };
    let words = [
        "client.unprivileged",
        "not permitted",
        "profile rbd pool=rbd",
    ];
    refused(&spec(&image).with_ceph(&access), &words);
    let nowhere = dir.path().join("ceph.conf");
    let conf = "[global]\nfsid = 00000000-0000-0000-0000-000000000001\nmon_host = 127.0.0.1:1\n";
    std::fs::write(&nowhere, conf).unwrap();
    let access = CephAccess {
        conf: Some(nowhere),
        ..self::access()
    };
    let why = refused(
        &spec(&image).with_ceph(&access),
        &["no monitor", "mon_host"],
    );
    assert!(why.is_transient() && why.key() == Some("conf"));
}

#[test]
fn missing_objects_are_reported() {
    let image = new_image("present");
    let why = refused(
        &spec("nowhere/image"),
        &["no pool \"nowhere\"", "ceph osd pool ls"],
    );
    assert!(why.may_succeed_later() && why.key().is_none());
    refused(
        &spec("rbd/absent"),
        &["no image \"absent\"", "rbd create", "rbd/absent"],
    );
    refused(&spec("rbd/ns/absent"), &["pool rbd/ns has no image"]);
    refused(
        &spec(&format!("{image}@absent")),
        &["no snapshot \"absent\"", "rbd snap ls"],
    );
    refused(&spec("rbd/absent@absent"), &["no image \"absent\""]);
}

#[test]
fn unsuitable_images_are_refused() {
    let image = new_image("unsuitable");
    let check = |why: RbdRefusal| assert!(!why.may_succeed_later(), "{why:?}");
    rbd(&["feature", "enable", &image, "journaling"]);
    check(refused(
        &spec(&image),
        &["journaled", "rbd feature disable rbd/unsuitable journaling"],
    ));
    rbd(&["feature", "disable", &image, "journaling"]);
    rbd(&["config", "image", "set", &image, "rbd_cache", "true"]);
    check(refused(
        &spec(&image),
        &["rbd_cache = true", "rbd config image rm rbd/unsuitable"],
    ));
    // The same as false.
    rbd(&["config", "image", "set", &image, "rbd_cache", "0"]);
    drop(take(&image).unwrap());
    rbd(&["config", "image", "rm", &image, "rbd_cache"]);
    let copies = "rbd_disable_zero_copy_writes";
    rbd(&["config", "image", "set", &image, copies, "false"]);
    check(refused(
        &spec(&image),
        &[copies, "rbd config image rm rbd/unsuitable"],
    ));
    rbd(&["config", "image", "rm", &image, copies]);
    let without = ["fast-diff", "exclusive-lock"];
    for feature in without {
        rbd(&["feature", "disable", &image, feature]);
    }
    check(refused(
        &spec(&image),
        &["no exclusive lock", "rbd feature enable rbd/unsuitable"],
    ));
    take_readonly(&image);
    let clone = "rbd/unsuitable-clone";
    let _ = Command::new("rbd")
        .args(["rm", "--no-progress", clone])
        .output();
    rbd(&["snap", "create", "--no-progress", "rbd/unsuitable@parent"]);
    rbd(&[
        "clone",
        "--rbd-default-clone-format",
        "2",
        "rbd/unsuitable@parent",
        clone,
    ]);
    check(refused(
        &spec(clone),
        &["clone", "rbd flatten rbd/unsuitable-clone"],
    ));
    rbd(&["flatten", "--no-progress", clone]);
    rbd(&["feature", "enable", clone, "exclusive-lock"]);
    drop(take(clone).unwrap());
    rbd(&["rm", "--no-progress", clone]);
}

fn take_readonly(image: &str) {
    let claim = Claim::take(&spec(image).with_readonly(true), None).unwrap();
    assert!(claim.geometry().readonly);
}

/// The first bytes of a clone that librbd encrypts (Ceph 17 and later make such clones). The header
/// of LUKS may be one of a host.
#[test]
fn encrypted_clone_is_refused_and_encryption_of_a_host_is_not() {
    let image = new_image("encrypted");
    let write = |bytes: &[u8]| {
        let claim = take(&image).unwrap();
        let mut bench = bench(&claim);
        let mut buf = bench.buf(512, 0);
        buf.copy_in(0, bytes).unwrap();
        let (offset, fua) = (0, true);
        bench.ok(Op::Write { offset, buf, fua });
    };
    write(b"LUKS\xba\xbe");
    write(b"RBDL\xba\xbe");
    let why = refused(&spec(&image), &["encrypted", "dm-crypt"]);
    assert_eq!(why, RbdRefusal::Encrypted);
}

#[test]
fn partial_blocks_are_refused_with_remedy() {
    let image = new_image("partial");
    rbd(&[
        "resize",
        "--no-progress",
        "--allow-shrink",
        "--size",
        "1048577B",
        &image,
    ]);
    let error = take(&image).map(drop).unwrap_err().to_string();
    assert!(
        error.contains("rbd resize --size 1049088B rbd/partial"),
        "{error}"
    );
}

#[test]
fn new_size_is_detected() {
    let image = new_image("resize");
    let claim = take(&image).unwrap();
    assert!(claim.resized().unwrap().is_none());
    rbd(&["resize", "--no-progress", "--size", "32M", &image]);
    let larger = resized(&claim);
    assert_eq!(
        (larger.geometry().size, larger.identity()),
        (32 << 20, claim.identity())
    );
    let mut bench = bench(&larger);
    bench.fill((32 << 20) - 4096, 4096, 7, true);
    let error = claim.set_file_len(1 << 20).unwrap_err().to_string();
    assert!(
        error.contains("rbd resize --size SIZE rbd/resize"),
        "{error}"
    );
    // A store that still has the former size: reads beyond the end fail, and no byte is invented.
    rbd(&[
        "resize",
        "--no-progress",
        "--allow-shrink",
        "--size",
        "16M",
        &image,
    ]);
    assert_eq!(resized(&larger).geometry().size, 16 << 20);
    let (offset, buf) = ((32 << 20) - 4096, bench.buf(4096, 0));
    let error = bench.err(Op::Read { offset, buf });
    assert_eq!(error.kind, IoErrorKind::Removed, "{error}");
}

fn resized(claim: &Claim) -> Claim {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(resized) = claim.resized().unwrap() {
            return resized;
        }
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What that process prints when it has the lock.
const HOLDS: &str = "holds the lock";

/// A process that has the lock of an image, and writes to it without an end.
struct Holder(Child);

impl Holder {
    fn start(image: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "other_process_holds_the_lock", "--nocapture"]);
        command
            .env("NVMEOF_TEST_HOLD", image)
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map(Result::unwrap);
        assert!(
            lines.any(|line| line.contains(HOLDS)),
            "{image} is not locked"
        );
        Self(child)
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.0.id()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test: the process of [`Holder`].
#[test]
fn other_process_holds_the_lock() {
    let Ok(image) = std::env::var("NVMEOF_TEST_HOLD") else {
        return;
    };
    let end = Instant::now() + LIMIT;
    let claim = loop {
        match take(&image) {
            Ok(claim) => break claim,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    };
    let mut bench = bench(&claim);
    println!("{HOLDS}");
    loop {
        bench.fill(0, 4096, 9, false);
    }
}

/// The next process on this machine does not wait for the watch of the former one.
#[test]
fn lock_of_a_killed_process_is_broken_at_once() {
    let image = new_image("killed");
    let mut holder = Holder::start(&image);
    let RbdRefusal::InUse { owner } = refused(&spec(&image), &[]) else {
        panic!("in use by the other process");
    };
    holder.signal(Signal::SIGKILL);
    holder.0.wait().unwrap();
    let begun = Instant::now();
    let claim = take(&image).unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
    // Not only for an hour.
    let list = Command::new("ceph")
        .args(["osd", "blocklist", "ls"])
        .output()
        .unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let expires = list.lines().find(|line| line.contains(&owner)).unwrap();
    assert!(
        expires.contains(" 20") && !expires.contains(&this_year()),
        "{expires}"
    );
    let mut bench = bench(&claim);
    bench.fill(0, 4096, 1, true);
    assert_eq!(bench.read(0, 4096), [1; 4096]);
}

fn this_year() -> String {
    let output = Command::new("date").arg("+%Y").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A suspended process may resume at any time: its lock is not broken.
#[test]
fn lock_of_a_suspended_process_is_kept() {
    let image = new_image("suspended");
    let holder = Holder::start(&image);
    holder.signal(Signal::SIGSTOP);
    refused(&spec(&image), &["in use"]);
    holder.signal(Signal::SIGCONT);
    refused(&spec(&image), &["in use"]);
}

/// Another client breaks the lock, as a gateway does that takes over.
#[test]
fn operations_of_a_fenced_client_fail_and_it_opens_again_as_another() {
    let image = new_image("fenced");
    let claim = take(&image).unwrap();
    let mut before = bench(&claim);
    before.fill(0, 4096, 1, false);
    let RbdRefusal::InUse { owner } = refused(&spec(&image), &[]) else {
        panic!("in use by this process");
    };
    run("ceph", &["osd", "blocklist", "add", &owner]);
    let error = until(&mut before, 0, |result| {
        // The OSD gets the map with any operation of a client that has it.
        rbd(&["info", &image]);
        result.err()
    });
    assert_eq!(
        (error.kind, error.errno),
        (IoErrorKind::Fenced, Errno::ESHUTDOWN)
    );
    assert!(!claim.is_readable());
    drop((before, claim));
    // The lock of the former client ends with its watch, or is broken.
    let end = Instant::now() + LIMIT;
    let claim = loop {
        match take(&image) {
            Ok(claim) => break claim,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    };
    bench(&claim).fill(0, 4096, 4, false);
}

/// Nothing of the client was noticed to fail, and another image still uses it.
#[test]
fn image_is_opened_as_another_client_if_the_shared_one_is_blocklisted() {
    let [image, other] = ["shared-client", "shared-client-other"].map(new_image);
    let [claim, kept] = [&image, &other].map(|image| take(image).unwrap());
    let RbdRefusal::InUse { owner } = refused(&spec(&image), &[]) else {
        panic!("in use by this process");
    };
    drop(claim);
    run("ceph", &["osd", "blocklist", "add", &owner]);
    let begun = Instant::now();
    let claim = loop {
        match take(&image) {
            Ok(claim) => break claim,
            Err(error) => assert!(begun.elapsed() < LIMIT, "{error}"),
        }
    };
    bench(&claim).fill(0, 4096, 1, false);
    drop(kept);
}

#[test]
fn empty_image_is_refused_for_its_size() {
    let image = new_image("empty");
    rbd(&[
        "resize",
        "--no-progress",
        "--allow-shrink",
        "--size",
        "0B",
        &image,
    ]);
    let error = take(&image).map(drop).unwrap_err().to_string();
    assert!(error.contains("0 bytes"), "{error}");
}

/// Limits of the cluster, from which on it does not accept writes. All tests of this program run
/// one after the other.
fn set_full(ratios: [&str; 3]) {
    for (limit, ratio) in ["nearfull", "backfillfull", "full"].into_iter().zip(ratios) {
        run("ceph", &["osd", &format!("set-{limit}-ratio"), ratio]);
    }
}

#[test]
fn write_to_full_cluster_fails_and_nothing_waits() {
    let image = new_image("full");
    let claim = take(&image).unwrap();
    let mut bench = bench(&claim);
    bench.fill(0, 4096, 1, false);
    set_full(["0.000001", "0.000002", "0.000003"]);
    let error = until(&mut bench, 4 << 20, Result::err);
    assert_eq!(error.kind, IoErrorKind::NoSpace, "{error}");
    // What needs no room succeeds.
    bench.fill(0, 4096, 2, false);
    assert_eq!(bench.read(0, 4096), [2; 4096]);
    set_full(["0.85", "0.9", "0.95"]);
    until(&mut bench, 4 << 20, Result::ok);
}

/// Writes blocks from `first` on until `found` has what it looks for.
fn until<T>(bench: &mut Bench, first: u64, found: impl Fn(Result<(), IoError>) -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    for offset in (first..).step_by(4096) {
        let (buf, fua) = (bench.buf(4096, 3), false);
        let done = bench.run(Op::Write { offset, buf, fua });
        if let Some(found) = found(done.result) {
            return found;
        }
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(100));
    }
    unreachable!("the loop has no end")
}

/// What a gateway does that takes over from one that is suspended, and later hands over.
#[test]
fn group_is_taken_over_from_another_client_and_handed_over() {
    let image = new_image("moves");
    let spec = spec(&image);
    let through = |clients: &RbdClients| Claim::take_through(&spec, None, Some(clients));
    let first = RbdClients::connect(&access(), 1, &[]).unwrap();
    let [address] = &first.addresses()[..] else {
        panic!("one client: {:?}", first.addresses());
    };
    let claim = through(&first).unwrap();
    // Before the owner serves, and while it does not, nothing starts.
    let write = |bench: &mut Bench, byte| {
        let buf = bench.buf(4096, byte);
        bench
            .run(Op::Write {
                offset: 0,
                buf,
                fua: false,
            })
            .result
    };
    let standby = |result: Result<(), IoError>| {
        assert_eq!(result.unwrap_err().kind, IoErrorKind::Standby);
    };
    standby(write(&mut bench(&claim), 1));
    first.permit();
    standby(write(&mut bench(&claim), 1));
    let mut served = bench(&claim.in_period(&first).unwrap());
    write(&mut served, 2).unwrap();
    first.forbid();
    standby(write(&mut served, 3));
    first.permit();
    standby(write(&mut served, 3));
    let mut served = bench(&claim.in_period(&first).unwrap());
    assert_eq!(served.read(0, 4096), [2; 4096]);
    // Others can examine it meanwhile.
    assert_eq!(Claim::examine(&spec, None).unwrap().size, 16 << 20);
    let unfenced = RbdClients::connect(&access(), 1, &[]).unwrap();
    let error = through(&unfenced).err().unwrap();
    assert!(error.to_string().contains("in use"), "{error}");
    unfenced.close(LIMIT).unwrap();
    // The takeover: the former owner still has all open.
    let second = RbdClients::connect(&access(), 2, std::slice::from_ref(address)).unwrap();
    let taken = through(&second).unwrap();
    second.permit();
    let mut after = bench(&taken.in_period(&second).unwrap());
    assert_eq!(after.read(0, 4096), [2; 4096]);
    write(&mut after, 4).unwrap();
    let late = write(&mut served, 5).unwrap_err();
    assert_eq!(late.kind, IoErrorKind::Fenced);
    assert_eq!(after.read(0, 4096), [4; 4096]);
    // A planned hand-over fences nobody.
    drop((after, taken));
    second.close(LIMIT).unwrap();
    let third = RbdClients::connect(&access(), 1, &[]).unwrap();
    let taken = through(&third).unwrap();
    third.permit();
    assert_eq!(
        bench(&taken.in_period(&third).unwrap()).read(0, 4096),
        [4; 4096]
    );
    drop((served, claim));
    drop(first.close(Duration::from_secs(1)));
}

#[test]
fn open_image_delays_the_disconnection_of_its_clients() {
    let image = new_image("held");
    let clients = RbdClients::connect(&access(), 1, &[]).unwrap();
    let claim = Claim::take_through(&spec(&image), None, Some(&clients)).unwrap();
    let error = clients.clone().close(Duration::from_millis(100));
    assert!(error.unwrap_err().contains("not closed"));
    // No image is opened through them any more.
    let spec = spec(&new_image("held-other"));
    assert!(Claim::take_through(&spec, None, Some(&clients)).is_err());
    drop(claim);
    clients.close(LIMIT).unwrap_err();
    let begun = Instant::now();
    while let Err(error) = take(&image) {
        assert!(begun.elapsed() < LIMIT, "{error}");
    }
}

#[test]
fn record_changes_only_if_it_is_the_expected_one() {
    // There may be none.
    let _ = Command::new("rados")
        .args(["-p", "rbd", "rm", "shared-record"])
        .output();
    let record = || SharedRecord::new(&access(), "rbd", None, "shared-record");
    let (mut one, mut other) = (record(), record());
    assert_eq!(one.read().unwrap(), None);
    assert_eq!(other.read().unwrap(), None);
    let first = one.write(None, b"a").unwrap().unwrap();
    assert_eq!(other.write(None, b"b").unwrap(), None);
    assert_eq!(one.write(None, b"b").unwrap(), None);
    let (version, contents) = other.read().unwrap().unwrap();
    assert_eq!(contents, b"a");
    other.write(Some(version), b"c").unwrap().unwrap();
    assert_eq!(one.write(Some(first), b"d").unwrap(), None);
    let (now, contents) = one.read().unwrap().unwrap();
    assert_eq!(contents, b"c");
    assert_eq!(
        one.write(Some(first), b"d").unwrap(),
        None,
        "an old version"
    );
    assert!(one.write(Some(now), b"d").unwrap().is_some());
    let missing = SharedRecord::new(&access(), "missing", None, "x").read();
    assert_eq!(missing, Err(RbdRefusal::NoPool("missing".to_owned())));
}
