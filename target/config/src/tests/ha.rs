//! Settings and rules of high availability, and the facts that gateways compare.

use super::*;

const GOOD: &str = r#"[ha]
gateway = "gw1"
record = "rbd/nvmeof-ha"
lease_ms = 4000
failback_s = 300
[[ha.group]]
id = 1
gateways = ["gw1", "gw2"]
[[ha.group]]
id = 2
gateways = ["gw2", "gw3"]

[[port]]
traddr = "127.0.0.1"

[[subsystem]]
nqn = "nqn.2026-11.org.example:disk"
serial = "0123456789"
cntlid_min = 1
cntlid_max = 999
allow_any_host = true
[[subsystem.namespace]]
nsid = 1
path = "rbd:rbd/a"
[[subsystem.namespace]]
nsid = 2
path = "rbd:rbd/ns/b"
readonly = false
ana_group = 2
[[subsystem.namespace]]
nsid = 3
path = "rbd:rbd/c"
ana_group = 3
"#;

/// A second subsystem, whose namespaces need no key of `[ha]`.
const ALONE: &str = r#"[[subsystem]]
nqn = "nqn.2026-11.org.example:alone"
allow_any_host = true
[[subsystem.namespace]]
nsid = 1
path = "ram:1M"
ana_group = 4
"#;

fn edited(from: &str, to: &str) -> Config {
    assert!(GOOD.contains(from), "{from}");
    parse(&GOOD.replacen(from, to, 1)).unwrap()
}

#[test]
fn ha_settings_and_groups_of_namespaces_are_read() {
    let config = parse(&format!("{GOOD}{ALONE}")).unwrap();
    let group = |id, names: [&str; 2]| HaGroupConfig {
        id,
        gateways: names.map(str::to_owned).to_vec(),
    };
    let expected = HaConfig {
        gateway: "gw1".to_owned(),
        pool: "rbd".to_owned(),
        namespace: None,
        object: "nvmeof-ha".to_owned(),
        lease: Duration::from_secs(4),
        failback: Some(Duration::from_secs(300)),
        groups: vec![group(1, ["gw1", "gw2"]), group(2, ["gw2", "gw3"])],
    };
    assert_eq!(config.ha(), Some(&expected));
    let stores = config.configured_stores().unwrap();
    let groups: Vec<_> = stores.iter().map(|store| store.group).collect();
    assert_eq!(groups, [Some(1), Some(2), None, None]);

    let least = edited("lease_ms = 4000\nfailback_s = 300\n", "");
    let ha = least.ha().unwrap();
    assert_eq!((ha.lease, ha.failback), (Duration::from_secs(3), None));
    let ha = edited("rbd/nvmeof-ha", "rbd/ns/ha").ha().cloned().unwrap();
    assert_eq!(
        (
            ha.pool.as_str(),
            ha.namespace.as_deref(),
            ha.object.as_str()
        ),
        ("rbd", Some("ns"), "ha")
    );
    let (_, without) = GOOD.split_once("\n\n").unwrap();
    let without = parse(without).unwrap();
    assert_eq!((without.ha(), without.ha_controller_ids()), (None, None));
    let mut stores = without.configured_stores().unwrap().into_iter();
    assert!(stores.all(|store| store.group.is_none()) && without.ha_facts().is_empty());
}

