//! I/O of a host while the configuration changes, and the namespaces that it sees.

use crate::{Run, Running, Target, eventually};

/// Starts a host that reads and writes namespace 1 until it is stopped.
pub fn start_io(target: &Target) -> Running {
    let bench = target.on(1, "bench");
    let mut bench = bench
        .args("--rw randrw --bs 4k --iodepth 16 --runtime 3600")
        .start();
    assert_io_continues(target, &mut bench);
    bench
}

/// Asserts that the host completes more I/O.
pub fn assert_io_continues(target: &Target, bench: &mut Running) {
    let written = || {
        let json = target.nvmeof("smart-log").json();
        json["host_write_commands"].as_u64().unwrap()
    };
    let first = written();
    assert!(eventually(|| (written() > first + 100).then_some(())).is_some());
    assert!(bench.runs(), "{}", target.log());
}

/// Waits until `smart_log` shows more reads or writes of the host.
#[track_caller]
pub fn wait_for_io(smart_log: impl Fn() -> Run, bench: &mut Running) {
    let done = || {
        let json = smart_log().json();
        let of = |name: &str| json[name].as_u64().unwrap();
        of("host_read_commands") + of("host_write_commands")
    };
    let first = done();
    let more = eventually(|| (done() > first || !bench.runs()).then_some(()));
    assert!(more.is_some() && bench.runs(), "no I/O is done");
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
