//! Hosts with keys: their tables, files and dates.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::SystemTime;

use nvmeof_dhchap::Policy;
use nvmeof_wire::auth::{GroupId, HashId};
use tempfile::TempDir;

use super::*;
use crate::authentication::Reading;

const HOST: &str = "nqn.2026-11.org.example:host";
/// Keys of bytes 00h to 1Fh, and 00h to 2Fh.
const ONE: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const OTHER: &str =
    "DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:";

/// A folder with files with keys.
struct Keys(TempDir);

impl Keys {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    /// Writes a file; returns its path.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, format!("{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

/// `GOOD` with a host with these keys, from line 13 on.
fn with_host(keys: &str) -> String {
    format!("{GOOD}[[host]]\nnqn = \"{HOST}\"\n{keys}\n")
}

fn nqn(name: &str) -> Nqn {
    Nqn::new(name).unwrap()
}

#[test]
fn host_has_the_keys_of_its_files_and_every_hash_and_group() {
    let keys = Keys::new();
    let (one, other) = (keys.file("one", ONE), keys.file("other", OTHER));
    let text = with_host(&format!(
        "key_file = '{one}'\nold_key_file = '{other}'\ncontroller_key_file = '{other}'"
    ));
    let model = model_of(&parse(&text).unwrap(), &[]);
    let spec = model.authentication();
    let policy = &spec.hosts[&nqn(HOST)];
    let texts: Vec<_> = policy.keys.iter().map(|key| key.to_text()).collect();
    assert_eq!(
        texts.iter().map(|it| it.as_str()).collect::<Vec<_>>(),
        [ONE, OTHER]
    );
    assert_eq!(*policy.controller_key.as_ref().unwrap().to_text(), OTHER);
    assert_eq!(
        policy.hashes,
        [HashId::SHA256, HashId::SHA384, HashId::SHA512]
    );
    let groups = [1, 2, 3, 4, 5, 0].map(GroupId);
    assert_eq!(policy.groups, groups);
    assert!(spec.subsystems.is_empty() && !spec.discovery);
    // Neither shows a key.
    let shown = format!("{model:?} {:?}", parse(&text).unwrap());
    assert!(
        !shown.contains("AAEC") && !shown.contains("DHHC"),
        "{shown}"
    );
}

#[test]
fn hash_and_groups_are_used_in_the_order_of_their_list() {
    let keys = Keys::new();
    let one = keys.file("one", ONE);
    let policy = |more: &str| {
        let text = with_host(&format!("key_file = '{one}'\n{more}"));
        let spec = parse(&text).unwrap().authentication().unwrap();
        spec.hosts[&nqn(HOST)].clone()
    };
    let single = policy("hash = \"sha384\"\ndh_groups = \"ffdhe8192\"");
    assert_eq!(single.hashes, [HashId::SHA384]);
    assert_eq!(single.groups, [GroupId::FFDHE8192]);
    let listed = policy("hash = [\"sha512\", \"sha256\"]\ndh_groups = [\"null\", \"ffdhe3072\"]");
    assert_eq!(listed.hashes, [HashId::SHA512, HashId::SHA256]);
    assert_eq!(listed.groups, [GroupId::NULL, GroupId::FFDHE3072]);
}

/// A reload of the same text applies a key that was replaced in its file.
#[test]
fn files_are_read_each_time() {
    let keys = Keys::new();
    let one = keys.file("one", ONE);
    let config = parse(&with_host(&format!("key_file = '{one}'"))).unwrap();
    let text = || {
        let spec = config.authentication().unwrap();
        spec.hosts[&nqn(HOST)].keys[0].to_text()
    };
    assert_eq!(*text(), ONE);
    keys.file("one", OTHER);
    assert_eq!(*text(), OTHER);
    fs::remove_file(&one).unwrap();
    let error = config.authentication().unwrap_err();
    assert_names(
        &error.to_string(),
        15,
        &["key_file: ", &one, "cannot be read"],
    );
    assert!(!error.may_succeed_later());
}

#[test]
fn old_key_is_accepted_until_its_date() {
    let keys = Keys::new();
    let (one, other) = (keys.file("one", ONE), keys.file("other", OTHER));
    let config = |until: &str| {
        parse(&with_host(&format!(
            "key_file = '{one}'\nold_key_file = '{other}'\nold_key_until = {until}"
        )))
    };
    let count = |config: &Config| {
        let spec = config.authentication().unwrap();
        spec.hosts[&nqn(HOST)].keys.len()
    };
    let past = config("2020-01-01").unwrap();
    assert_eq!(count(&past), 1);
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_577_923_200);
    assert_eq!(past.old_key_ends(), [(nqn(HOST), end)]);
    let [remark] = past.authentication_remarks().try_into().unwrap();
    assert!(
        remark.starts_with("old_key_until has passed") && remark.contains(HOST),
        "{remark}"
    );
    for until in ["9999-01-01", "\"9999-01-01\"", "9999-01-01T00:00:00Z"] {
        let future = config(until).unwrap();
        assert_eq!(count(&future), 2, "{until}");
        assert_eq!(future.authentication_remarks(), Vec::<String>::new());
    }
    // The file of a key that is not accepted any more may be gone.
    fs::remove_file(&other).unwrap();
    assert_eq!(count(&past), 1);
    assert!(past.check_keys().is_ok());
    assert!(config("9999-01-01").unwrap().authentication().is_err());
    let error = config("2026-12-31T18:00:00").unwrap_err();
    assert_names(
        &error.to_string(),
        17,
        &["old_key_until: ", "2026-12-31T18:00:00Z"],
    );
}

