//! Limits that nvmet has for each object and this target for all: the configuration has the
//! largest, and objects with another limit are reported.

use super::*;

/// Numbers of two objects of the file; `None`: not configured.
type Numbers = [Option<i64>; 2];

/// The file of this folder with these numbers.
fn saved_with_numbers(queues: Numbers, entries: Numbers) -> Value {
    let mut saved: Value = serde_json::from_str(SAVED).unwrap();
    let mut put = |at: &str, key: &str, number: Option<i64>| {
        let object = saved.pointer_mut(at).unwrap().as_object_mut().unwrap();
        object.remove(key);
        if let Some(number) = number {
            object.insert(key.to_owned(), json!(number.to_string()));
        }
    };
    for (at, number) in queues.into_iter().enumerate() {
        put(&format!("/subsystems/{at}/attr"), "qid_max", number);
    }
    for (at, number) in entries.into_iter().enumerate() {
        put(&format!("/ports/{at}/param"), "max_queue_size", number);
    }
    saved
}

/// The value of `key` in the configuration, and the remarks about it.
fn limit(saved: &Value, key: &str, location: &str) -> (Option<i64>, Vec<String>) {
    let (text, report) = import(saved, &small_blocks);
    assert_eq!(report.losses(), 0, "{}", remarks(&report));
    Config::parse(Path::new("configuration"), text.clone()).unwrap();
    let limits = imported(&text).get("limits").cloned();
    let number = limits.and_then(|limits| limits.get(key)?.as_integer());
    let about = report
        .remarks
        .iter()
        .filter(|it| it.location.ends_with(location));
    let about = about.map(|it| format!("{}: {}", it.location, it.what));
    (number, about.collect())
}

/// One case: numbers of the file, the limit of the configuration, the own limits of the two
/// objects, the notes.
type Case<'a> = (Numbers, Option<i64>, Numbers, &'a [&'a str]);

/// Without a number, or with 128, nvmet accepts as many queues as hosts create, up to 128;
/// the default of this target is 16.
#[test]
fn imported_subsystem_keeps_its_queue_limit() {
    let none: Numbers = [None, None];
    let cases: [Case<'_>; 8] = [
        ([Some(32), Some(32)], Some(32), none, &[]),
        ([Some(32), Some(8)], Some(32), [None, Some(8)], &[]),
        (
            [None, None],
            None,
            none,
            &["[0] 128 to 16, in 1 more places too"],
        ),
        (
            [Some(128), None],
            None,
            none,
            &["[0] 128 to 16, in 1 more places too"],
        ),
        // The largest configured number, also beside a subsystem without one.
        ([Some(32), None], Some(32), none, &["[1] 128 to 32"]),
        ([Some(4), None], None, [Some(4), None], &["[1] 128 to 16"]),
        (
            [Some(5000); 2],
            Some(1024),
            none,
            &["[0] 5000 to 1024, in 1 more places too"],
        ),
        ([Some(0), Some(16)], None, [Some(1), None], &["[0] 0 to 1"]),
    ];
    for (numbers, wanted, of_each, notes) in cases {
        let saved = saved_with_numbers(numbers, [None, None]);
        let got = limit(&saved, "io_queues", "qid_max");
        let note = |note: &&str| {
            let (location, change) = note.split_once(' ').unwrap();
            let change = change.replace(" to ", " I/O queues of a controller become ");
            format!("subsystems{location}.attr.qid_max: {change}")
        };
        assert_eq!(
            got,
            (wanted, notes.iter().map(note).collect()),
            "{numbers:?}"
        );
        let (text, _) = import(&saved, &small_blocks);
        let subsystems = &imported(&text)["subsystem"];
        let its = [0, 1].map(|at| subsystems[at].get("io_queues")?.as_integer());
        assert_eq!(its, of_each, "{numbers:?}");
    }
}

/// The default of nvmet over RDMA is 128, which it shows as -1.
#[test]
fn imported_port_keeps_its_queue_depth() {
    let none: Numbers = [None, None];
    let cases: [Case<'_>; 7] = [
        ([Some(64), Some(64)], Some(64), none, &[]),
        ([None, Some(-1)], Some(128), none, &[]),
        ([Some(64), Some(-1)], Some(128), [Some(64), None], &[]),
        ([Some(256), None], Some(256), [None, Some(128)], &[]),
        ([Some(32), Some(64)], Some(64), [Some(32), None], &[]),
        (
            [Some(5000); 2],
            Some(1024),
            none,
            &["[0] 5000 to 1024, in 1 more places too"],
        ),
        (
            [Some(0), Some(1)],
            Some(2),
            none,
            &["[0] 0 to 2", "[1] 1 to 2"],
        ),
    ];
    for (numbers, wanted, of_each, notes) in cases {
        let saved = saved_with_numbers([Some(16); 2], numbers);
        let got = limit(&saved, "queue_depth", "max_queue_size");
        let note = |note: &&str| {
            let (location, change) = note.split_once(' ').unwrap();
            let change = change.replace(" to ", " entries of a queue become ");
            format!("ports{location}.param.max_queue_size: {change}")
        };
        assert_eq!(
            got,
            (wanted, notes.iter().map(note).collect()),
            "{numbers:?}"
        );
        let (text, _) = import(&saved, &small_blocks);
        let ports = &imported(&text)["port"];
        let its = [0, 1].map(|at| ports[at].get("queue_depth")?.as_integer());
        assert_eq!(its, of_each, "{numbers:?}");
    }
}

/// Objects that are left out do not count.
#[test]
fn limits_ignore_omitted_objects() {
    let mut saved = saved_with_numbers([Some(4), Some(64)], [Some(32), Some(512)]);
    saved["ports"][1]["addr"]["trtype"] = json!("tcp");
    saved["ports"][0]["subsystems"] = json!(["nqn.2026-11.org.example:mail"]);
    let (text, report) = import(&saved, &small_blocks);
    let limits = &imported(&text)["limits"];
    assert_eq!(limits["queue_depth"].as_integer(), Some(32));
    assert_eq!(
        imported(&text)["subsystem"][0]["io_queues"].as_integer(),
        Some(4)
    );
    assert!(
        !remarks(&report).contains(" become "),
        "{}",
        remarks(&report)
    );
}

/// The MDTS of a port is a power of two in pages of 4 KiB. Over RDMA nvmet uses 8, which is
/// 1 MiB, at most and by default, which is -1 or 0.
#[test]
fn imported_mdts_is_the_largest_of_all_ports() {
    let wider = "131072 bytes of data of a command become 1048576";
    let cases: [(Numbers, Option<i64>, &[&str]); 5] = [
        ([None, None], None, &[]),
        ([Some(-1), Some(0)], None, &[]),
        ([Some(8), Some(255)], None, &[]),
        ([Some(5), Some(5)], Some(128 << 10), &[]),
        ([Some(5), None], None, &[wider]),
    ];
    for (numbers, wanted, notes) in cases {
        let mut saved = saved_with_numbers([Some(16); 2], [Some(64); 2]);
        for (at, number) in numbers.into_iter().enumerate() {
            if let Some(number) = number {
                saved["ports"][at]["param"]["mdts"] = json!(number.to_string());
            }
        }
        let got = limit(&saved, "max_transfer", "mdts");
        let note = |note: &&str| format!("ports[0].param.mdts: {note}");
        let expected = (wanted, notes.iter().map(note).collect());
        assert_eq!(got, expected, "{numbers:?}");
    }
}
