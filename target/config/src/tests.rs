//! Errors in configurations and the messages about them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod ha;
mod hosts;
mod locations;
mod ports;

use std::net::SocketAddr;
use std::path::Path;

use nvmeof_backend_spec::Spec;
use nvmeof_target_core::PortLimit;

use super::*;

const GOOD: &str = r#"[[port]]
traddr = "127.0.0.1"
trsvcid = 4420
provider = "iwarp"

[[subsystem]]
nqn = "nqn.2026-11.org.example:disk"
allow_any_host = true
[[subsystem.namespace]]
nsid = 1
path = "ram:1M"
block_size = 512
"#;

pub(super) fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("target.toml"), text.to_owned())
}

/// The model of `config`, with the sizes of `ram:` and `null:` namespaces.
pub(super) fn model_of(config: &Config, ports: &[PortSpec]) -> Model {
    let mut stores = config.configured_stores().unwrap().into_iter();
    let fill_in = |spec: &mut NamespaceSpec| {
        if let Some(Spec::Ram { len, .. } | Spec::Null { len, .. }) =
            stores.next().map(|it| it.spec)
        {
            spec.blocks = len / u64::from(spec.block_size);
        }
    };
    let keys = config.authentication().unwrap();
    config.model_of(fill_in, ports, &[], keys).unwrap()
}

/// The message for `GOOD` with `from` replaced by `to`.
fn refused(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    let error = parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string();
    assert!(error.starts_with("target.toml:"), "{error}");
    error
}

/// The message names that line and all of `words`.
#[track_caller]
fn assert_names(error: &str, line: usize, words: &[&str]) {
    assert!(
        error.starts_with(&format!("target.toml:{line}: ")),
        "{error}"
    );
    for word in words {
        assert!(error.contains(word), "{word:?} is not in {error}");
    }
}

#[test]
fn keys_that_are_left_out_have_defaults() {
    let config = parse(GOOD).unwrap();
    assert_eq!(config.addresses(), ["127.0.0.1:4420".parse().unwrap()]);
    assert_eq!(config.limits(), Limits::default());
    let settings = config.reactor_settings();
    assert_eq!(settings.shared_receives, 4096);
    assert_eq!(settings.cores, Cores::Anywhere(1));
    assert!(!settings.hugepages);
    let few = GOOD.replace("[[port]]", "[limits]\ncontrollers = 8\n[[port]]");
    assert_eq!(parse(&few).unwrap().limits().host_controllers, 6);
    let without_port = parse(&GOOD.replace("trsvcid = 4420\n", "")).unwrap();
    assert_eq!(without_port.addresses(), config.addresses());
}

/// Limits of one host and one port follow from those of the target, unless they are set.
#[test]
fn host_and_port_limits_follow_target_limits() {
    let limits = |keys: &str| {
        let text = GOOD.replace("[[port]]", &format!("[limits]\n{keys}\n[[port]]"));
        parse(&text).map(|config| config.limits())
    };
    let few = limits("controllers = 8\nio_queues = 2\nqueue_depth = 32").unwrap();
    assert_eq!((few.host_controllers, few.port_controllers), (6, 7));
    assert_eq!((few.host_queues, few.host_commands), (12, 384));
    assert_eq!(
        (few.port_commands.alone, few.port_commands.beside_others),
        (512, 384)
    );
    let many = limits("controllers = 4096\nio_queues = 1024\nqueue_depth = 1024").unwrap();
    assert_eq!(many.host_commands, Limits::MAX_COMMANDS);
    let message = limits("controllers = 8\nhost_queues = 100\nport_commands = 256").unwrap();
    assert_eq!(
        (message.host_queues, message.port_commands),
        (100, PortLimit::always(256))
    );
    for key in ["host_controllers", "port_controllers"] {
        let error = limits(&format!("controllers = 8\n{key} = 9")).unwrap_err();
        let message = format!("limits.{key}: 9");
        assert_names(&error.to_string(), 3, &[&message, "limits.controllers = 8"]);
        assert!(limits(&format!("controllers = 8\n{key} = 8")).is_ok());
    }
}

