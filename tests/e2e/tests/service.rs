//! Notifications to the service manager, and the unit files.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nvmeof_e2e::{Run, Setup, target_command};

/// A timeout that is far longer than any step here.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The next notification of the daemon that contains `words`; others are skipped.
#[track_caller]
fn receive(manager: &UnixDatagram, words: &str) -> String {
    let mut bytes = [0; 4096];
    for _ in 0..1000 {
        let len = manager.recv(&mut bytes).unwrap();
        let text = String::from_utf8_lossy(bytes.get(..len).unwrap()).into_owned();
        if text.contains(words) {
            return text;
        }
    }
    panic!("timed out waiting for {words}");
}

#[test]
fn service_manager_is_notified_of_ready_watchdog_and_stopping() {
    let setup = Setup::new().file(1 << 20);
    let socket = setup.path("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut command = target_command();
    command.arg("serve").arg("--config").arg(setup.config());
    command.env("NOTIFY_SOCKET", &socket);
    // The daemon sends watchdog notifications every 50 ms.
    command.env("WATCHDOG_USEC", "100000");
    let target = setup.start_as(&mut command);
    let ready = receive(&manager, "READY=1");
    let port = target.address().port().to_string();
    assert!(
        ready.contains("STATUS=serving 1 namespace") && ready.contains(&port),
        "{ready}"
    );
    for _ in 0..3 {
        receive(&manager, "WATCHDOG=1");
    }
    // Also while hosts do I/O.
    let _ = target.read(1, 0, Some(8));
    receive(&manager, "WATCHDOG=1");
    target.stop();
    let stopping = receive(&manager, "STOPPING=1");
    assert!(stopping.contains("STATUS=stopping"), "{stopping}");
}

/// The stop timeout of the unit is for the default of `reactor.drain_s`. With a higher value,
/// the target must not be killed while it drains.
#[test]
fn service_manager_timeout_covers_drain() {
    let unit = std::fs::read_to_string(shipped("nvmeof-target.service")).unwrap();
    let limit = unit
        .lines()
        .find_map(|line| line.strip_prefix("TimeoutStopSec="));
    let limit: u64 = limit.unwrap().parse().unwrap();
    for (lines, drain_s) in [("", 5), ("[reactor]\ndrain_s = 120\n", 120)] {
        let setup = Setup::new().file(1 << 20).head(lines);
        let socket = setup.path("notify");
        let manager = UnixDatagram::bind(&socket).unwrap();
        manager.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut command = setup.command();
        command.env("NOTIFY_SOCKET", &socket);
        setup.start_as(&mut command).stop();
        let stopping = receive(&manager, "STOPPING=1");
        let asked = stopping
            .lines()
            .find_map(|line| line.strip_prefix("EXTEND_TIMEOUT_USEC="));
        let asked = asked.unwrap_or_else(|| panic!("{stopping}"));
        let asked = asked.parse::<u64>().unwrap() / 1_000_000;
        // Commands, connections and backing stores each have this time.
        assert!(asked > 3 * drain_s, "{asked} s for {drain_s}");
        assert_eq!(asked <= limit, drain_s == 5, "{asked} s of {limit}");
    }
}

#[test]
fn no_notification_without_service_manager() {
    let setup = Setup::new().file(1 << 20);
    let mut command = target_command();
    command.arg("serve").arg("--config").arg(setup.config());
    command.env_remove("NOTIFY_SOCKET");
    let target = setup.start_as(&mut command);
    assert_eq!(target.lines(&["service manager"]), Vec::<String>::new());
    target.stop();
}

#[test]
fn missing_service_manager_is_logged() {
    let setup = Setup::new().file(1 << 20);
    let mut command = target_command();
    command.arg("serve").arg("--config").arg(setup.config());
    command.env("NOTIFY_SOCKET", setup.path("nobody"));
    let mut target = setup.start_as(&mut command);
    let line = target.wait_for_log("cannot notify the service manager");
    assert!(
        line.contains("WARN") && line.contains("NOTIFY_SOCKET"),
        "{line}"
    );
    target.stop();
}

/// A file of the folder `systemd`.
fn shipped(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("../../systemd")
        .join(name)
        .canonicalize()
        .unwrap()
}

#[test]
fn unit_is_valid_and_uses_existing_options() {
    let setup = Setup::new().file(1 << 20);
    let unit = std::fs::read_to_string(shipped("nvmeof-target.service")).unwrap();
    let start = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="))
        .unwrap();
    // systemd requires that the program exists.
    let ours = target_command().get_program().to_owned();
    let ours = std::fs::canonicalize(ours).unwrap();
    let program = start.split(' ').next().unwrap();
    let copy = setup.path("nvmeof-target.service");
    std::fs::write(&copy, unit.replace(program, ours.to_str().unwrap())).unwrap();
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).arg(&copy);
    let ended = Run::new(verify).ok();
    assert_eq!(ended.stderr, "", "no complaint");
    // The same command line with another file starts a daemon.
    let mut command = target_command();
    let words = start.split(' ').skip(1);
    let config = setup.config();
    command.args(words.map(|word| match word {
        "/etc/nvmeof/target.toml" => config.to_str().unwrap(),
        word => word,
    }));
    setup.start_as(&mut command).stop();
}

