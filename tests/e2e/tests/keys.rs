//! Keys of hosts in the configuration: `check-config` refuses bad files, and the start waits for
//! good ones, without an echo of the key.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use nvmeof_e2e::{
    Ended, HOST, KEY, OTHER_KEY, Run, Setup, is_root, key_file, key_file_with, target_command,
};

/// A configuration with a host, whose key is in the file `host.key` of the folder.
fn setup(more: &str) -> Setup {
    let setup = Setup::new().namespace("ram:1M", "");
    let path = setup.path("host.key").display().to_string();
    setup.head(&format!(
        "[[host]]\nnqn = \"{HOST}\"\nkey_file = '{path}'\n{more}\n"
    ))
}

fn check_command(setup: &Setup) -> Command {
    let mut check = target_command();
    check.arg("check-config").arg(setup.config());
    check.env_remove("CREDENTIALS_DIRECTORY");
    check
}

fn check(setup: &Setup) -> Run {
    Run::new(check_command(setup))
}

/// No output has any part of a key.
#[track_caller]
fn assert_no_key(text: &str) {
    for part in ["AAEC", "fiaR", "cSEg"] {
        assert!(!text.contains(part), "{part}: {text}");
    }
}

/// Checks that `check-config`, in both formats, refuses the configuration with a message about the
/// key file that has all of `words`, and that the target reports it.
#[track_caller]
fn assert_refused(setup: &Setup, words: &[&str]) {
    let path = setup.path("host.key").display().to_string();
    let file = setup.config().display().to_string();
    let place = format!("{file}:3: key_file: ");
    let all = [&[place.as_str(), &path], words].concat();
    assert_no_key(&check(setup).fails(2, &all).stderr);
    let json = check(setup).args("-o json").end();
    assert_eq!(json.status, Some(2), "{json}");
    assert_no_key(&json.to_string());
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        (&value["line"], &value["key"]),
        (&3.into(), &"host.key_file".into()),
        "{json}"
    );
    // The start locks out this host alone, until its file is good.
    let mut target = setup.start();
    let wait = format!("ERROR waiting for key_file of host {HOST}: ");
    let _ = target.wait_for_log(&wait);
    assert_eq!(
        target.lines(&[&wait, &path, words[0]]).len(),
        1,
        "{}",
        target.log()
    );
    assert_no_key(&target.log());
    target.stop();
}

#[test]
fn good_key_files_are_accepted() {
    let setup = setup("");
    key_file(&setup.path("host.key"));
    let ended = check(&setup).ok();
    assert!(ended.text().contains("valid"), "{ended}");
    assert_no_key(&ended.to_string());
    let target = setup.start();
    assert_no_key(&target.log());
    target.stop();
}

#[test]
fn key_file_with_wrong_contents_is_refused_without_echo() {
    let setup = setup("");
    let path = setup.path("host.key");
    for (contents, words) in [
        (KEY.replace("Hh+", "Hh6"), "CRC-32 of the key is wrong"),
        (KEY.replace("AAECAwQF", ""), "valid are 32, 48 and 64"),
        (KEY.replace("1:00", "1:07"), "transformation"),
        (format!("key: {KEY}"), "not of the form"),
        (format!("{KEY}\n{OTHER_KEY}"), "more than one line"),
        (format!("{KEY:<5000}"), "more than 4096 bytes"),
        (String::new(), "is empty"),
    ] {
        key_file_with(&path, &contents);
        assert_refused(&setup, &[words]);
    }
    fs::remove_file(&path).unwrap();
    assert_refused(&setup, &["cannot be read: no such file"]);
    fs::create_dir(&path).unwrap();
    assert_refused(&setup, &["not a regular file"]);
}

#[test]
fn key_file_with_wrong_mode_or_owner_is_refused() {
    let setup = setup("");
    let path = setup.path("host.key");
    key_file(&path);
    for mode in [0o640, 0o604] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let words = format!("has mode {mode:04o}");
        assert_refused(&setup, &[&words, "chmod 600"]);
    }
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    if is_root() {
        chown(&path, Some(54_321), None).unwrap();
        assert_refused(&setup, &["belongs to user 54321"]);
    }
}

/// Of a host without a key, of an old key, and of keys that only the service has.
#[test]
fn remarks_of_check_config_name_hosts_and_credentials() {
    let credential = "controller_key_file = \"credential:of-controller\"";
    let setup = setup(&format!(
        "{credential}\nold_key_file = \"/gone\"\nold_key_until = 2020-01-01"
    ))
    .access(&format!(
        "allowed_hosts = [\"{HOST}\", \"nqn.2026-11.org.example:other\"]\n\
             require_authentication = true"
    ));
    key_file(&setup.path("host.key"));
    let remarks = |ended: &Ended| {
        assert_no_key(&ended.to_string());
        ended
            .stderr
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    let outside = remarks(&check(&setup).ok());
    for words in [
        "have no key: nqn.2026-11.org.example:other; they cannot connect",
        "old_key_until has passed",
        "not checked: credentials of-controller: $CREDENTIALS_DIRECTORY is not set",
    ] {
        assert!(outside.contains(words), "{words}: {outside}");
    }
    let folder = setup.path("credentials");
    fs::create_dir(&folder).unwrap();
    let inside = || {
        let mut check = check_command(&setup);
        check.env("CREDENTIALS_DIRECTORY", &folder);
        Run::new(check)
    };
    let missing = [":4: controller_key_file: credential:of-controller: cannot be read"];
    inside().fails(2, &missing);
    let file = folder.join("of-controller");
    key_file_with(&file, OTHER_KEY);
    // systemd passes it with an ACL, so that the group seems to have access.
    fs::set_permissions(&file, Permissions::from_mode(0o440)).unwrap();
    let remarks = remarks(&inside().ok());
    assert!(!remarks.contains("not checked"), "{remarks}");
}

/// The configuration is the same before and after.
#[test]
fn reload_reads_key_files_again() {
    let setup = setup("");
    let path = setup.path("host.key");
    key_file(&path);
    let mut target = setup.start();
    key_file_with(&path, &KEY.replace("Hh+", "Hh6"));
    target.signal(Signal::SIGHUP);
    let line = target.wait_for_log("reload refused, nothing changed");
    assert!(
        line.contains("CRC-32") && line.contains(name(&path)),
        "{line}"
    );
    key_file_with(&path, OTHER_KEY);
    target.signal(Signal::SIGHUP);
    target.wait_for_log("reloaded: ");
    assert_no_key(&target.log());
    target.stop();
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}