#[test]
fn every_key_can_be_set() {
    let text = r#"
[limits]
queue_depth = 256
io_queues = 2
controllers = 8
discovery_controllers = 9
max_transfer = "1M"
in_capsule = 8192
max_descriptors = 1
connect_timeout_s = 3
unconnected = 16
host_controllers = 5
port_controllers = 7
host_queues = 6
host_commands = 777
host_memory = 50
port_connections = 88
port_commands = 999
port_memory = 60
traffic_keep_alive = false
quiesce_time_s = 7
registrants = 5
zero_key_unregisters = false
unique_host_ids = true
[reactor]
cores = [0, 1]
polling = "latency"
spin_us = 7
drain_s = 1
buffer_memory = "32M"
hugepages = true
shared_receives = 512
[storage]
sqpoll = true
sqpoll_idle_ms = 7
sqpoll_cores = [3, "1-2"]
[iwarp]
zero_copy_sends = true
[shm]
folder = "/run/elsewhere"
users = ["root", 54321]
[[port]]
traddr = "::1"
id = 7
[[port.ana_group]]
id = 2
state = "change"
[[subsystem]]
nqn = "nqn.2026-11.org.example:disk"
serial = "123"
model = "a disk"
cntlid_min = 100
cntlid_max = 199
io_queues = 2
firmware_revision = "7"
ieee_oui = "00-a0-b8"
allowed_hosts = ["nqn.2026-11.org.example:host"]
[[subsystem.namespace]]
nsid = 1
path = "null:1G"
block_size = 4096
uuid = "2d8d9a4c-3f1b-4c7e-9a51-0123456789ab"
nguid = "0123456789abcdef0123456789abcdef"
eui64 = "0123456789abcdef"
readonly = true
iopoll = false
enabled = true
ana_group = 2
hosts = ["nqn.2026-11.org.example:host"]
[[subsystem.namespace]]
nsid = 2
path = "/no/such/file"
enabled = false
"#;
    let config = parse(text).unwrap();
    let limits = config.limits();
    assert_eq!((limits.max_transfer, limits.in_capsule), (1 << 20, 8192));
    assert_eq!(limits.max_descriptors, 1);
    assert_eq!(
        (limits.queue_depth, limits.traffic_keep_alive),
        (256, false)
    );
    assert_eq!(limits.quiesce_time_s, 7);
    assert_eq!(limits.registrants, 5);
    assert!(!limits.zero_key_unregisters && limits.unique_host_ids);
    assert_eq!(limits.unconnected, 16);
    assert_eq!((limits.host_controllers, limits.host_queues), (5, 6));
    assert_eq!(limits.port_controllers, 7);
    assert_eq!(limits.discovery_controllers, 9);
    assert_eq!((limits.host_commands, limits.host_memory), (777, 50));
    assert_eq!(limits.port_connections, PortLimit::always(88));
    assert_eq!(limits.port_commands, PortLimit::always(999));
    assert_eq!(limits.port_memory, 60);
    let settings = config.reactor_settings();
    assert_eq!(settings.cores, Cores::On(vec![0, 1]));
    assert_eq!(settings.sqpoll, threads(7, &[3, 1, 2]));
    assert_eq!(
        (settings.buffer_memory, settings.hugepages),
        (32 << 20, true)
    );
    assert_eq!(settings.shared_receives, 512);
    assert!(config.zero_copy_sends());
    let shm = config.shm();
    assert_eq!(shm.folder.as_deref(), Some(Path::new("/run/elsewhere")));
    assert_eq!(shm.users, [0, 54_321]);
    let polling = PollingConfig {
        longest: Duration::from_micros(7),
        learns: false,
    };
    assert_eq!(settings.polling, polling);
    let model = model_of(&config, &[]);
    let subsystem = model.subsystems().first().unwrap();
    let ids = subsystem.controller_ids;
    assert_eq!((ids.min(), ids.max()), (100, 199));
    let namespace = subsystem.namespace(1).unwrap();
    assert_eq!((namespace.blocks, namespace.readonly), (1 << 18, true));
    let disabled: Vec<_> = subsystem.disabled().iter().map(|it| it.nsid).collect();
    assert_eq!(disabled, [2]);
    assert_eq!(
        namespace.eui64,
        Some([1, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef])
    );
}

#[test]
fn unknown_keys_and_wrong_types_are_reported_with_their_line() {
    assert_names(&refused("trsvcid", "port"), 3, &["port", "trsvcid"]);
    assert_names(&refused("block_size", "blocksize"), 12, &["blocksize"]);
    assert_names(&refused("[[port]]", "[[ports]]"), 1, &["ports"]);
    assert_names(&refused("4420", "\"4420\""), 3, &["trsvcid: ", "0-65535"]);
    assert_names(&refused("4420", "70000"), 3, &["trsvcid: ", "70000"]);
    assert_names(
        &refused("nsid = 1", "nsid = \"one\""),
        10,
        &["nsid: ", "one"],
    );
    assert_names(
        &refused("\"127.0.0.1\"", "\"localhost\""),
        2,
        &["traddr: ", "IP"],
    );
    assert_names(&refused("nsid = 1", "nsid = "), 10, &[]);
    assert_names(&refused("nsid = 1\n", ""), 9, &["nsid"]);
}