/// Each with its line, its key and the remedy.
#[test]
fn invalid_ha_settings_are_reported_with_their_line() {
    let name = "1 to 64 letters, digits, dots, hyphens or underscores";
    let long = format!("\"{}\"", "x".repeat(65));
    let many = |count| format!("[{}]", "\"x\", ".repeat(count));
    let (many_gateways, twice) = (many(17), "[\"gw1\",\n\"gw1\"]");
    let groups: String = (3..66)
        .map(|id| format!("[[ha.group]]\nid = {id}\ngateways = [\"a\"]\n"))
        .collect();
    let groups = format!("{groups}\n[[port]]");
    let object = "POOL/OBJECT or POOL/NAMESPACE/OBJECT";
    for (from, to, line, words) in [
        ("\"gw1\"", "\"\"", 2, ["ha.gateway = \"\"", name]),
        ("\"gw1\"", "\"a b\"", 2, ["ha.gateway = \"a b\"", name]),
        ("\"gw1\"", &long, 2, ["ha.gateway", name]),
        ("gateway = \"gw1\"", "", 1, ["gateway: missing", "required"]),
        (
            "record = \"rbd/nvmeof-ha\"",
            "",
            1,
            ["record: missing", "required"],
        ),
        ("rbd/nvmeof-ha", "rbd", 3, ["ha.record = \"rbd\"", object]),
        ("rbd/nvmeof-ha", "/a", 3, ["ha.record", object]),
        ("rbd/nvmeof-ha", "rbd/", 3, ["ha.record", object]),
        ("rbd/nvmeof-ha", "a//b", 3, ["ha.record", object]),
        ("rbd/nvmeof-ha", "a/b/c/d", 3, ["ha.record", object]),
        ("rbd/nvmeof-ha", "a/\\u0000", 3, ["ha.record", object]),
        (
            "rbd/nvmeof-ha",
            "rbd/rbd_directory",
            3,
            ["ha.record", "name another object"],
        ),
        (
            "4000",
            "1999",
            4,
            ["ha.lease_ms = 1999", "must be 2000 to 60000"],
        ),
        (
            "4000",
            "60001",
            4,
            ["ha.lease_ms = 60001", "must be 2000 to 60000"],
        ),
        (
            "300",
            "86401",
            5,
            ["ha.failback_s = 86401", "must be 0 to 86400"],
        ),
        (
            "id = 1",
            "id = 0",
            7,
            ["ha.group.id = 0", "must be 1 to 128"],
        ),
        (
            "id = 1",
            "id = 129",
            7,
            ["ha.group.id = 129", "must be 1 to 128"],
        ),
        ("id = 2", "id = 1", 10, ["ha.group.id = 1", "remove one"]),
        (
            "[\"gw2\", \"gw3\"]",
            "[]",
            11,
            ["ha.group.gateways: 0 names", "list 1 to 16"],
        ),
        (
            "[\"gw1\", \"gw2\"]",
            &many_gateways,
            8,
            ["ha.group.gateways: 17 names", "1 to 16"],
        ),
        (
            "[\"gw1\", \"gw2\"]",
            twice,
            9,
            ["ha.group.gateways = \"gw1\"", "remove one"],
        ),
        (
            "\"gw3\"",
            "\"gw/3\"",
            11,
            ["ha.group.gateways = \"gw/3\"", name],
        ),
        (
            "[[port]]",
            &groups,
            199,
            ["ha.group: there are 65 groups", "write 1 to 64"],
        ),
        ("[[ha.group]]", "[ha.group]", 6, ["group", "[[ha.group]]"]),
        (
            "[ha]",
            "[[ha]]",
            1,
            ["ha: must be written as [ha]", "single table"],
        ),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let error = parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string();
        let location = format!("target.toml:{line}: ");
        let (first, _) = error.split_once('\n').unwrap_or((&error, ""));
        let is_named = words.iter().all(|word| first.contains(word));
        assert!(first.starts_with(&location) && is_named, "{to}: {error}");
    }
    let (head, rest) = GOOD.split_once("[[ha.group]]").unwrap();
    let (_, rest) = rest.split_once("\n\n").unwrap();
    let error = parse(&format!("{head}{rest}")).unwrap_err();
    let what = "target.toml:2: ha.group: there are 0 groups; write 1 to 64 [[ha.group]]";
    assert!(error.to_string().starts_with(what), "{error}");
}

#[test]
fn all_errors_of_ha_are_reported_at_once() {
    let text = GOOD.replacen("4000", "1", 1);
    let text = text.replacen("\"gw1\"", "\"!\"", 1);
    let error = parse(&text.replacen("id = 2", "id = 500", 1)).unwrap_err();
    let lines = [error.line(), error.others().first().unwrap().line()];
    assert_eq!(lines, [Some(2), Some(4)]);
    assert_eq!(error.others().len(), 2);
    assert_eq!(error.key(), Some("ha.gateway"));
}

