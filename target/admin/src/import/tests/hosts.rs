//! Keys of hosts: files with them, and the tables that name these.

use std::os::unix::fs::PermissionsExt;

use super::*;

/// Bytes 00h to 1Fh.
const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
/// Bytes 00h to 2Fh.
const CONTROLLER: &str =
    "DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:";

/// Two hosts with keys, and one without.
fn saved_with_keys() -> Value {
    let hosts = json!([
        {"nqn": "nqn.2026-11.org.example:none", "dhchap": {
            "key": "", "ctrl_key": "", "hash": "hmac(sha256)", "dhgroup": "null"}},
        {"nqn": "nqn.2026-11.org.example:one", "dhchap": {
            "key": format!("{KEY}\n"), "ctrl_key": "", "hash": "hmac(sha256)", "dhgroup": "null"}},
        // With the names of the kernel.
        {"nqn": "nqn.2026-11.org.example:two", "dhchap_key": KEY, "dhchap_ctrl_key": CONTROLLER,
            "dhchap_hash": "hmac(sha512)", "dhchap_dhgroup": "ffdhe4096"},
    ]);
    saved_with("/hosts", hosts)
}

/// The import of `saved`, in a folder of its own, to `output` in that folder.
fn run(
    saved: &Value,
    folder: &Path,
    output: Option<&str>,
) -> Result<(Converted, Vec<PathBuf>), ImportError> {
    let file = folder.join("saved.json");
    fs::write(&file, saved.to_string()).unwrap();
    let import = Import {
        file,
        output_format: Format::Normal,
        output: output.map(|name| folder.join(name)),
    };
    import.import()
}

/// Neither the configuration nor a remark contains a part of a key.
fn assert_no_key(text: &str, report: &Report) {
    for shown in [text, &remarks(report)] {
        assert!(
            !shown.contains("AAEC") && !shown.contains("DHHC-1:0"),
            "{shown}"
        );
    }
}

#[test]
fn keys_are_written_to_files_of_their_own_beside_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let (converted, written) = run(&saved_with_keys(), folder.path(), Some("target.toml")).unwrap();
    let Converted { text, report, .. } = &converted;
    assert_no_key(text, report);
    assert_no_key(&format!("{:?}", converted.hosts), report);
    assert_eq!(report.losses(), 0, "{}", remarks(report));
    let keys = folder.path().join("keys");
    let path = |name: &str| keys.join(name);
    let names = ["host-2.key", "host-3.key", "host-3-controller.key"];
    assert_eq!(written, names.map(path));
    for (name, key) in names.iter().zip([KEY, KEY, CONTROLLER]) {
        assert_eq!(fs::read_to_string(path(name)).unwrap(), format!("{key}\n"));
        let mode = fs::metadata(path(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "{name}");
    }
    let hosts = &imported(text)["host"];
    let expected = format!(
        "[[host]]\nnqn = \"nqn.2026-11.org.example:one\"\nkey_file = '{0}/host-2.key'\n\
         [[host]]\nnqn = \"nqn.2026-11.org.example:two\"\nkey_file = '{0}/host-3.key'\n\
         controller_key_file = '{0}/host-3-controller.key'\nhash = \"sha512\"\n\
         dh_groups = \"ffdhe4096\"\n",
        keys.display()
    );
    assert_eq!(*hosts, imported(&expected)["host"], "{text}");
    let remarks = remarks(report);
    assert!(
        remarks.contains("hosts[1]: the keys of \"nqn.2026-11.org.example:one\""),
        "{remarks}"
    );
    assert!(remarks.contains("chown nvmeof"), "{remarks}");
    assert!(
        remarks.contains("subsystems[1].attr.allow_any_host"),
        "{remarks}"
    );
    // The target can read what was written.
    let config = Config::read(&folder.path().join("target.toml")).unwrap();
    assert_eq!(config.authentication().unwrap().hosts.len(), 2);
}

