//! Selecting the RDMA provider: automatically by the address, or by configuration.
//!
//! No RDMA device serves 127.0.0.1, unless one was added to the loopback interface. A host
//! reaches this address over any device, though.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use nvmeof_e2e::{Run, Setup, own_ip, same_bytes, target_command};

const MIB: usize = 1 << 20;

/// The line of the configuration with the provider.
const PROVIDER_LINE: usize = 4;

fn check(setup: &Setup) -> Run {
    let mut command = target_command();
    command.arg("check-config").arg(setup.config());
    Run::new(command)
}

/// Asserts that `value` is refused as provider; the only message contains file, line, key and
/// all of `words`.
#[track_caller]
fn refused(value: &str, words: &[&str]) {
    let setup = Setup::new().provider(value).file(MIB);
    let place = format!("target.toml:{PROVIDER_LINE}: provider: ");
    let words = [&[place.as_str()], words].concat();
    check(&setup).fails(2, &words);
    let ended = Run::new(setup.command()).fails(2, &words);
    assert!(!ended.stderr.contains("ready: "), "{ended}");
    let messages = ended.stderr.lines();
    let messages = messages.filter(|line| line.starts_with("nvmeof-target: "));
    assert_eq!(messages.count(), 1, "{ended}");
}

#[test]
fn auto_without_device_is_software_iwarp() {
    for (provider, names) in [("\"auto\"", "(iwarp, shm)"), ("[\"iwarp\"]", "(iwarp)")] {
        let setup = Setup::new().provider(provider).file(MIB);
        let target = setup.start();
        let words = ["port 127.0.0.1:", "iwarp (software"];
        assert_eq!(target.lines(&words).len(), 1, "{}", target.log());
        let ready = target.lines(&["ready: ", names]);
        assert_eq!(ready.len(), 1, "{}", target.log());
        let json = target.fabrics("discover").json();
        let records = json["records"].as_array().unwrap();
        assert_eq!(records.len(), 1, "{json}");
        assert_eq!(records[0]["rdma_prtype"], "iwarp", "{json}");
        assert_eq!(records[0]["rdma_qptype"], "connected", "{json}");
        assert_eq!(records[0]["rdma_cms"], "rdma-cm", "{json}");
        // The host selects the same provider automatically and by option.
        let image = std::fs::read(setup.image_path(1)).unwrap();
        same_bytes(&target.read(1, 0, None), &image);
        let read = target.on(1, "read").args("--provider iwarp --data -").ok();
        same_bytes(&read.stdout, &image);
        target.stop();
    }
}

#[test]
fn all_addresses_are_served_and_listed() {
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let setup = Setup::new().ip(any).provider("\"auto\"").file(MIB);
    let target = setup.start();
    let port = target.address().port();
    let json = Run::nvmeof(&format!("discover -t rdma -a 127.0.0.1 -s {port}")).json();
    let records = json["records"].as_array().unwrap();
    assert_eq!(records.len(), 1, "{json}");
    assert_eq!(records[0]["traddr"], "127.0.0.1", "{json}");
    assert_eq!(records[0]["rdma_prtype"], "iwarp", "{json}");
    target.stop();
}

#[test]
fn missing_device_is_retried() {
    for provider in [
        "\"verbs\"",
        "[\"verbs\", \"iwarp\"]",
        "[\"iwarp\",\"verbs\"]",
    ] {
        let setup = Setup::new().provider(provider).file(MIB);
        let output = String::from_utf8(check(&setup).ok().stdout).unwrap();
        assert!(
            output.contains("would wait: ") && output.contains("verbs: "),
            "{output}"
        );
        let mut target = setup.start_anyhow();
        target.wait_for_log("waiting for port 127.0.0.1:0: provider: verbs: ");
        target.wait_for_log("ready: serving 1 namespace on no port; waiting for port");
        target.stop();
    }
}

#[test]
fn unknown_provider_is_reported() {
    refused("\"roce\"", &["roce", "auto", "iwarp", "verbs", "shm"]);
    refused("[]", &["empty"]);
    refused("[\"iwarp\", \"iwarp\"]", &["iwarp", "twice"]);
    refused("[\"auto\", \"iwarp\"]", &["auto", "alone"]);
    refused("7", &["7", "list"]);
}

#[test]
fn provider_option_selects_provider() {
    let serve = |line: &str| {
        let mut command = target_command();
        let line = format!("serve --namespace ram:1M --listen 127.0.0.1:0 {line}");
        command.args(line.split_whitespace());
        command
    };
    let setup = Setup::new();
    for (line, names) in [
        ("--provider auto", "(iwarp, shm)"),
        ("--provider iwarp", "(iwarp)"),
    ] {
        // Its sockets are in the runtime folder of this user.
        let mut command = serve(line);
        command.env("XDG_RUNTIME_DIR", setup.path(""));
        let target = setup.start_as(&mut command);
        assert_eq!(target.lines(&["ready: ", names]).len(), 1);
        target.stop();
    }
    for line in ["--provider verbs", "--provider verbs,iwarp"] {
        let mut target = setup.start_anyhow_as(&mut serve(line));
        target.wait_for_log("--provider: verbs: ");
        target.stop();
    }
    Run::new(serve("--provider roce")).fails(2, &["--provider: ", "roce"]);
    let mut command = Setup::new().file(MIB).command();
    command.args(["--provider", "iwarp"]);
    Run::new(command).fails(2, &["--provider", "--config"]);
}

#[test]
fn check_config_shows_providers() {
    let ip = own_ip();
    let setup = Setup::new().provider("\"auto\"").ip(ip).port(4420);
    let setup = setup.file(MIB);
    let shown = check(&setup).ok().text();
    let line = "iwarp (software, over TCP), shm (this host, through shared memory)";
    let line = format!("port {ip}:4420: {line}");
    assert!(shown.lines().any(|one| one == line), "{shown}");
    let json = check(&setup).json();
    let port = &json["ports"][0];
    assert_eq!(port["traddr"], ip.to_string(), "{json}");
    assert_eq!(port["trsvcid"], 4420, "{json}");
    assert_eq!(port["providers"][0]["provider"], "iwarp", "{json}");
    assert_eq!(port["providers"][1]["provider"], "shm", "{json}");
}

#[test]
fn host_without_required_device_gets_remedy() {
    let target = Setup::new().file(MIB).start();
    target.fabrics("discover").args("--provider auto").ok();
    let devices = std::fs::read_dir("/sys/class/infiniband");
    if devices.is_ok_and(|mut devices| devices.next().is_some()) {
        eprintln!("skipped: this machine has RDMA devices");
        return;
    }
    for line in ["--provider verbs", "--provider roce"] {
        let provider = line.split(' ').nth(1).unwrap();
        target
            .fabrics("discover")
            .args(line)
            .fails(2, &[provider, "iwarp"]);
    }
}

/// Libraries that are loaded for a device must not be required at the start.
#[test]
fn programs_start_without_rdma_core() {
    for program in ["nvmeof-target", "nvmeof"] {
        let path = nvmeof_e2e::binary(program);
        let readelf = Command::new("readelf").arg("-d").arg(&path).output();
        let dynamic = String::from_utf8(readelf.unwrap().stdout).unwrap();
        assert!(dynamic.contains("libc.so"), "{program}: {dynamic}");
        for library in ["libibverbs", "librdmacm"] {
            assert!(!dynamic.contains(library), "{program}: {dynamic}");
        }
    }
}