#[test]
fn error_in_settings_names_their_file() {
    let settings = SettingsFile {
        path: "settings.toml".into(),
        text: "[ha]\ngateway = \"!\"\n[[ha.group]]\nid = 0\n".to_owned(),
    };
    let text = GOOD.replacen("\"gw1\"", "\"!\"", 1);
    let text = text.replacen("id = 1", "id = 0", 1);
    let error = Config::parse_with(Path::new("state"), text, Some(settings)).unwrap_err();
    let other = error.others().first().unwrap();
    let places = [&error, other].map(|one| (one.file(), one.line()));
    let file = Some(Path::new("settings.toml"));
    assert_eq!(places, [(file, Some(2)), (file, Some(3))]);
}

#[test]
fn invalid_namespaces_of_ha_groups_are_reported_with_their_line() {
    let other = "set ana_group to a group without [[ha.group]]";
    for (from, to, line, words) in [
        (
            "rbd:rbd/a",
            "/srv/a.img",
            24,
            ["path = \"/srv/a.img\"", "HA group 1", other],
        ),
        (
            "rbd:rbd/a",
            "ram:1M",
            24,
            ["path = \"ram:1M\"", "must be an RBD image", other],
        ),
        (
            "rbd:rbd/a",
            "null:1M",
            24,
            ["path", "rbd:POOL[/NAMESPACE]/IMAGE", other],
        ),
        (
            "rbd:rbd/a",
            "rbd:a",
            24,
            ["path: ", "rbd:POOL/IMAGE", "is not an image"],
        ),
        (
            "rbd:rbd/a",
            "rbd:rbd/a@s",
            24,
            ["path", "without @SNAPSHOT", other],
        ),
        (
            "readonly = false",
            "readonly = true",
            28,
            ["readonly", "HA group 2", other],
        ),
        (
            "ana_group = 3",
            "",
            32,
            ["namespace 1 of", "rbd:rbd/a", "another"],
        ),
        (
            "ana_group = 3",
            "readonly = true",
            33,
            ["readonly", "HA group 1", other],
        ),
        (
            "serial = \"0123456789\"",
            "",
            16,
            [
                "serial: missing",
                "namespace 1 is in HA group 1",
                "same serial",
            ],
        ),
        (
            "cntlid_min = 1",
            "",
            16,
            ["cntlid_min: missing", "HA group 1", "its own range"],
        ),
        (
            "cntlid_max = 999",
            "",
            16,
            ["cntlid_max: missing", "HA group 1", "its own range"],
        ),
    ] {
        assert!(GOOD.contains(from), "{from}");
        // A namespace without ana_group is in group 1.
        let text = match from {
            "ana_group = 3" => GOOD.replace("rbd:rbd/c", "rbd:rbd/a"),
            _ => GOOD.to_owned(),
        };
        let text = text.replacen(from, to, 1);
        let error = parse(&text).unwrap_err().to_string();
        let location = format!("target.toml:{line}: ");
        let is_named = words.iter().all(|word| error.contains(word));
        assert!(error.contains(&location) && is_named, "{to}: {error}");
    }
    let key = |from: &str| {
        let error = parse(&GOOD.replacen(from, "", 1)).unwrap_err();
        error.key().map(str::to_owned)
    };
    assert_eq!(key("cntlid_min = 1"), Some("subsystem.cntlid_min".into()));
}

#[test]
fn image_in_ha_group_belongs_to_one_namespace() {
    // Also with a namespace that is in no group.
    for other in ["rbd:rbd/a", "rbd:rbd/ns/b"] {
        let text = GOOD.replacen("rbd:rbd/c", other, 1);
        let error = parse(&text).unwrap_err().to_string();
        let location = "target.toml:32: path = \"rbd:rbd/";
        assert!(error.starts_with(location), "{error}");
        let disabled = text.replace("ana_group = 3", "ana_group = 3\nenabled = false");
        assert!(parse(&disabled).is_ok());
    }
    let snapshot = edited("rbd:rbd/c", "rbd:rbd/a@s");
    assert!(snapshot.ha().is_some());
}