#[test]
fn subsystems_and_discovery_can_require_a_key() {
    let keys = Keys::new();
    let one = keys.file("one", ONE);
    let required = GOOD.replace("= true", "= true\nrequire_authentication = true");
    let discovery = "[discovery]\nrequire_authentication = true\n";
    let config = parse(&format!("{required}{discovery}")).unwrap();
    let remarks = config.authentication_remarks().join("\n");
    assert!(
        remarks.contains("subsystem nqn.2026-11.org.example:disk requires"),
        "{remarks}"
    );
    assert!(
        remarks.contains("discovery.require_authentication"),
        "{remarks}"
    );
    let host = format!("[[host]]\nnqn = \"{HOST}\"\nkey_file = '{one}'\n");
    let config = parse(&format!("{required}{discovery}{host}")).unwrap();
    assert_eq!(config.authentication_remarks(), Vec::<String>::new());
    let spec = config.authentication().unwrap();
    assert!(spec.discovery);
    let subsystems: Vec<_> = spec.subsystems.iter().map(Nqn::as_str).collect();
    assert_eq!(subsystems, ["nqn.2026-11.org.example:disk"]);
}

#[test]
fn allowed_host_without_key_of_a_required_subsystem_is_named() {
    let keys = Keys::new();
    let one = keys.file("one", ONE);
    let hosts =
        format!("allowed_hosts = [\"{HOST}\", \"b\", \"a\\u202E\"]\nrequire_authentication = true");
    let text = GOOD.replace("allow_any_host = true", &hosts);
    let config = parse(&format!(
        "{text}[[host]]\nnqn = \"{HOST}\"\nkey_file = '{one}'\n"
    ))
    .unwrap();
    let [remark] = config.check_keys().unwrap().try_into().unwrap();
    assert!(
        remark.contains("have no key: a\\u202E, b; they cannot connect"),
        "{remark}"
    );
}

