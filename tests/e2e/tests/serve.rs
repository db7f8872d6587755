//! Starting, stopping, and refusing to start.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::net::TcpListener;

use nvmeof_e2e::{NQN, Run, Setup, image, same_bytes, target_command, usable_cpus};

const MIB: usize = 1 << 20;

fn line_of(text: &str, words: &str) -> usize {
    text.lines().position(|line| line.contains(words)).unwrap() + 1
}

/// `check-config` and `serve` both refuse `text`, name the file, the line that
/// contains `place`, and all of `words`.
#[track_caller]
fn refused(setup: &Setup, text: &str, place: &str, words: &[&str]) {
    let path = setup.path("bad.toml");
    std::fs::write(&path, text).unwrap();
    let where_ = match place {
        "" => format!("{}:", path.display()),
        place => format!("{}:{}:", path.display(), line_of(text, place)),
    };
    let words = [&[where_.as_str()], words].concat();
    let mut check = target_command();
    check.arg("check-config").arg(&path);
    Run::new(check).fails(2, &words);
    let mut serve = target_command();
    serve.arg("serve").arg("--config").arg(&path);
    let ended = Run::new(serve).fails(2, &words);
    assert!(!ended.stderr.contains("ready: "), "{ended}");
}

#[test]
fn check_config_accepts_valid_configuration_without_serving() {
    let setup = Setup::new().file(MIB);
    let mut check = target_command();
    check.arg("check-config").arg(setup.config());
    let ended = Run::new(check).ok();
    assert!(!ended.stderr.contains("ready: "), "{ended}");
    setup.start().stop();
}

#[test]
fn sigterm_and_sigint_exit_with_success() {
    use nix::sys::signal::Signal;
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let setup = Setup::new().file(MIB);
        let mut target = setup.start();
        let _ = target.read(1, 0, Some(8));
        target.signal(signal);
        // As `timeout` does: its process group gets the signal as well.
        std::thread::sleep(std::time::Duration::from_millis(5));
        target.signal(signal);
        assert_eq!(target.wait().code(), Some(0), "{}", target.log());
    }
}

#[test]
fn serve_without_file_prints_connect_commands() {
    let setup = Setup::new();
    let path = setup.path("disk.img");
    image(&path, 1, MIB);
    let mut command = target_command();
    command.arg("serve").arg("--namespace").arg(&path);
    command.args(["--namespace", "ram:1M", "--listen", "127.0.0.1:0"]);
    let target = setup.start_as(&mut command);
    let printed = target.printed();
    let port = target.address().port().to_string();
    let line = |program: &str| {
        let line = printed.lines().find(|line| line.starts_with(program));
        line.unwrap_or_else(|| panic!("no {program} line in: {printed}"))
            .to_owned()
    };
    let kernel = line("nvme connect");
    assert!(
        kernel.contains("-a 127.0.0.1") && kernel.contains(&port),
        "{kernel}"
    );
    // Each printed command of `nvmeof` works unchanged.
    let ours: Vec<_> = printed
        .lines()
        .filter(|line| line.starts_with("nvmeof "))
        .collect();
    assert!(ours.len() >= 2, "{printed}");
    for line in ours {
        Run::nvmeof(line.strip_prefix("nvmeof ").unwrap()).ok();
    }
    let nqn = kernel.split("-n ").nth(1).unwrap().trim();
    let line = format!("-t rdma -a 127.0.0.1 -s {port} -n {nqn} --namespace-id 1 --data -");
    let read = Run::nvmeof("read").args(&line).ok();
    same_bytes(&read.stdout, &std::fs::read(&path).unwrap());
    target.stop();
}