/// A folder with the unit, for an existing program, and a drop-in.
fn unit_with(setup: &Setup, drop_in: &str) -> PathBuf {
    let unit = std::fs::read_to_string(shipped("nvmeof-target.service")).unwrap();
    let ours = std::fs::canonicalize(target_command().get_program()).unwrap();
    let unit = unit.replace("/usr/bin/nvmeof-target", ours.to_str().unwrap());
    let path = setup.path("nvmeof-target.service");
    std::fs::write(&path, unit).unwrap();
    let folder = setup.path("nvmeof-target.service.d");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(shipped(drop_in), folder.join(drop_in)).unwrap();
    path
}

#[test]
fn drop_ins_are_valid_and_keep_exposure_low() {
    for drop_in in ["block-device.conf", "credentials.conf", "folder.conf"] {
        let setup = Setup::new().file(1 << 20);
        let unit = unit_with(&setup, drop_in);
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--man=no"]).arg(&unit);
        let ended = Run::new(verify).ok();
        assert_eq!(ended.stderr, "", "no complaint about {drop_in}");
        let mut analyze = Command::new("systemd-analyze");
        analyze.args(["security", "--offline=true", "--threshold=25"]);
        analyze.arg(&unit);
        Run::new(analyze).ok();
    }
}

/// Settings that administrators rely on; the lab tests their effect.
#[test]
fn unit_has_the_required_settings() {
    let unit = std::fs::read_to_string(shipped("nvmeof-target.service")).unwrap();
    for setting in [
        "Type=notify",
        "WatchdogSec=30",
        "ExecReload=/usr/bin/nvmeof-target ctl reload",
        "Restart=on-failure",
        "User=nvmeof",
        "StateDirectory=nvmeof",
        "RuntimeDirectory=nvmeof",
        "ConfigurationDirectory=nvmeof",
        "LimitMEMLOCK=infinity",
        "CapabilityBoundingSet=",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "DevicePolicy=closed",
        "SystemCallFilter=@system-service",
        "SystemCallFilter=~@privileged @keyring",
    ] {
        assert!(unit.lines().any(|line| line == setting), "{setting}");
    }
}

#[test]
fn systemd_exposure_is_low() {
    let mut analyze = Command::new("systemd-analyze");
    // In tenths: 2.5.
    analyze.args(["security", "--offline=true", "--threshold=25"]);
    analyze.arg(shipped("nvmeof-target.service"));
    Run::new(analyze).ok();
}

#[test]
fn service_user_is_created() {
    let setup = Setup::new();
    let root = setup.path("root");
    std::fs::create_dir_all(root.join("etc")).unwrap();
    let mut sysusers = Command::new("systemd-sysusers");
    sysusers
        .arg("--root")
        .arg(&root)
        .arg(shipped("nvmeof.sysusers"));
    Run::new(sysusers).ok();
    let users = std::fs::read_to_string(root.join("etc/passwd")).unwrap();
    assert!(
        users.starts_with("nvmeof:") && users.contains("nologin"),
        "{users}"
    );
    let unit = std::fs::read_to_string(shipped("nvmeof-target.service")).unwrap();
    assert!(unit.contains("\nUser=nvmeof\n"), "{unit}");
}

#[test]
fn programs_generate_manual_pages_and_completions() {
    let setup = Setup::new();
    let run = |name, line: &str| match name {
        "nvmeof" => Run::nvmeof(line),
        _ => Run::new(target_command()).args(line),
    };
    for (name, section) in [("nvmeof-target", 8), ("nvmeof", 1)] {
        let folder = setup.path(name);
        run(name, "man").arg(&folder).ok();
        let page =
            std::fs::read_to_string(folder.join(format!("man{section}/{name}.{section}"))).unwrap();
        assert!(page.contains(&format!(".TH {name} {section}")), "{page}");
        for title in [
            "EXIT STATUS",
            "ENVIRONMENT",
            "FILES",
            "EXAMPLES",
            "SEE ALSO",
        ] {
            assert!(page.contains(&format!(".SH {title}\n")), "{title}: {page}");
        }
        // Code is indented by 11 columns, and not broken.
        let code = page.split("\n.EX\n").skip(1);
        let code = code.flat_map(|block| block.split("\n.EE\n").next().unwrap().lines());
        for line in code.map(|line| line.replace('\\', "")) {
            assert!(
                line.len() <= 80 - 11,
                "{name}: too long for a terminal: {line}"
            );
        }
        for shell in ["bash", "zsh", "fish"] {
            let printed = run(name, "completions").arg(shell).ok().stdout;
            let printed = String::from_utf8_lossy(&printed).into_owned();
            assert!(
                printed.contains(name) && printed.contains("completions"),
                "{shell}"
            );
        }
    }
}

/// Both programs write their pages into one manual, as they are installed.
#[test]
fn manual_pages_refer_to_pages_that_exist() {
    let manual = Setup::new().path("man");
    Run::nvmeof("man").arg(&manual).ok();
    Run::new(target_command()).args("man").arg(&manual).ok();
    let mut references = 0;
    for section in ["man1", "man5", "man8"] {
        for entry in std::fs::read_dir(manual.join(section)).unwrap() {
            let path = entry.unwrap().path();
            let page = std::fs::read_to_string(&path).unwrap();
            let page = page
                .replace("\\fB", "")
                .replace("\\fR", "")
                .replace("\\-", "-");
            for word in page
                .split_whitespace()
                .filter(|word| word.starts_with("nvmeof"))
            {
                let reference = word.trim_end_matches(',').strip_suffix(')');
                let Some((name, section)) = reference.and_then(|it| it.split_once('(')) else {
                    continue;
                };
                let file = manual.join(format!("man{section}/{name}.{section}"));
                assert!(file.is_file(), "{}: {word}", path.display());
                references += 1;
            }
        }
    }
    assert!(references > 100, "only {references} references are found");
}
