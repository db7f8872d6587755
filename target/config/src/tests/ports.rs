//! Providers and addresses of ports.

use super::*;

#[test]
fn providers_are_one_name_or_a_list() {
    use ProviderName::{Iwarp, Shm, Verbs};
    let these = |names: &[ProviderName]| Choice::These(names.to_vec());
    assert_eq!(choice("\"auto\""), Choice::Auto);
    assert_eq!(choice("\"verbs\""), these(&[Verbs]));
    assert_eq!(choice("[\"verbs\", \"iwarp\"]"), these(&[Verbs, Iwarp]));
    assert_eq!(choice("[ \"iwarp\" , \"verbs\" ]"), these(&[Iwarp, Verbs]));
    assert_eq!(choice("[\"iwarp\"]"), these(&[Iwarp]));
    assert_eq!(choice("\"shm\""), these(&[Shm]));
    assert_eq!(choice("[\"shm\", \"iwarp\"]"), these(&[Shm, Iwarp]));
    let none = parse(&GOOD.replace("provider = \"iwarp\"\n", "")).unwrap();
    assert_eq!(none.choices(), [Choice::Auto]);
}

#[test]
fn invalid_providers_are_reported_with_their_line() {
    let refused = |value: &str| refused("\"iwarp\"", value);
    let names = &["provider: ", "infiniband", "auto", "iwarp", "verbs"];
    assert_names(&refused("\"infiniband\""), 4, names);
    assert_names(&refused("[\n\"verbs\",\n\"infiniband\"]"), 6, names);
    assert_names(&refused("\"\""), 4, &["provider: ", "\"\""]);
    assert_names(&refused("[]"), 4, &["provider: ", "empty"]);
    assert_names(
        &refused("[\"iwarp\",\n\"iwarp\"]"),
        5,
        &["provider: ", "iwarp", "twice"],
    );
    assert_names(
        &refused("[\"verbs\", \"auto\"]"),
        4,
        &["provider: ", "auto", "alone"],
    );
    assert_names(&refused("3"), 4, &["provider: ", "3", "list"]);
    assert_names(
        &refused("[\"verbs\", 3]"),
        4,
        &["provider: ", "3", "string"],
    );
    assert_names(&refused("{ a = 1 }"), 4, &["provider: ", "map"]);
}

#[test]
fn shm_users_are_checked() {
    let refused = |line: &str| refused("[[port]]", &format!("[shm]\n{line}\n[[port]]"));
    let unknown = "users = [0, \"no-such-user\"]";
    assert_names(
        &refused(unknown),
        2,
        &["shm.users", "no-such-user", "getent"],
    );
    assert_names(&refused("users = [-1]"), 2, &["users: ", "0 to"]);
    assert_names(&refused("users = [4294967295]"), 2, &["users: ", "0 to"]);
    assert_names(&refused("users = \"root\""), 2, &["users: "]);
    assert_names(
        &refused("folder = \"here\""),
        2,
        &["shm.folder", "here", "/"],
    );
    assert_names(&refused("mode = 1"), 2, &["mode"]);
    // By default only this user and root may connect.
    let config = parse(GOOD).unwrap();
    assert!(config.shm().users.is_empty());
}

#[test]
fn providers_of_command_line_are_reported_with_their_option() {
    let listen = "127.0.0.1:4420".parse().unwrap();
    let of = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        Config::of_namespaces(&["ram:1M".to_owned()], listen, &names, None)
            .map(|config| config.choices().to_vec())
            .map_err(|error| error.to_string())
    };
    assert_eq!(of(&[]), Ok(vec![Choice::Auto]));
    assert_eq!(of(&["auto"]), Ok(vec![Choice::Auto]));
    let both = vec![ProviderName::Verbs, ProviderName::Iwarp];
    assert_eq!(of(&["verbs", "iwarp"]), Ok(vec![Choice::These(both)]));
    let error = of(&["roce"]).unwrap_err();
    assert!(error.starts_with("--provider: "), "{error}");
    assert!(error.contains("roce"), "{error}");
}

#[test]
fn a_port_may_be_a_unix_socket() {
    let port = "traddr = \"127.0.0.1\"\ntrsvcid = 4420\n";
    let unix = "traddr = \"unix:/run/nvmeof/nvmeof.sock\"\n";
    let config = parse(&GOOD.replace(port, unix)).unwrap();
    let address = "unix:/run/nvmeof/nvmeof.sock".parse().unwrap();
    assert_eq!(config.addresses(), [address]);
    assert_eq!(config.socket_mode(), 0o660);
    let auto = GOOD.replace(port, unix).replace("\"iwarp\"", "\"auto\"");
    let open = format!("{auto}[unix]\nmode = 0o666\n");
    assert_eq!(parse(&open).unwrap().socket_mode(), 0o666);

    let long = format!("traddr = \"unix:/{}\"\n", "x".repeat(107));
    for (to, words) in [
        ("traddr = \"unix:\"\n", &["traddr: ", "missing"][..]),
        ("traddr = \"unix:run/a\"\n", &["traddr: ", "absolute"]),
        ("traddr = \"unix:@a\"\n", &["traddr: ", "abstract"]),
        ("traddr = \"unix:/a\\u0000b\"\n", &["traddr: ", "NUL"]),
        ("traddr = \"unix:/run/\"\n", &["traddr: ", "ends with /"]),
        (&long, &["traddr: ", "at most 107 bytes", "108"]),
        ("traddr = \"unix:/\u{e4}\"\n", &["traddr", "ASCII"]),
    ] {
        assert_names(&refused(port, to), 2, words);
    }
    let error = refused("\"127.0.0.1\"", "\"unix:/run/a.sock\"");
    assert_names(&error, 3, &["trsvcid: ", "no port number"]);
    for provider in ["\"verbs\"", "\"shm\"", "[\"iwarp\", \"shm\"]"] {
        let to = format!("{unix}provider = {provider}\n");
        let error = refused(&format!("{port}provider = \"iwarp\"\n"), &to);
        assert_names(&error, 3, &["provider: ", "Unix", "\"iwarp\""]);
    }
    let error = parse(&format!("{GOOD}[unix]\nmode = 660\n")).unwrap_err();
    assert_names(&error.to_string(), 14, &["unix.mode = 660", "0o"]);
    let twice = format!("[[port]]\n{unix}{}", GOOD.replace(port, unix));
    let error = parse(&twice).unwrap_err().to_string();
    assert_names(&error, 4, &["traddr", "already"]);
}

#[test]
fn port_queue_depth_is_bounded_by_limits() {
    let port = "[[port]]\ntraddr = \"127.0.0.1\"\ntrsvcid = 4421\nqueue_depth = 32\n";
    let config = parse(&format!("{GOOD}{port}")).unwrap();
    let at = |port| SocketAddr::from(([127, 0, 0, 1], port)).into();
    let ports = [4420, 4421].map(|port| port_spec(at(port), Vec::new()));
    let model = model_of(&config, &ports);
    let depth = |port| model.queue_depth_at(Some(&nvmeof_target_address::port_address(at(port))));
    assert_eq!([4420, 4421].map(depth), [256, 32]);
    let error = parse(&format!("{GOOD}{}", port.replace("32", "257"))).unwrap_err();
    assert_names(
        &error.to_string(),
        16,
        &["queue_depth = 257", "2 to 256", "limits.queue_depth"],
    );
}