#[test]
fn derived_names_are_stable_over_restart() {
    let setup = Setup::new();
    let path = setup.path("disk.img");
    image(&path, 1, MIB);
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let listen = listener.local_addr().unwrap().to_string();
    drop(listener);
    let names = [0, 1].map(|_| {
        let mut command = target_command();
        command
            .arg("serve")
            .arg("--namespace")
            .arg(&path)
            .args(["--listen", &listen]);
        let target = setup.start_as(&mut command);
        let printed = target.printed();
        target.stop();
        printed
    });
    assert!(names[0].contains("nqn."), "{}", names[0]);
    assert_eq!(names[0], names[1]);
}

#[test]
fn log_to_file_is_plain_text() {
    let target = Setup::new().file(MIB).start();
    let log = target.log();
    assert!(!log.contains('\x1b'), "{log:?}");
}

#[test]
fn usage_error_exits_with_status_2() {
    for line in [
        "",
        "serve",
        "serve --config",
        "serve --nonsense",
        "check-config",
        "fly",
    ] {
        let mut command = target_command();
        command.args(line.split_whitespace());
        let ended = Run::new(command).end();
        assert_eq!(ended.status, Some(2), "{ended}");
        assert!(!ended.stderr.is_empty(), "{ended}");
    }
    let mut command = target_command();
    command.args(["check-config", "/nonexistent/target.toml"]);
    Run::new(command).fails(2, &["/nonexistent/target.toml"]);
    let mut command = target_command();
    command.args(["serve", "--config", "/nonexistent/target.toml"]);
    Run::new(command).fails(2, &["/nonexistent/target.toml"]);
}