#[test]
fn invalid_values_of_several_tables_are_all_reported() {
    let text = format!(
        "{GOOD}ana_group = 900\n[reactor]\nspin_us = 2000000\n\
         drain_s = 700\n[control]\nsocket = \"relative\"\n"
    );
    let error = parse(&text).unwrap_err();
    let all = std::iter::once(&error).chain(error.others());
    let keys: Vec<_> = all.map(|one| one.key().unwrap()).collect();
    let expected = [
        "subsystem.namespace.ana_group",
        "reactor.spin_us",
        "reactor.drain_s",
        "control.socket",
    ];
    assert_eq!(keys, expected, "{error}");
    assert_eq!(error.to_string().lines().count(), expected.len());
}

#[test]
fn size_of_more_than_32_bits_is_reported_with_its_value() {
    for table in ["[limits]\n", "[[port]]\ntraddr = \"127.0.0.2\"\n"] {
        let text = format!("{table}in_capsule = 99999999999\n{GOOD}");
        let error = parse(&text).unwrap_err().to_string();
        let expected = "in_capsule: 99999999999 bytes: must be less than 4G";
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn invalid_values_are_reported_with_their_line() {
    assert_names(
        &refused("nqn.2026-11.org.example:disk", ""),
        7,
        &["nqn", "empty"],
    );
    assert_names(
        &refused("= 512", "= 520"),
        12,
        &["block_size", "520", "4096"],
    );
    assert_names(&refused("nsid = 1", "nsid = 0"), 10, &["nsid"]);
    assert_names(
        &refused("= true", "= false"),
        6,
        &["allowed_hosts", "allow_any_host"],
    );
    let ids = |min, max| {
        let keys = format!("= true\ncntlid_min = {min}\ncntlid_max = {max}");
        refused("= true", &keys)
    };
    let words = ["cntlid_min = 0", "1 to 65519"];
    assert_names(&ids(0, 9), 9, &words);
    assert_names(&ids(1, 65_520), 10, &["cntlid_max = 65520", "1 to 65519"]);
    assert_names(
        &ids(20, 10),
        9,
        &["cntlid_min = 20", "cntlid_max, which is 10"],
    );
    let message = |key: &str| refused("= true", &format!("= true\n{key}"));
    assert_names(
        &message("io_queues = 17"),
        9,
        &["io_queues = 17", "1 to 16"],
    );
    assert_names(
        &message("ieee_oui = \"x\""),
        9,
        &["ieee_oui = x", "00-a0-b8"],
    );
    let revision = message("firmware_revision = \"123456789\"");
    assert_names(&revision, 9, &["firmware_revision = ", "1 to 8"]);
    let uuid = "block_size = 512\nuuid = \"00000000-0000-0000-0000-000000000000\"";
    assert_names(
        &refused("block_size = 512", uuid),
        13,
        &["uuid", "all zero"],
    );
    let host = "allow_any_host = false\nallowed_hosts = [\n\"\"]";
    assert_names(
        &refused("allow_any_host = true", host),
        10,
        &["allowed_hosts", "the NQN is empty"],
    );
}

/// The providers of the port of `GOOD` with `value` as `provider`.
fn choice(value: &str) -> Choice {
    let config = parse(&GOOD.replacen("\"iwarp\"", value, 1)).unwrap();
    let [choice] = config.choices() else {
        panic!("{:?}", config.choices());
    };
    choice.clone()
}

#[test]
fn discovery_has_unique_nqn_and_referrals() {
    let more = r#"
[discovery]
nqn = "nqn.2026-11.org.example:finder"
[[referral]]
traddr = "192.0.2.7"
[[referral]]
traddr = "2001:db8::7"
trsvcid = 8009
port_id = 3
nqn = "nqn.2026-11.org.example:elsewhere"
"#;
    let text = format!("{GOOD}{more}");
    let config = parse(&text).unwrap();
    let model = model_of(&config, &[]);
    let discovery = model.discovery();
    let name = discovery.nqn().map(Nqn::as_str);
    assert_eq!(name, Some("nqn.2026-11.org.example:finder"));
    let referrals: Vec<_> = discovery
        .referrals()
        .iter()
        .map(|one| {
            (
                one.traddr.to_string(),
                one.trsvcid,
                one.port_id,
                one.nqn.as_str(),
            )
        })
        .collect();
    let well_known = nvmeof_wire::nqn::DISCOVERY;
    assert_eq!(
        referrals,
        [
            ("192.0.2.7".into(), 4420, 0, well_known),
            (
                "2001:db8::7".into(),
                8009,
                3,
                "nqn.2026-11.org.example:elsewhere"
            ),
        ]
    );
    for (from, to, line, words) in [
        (":finder", ":disk", 15, ["nqn", "a subsystem has this name"]),
        (
            "192.0.2.7",
            "0.0.0.0",
            17,
            ["traddr", "hosts cannot connect"],
        ),
        ("192.0.2.7", "somewhere", 17, ["traddr", "IP address"]),
        ("8009", "0", 20, ["trsvcid", "1 to 65535"]),
        (
            "example:elsewhere",
            "example\\u0007elsewhere",
            22,
            ["nqn", "control character"],
        ),
        ("port_id", "portid", 21, ["portid: unknown key", "port_id?"]),
    ] {
        let error = parse(&text.replacen(from, to, 1)).unwrap_err();
        assert_names(&error.to_string(), line, &words);
    }
}

#[test]
fn duplicates_are_reported_at_the_second_one() {
    let namespace = "[[subsystem.namespace]]\nnsid = 1\npath = \"ram:1M\"\n";
    let error = parse(&format!("{GOOD}{namespace}")).unwrap_err();
    assert_names(&error.to_string(), 14, &["nsid", "same value"]);
    let (_, subsystem) = GOOD.split_at(GOOD.find("[[subsystem]]").unwrap());
    let error = parse(&format!("{GOOD}{subsystem}")).unwrap_err();
    assert_names(&error.to_string(), 14, &["nqn", "already"]);
    let port = "[[port]]\ntraddr = \"127.0.0.1\"\n";
    let error = parse(&format!("{GOOD}{port}")).unwrap_err();
    assert_names(&error.to_string(), 14, &["traddr", "already"]);
}

#[test]
fn port_in_capsule_is_bounded_by_limits() {
    let port = "[[port]]\ntraddr = \"127.0.0.1\"\ntrsvcid = 4421\nin_capsule = \"1K\"\n";
    let config = parse(&format!("{GOOD}{port}")).unwrap();
    let at = |port| SocketAddr::from(([127, 0, 0, 1], port)).into();
    let ports = [4420, 4421].map(|port| port_spec(at(port), Vec::new()));
    let model = model_of(&config, &ports);
    let sizes = [4420, 4421]
        .map(|port| model.in_capsule_at(&nvmeof_target_address::port_address(at(port))));
    assert_eq!(sizes, [4096, 1024]);
    let error = parse(&format!("{GOOD}{}", port.replace("1K", "8K"))).unwrap_err();
    assert_names(
        &error.to_string(),
        16,
        &["in_capsule", "exceeds", "limits.in_capsule"],
    );
}

/// Linux hosts 5.4 to 5.12 corrupt long in-capsule data otherwise.
#[test]
fn long_in_capsule_data_with_several_descriptors_are_refused() {
    let long = format!("{GOOD}[limits]\nin_capsule = 8192\n");
    let error = parse(&long).unwrap_err().to_string();
    assert_names(
        &error,
        14,
        &["in_capsule", "max_descriptors = 1", "Linux 5.4", "corrupt"],
    );
    assert_eq!(
        parse(&format!("{long}max_descriptors = 1\n"))
            .unwrap()
            .limits()
            .in_capsule,
        8192
    );
}

#[test]
fn port_is_required_and_subsystem_is_not() {
    assert!(parse("").unwrap_err().to_string().contains("[[port]]"));
    let config = parse("[[port]]\ntraddr = \"127.0.0.1\"\n").unwrap();
    assert_eq!(config.subsystems().count(), 0);
}

#[test]
fn unreadable_file_is_reported_with_its_path() {
    let error = Config::read(Path::new("/nonexistent/target.toml")).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("/nonexistent/target.toml: cannot be read")
    );
}

#[test]
fn namespaces_of_command_line_have_one_subsystem_with_stable_nqn() {
    let listen = "127.0.0.1:4420".parse().unwrap();
    let paths = ["ram:1M".to_owned(), "null:1G".to_owned()];
    let name = || {
        let config = Config::of_namespaces(&paths, listen, &[], None).unwrap();
        assert!(config.is_from_command_line());
        let model = model_of(&config, &[]);
        let subsystem = model.subsystems().first().unwrap();
        assert_eq!(subsystem.namespaces().len(), 2);
        subsystem.nqn
    };
    assert_eq!(name(), name());
    let error = Config::of_namespaces(&paths, listen, &[], Some("x".repeat(224))).unwrap_err();
    assert!(error.to_string().contains("nqn = x"), "{error}");
    let none = Config::of_namespaces(&["/nonexistent".into()], listen, &[], None).unwrap();
    let error = none.path_error(0, "is not there").to_string();
    assert_eq!(error, "--namespace: is not there");
    let error = none.port_error(0, "in use").to_string();
    assert_eq!(error, "--listen: in use");
}

#[test]
fn reactors_have_a_count_or_cores() {
    let with = |text: &str| format!("[reactor]\n{text}\n{GOOD}");
    let cores = |text: &str| parse(&with(text)).unwrap().reactor_settings().cores;
    assert_eq!(cores("count = 3"), Cores::Anywhere(3));
    assert_eq!(cores("cores = \"auto\""), Cores::Auto(None));
    assert_eq!(cores("count = 2\ncores = \"auto\""), Cores::Auto(Some(2)));
    assert_eq!(cores("cores = \"0-1,0\""), Cores::On(vec![0, 1, 0]));
    let error = parse(&with("drain_s = 1\ncores = \"0-\"")).unwrap_err();
    assert_names(&error.to_string(), 3, &["cores", "\"0-\"", "0-3"]);
    let error = parse(&with("cores = [0]\ncount = 2")).unwrap_err();
    assert_names(&error.to_string(), 3, &["reactor.count", "omit one"]);
}

#[test]
fn sqpoll_settings_require_sqpoll() {
    let with = |text: &str| parse(&format!("[storage]\n{text}\n{GOOD}"));
    let sqpoll = |text: &str| with(text).unwrap().reactor_settings().sqpoll;
    assert_eq!(sqpoll(""), None);
    assert_eq!(sqpoll("sqpoll = false"), None);
    assert_eq!(sqpoll("sqpoll = true"), threads(2, &[]));
    let on = |value: &str| sqpoll(&format!("sqpoll = true\nsqpoll_cores = {value}"));
    assert_eq!(on("5"), threads(2, &[5]));
    assert_eq!(on("\"2-3,0\""), threads(2, &[2, 3, 0]));
    let error = with("sqpoll_idle_ms = 5").unwrap_err();
    assert_names(
        &error.to_string(),
        2,
        &["storage.sqpoll_idle_ms", "sqpoll = true"],
    );
    for ms in [0, 10_001] {
        let error = with(&format!("sqpoll = true\nsqpoll_idle_ms = {ms}")).unwrap_err();
        assert_names(
            &error.to_string(),
            3,
            &["storage.sqpoll_idle_ms", "1 to 10000"],
        );
    }
}

/// Kernel threads that take I/O operations.
fn threads(idle_ms: u64, cores: &[usize]) -> Option<Sqpoll> {
    let (idle, cores) = (Duration::from_millis(idle_ms), cores.to_vec());
    Some(Sqpoll { idle, cores })
}

#[test]
fn wrong_sqpoll_cpus_are_reported_with_their_line() {
    for (text, line, words) in [
        ("\nsqpoll_cores = [0]", 3, "sqpoll = true"),
        (
            "sqpoll = true\nsqpoll_cores = \"auto\"",
            3,
            "is for reactor.cores",
        ),
        ("sqpoll = true\nsqpoll_cores = []", 3, "name 1 to 256"),
        ("sqpoll = true\nsqpoll_cores = \"x\"", 3, "must be a CPU"),
    ] {
        let error = parse(&format!("[storage]\n{text}\n{GOOD}"))
            .unwrap_err()
            .to_string();
        assert_names(&error, line, &["sqpoll_cores", words]);
    }
}

#[test]
fn defaults_of_the_reference_are_the_defaults() {
    let reference = include_str!("../../../docs/configuration-reference.md");
    let (_, block) = reference.split_once("```toml\n").unwrap();
    let block = block.split("```").next().unwrap();
    let documented = parse(block).unwrap();
    let minimal = parse("[[port]]\ntraddr = \"127.0.0.1\"\n").unwrap();
    // The text has every key of those tables that has a default, so both configurations differ
    // as soon as one default in the reference is wrong.
    assert_eq!(documented.limits(), minimal.limits());
    assert_eq!(documented.reactor_settings(), minimal.reactor_settings());
    assert_eq!(documented.socket_mode(), minimal.socket_mode());
    assert_eq!(documented.shm(), minimal.shm());
    assert_eq!(documented.zero_copy_sends(), minimal.zero_copy_sends());
    assert!(block.contains("queue_depth = 256"), "{block}");
}
