//! Unusual names and addresses: NQNs without a standard form, no host name, control characters,
//! wildcard ports, link-local addresses.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use nvmeof_e2e::{
    NQN, Peer, Run, Setup, Target, ask, binary, connect, connect_capsule, ctl, eventually, is_root,
    managed, over_socket, target_command,
};
use nvmeof_wire::fabrics::ConnectData;
use nvmeof_wire::{Nqn, Status};

const MIB: usize = 1 << 20;

/// A target whose subsystem has another NQN, and allows these hosts.
fn serving(setup: &Setup, name: &str, access: &str) -> Target {
    let text = setup.text().replace(NQN, name);
    let text = text.replace("allow_any_host = true", access);
    let path = setup.path("target.toml");
    fs::write(&path, text).unwrap();
    setup.start_as(target_command().arg("serve").arg("--config").arg(path))
}

/// The status of a Connect with modified data, sent as raw bytes.
fn answered(address: SocketAddr, change: impl FnOnce(&mut ConnectData)) -> (Peer, Status) {
    let mut peer = Peer::queue(address, 0);
    let (command, mut data) = connect(0, 0xffff);
    change(&mut data);
    peer.capsule(&connect_capsule(&(command, data)));
    let status = peer.response().status().kind();
    (peer, status)
}

#[test]
fn nonstandard_nqns_are_served() {
    for name in [
        "testnqn",
        "clvol",
        "blktests-subsystem-1",
        "nqn.nvme-subsystem-1-2d8d9a4c-3f1b-4c7e-9a51-0123456789ab",
    ] {
        let setup = Setup::new().file(MIB);
        let target = serving(&setup, name, "allowed_hosts = [\"hostnqn\"]");
        let warned = target.lines(&["WARN", "not of the form", name, "hostnqn"]);
        assert_eq!(warned.len(), 1, "{}", target.log());
        let (at, port) = (target.address().ip(), target.address().port());
        let id = |host: &str| {
            let line = format!("id-ctrl -a {at} -s {port} --provider iwarp -n {name} -q {host}");
            Run::nvmeof(&line)
        };
        let shown = id("hostnqn").json();
        assert_eq!(shown["subnqn"], name);
        id("otherhost").fails(1, &["`otherhost` is not allowed", name]);
        target.stop();
    }
}

#[test]
fn control_characters_in_names_are_escaped() {
    let evil = "host\u{202e}\u{2028}\u{200b}\u{feff}\u{2066}x";
    let shown = "host\\u202E\\u2028\\u200B\\uFEFF\\u2066x";
    let hidden = |text: &str| text.contains(['\u{202e}', '\u{2028}', '\u{200b}', '\u{feff}']);
    let setup = managed().file(MIB);
    let target = setup.start();
    let nqn = Nqn::new(evil).unwrap();
    let (_peer, status) = answered(target.address(), |data| data.hostnqn = nqn.to_field());
    assert_eq!(status, Status::SUCCESS);
    let (_refused, status) = answered(target.address(), |data| data.subnqn = nqn.to_field());
    assert_eq!(status, Status::CONNECT_INVALID_PARAMETERS);
    let status = ask(&setup, "status");
    assert_eq!(
        status["controllers"][0]["host"], evil,
        "JSON means the name itself"
    );
    let (_, metrics) = over_socket(&setup, "/metrics");
    assert!(metrics.contains(&shown.replace('\\', "\\\\")), "{metrics}");
    let (_, raw) = over_socket(&setup, "/v1/status");
    let json = ctl(&setup, "-o json status").ok().text();
    let text = ctl(&setup, "status").ok().text();
    let top = {
        let mut command = target_command();
        command.args(["top", "--once", "--interval", "0.1", "--socket"]);
        command.arg(setup.path("control.sock"));
        Run::new(command).ok().text()
    };
    let refused = ctl(&setup, "disconnect").arg(format!("{evil}y")).end();
    let outputs = [
        &metrics,
        &raw,
        &json,
        &text,
        &top,
        &refused.stderr,
        &target.log(),
    ];
    for output in outputs {
        assert!(!hidden(output), "{output:?}");
    }
    for output in [&text, &target.log()] {
        assert!(output.contains(shown), "{output}");
    }
    target.stop();
}

#[test]
fn empty_hostnqn_is_served_where_any_host_may_connect() {
    let setup = managed().file(MIB);
    let mut target = setup.start();
    // As `spdk_nvme_perf` sends it.
    let of_spdk = |data: &mut ConnectData| {
        data.hostnqn = [0; 256];
        data.hostid = [0x5d; 16];
    };
    let (_peer, status) = answered(target.address(), of_spdk);
    assert_eq!(status, Status::SUCCESS);
    let (_finder, status) = answered(target.address(), |data| {
        of_spdk(data);
        data.subnqn = Nqn::discovery().to_field();
    });
    assert_eq!(status, Status::SUCCESS);
    let name = "nqn.2014-08.org.nvmexpress:uuid:5d5d5d5d-5d5d-5d5d-5d5d-5d5d5d5d5d5d";
    assert_eq!(ask(&setup, "status")["controllers"][0]["host"], name);
    target.assert_healthy();
    target.stop();
    let target = serving(&setup, NQN, &format!("allowed_hosts = [\"{name}\"]"));
    let (_peer, status) = answered(target.address(), of_spdk);
    assert_eq!(status, Status::CONNECT_INVALID_HOST);
    let stdout = target.lines(&["Connect refused", "sent an empty HOSTNQN", "allow_any_host"]);
    assert_eq!(stdout.len(), 1, "{}", target.log());
    target.stop();
}