#[test]
fn every_program_prints_help() {
    for (line, word) in [
        ("--help", "serve"),
        ("serve --help", "--namespace"),
        ("--version", "0."),
    ] {
        let mut command = target_command();
        command.args(line.split_whitespace());
        let text = Run::new(command).ok().text();
        assert!(text.contains(word), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }
}

#[test]
fn configuration_errors_name_line_and_key() {
    let setup = Setup::new().file(MIB);
    let good = setup.text();
    let path = setup.image_path(1).display().to_string();
    let change = |from: &str, to: &str| {
        assert!(good.contains(from), "{good}");
        good.replacen(from, to, 1)
    };
    let more = |lines: &str| format!("{good}{lines}\n");

    refused(
        &setup,
        &more("blocksize = 512"),
        "blocksize",
        &["blocksize"],
    );
    refused(
        &setup,
        &change("[[port]]", "[[ports]]"),
        "[[ports]]",
        &["ports"],
    );
    refused(
        &setup,
        &change("[[port]]", "speed = 9\n[[port]]"),
        "speed",
        &["speed"],
    );
    refused(&setup, &change("nsid = 1", "nsid = "), "nsid =", &[]);
    refused(
        &setup,
        &change("nsid = 1", "nsid = \"one\""),
        "nsid =",
        &["nsid"],
    );
    refused(&setup, &change("nsid = 1", "nsid = 0"), "nsid =", &["nsid"]);
    refused(&setup, &change(NQN, ""), "nqn = ", &["nqn", "empty"]);
    refused(
        &setup,
        &change("\"iwarp\"", "\"infiniband\""),
        "provider",
        &["provider", "infiniband"],
    );
    refused(
        &setup,
        &change("\"127.0.0.1\"", "\"localhost\""),
        "traddr",
        &["traddr"],
    );
    refused(
        &setup,
        &more("block_size = 1000"),
        "block_size",
        &["block_size", "1000"],
    );
    refused(&setup, &more("uuid = \"yes\""), "uuid", &["uuid"]);
    refused(
        &setup,
        &change("allow_any_host = true", "allowed_hosts = [\"\"]"),
        "allowed_hosts",
        &["allowed_hosts"],
    );
    refused(&setup, &change(&path, "ram:lots"), "ram:lots", &["path"]);
    refused(&setup, &change(&path, "/proc"), "/proc", &["path"]);
    refused(&setup, "", "", &["port"]);
}

#[test]
fn duplicate_entries_are_reported() {
    let setup = Setup::new().file(MIB);
    let good = setup.text();
    let path = setup.image_path(1).display().to_string();
    let twice =
        format!("{good}[[subsystem.namespace]] # second\nnsid = 1 # again\npath = 'ram:1M'\n");
    refused(&setup, &twice, "# again", &["nsid", "1"]);
    let twice = format!("{good}[[subsystem]]\nnqn = \"{NQN}\" # again\nallow_any_host = true\n");
    refused(&setup, &twice, "# again", &["nqn", NQN]);
    let port = "[[port]]\ntraddr = \"127.0.0.1\"\ntrsvcid = 4999\n";
    let same = "[[port]]\ntraddr = \"127.0.0.1\" # again\ntrsvcid = 4999\n";
    refused(
        &setup,
        &format!("{port}{same}{good}"),
        "# again",
        &["traddr"],
    );
    // The same file must not be served as two namespaces.
    let twice = format!("{good}[[subsystem.namespace]]\nnsid = 2\npath = '{path}' # again\n");
    refused(&setup, &twice, "# again", &["path"]);
}

#[test]
fn unsuitable_sizes_are_reported() {
    let setup = Setup::new().file_with(1000, "");
    refused(&setup, &setup.text(), "path = '", &["path", "1000"]);
    let setup = Setup::new().file_with(4096 * 3 + 512, "block_size = 4096");
    refused(&setup, &setup.text(), "path = '", &["4096"]);
    let setup = Setup::new().file_with(0, "");
    refused(&setup, &setup.text(), "path = '", &["path"]);
}

#[test]
fn two_reactors_serve_one_namespace() {
    let mut cores = usable_cpus();
    cores.truncate(2);
    let setup = Setup::new()
        .head(&format!("[reactor]\ncores = {cores:?}"))
        .file(8 * MIB)
        .file(MIB);
    let target = setup.start();
    let clients = [1, 2, 1, 2].map(|nsid| (nsid, target.on(nsid, "read").args("--data -").start()));
    for (nsid, client) in clients {
        let ended = client.end();
        assert_eq!(ended.status, Some(0), "{ended}");
        same_bytes(
            &ended.stdout,
            &std::fs::read(setup.image_path(nsid)).unwrap(),
        );
    }
    // Queues of one controller may be on different reactors.
    let line = "--rw randrw --nr-io-queues 4 --iodepth 8 --runtime 1";
    let json = target.on(1, "bench").args(line).json();
    assert!(json["iops"].as_f64().unwrap() > 0.0, "{json}");
    target.stop();
}

#[test]
fn sqpoll_thread_may_submit_store_operations() {
    let setup = Setup::new()
        .head("[reactor]\ncount = 2\n[storage]\nsqpoll = true\nsqpoll_idle_ms = 1")
        .file(8 * MIB);
    let target = setup.start();
    let line = "--rw randwrite --nr-io-queues 2 --iodepth 8 --runtime 1";
    let json = target.on(1, "bench").args(line).json();
    assert!(json["iops"].as_f64().unwrap() > 0.0, "{json}");
    let read = target.read(1, 0, None);
    target.stop();
    same_bytes(&read, &std::fs::read(setup.image_path(1)).unwrap());
}

#[test]
fn ipv6_address_is_served() {
    let ip = std::net::Ipv6Addr::LOCALHOST;
    if let Err(error) = TcpListener::bind((ip, 0)) {
        eprintln!("skipped: this machine has no ::1: {error}");
        return;
    }
    let setup = Setup::new().ip(ip.into()).file(MIB);
    let target = setup.start();
    same_bytes(
        &target.read(1, 0, None),
        &std::fs::read(setup.image_path(1)).unwrap(),
    );
    let json = target.fabrics("discover").json();
    assert_eq!(json["records"][0]["traddr"], "::1", "{json}");
    assert_eq!(json["records"][0]["adrfam"], "ipv6", "{json}");
    target.stop();
}
