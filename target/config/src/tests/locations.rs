//! Lines and keys of errors.

use super::{GOOD, parse};

#[test]
fn values_out_of_range_are_reported_with_line_and_key() {
    for (table, key, value) in [
        ("limits", "queue_depth", "1025"),
        ("limits", "io_queues", "0"),
        ("limits", "controllers", "5000"),
        ("limits", "unconnected", "0"),
        ("limits", "max_transfer", "\"3M\""),
        ("limits", "max_transfer", "\"1T\""),
        ("limits", "in_capsule", "\"1M\""),
        ("reactor", "cores", "[]"),
        ("reactor", "spin_us", "2000000"),
        ("reactor", "polling", "\"always\""),
        ("reactor", "drain_s", "1000"),
        ("reactor", "shared_receives", "63"),
        ("reactor", "shared_receives", "100000"),
        ("reactor", "buffer_memory", "\"1M\""),
        ("reactor", "buffer_memory", "-1"),
        ("reactor", "buffer_memory", "\"many\""),
    ] {
        let error = parse(&format!("{GOOD}[{table}]\n{key} = {value}\n")).unwrap_err();
        assert_eq!(error.line(), Some(14), "{error}");
        let path = format!("{table}.{key}");
        assert_eq!(error.key(), Some(path.as_str()), "{error}");
        assert!(error.to_string().contains(key), "{key} is not in {error}");
    }
}

#[test]
fn error_names_the_key_with_its_tables() {
    for (from, to, line, key) in [
        ("traddr = ", "traddr = 1 # ", 2, "port.traddr"),
        ("traddr = ", "colour = 1\ntraddr = ", 2, "port.colour"),
        ("nqn = ", "nqn = \"\" # ", 7, "subsystem.nqn"),
        ("nqn = ", "# ", 6, "subsystem.nqn"),
        ("allow_any_host = true", "", 6, "subsystem.allowed_hosts"),
        ("nsid = 1", "nsid = 0", 10, "subsystem.namespace.nsid"),
        (
            "nsid = 1",
            "nsid = 1\nana_group = 900",
            11,
            "subsystem.namespace.ana_group",
        ),
        (
            "nsid = 1",
            "nsid = 1\ncolour = 1",
            11,
            "subsystem.namespace.colour",
        ),
        ("", "[discovery]\nnqn = \"\"\n", 2, "discovery.nqn"),
        ("", "[limits]\ncolour = 1\n", 2, "limits.colour"),
    ] {
        let error = parse(&GOOD.replacen(from, to, 1)).unwrap_err();
        assert_eq!(
            (error.line(), error.key()),
            (Some(line), Some(key)),
            "{error}"
        );
    }
    let error = parse("").unwrap_err();
    assert_eq!((error.line(), error.key()), (None, Some("port")), "{error}");
}
