//! Changes under I/O of hosts: the file is edited and reloaded with SIGHUP.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use nix::sys::signal::Signal;
use nvmeof_e2e::{
    HOST, NQN, Run, Setup, Target, assert_io_continues, blocks, eventually, fds, nsids, pattern,
    same_bytes, start_io,
};

const MIB: usize = 1 << 20;

/// Writes `text` as the configuration and reloads it. Returns the log line about it.
fn reload(setup: &Setup, target: &Target, text: &str) -> String {
    fs::write(setup.path("target.toml"), text).unwrap();
    let logged = || -> Vec<String> {
        let log = target.log();
        let whole = log
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        let of_reload =
            |line: &&str| line.contains("reloaded: ") || line.contains("reload refused");
        whole.filter(of_reload).map(str::to_owned).collect()
    };
    let before = logged().len();
    target.signal(Signal::SIGHUP);
    let line = eventually(|| logged().get(before).cloned());
    line.unwrap_or_else(|| panic!("the reload is not in the log:\n{}", target.log()))
}

#[test]
fn adding_and_removing_namespace_does_not_disturb_io() {
    let setup = Setup::new().file(16 * MIB);
    let one = setup.text();
    let mut target = setup.start();
    let mut bench = start_io(&target);
    let idle = fds(target.pid());
    let setup = setup.file(4 * MIB);
    let two = setup.text();
    for _ in 0..3 {
        let line = reload(&setup, &target, &two);
        assert!(
            line.contains("reloaded: 1 changes, 0 controllers"),
            "{line}"
        );
        assert_eq!(nsids(&target), [1, 2]);
        same_bytes(&target.read(2, 0, None), &pattern(2, 4 * MIB));
        assert_io_continues(&target, &mut bench);
        reload(&setup, &target, &one);
        assert_eq!(nsids(&target), [1]);
        target
            .on(2, "read")
            .args("--data -")
            .fails(1, &["amespace"]);
        assert_io_continues(&target, &mut bench);
    }
    // The file is closed and unlocked.
    let back = eventually(|| (fds(target.pid()) <= idle).then_some(()));
    assert!(back.is_some(), "{} of {idle}", fds(target.pid()));
    let file = fs::File::open(setup.image_path(2)).unwrap();
    assert!(file.try_lock().is_ok());
    target.assert_healthy();
    bench.kill();
    target.stop();
}

#[test]
fn refused_reload_changes_nothing() {
    let setup = Setup::new().file(4 * MIB);
    let good = setup.text();
    let mut target = setup.start();
    let mut bench = start_io(&target);
    let setup = setup.file(MIB).namespace("/no/such/file", "");
    let line_of =
        |text: &str, word: &str| text.lines().position(|line| line.contains(word)).unwrap() + 1;
    let bad = setup.text();
    let sizes = good.replace("[[port]]", "[limits]\nio_queues = 2\n[[port]]");
    for (text, key, word) in [
        (&bad, "/no/such/file", "path: "),
        (&sizes, "io_queues", "limits.io_queues: "),
    ] {
        let line = reload(&setup, &target, text);
        let place = format!("target.toml:{}: {word}", line_of(text, key));
        assert!(
            line.contains("reload refused, nothing changed") && line.contains(&place),
            "{line}"
        );
        assert_eq!(nsids(&target), [1]);
        assert_io_continues(&target, &mut bench);
    }
    let line = reload(&setup, &target, "this is no TOML");
    assert!(line.contains("reload refused"), "{line}");
    let line = reload(&setup, &target, &good);
    assert!(line.contains("reloaded: 0 changes"), "{line}");
    target.assert_healthy();
    bench.kill();
    target.stop();
}