#[test]
fn wrong_values_of_hosts_are_reported_with_their_line() {
    let message = |keys: &str| parse(&with_host(keys)).unwrap_err().to_string();
    assert_names(&message(""), 13, &["key_file: missing; it is required"]);
    let with = |more: &str| message(&format!("key_file = \"/k\"\n{more}"));
    for (more, words) in [
        (
            "old_key_until = 2026-12-31",
            "old_key_until: requires old_key_file",
        ),
        (
            "old_key_file = \"/k\"",
            "old_key_file: is the file of key_file",
        ),
        ("old_key_file = \"\"", "old_key_file: is empty"),
        (
            "controller_key_file = \"credential:a/b\"",
            "must be credential:NAME",
        ),
        (
            "hash = \"sha1\"",
            "hash: \"sha1\" is unknown; must be one or more of \"sha256\"",
        ),
        ("hash = []", "hash: the list is empty"),
        (
            "dh_groups = [\"null\", \"null\"]",
            "dh_groups: \"null\" is named twice",
        ),
        (
            "dh_groups = [\n\"x25519\"]",
            "dh_groups: \"x25519\" is unknown",
        ),
        (
            "dh_groups = 5",
            "dh_groups: integer 5: must be a name, or a list of names",
        ),
        ("key = 1", "key: unknown key; known here: nqn, key_file"),
    ] {
        let line = if more.contains('\n') { 17 } else { 16 };
        assert_names(&with(more), line, &[words]);
    }
    let nameless = with_host("key_file = \"/k\"").replace(HOST, "");
    assert_names(
        &parse(&nameless).unwrap_err().to_string(),
        14,
        &["nqn = \"\"", "is empty"],
    );
    let twice = with_host(&format!(
        "key_file = \"/k\"\n[[host]]\nnqn = \"{HOST}\"\nkey_file = \"/b\""
    ));
    let error = parse(&twice).unwrap_err();
    assert_names(
        &error.to_string(),
        17,
        &["another [[host]] has this NQN; remove one"],
    );
    assert_eq!(error.key(), Some("host.nqn"));
    let table = with_host("key_file = \"/k\"").replace("[[host]]", "[host]");
    assert_names(
        &parse(&table).unwrap_err().to_string(),
        13,
        &["must be written as [[host]]"],
    );
}

/// A key in the configuration is refused, and not repeated in the message.
#[test]
fn key_in_place_of_its_file_is_refused_without_echo() {
    for text in [
        format!("key_file = \"{ONE}\""),
        format!("key_file = \"/k\"\nkey = \"{ONE}\""),
    ] {
        let error = parse(&with_host(&text)).unwrap_err().to_string();
        assert!(!error.contains("AAEC"), "{error}");
    }
}

#[test]
fn every_wrong_key_file_is_reported_at_once() {
    let keys = Keys::new();
    let (one, wrong) = (
        keys.file("one", ONE),
        keys.file("wrong", &ONE.replace("Hh+", "Hh6")),
    );
    let text = with_host(&format!(
        "key_file = '{wrong}'\nold_key_file = '{one}'\ncontroller_key_file = '/nonexistent/key'\n\
         [[host]]\nnqn = \"b\"\nkey_file = '{wrong}'"
    ));
    let config = parse(&text).unwrap();
    for error in [
        config.authentication().unwrap_err(),
        config.check_keys().unwrap_err(),
    ] {
        let all: Vec<_> = std::iter::once(&error).chain(error.others()).collect();
        let lines: Vec<_> = all.iter().map(|one| one.line().unwrap()).collect();
        assert_eq!(lines, [15, 17, 20], "{error}");
        let keys: Vec<_> = all.iter().map(|one| one.key().unwrap()).collect();
        assert_eq!(
            keys,
            ["host.key_file", "host.controller_key_file", "host.key_file"]
        );
        let text = error.to_string();
        assert!(text.contains("CRC-32") && text.contains(&wrong), "{text}");
        assert!(!text.contains("AAEC"), "{text}");
    }
}

