//! The commands about keys of in-band authentication, as processes.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

/// Bytes 00h to 1Fh.
const KNOWN: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const KNOWN_HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

fn nvmeof(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvmeof"));
    command.args(arguments).env_remove("NVMEOF_DHCHAP_SECRET");
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn generated_keys_are_valid() {
    for (arguments, words) in [
        (&[][..], "32 bytes, not transformed"),
        (&["--hmac", "1"], "32 bytes, transformed with SHA-256"),
        (&["-m", "2"], "48 bytes, transformed with SHA-384"),
        (&["--hmac", "3"], "64 bytes, transformed with SHA-512"),
        (
            &["--hmac", "3", "--key-length", "32"],
            "32 bytes, transformed with SHA-512",
        ),
    ] {
        let key = text(&nvmeof(&[&["gen-dhchap-key"], arguments].concat()));
        let checked = text(&nvmeof(&["check-dhchap-key", "--key", key.trim()]));
        assert!(checked.contains(words), "{arguments:?}: {checked}");
        assert!(!checked.contains("DHHC"), "{checked}");
    }
}

#[test]
fn known_secret_gives_the_text_of_nvme_cli() {
    let key = text(&nvmeof(&["gen-dhchap-key", "--secret", KNOWN_HEX]));
    assert_eq!(key.trim(), KNOWN);
    let json = text(&nvmeof(&["check-dhchap-key", "-k", KNOWN, "-o", "json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["hmac"], &json["length"]), (&0.into(), &32.into()));
}

#[test]
fn keys_come_from_files_standard_input_and_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    fs::write(&file, format!("{KNOWN}\n")).unwrap();
    let named = format!("@{}", file.display());
    text(&nvmeof(&["check-dhchap-key", "--key", &named]));

    let mut command = Command::new(env!("CARGO_BIN_EXE_nvmeof"));
    command.args(["check-dhchap-key", "--key", "@-"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(KNOWN.as_bytes())
        .unwrap();
    text(&child.wait_with_output().unwrap());

    let mut command = Command::new(env!("CARGO_BIN_EXE_nvmeof"));
    command
        .arg("check-dhchap-key")
        .env("NVMEOF_DHCHAP_SECRET", KNOWN);
    text(&command.output().unwrap());
}

#[test]
fn wrong_keys_are_refused_without_echo() {
    let changed = KNOWN.replace("AAEC", "AAED");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    fs::write(&file, &changed).unwrap();
    let named = format!("@{}", file.display());
    for (arguments, words) in [
        (
            ["check-dhchap-key", "--key", &changed],
            "--key: the CRC-32 of the key is wrong",
        ),
        (
            ["check-dhchap-key", "--key", &named],
            "key: the CRC-32 of the key is wrong",
        ),
        (
            ["check-dhchap-key", "--key", "@/nonexistent"],
            "cannot read /nonexistent",
        ),
        (
            ["gen-dhchap-key", "--secret", "0001"],
            "--secret: the key has 2 bytes",
        ),
        (["gen-dhchap-key", "--secret", "0x01"], "hexadecimal digits"),
        (["gen-dhchap-key", "--secret", "+f+f"], "hexadecimal digits"),
        (
            ["gen-dhchap-key", "--key-length", "33"],
            "--key-length: the key has 33 bytes",
        ),
    ] {
        let output = nvmeof(&arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(words), "{arguments:?}: {error}");
        assert!(!error.contains("AAED"), "{error}");
    }
}
