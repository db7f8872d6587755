//! A host at work while something is changed, and what it sees of that.

use crate::{Run, Running, Target, eventually};

/// A host that reads and writes namespace 1 until it is told to end.
pub fn at_work(target: &Target) -> Running {
    let bench = target.on(1, "bench");
    let mut bench = bench
        .args("--rw randrw --bs 4k --iodepth 16 --runtime 3600")
        .start();
    goes_on(target, &mut bench);
    bench
}

/// The host is at work and goes on.
pub fn goes_on(target: &Target, bench: &mut Running) {
    let written = || {
        let json = target.nvmeof("smart-log").json();
        json["host_write_commands"].as_u64().unwrap()
    };
    let first = written();
    assert!(eventually(|| (written() > first + 100).then_some(())).is_some());
    assert!(bench.runs(), "{}", target.log());
}

/// Waits until the host has read or written something more, as `smart_log` tells it.
#[track_caller]
pub fn works(smart_log: impl Fn() -> Run, bench: &mut Running) {
    let done = || {
        let json = smart_log().json();
        let of = |name: &str| json[name].as_u64().unwrap();
        of("host_read_commands") + of("host_write_commands")
    };
    let first = done();
    let more = eventually(|| (done() > first || !bench.runs()).then_some(()));
    assert!(more.is_some() && bench.runs(), "no work is done");
}

/// Numbers of the active namespaces.
pub fn nsids(target: &Target) -> Vec<u64> {
    let json = target.nvmeof("list-ns").json();
    let all = json["nsid_list"].as_array().unwrap();
    all.iter()
        .map(|one| one["nsid"].as_u64().unwrap())
        .collect()
}

/// Blocks of namespace `nsid`.
pub fn blocks(target: &Target, nsid: u32) -> u64 {
    target.on(nsid, "id-ns").json()["nsze"].as_u64().unwrap()
}
