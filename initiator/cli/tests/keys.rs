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

/// Bytes 00h to 1Fh, 2Fh and 3Fh.
fn hex(len: u8) -> String {
    (0..len).map(|byte| format!("{byte:02x}")).collect()
}

/// What `nvme gen-dhchap-key --secret` of nvme-cli 2.3 printed for [`hex`], with `--hmac 0` and,
/// for the host NQN `nqn.2026-11.org.example:host`, with the hash of the same length.
const NVME_CLI_2: [(u8, &str, u8, &str); 3] = [
    (
        32,
        KNOWN,
        1,
        "DHHC-1:01:MJeNJW9KWXBWFRTRBkLitUFfyoo7FO/YRk2v690G5FxGmteF:",
    ),
    (
        48,
        "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:",
        2,
        "DHHC-1:02:P/BDmosuovAebHRZr93vOhUZIgLo6JPrtiEOeMvRVXDIMwqKlQYOOdzfaZA90wC4bhOorg==:",
    ),
    (
        64,
        "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4\
         OTo7PD0+P4zODhA=:",
        3,
        "DHHC-1:03:mB+Mlr9udTg8OnK+kWvYGvTakok1FbIxTGAwIfM37ikrlF2hWLglzmlzidI4geQ+jEY50VxgO5Pm\
         bY7ilf2Uym0eeEs=:",
    ),
];

#[test]
fn keys_of_nvme_cli_2_are_read() {
    for (len, plain, hmac, transformed) in NVME_CLI_2 {
        for (key, hmac) in [(plain, 0), (transformed, hmac)] {
            let json = text(&nvmeof(&["check-dhchap-key", "-k", key, "-o", "json"]));
            let json: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert_eq!(
                (&json["hmac"], &json["length"]),
                (&hmac.into(), &len.into())
            );
        }
        let ours = text(&nvmeof(&["gen-dhchap-key", "-s", &hex(len)]));
        assert_eq!(ours.trim(), plain);
        // nvme-cli 2.x has transformed the secret already, and both sides transform it again: the
        // text, not the secret, is what they exchange.
        let hmac = hmac.to_string();
        let ours = text(&nvmeof(&["gen-dhchap-key", "-s", &hex(len), "-m", &hmac]));
        assert_ne!(ours.trim(), transformed);
    }
}

/// nvme-cli 3.0 and Linux accept each length with each hash function, and the text of a secret
/// differs only in the number of the hash function.
#[test]
fn keys_are_those_of_nvme_cli_3() {
    // From the tests of nvme-cli 3.0.
    const PAYLOAD: &str = "9wCYVQqDvADjGIZo6q/v2SfmXZqqkNa9TcvYu97Ly3Q/gajh";
    const SECRET: &str = "f70098550a83bc00e3188668eaafefd927e65d9aaa90d6bd4dcbd8bbdecbcb74";
    for hmac in ["0", "1", "2", "3"] {
        let key = text(&nvmeof(&["gen-dhchap-key", "-s", SECRET, "-m", hmac]));
        assert_eq!(key.trim(), format!("DHHC-1:0{hmac}:{PAYLOAD}:"));
        for len in ["32", "48", "64"] {
            let key = text(&nvmeof(&["gen-dhchap-key", "-m", hmac, "-l", len]));
            let checked = text(&nvmeof(&["check-dhchap-key", "-k", key.trim()]));
            assert!(checked.contains(&format!("{len} bytes")), "{checked}");
        }
    }
    // An odd number of digits is no secret: nvme-cli 2.x appends a zero.
    assert!(
        !nvmeof(&["gen-dhchap-key", "-s", &SECRET[1..]])
            .status
            .success()
    );
}

/// The values of a command line or of the environment do not appear in messages about it.
#[test]
fn keys_of_connections_are_refused_without_echo() {
    let changed = KNOWN.replace("AAEC", "AAED");
    let connect = ["-a", "127.0.0.1:1", "-n", "nqn.2026-11.org.example:disk"];
    let discover = ["-a", "127.0.0.1:1"];
    for (command, target) in [
        ("id-ctrl", &connect[..]),
        ("discover", &discover),
        ("connect-all", &discover),
    ] {
        for (option, variable) in [
            ("--dhchap-secret", "NVMEOF_DHCHAP_SECRET"),
            ("--dhchap-ctrl-secret", "NVMEOF_DHCHAP_CTRL_SECRET"),
        ] {
            let mut nvmeof = Command::new(env!("CARGO_BIN_EXE_nvmeof"));
            nvmeof.arg(command).args(target);
            nvmeof.env("NVMEOF_DHCHAP_SECRET", KNOWN);
            let named = nvmeof.args([option, &changed]).output().unwrap();
            let mut nvmeof = Command::new(env!("CARGO_BIN_EXE_nvmeof"));
            nvmeof.arg(command).args(target);
            nvmeof.env("NVMEOF_DHCHAP_SECRET", KNOWN);
            let inherited = nvmeof.env(variable, &changed).output().unwrap();
            // Few discovery services have a key, so the variable does not apply to them.
            let is_unused = command == "discover" && variable == "NVMEOF_DHCHAP_CTRL_SECRET";
            if is_unused {
                let error = String::from_utf8(inherited.stderr.clone()).unwrap();
                assert_ne!(inherited.status.code(), Some(2), "{error}");
            }
            let refused = [Some(named), (!is_unused).then_some(inherited)];
            for output in refused.into_iter().flatten() {
                let error = String::from_utf8(output.stderr).unwrap();
                assert_eq!(output.status.code(), Some(2), "{command} {option}: {error}");
                let expected = format!("{option}: the CRC-32 of the key is wrong");
                assert!(error.contains(&expected), "{error}");
                assert!(!error.contains("AAE"), "{error}");
            }
        }
        // Help has no value of the environment.
        let mut help = Command::new(env!("CARGO_BIN_EXE_nvmeof"));
        help.args([command, "--help"]);
        let help = help.env("NVMEOF_DHCHAP_SECRET", KNOWN).output().unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        assert!(help.contains("NVMEOF_DHCHAP_SECRET"), "{help}");
        assert!(!help.contains("AAE"), "{help}");
    }
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