#[test]
fn facts_are_short_and_do_not_change_with_the_gateway() {
    let facts = parse(GOOD).unwrap().ha_facts();
    let get = |key: &str| facts.get(key).map(String::as_str);
    assert_eq!(get("serial"), Some("0123456789"));
    assert_eq!(get("subsystem"), Some("nqn.2026-11.org.example:disk"));
    assert_eq!(get("groups"), Some("1: gw1 gw2; 2: gw2 gw3"));
    assert_eq!(get("lease_ms"), Some("4000"));
    // It never changes.
    assert_eq!(
        get("namespaces"),
        Some("e3bb84efa26e92f5d124ecaa0a718a5c6a7f262672f7ea59bdc31531a9f4d3a9")
    );
    assert_eq!(facts.len(), 5);
    let uuid = "701ad4c2-0738-5a40-8436-c19a64a38b19";
    for (from, to) in [
        ("gateway = \"gw1\"", "gateway = \"gw2\""),
        ("rbd/nvmeof-ha", "other/ha"),
        ("failback_s = 300\n", ""),
        (
            "cntlid_min = 1\ncntlid_max = 999",
            "cntlid_min = 1000\ncntlid_max = 1999",
        ),
        // The same as the defaults.
        (
            "rbd:rbd/a\"\n",
            &format!("rbd:rbd/a\"\nblock_size = 512\nuuid = \"{uuid}\"\n"),
        ),
        ("rbd:rbd/a\"\n", "rbd:rbd/a\"\nenabled = false\n"),
        ("rbd:rbd/c", "rbd:rbd/d"),
        ("[[port]]", ALONE.trim_end()),
    ] {
        let to = if from == "[[port]]" {
            format!("{to}\n[[port]]")
        } else {
            to.to_owned()
        };
        assert_eq!(edited(from, &to).ha_facts(), facts, "{to}");
    }
}

#[test]
fn facts_change_with_what_hosts_see() {
    let facts = parse(GOOD).unwrap().ha_facts();
    let image = "rbd:rbd/a\"\n";
    for (from, to, key) in [
        ("0123456789", "0123456780", "serial"),
        ("example:disk", "example:disc", "subsystem"),
        ("[\"gw1\", \"gw2\"]", "[\"gw2\", \"gw1\"]", "groups"),
        ("4000", "5000", "lease_ms"),
        ("rbd:rbd/a", "rbd:rbd/b", "namespaces"),
        (
            "0123456789\"\n",
            "0123456789\"\nmodel = \"x\"\n",
            "namespaces",
        ),
        ("nsid = 1", "nsid = 7", "namespaces"),
        ("ana_group = 2", "ana_group = 1", "namespaces"),
        (image, &format!("{image}block_size = 4096\n"), "namespaces"),
        (
            image,
            &format!("{image}uuid = \"{:032x}\"\n", 1),
            "namespaces",
        ),
        (
            image,
            &format!("{image}nguid = \"{:032x}\"\n", 0),
            "namespaces",
        ),
        (
            image,
            &format!("{image}eui64 = \"{:016x}\"\n", 1),
            "namespaces",
        ),
    ] {
        let other = edited(from, to).ha_facts();
        assert_ne!(other.get(key), facts.get(key), "{to}");
        let is_other = |key: &str| other.get(key) != facts.get(key);
        let is_in_digest = !["groups", "lease_ms"].contains(&key);
        assert_eq!(is_other("namespaces"), is_in_digest, "{to}");
    }
}

#[test]
fn facts_of_many_groups_and_subsystems_are_digests() {
    let names: Vec<_> = (0..16).map(|n| format!("\"gateway-{n:020}\"")).collect();
    let long = edited("\"gw1\", \"gw2\"", &names.join(", "));
    assert_eq!(long.ha_facts().get("groups").unwrap().len(), 64);
    let (_, second) = GOOD.split_once("[[subsystem]]").unwrap();
    let second = second.replace("example:disk", "example:tape");
    let second = second.replace("rbd:rbd/", "rbd:other/");
    let second = second.replace("cntlid_max = 999", "cntlid_max = 2000");
    let both = parse(&format!("{GOOD}[[subsystem]]{second}")).unwrap();
    let names: Vec<_> = both.ha_facts().into_keys().collect();
    assert_eq!(names, ["groups", "lease_ms", "namespaces"]);
    assert_eq!(both.ha_controller_ids(), Some((1, 2000)));
    assert_eq!(parse(GOOD).unwrap().ha_controller_ids(), Some((1, 999)));
    // The record has no quotes.
    let quoted = edited("\"0123456789\"", "'0\"1'").ha_facts();
    assert!(!quoted.contains_key("serial"));
}