/// The addresses of the discovery log, with their families.
fn discovered(at: &str, port: u16) -> Vec<(String, String)> {
    let found = Run::nvmeof(&format!("discover -a {at} -s {port} --provider iwarp")).json();
    let records = found["records"].as_array().unwrap().clone();
    let text = |record: &serde_json::Value, key: &str| record[key].as_str().unwrap().to_owned();
    let all = records.iter();
    all.map(|one| (text(one, "adrfam"), text(one, "traddr")))
        .collect()
}

#[test]
fn wildcard_ports_are_listed_once_by_their_address_family() {
    let setup = Setup::new().ip("::".parse().unwrap()).file(MIB);
    let head = "[[port]]\ntraddr = \"0.0.0.0\"\ntrsvcid = 0\nprovider = \"iwarp\"";
    let setup = setup.head(head);
    let target = setup.start();
    let only = target.lines(&["port [::]:", "(IPv6 only)"]);
    assert_eq!(only.len(), 1, "{}", target.log());
    let v4 = target.address().port();
    let v6 = only[0].split("port [::]:").nth(1).unwrap();
    let v6: u16 = v6.split(' ').next().unwrap().parse().unwrap();
    let one = |family: &str, ip: &str| vec![(family.to_owned(), ip.to_owned())];
    assert_eq!(discovered("127.0.0.1", v4), one("ipv4", "127.0.0.1"));
    assert_eq!(discovered("::1", v6), one("ipv6", "::1"));
    Run::nvmeof(&format!("discover -a 127.0.0.1 -s {v6} --provider iwarp")).fails(1, &["refused"]);
    target.stop();
}

#[test]
fn invalid_addresses_are_refused_with_remedy() {
    for (traddr, words) in [
        ("::ffff:127.0.0.1", "write 127.0.0.1"),
        ("224.0.0.1", "multicast address"),
        ("ff02::1", "multicast address"),
        ("255.255.255.255", "broadcast address"),
        ("fe80::1", "fe80::1%eth0"),
    ] {
        let setup = Setup::new();
        let text = setup
            .text()
            .replace("\"127.0.0.1\"", &format!("\"{traddr}\""));
        let path = setup.path("target.toml");
        fs::write(&path, text).unwrap();
        let mut command = target_command();
        command.arg("check-config").arg(&path);
        Run::new(command).fails(2, &["traddr: ", words]);
    }
}

#[test]
fn missing_interface_is_reported() {
    let setup = Setup::new();
    let text = setup
        .text()
        .replace("\"127.0.0.1\"", "\"fe80::1%nowhere0\"");
    let (config, stdout) = (setup.path("target.toml"), setup.path("said"));
    fs::write(&config, text).unwrap();
    let mut command = target_command();
    command.arg("serve").arg("--config").arg(&config);
    command.stderr(fs::File::create(&stdout).unwrap());
    let mut child = command.spawn().unwrap();
    let words = "the interface of fe80::1%nowhere0 does not exist";
    let logged = eventually(|| {
        fs::read_to_string(&stdout)
            .unwrap()
            .contains(words)
            .then_some(())
    });
    let _ = child.kill();
    let _ = child.wait();
    let stdout = fs::read_to_string(&stdout).unwrap();
    assert!(logged.is_some() && !stdout.contains("os error"), "{stdout}");
}

/// Runs in a network namespace, whose loopback interface gets a link-local address.
#[test]
fn link_local_port_is_listed_without_interface() {
    if !is_root() {
        eprintln!("skipped: only root can make a network");
        return;
    }
    let setup = managed().file(MIB);
    let text = setup
        .text()
        .replace("\"127.0.0.1\"\ntrsvcid = 0", "\"fe80::1%lo\"");
    let path = setup.path("target.toml");
    fs::write(&path, text).unwrap();
    let script = "ip link set lo up && ip address add fe80::1/64 dev lo nodad && \
                  { $TARGET serve --config $CONFIG & target=$!; } && \
                  for try in $(seq 100); do \
                  $NVMEOF discover -a fe80::1%lo --provider iwarp -o json && break; sleep 0.1; \
                  done; $NVMEOF id-ctrl -a fe80::1%lo --provider iwarp -n $NQN -o json; \
                  $TARGET ctl --socket $SOCKET status; kill $target; wait";
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-c", script]);
    command.env("TARGET", binary("nvmeof-target"));
    command.env("NVMEOF", binary("nvmeof"));
    command.env("CONFIG", &path).env("NQN", NQN);
    command.env("SOCKET", setup.path("control.sock"));
    let ended = Run::new(command).end();
    let text = ended.text();
    assert!(text.contains("\"traddr\": \"fe80::1\""), "{ended}");
    assert!(text.contains(&format!("\"subnqn\": \"{NQN}\"")), "{ended}");
    assert!(text.contains("port 1: [fe80::1%lo]:4420"), "{ended}");
}