#[test]
fn grown_file_is_visible_to_connected_host() {
    let setup = Setup::new().file(4 * MIB);
    let text = setup.text();
    let mut target = setup.start();
    let mut bench = start_io(&target);
    let size = || blocks(&target, 1);
    let before = size();
    let file = fs::OpenOptions::new().write(true).open(setup.image_path(1));
    file.unwrap().set_len(8 << 20).unwrap();
    reload(&setup, &target, &text);
    assert_eq!(size(), 2 * before);
    // Detected by the reload, or a moment before it.
    assert_eq!(
        target
            .lines(&["namespace 1 is resized from ", "bytes"])
            .len(),
        1
    );
    assert_io_continues(&target, &mut bench);
    target.write(1, before, &pattern(7, MIB));
    same_bytes(&target.read(1, before, Some(2048)), &pattern(7, MIB));
    target.assert_healthy();
    bench.kill();
    target.stop();
}

#[test]
fn host_that_loses_access_is_disconnected_and_named() {
    let friend = "nqn.2026-11.org.example:friend";
    let setup = Setup::new().file(4 * MIB);
    let text = setup.text();
    let mut target = setup.start();
    let bench = start_io(&target);
    let named = text.replace(
        "allow_any_host = true",
        &format!("allowed_hosts = [\"{friend}\"]"),
    );
    assert_ne!(named, text);
    reload(&setup, &target, &named);
    let ended = bench.end();
    assert_eq!(ended.status, Some(1), "{ended}");
    let lost = target.lines(&["reload: disconnected", HOST, NQN, "no longer allowed"]);
    assert!(!lost.is_empty(), "{}", target.log());
    target.nvmeof("id-ctrl").fails(1, &["not allowed"]);
    target.assert_healthy();
    target.stop();
}

#[test]
fn removed_port_disconnects_its_hosts() {
    let setup = Setup::new().file(4 * MIB);
    let one = setup.text();
    let door = setup.path("door.sock");
    let two = one.replace(
        "[shm]",
        &format!("[[port]]\ntraddr = \"unix:{}\"\n\n[shm]", door.display()),
    );
    let mut target = setup.start();
    let mut bench = start_io(&target);
    let line = reload(&setup, &target, &two);
    assert!(
        line.contains("reloaded: 1 changes, 0 controllers"),
        "{line}"
    );
    let at = format!("-t rdma -a unix:{} -q {HOST}", door.display());
    let json = Run::nvmeof(&format!("discover {at}")).json();
    assert_eq!(json["records"].as_array().unwrap().len(), 2, "{json}");
    let work = "--namespace-id 1 --rw randread --bs 4k --iodepth 4 --runtime 3600";
    let queues = || target.lines(&["queue 1 of"]).len();
    let before = queues();
    let second = Run::nvmeof(&format!("bench {at} -n {NQN} {work}")).start();
    assert!(eventually(|| (queues() > before).then_some(())).is_some());
    let line = reload(&setup, &target, &one);
    assert!(
        line.contains("reloaded: 1 changes, 1 controllers"),
        "{line}"
    );
    assert_eq!(second.end().status, Some(1));
    assert!(
        !target
            .lines(&["reload: disconnected", "the port was removed"])
            .is_empty()
    );
    assert!(!door.exists());
    assert_io_continues(&target, &mut bench);
    target.assert_healthy();
    bench.kill();
    target.stop();
}