/// A check outside of the service cannot read them.
#[test]
fn credentials_of_the_service_are_named_if_they_cannot_be_checked() {
    let config = parse(&with_host("key_file = \"credential:host\"")).unwrap();
    let outside = Reading {
        now: SystemTime::now(),
        credentials: None,
    };
    let [remark] = config.check_keys_of(&outside).unwrap().try_into().unwrap();
    assert!(
        remark.starts_with("not checked: credentials host: "),
        "{remark}"
    );
    let error = config.authentication_of(&outside).unwrap_err().to_string();
    assert_names(
        &error,
        15,
        &["key_file: credential:host: $CREDENTIALS_DIRECTORY is not set"],
    );
}

#[test]
fn relative_key_file_is_refused_in_documents() {
    let check = |path: &str| {
        parse(&with_host(&format!("key_file = \"{path}\"")))
            .unwrap()
            .check_absolute()
    };
    assert!(check("/k").is_ok() && check("credential:k").is_ok());
    assert_names(
        &check("k").unwrap_err().to_string(),
        15,
        &["key_file: \"k\" is relative"],
    );
}

/// One bad file must not take away the other hosts, nor let others use the name of its host.
#[test]
fn host_with_unreadable_keys_has_the_others_and_is_still_authenticated() {
    let keys = Keys::new();
    let (one, other) = (keys.file("one", ONE), keys.file("other", OTHER));
    let missing = keys.0.path().join("missing");
    let text = with_host(&format!(
        "key_file = '{}'\nold_key_file = '{other}'\n[[host]]\nnqn = \"b\"\nkey_file = '{one}'\n\
         [[host]]\nnqn = \"c\"\nkey_file = \"credential:none\"",
        missing.display()
    ));
    let config = parse(&text).unwrap();
    let (spec, unread) = config.available_authentication().unwrap();
    let mut policy = Policy::clone(&spec.hosts[&nqn(HOST)]);
    assert!(policy.current().is_none());
    assert_eq!(*policy.old().unwrap().to_text(), OTHER);
    assert_eq!(spec.hosts[&nqn("b")].keys.len(), 1);
    assert!(spec.hosts[&nqn("c")].keys.is_empty());
    let named: Vec<_> = unread.iter().map(|one| (one.host, one.key)).collect();
    let current = HostKey::Current;
    assert_eq!(named, [(nqn(HOST), current), (nqn("c"), current)]);
    assert_eq!(unread[0].path.as_ref(), Some(&missing));
    assert_names(
        &unread[0].error.to_string(),
        15,
        &["key_file: ", "missing", "cannot be read"],
    );
    assert!(config.host_key(&nqn(HOST), current).is_err());
    keys.file("missing", ONE);
    let read = config.host_key(&nqn(HOST), current).unwrap().unwrap();
    read.add_to(&mut policy);
    assert_eq!(*policy.current().unwrap().to_text(), ONE);
    assert_eq!(*policy.old().unwrap().to_text(), OTHER);
    let none = config.host_key(&nqn(HOST), HostKey::Controller).unwrap();
    assert!(none.is_none());
}

#[test]
fn edit_reads_only_the_files_of_hosts_that_it_changes() {
    let keys = Keys::new();
    let (one, other) = (keys.file("one", ONE), keys.file("other", OTHER));
    let host = |more: &str| {
        let text = with_host(&format!("key_file = '{one}'\n{more}"));
        // At other positions than before.
        parse(&format!("#{more}\n\n{text}")).unwrap()
    };
    let before = host("");
    let served = before.authentication().unwrap();
    keys.file("one", OTHER);
    let since = |config: &Config| {
        config.authentication_with(&served, |host| config.has_same(&before, host))
    };
    let text = |config: &Config| {
        let spec = since(config).unwrap();
        spec.hosts[&nqn(HOST)].current().unwrap().to_text()
    };
    assert_eq!(*text(&host("#")), ONE);
    assert_eq!(*text(&host("hash = \"sha384\"")), OTHER);
    fs::remove_file(&one).unwrap();
    assert_eq!(*text(&host("#")), ONE);
    let changed = host(&format!("old_key_file = '{other}'"));
    assert!(since(&changed).is_err());
    assert!(before.authentication().is_err());
}
