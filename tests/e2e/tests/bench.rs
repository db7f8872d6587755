//! `nvmeof bench`: its output, not its figures.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use nvmeof_e2e::Setup;

const MIB: usize = 1 << 20;

#[test]
fn each_workload_reports_documented_fields() {
    let target = Setup::new().file(16 * MIB).start();
    for (rw, more) in [
        ("read", "--bs 64k --iodepth 4"),
        ("write", "--bs 512 --iodepth 1"),
        ("randread", "--bs 4k --iodepth 32"),
        ("randwrite", "--bs 16k --iodepth 32 --nr-io-queues 2"),
        // Larger than the limit of one command (MDTS).
        ("randrw", "--bs 2m --iodepth 2 --rwmixread 70"),
        ("randrw", "--interface async --bs 2m --iodepth 2"),
        (
            "randread",
            "--interface async --bs 4k --iodepth 32 --nr-io-queues 2",
        ),
        ("write", "--interface async --bs 512 --iodepth 1"),
    ] {
        let line = format!("--rw {rw} {more} --runtime 0.5");
        let json = target.on(1, "bench").args(&line).json();
        let number = |value: &serde_json::Value, key: &str| {
            let number = value[key].as_f64();
            number.unwrap_or_else(|| panic!("{rw}: no {key} in {json}"))
        };
        assert!(number(&json, "iops") > 0.0, "{rw}: {json}");
        assert!(
            number(&json, "bytes_per_s") >= 512.0 * number(&json, "iops") * 0.99,
            "{json}"
        );
        let latency = &json["lat_ns"];
        let quantiles = ["p50", "p99", "p99_9"].map(|key| number(latency, key));
        assert!(
            number(latency, "mean") > 0.0 && quantiles[0] > 0.0,
            "{rw}: {json}"
        );
        assert!(quantiles.is_sorted(), "{rw}: {json}");
    }
    target.stop();
}

/// Bytes per command, from the counters of the target.
#[test]
fn one_command_transfers_one_mebibyte() {
    let setup = Setup::new().provider("[\"iwarp\", \"shm\"]").file(16 * MIB);
    let target = setup.start();
    let folder = setup.shm_folder().display().to_string();
    for way in [
        "--provider iwarp".to_owned(),
        format!("--provider shm --shm-folder {folder}"),
    ] {
        let counts = || {
            let smart = target.nvmeof("smart-log").json();
            let number = |key: &str| smart[key].as_u64().unwrap();
            // Units of 1000 blocks of 512 bytes, rounded up.
            let bytes = |key| (number(key).saturating_sub(1)) * 512_000;
            [
                (bytes("data_units_read"), number("host_read_commands")),
                (bytes("data_units_written"), number("host_write_commands")),
            ]
        };
        let before = counts();
        let line = format!("--rw randrw --bs 1m --iodepth 4 --runtime 1 {way}");
        target.on(1, "bench").args(&line).ok();
        for (before, after) in before.into_iter().zip(counts()) {
            let (bytes, commands) = (after.0 - before.0, after.1 - before.1);
            assert!(commands > 2, "{way}");
            let each = bytes / commands;
            assert!((MIB as u64 * 3 / 4..).contains(&each), "{way}: {each}");
        }
    }
    target.stop();
}

/// A busy machine makes operations late, and late ones start as soon as possible: the rate is a
/// limit, and only a machine that stalls for most of the time misses a quarter of it.
#[test]
fn rate_is_held_on_all_queues_together() {
    const RATE: f64 = 500.0;
    let target = Setup::new().file(MIB).start();
    for more in ["", "--nr-io-queues 3", "--rw randrw --iodepth 1"] {
        let line = format!("--rate {RATE} --runtime 1 {more}");
        let json = target.on(1, "bench").args(&line).json();
        let iops = json["iops"].as_f64().unwrap();
        // The operations of a millisecond start at its beginning.
        let most = RATE * 1.001;
        assert!((RATE / 4.0..=most).contains(&iops), "{more}: {json}");
    }
    target.stop();
}

#[test]
fn invalid_rate_is_refused_with_value_rule_and_remedy() {
    let target = Setup::new().file(MIB).start();
    let bench = |line: &str| target.on(1, "bench").args(line);
    for (bad, rule) in [
        ("0", "out of range (1-1000000000)"),
        ("1000000001", "out of range (1-1000000000)"),
        ("99999999999999999999", "out of range"),
        ("many", "not a whole number; write 10 or 0xa"),
        ("1.5", "not a whole number"),
        ("1k", "not a whole number"),
    ] {
        let value = format!("invalid value '{bad}' for '--rate <N>'");
        bench(&format!("--rate {bad}")).fails(2, &[&value, rule, "--help"]);
    }
    let line = "--rate 500 --interface async";
    let remedy = "omit --interface async";
    bench(line).fails(2, &["--rate 500: requires the polled interface", remedy]);
    let ended = bench(line).args("-o json").end();
    assert_eq!(ended.status, Some(2), "{ended}");
    let json: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(json["remedy"], remedy, "{ended}");
    target.stop();
}

#[test]
fn for_people() {
    let target = Setup::new().file(MIB).start();
    let ended = target.on(1, "bench").args("--rw randread --runtime 1").ok();
    assert!(
        ended.stderr.is_empty(),
        "progress without a terminal: {ended}"
    );
    let text = ended.text();
    assert!(text.contains("IOPS"), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
}

#[test]
fn reading_does_not_write() {
    let setup = Setup::new().file(MIB);
    let target = setup.start();
    for rw in ["read", "randread"] {
        target
            .on(1, "bench")
            .args(&format!("--rw {rw} --runtime 1"))
            .ok();
    }
    let data = std::fs::read(setup.image_path(1)).unwrap();
    nvmeof_e2e::same_bytes(&data, &nvmeof_e2e::pattern(1, MIB));
}

#[test]
fn invalid_options_are_refused() {
    let target = Setup::new().file(MIB).start();
    for line in [
        "--rw sideways",
        "--bs 0",
        "--bs many",
        "--iodepth 0",
        "--runtime 0",
    ] {
        target.on(1, "bench").args(line).fails(2, &[]);
    }
    // Neither whole blocks nor inside the namespace.
    target
        .on(1, "bench")
        .args("--bs 1000 --runtime 1")
        .fails(1, &["1000"]);
    target
        .on(1, "bench")
        .args("--bs 2m --runtime 1")
        .fails(1, &[]);
    target
        .on(9, "bench")
        .args("--runtime 1")
        .fails(1, &["amespace"]);
    let json = target
        .on(1, "bench")
        .args("--rw randread --runtime 1 --nr-io-queues 3")
        .json();
    assert_eq!(json["io_queues"], 3);
}