#[test]
fn service_manager_is_notified_of_reload() {
    let setup = Setup::new().file(MIB);
    let socket = setup.path("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut command = setup.command();
    command.env("NOTIFY_SOCKET", &socket);
    let target = setup.start_as(&mut command);
    let receive = || {
        let mut bytes = [0; 4096];
        let len = manager.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    };
    assert!(receive().contains("READY=1"));
    let setup = setup.file(MIB);
    reload(&setup, &target, &setup.text());
    let reloading = receive();
    let time = reloading
        .lines()
        .find_map(|line| line.strip_prefix("MONOTONIC_USEC="));
    assert!(reloading.contains("RELOADING=1"), "{reloading}");
    assert!(time.unwrap().parse::<u64>().is_ok(), "{reloading}");
    let ready = receive();
    assert!(
        ready.contains("READY=1") && ready.contains("STATUS=serving 2 namespaces"),
        "{ready}"
    );
    target.stop();
}

#[test]
fn target_without_subsystems_gets_one_by_reload() {
    let setup = Setup::new().file(MIB);
    let whole = setup.text();
    let (none, _) = whole.split_once("[[subsystem]]").unwrap();
    fs::write(setup.path("target.toml"), none).unwrap();
    let mut command = nvmeof_e2e::target_command();
    command
        .args(["serve", "--config"])
        .arg(setup.path("target.toml"));
    let target = setup.start_as(&mut command);
    assert_eq!(target.lines(&["WARN", "[[subsystem]]"]).len(), 1);
    let json = target.fabrics("discover").json();
    assert_eq!(json["records"].as_array().unwrap().len(), 0, "{json}");
    reload(&setup, &target, &whole);
    same_bytes(&target.read(1, 0, None), &pattern(1, MIB));
    target.stop();
}

/// `nvmeof COMMAND` as the host of that name, over the port of that number.
fn over(target: &Target, port: usize, host: &str, command: &str) -> Run {
    let ready = target.lines(&["ready: serving"]);
    let mut ports = ready[0].split(' ').filter_map(|word| {
        let (ip, port) = word.rsplit_once(':')?;
        ip.ends_with("127.0.0.1")
            .then(|| port.parse::<u16>().ok())?
    });
    let port = ports.nth(port).unwrap_or_else(|| panic!("{ready:?}"));
    Run::nvmeof(&format!("{command} -t rdma -a 127.0.0.1 -s {port}"))
        .args(&format!("-q {host} -n {NQN}"))
}

/// An additional port with that state of group 2.
fn port_in(state: &str) -> String {
    format!(
        "[[port]]\ntraddr = \"127.0.0.1\"\ntrsvcid = 0\nprovider = \"iwarp\"\n\
         [[port.ana_group]]\nid = 2\nstate = \"{state}\"\n"
    )
}

#[test]
fn ana_state_changes_while_a_host_uses_the_other_port() {
    let setup = Setup::new()
        .head(&port_in("optimized"))
        .file(4 * MIB)
        .file_with(4 * MIB, "ana_group = 2");
    let optimized = setup.text();
    let mut target = setup.start();
    let mut bench = over(&target, 1, HOST, "bench --namespace-id 2")
        .args("--rw randread --bs 4k --iodepth 16 --runtime 3600")
        .start();
    let read = |port, nsid: u32| {
        let command = format!("read --namespace-id {nsid} --block-count 8 --data -");
        over(&target, port, HOST, &command)
    };
    for (state, output) in [
        ("inaccessible", "Asymmetric Access Inaccessible"),
        ("persistent-loss", "Asymmetric Access Persistent Loss"),
        ("change", "Asymmetric Access Transition"),
    ] {
        read(0, 2).ok();
        let text = optimized.replace("state = \"optimized\"", &format!("state = \"{state}\""));
        let line = reload(&setup, &target, &text);
        assert!(
            line.contains("reloaded: 1 changes, 0 controllers"),
            "{line}"
        );
        read(0, 2).fails(1, &[output]);
        read(0, 1).ok();
        read(1, 2).ok();
        reload(&setup, &target, &optimized);
    }
    assert!(bench.runs(), "{}", target.log());
    bench.kill();
    target.assert_healthy();
    target.stop();
}

#[test]
fn namespace_is_visible_to_its_hosts_only() {
    let other = "nqn.2026-11.org.example:other";
    let named = Setup::new().file(4 * MIB).file(4 * MIB);
    let for_all = named.text();
    let for_other = format!("{for_all}hosts = [\"{other}\"]\n");
    let mut target = named.start();
    let seen = |target: &Target, host| {
        let json = over(target, 0, host, "list-ns").json();
        json["nsid_list"].as_array().unwrap().len()
    };
    assert_eq!((seen(&target, HOST), seen(&target, other)), (2, 2));
    let line = reload(&named, &target, &for_other);
    assert!(
        line.contains("reloaded: 1 changes, 0 controllers"),
        "{line}"
    );
    assert_eq!((seen(&target, HOST), seen(&target, other)), (1, 2));
    target
        .on(2, "read")
        .args("--data -")
        .fails(1, &["amespace"]);
    reload(&named, &target, &for_all);
    same_bytes(&target.read(2, 0, None), &pattern(2, 4 * MIB));
    target.assert_healthy();
    target.stop();
}