#[test]
fn printed_configuration_names_files_that_are_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let (converted, written) = run(&saved_with_keys(), folder.path(), None).unwrap();
    assert_no_key(&converted.text, &converted.report);
    assert_eq!(written, Vec::<PathBuf>::new());
    assert!(!folder.path().join("keys").exists());
    let first = imported(&converted.text)["host"][0]["key_file"].clone();
    assert_eq!(first.as_str(), Some("/etc/nvmeof/keys/host-2.key"));
    let remarks = remarks(&converted.report);
    assert!(
        remarks.contains("are not printed; they belong in /etc/nvmeof/keys"),
        "{remarks}"
    );
    assert!(remarks.contains("import --output FILE"), "{remarks}");
}

#[test]
fn existing_key_file_is_not_replaced_and_no_file_remains() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    fs::create_dir(&keys).unwrap();
    fs::write(keys.join("host-3.key"), "mine").unwrap();
    let error = run(&saved_with_keys(), folder.path(), Some("target.toml")).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("host-3.key") && error.contains("is not replaced"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(keys.join("host-3.key")).unwrap(), "mine");
    assert_eq!(fs::read_dir(&keys).unwrap().count(), 1);
    assert!(!folder.path().join("target.toml").exists());
    // The same if the configuration is there.
    fs::remove_file(keys.join("host-3.key")).unwrap();
    fs::write(folder.path().join("target.toml"), "mine").unwrap();
    assert!(run(&saved_with_keys(), folder.path(), Some("target.toml")).is_err());
    assert_eq!(fs::read_dir(&keys).unwrap().count(), 0);
}

/// Without its table, every host could use the name of this one.
#[test]
fn host_with_invalid_key_keeps_its_table() {
    let saved = saved_with(
        "/hosts",
        json!([
            {"nqn": "nqn.2026-11.org.example:one", "dhchap": {
                "key": KEY.replace("Hh+", "Hh6"), "ctrl_key": CONTROLLER,
                "hash": "x", "dhgroup": "y"}},
        ]),
    );
    let folder = tempfile::tempdir().unwrap();
    let (converted, written) = run(&saved, folder.path(), Some("target.toml")).unwrap();
    assert_no_key(&converted.text, &converted.report);
    assert!(!converted.report.is_good, "the exit status is 1");
    assert_eq!(
        converted.report.losses(),
        3,
        "{}",
        remarks(&converted.report)
    );
    let remarks = remarks(&converted.report);
    let lost = "not imported: hosts[0].dhchap.key: is not a key: the CRC-32";
    assert!(remarks.contains(lost), "{remarks}");
    assert!(remarks.contains("write the key to the file"), "{remarks}");
    assert!(
        remarks.contains("hosts[0].dhchap.dhgroup: \"y\" is unknown"),
        "{remarks}"
    );
    assert_eq!(written, [folder.path().join("keys/host-1-controller.key")]);
    let host = &imported(&converted.text)["host"][0];
    assert!(
        host["key_file"]
            .as_str()
            .unwrap()
            .ends_with("/keys/host-1.key")
    );
}

#[test]
fn other_hosts_are_reported_and_left_out() {
    let saved = saved_with(
        "/hosts",
        json!([
            {"nqn": "", "dhchap": {"key": KEY}},
            {"nqn": "a", "dhchap": {"ctrl_key": KEY}},
            {"nqn": "b", "dhchap": {"key": KEY}},
            {"nqn": "b", "dhchap": {"key": KEY}, "other": KEY},
        ]),
    );
    let (text, report) = of_bytes("a", saved.to_string().as_bytes(), &nowhere).unwrap();
    assert_no_key(&text, &report);
    assert_eq!(imported(&text)["host"].as_array().unwrap().len(), 1);
    let remarks = remarks(&report);
    for words in [
        "not imported: hosts[0].nqn: \"\" is not an NQN",
        "note: hosts[1].dhchap.ctrl_key: has no effect",
        "not imported: hosts[3]: appears twice",
        "not imported: hosts[3].other: is an unknown key",
    ] {
        assert!(remarks.contains(words), "{words}: {remarks}");
    }
}
