//! The display on a terminal of 80 columns and 24 lines.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::collections::BTreeMap;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::screen::{Display, draw, meaning};
use super::view::{Key, SortKey};
use super::*;
use nvmeof_target_api::Latency;
use nvmeof_target_api::{Counts, Failed, HostState, NamespaceState, QueueState, ReactorState};

const SUBNQN: &str = "nqn.2026-11.org.example:disk";
const HOST: &str = "nqn.2026-11.org.example:a-host-with-a-rather-long-name";

fn named<T: Clone>(all: &[(&str, T)]) -> BTreeMap<String, T> {
    let all = all
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()));
    all.collect()
}

/// `n` reads of 4 KiB that took 100 microseconds each.
fn reads(n: u64) -> Counts {
    let times = Latency {
        sum_ns: n * 100_000,
        buckets: vec![(Some(112), n)],
    };
    Counts {
        operations: named(&[("read", n), ("admin", 7)]),
        bytes_read: n * 4096,
        latency: named(&[("read", times)]),
        ..Counts::default()
    }
}

fn namespace(nsid: u32, n: u64) -> NamespaceState {
    NamespaceState {
        subsystem: SUBNQN.to_owned(),
        nsid,
        bytes: 1 << 30,
        state: "ready".to_owned(),
        commands: 3,
        counts: reads(n),
        ..NamespaceState::default()
    }
}

/// A target with two namespaces and a host, `at` seconds after its start.
fn target(at: f64, n: u64) -> Snapshot {
    let host = HostState {
        host: HOST.to_owned(),
        subsystem: SUBNQN.to_owned(),
        connected: true,
        queues: 2,
        commands: 6,
        counts: reads(2 * n),
        ..HostState::default()
    };
    let reactor = |number, working| ReactorState {
        reactor: number,
        answered: true,
        seconds: named(&[("working", at * working), ("polling", at * 0.25)]),
        queues: named(&[("iwarp", 1)]),
        commands: 3,
        counts: reads(n),
        ..ReactorState::default()
    };
    Snapshot {
        version: "0.1.0".to_owned(),
        started: 1_700_000_000.0,
        uptime: at,
        controllers: 1,
        reactors: vec![reactor(0, 0.5), reactor(1, 0.125)],
        namespaces: vec![namespace(1, n / 2), namespace(2, n + n / 2)],
        hosts: vec![host],
        queues: vec![QueueState::default(); 2],
        ..Snapshot::default()
    }
}

fn screen(shows: &Display) -> Vec<String> {
    screen_of(shows, 80, 24)
}

fn screen_of(shows: &Display, columns: u16, lines: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
    terminal.draw(|frame| draw(frame, shows)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let rows = (0..lines).map(|y| {
        let row = (0..columns).map(|x| buffer[(x, y)].symbol());
        row.collect::<String>().trim_end().to_owned()
    });
    rows.collect()
}

#[test]
fn display_fits_any_terminal_size() {
    let (shows, _) = shows();
    for (columns, lines) in [(40, 10), (80, 24), (200, 60), (12, 3), (1, 1)] {
        let seen = screen_of(&shows, columns, lines);
        assert!("nvmeof-target 0.1.0".starts_with(&seen[0]) || columns > 19);
        assert_eq!(seen.len(), usize::from(lines));
    }
    let small = screen_of(&shows, 40, 10);
    assert!(
        small[0].starts_with("nvmeof-target 0.1.0  up "),
        "{small:?}"
    );
    assert!(
        small.iter().any(|line| line.starts_with("IOPS ")),
        "{small:?}"
    );
    assert!(
        small.iter().any(|line| line.contains("NAMESPACE")),
        "{small:?}"
    );
}

#[test]
fn faulted_namespace_is_highlighted() {
    let (mut shows, mut before) = shows();
    let mut gone = target(14.0, 25_000);
    gone.namespaces[0].state = "faulted".to_owned();
    shows.update(Ok(gone.clone()), &mut before);
    let seen = screen(&shows).join("\n");
    assert!(seen.contains("1 (faulted)"), "{seen}");
    assert!(seen.contains("namespace 1 is faulted"), "{seen}");
    let rows = lines::table("NAMESPACE", &shows.view.sorted(&shows.rates.namespaces), 30);
    let alarms = rows.iter().filter(|line| line.kind == lines::Kind::Alarm);
    assert_eq!(alarms.count(), 1, "{rows:?}");
    shows.update(Ok(target(16.0, 25_000)), &mut before);
    let seen = screen(&shows).join("\n");
    assert!(seen.contains("namespace 1 is ready"), "{seen}");
}

/// The display after two snapshots, two seconds apart.
fn shows() -> (Display, Snapshot) {
    let mut shows = Display::default();
    let mut before = target(10.0, 1000);
    shows.update(Ok(target(12.0, 25_000)), &mut before);
    (shows, before)
}

#[test]
fn display_fits_eighty_columns() {
    let (shows, _) = shows();
    let expected = "\
nvmeof-target 0.1.0  up 00:00:12  controllers 1  queues 2
IOPS 24.0k  read 98.3M/s  write 0/s  errors 0/s
p50 104µs  p99 112µs  in flight 6

  REACTOR  working  polling   queues commands     IOPS  waiting
        0     50 %     25 %        1        3    12.0k        0
        1     12 %     25 %        1        3    12.0k        0

NAMESPACE                         IOPS  read/s write/s    p50    p99 cmds err/s
nqn.2026-11.org.example:disk 2   18.0k   73.7M       0  104µs  112µs    3     0
nqn.2026-11.org.example:disk 1    6.0k   24.6M       0  104µs  112µs    3     0";
    let seen = screen(&shows);
    assert_eq!(seen[..11].join("\n"), expected);
    let at = seen
        .iter()
        .position(|line| line.starts_with("HOST"))
        .unwrap();
    assert!(
        seen[at + 1].contains("a-rather-long-name   24.0k   98.3M"),
        "{seen:#?}"
    );
    assert!(seen[at + 1].starts_with('…'), "{seen:#?}");
    assert!(
        seen[23].starts_with("q quit  s sort (IOPS, highest first)"),
        "{}",
        seen[23]
    );
    assert!(seen.iter().all(|line| line.chars().count() <= 80));
}

#[test]
fn wide_terminal_shows_whole_names() {
    let (shows, _) = shows();
    let seen = screen_of(&shows, 200, 24);
    let row = |start: &str| seen.iter().find(|line| line.starts_with(start)).unwrap();
    assert!(row(HOST).ends_with("  24.0k   98.3M       0  104µs  112µs    6     0"));
    // Numbers stand below each other in both tables, and no further right than names need.
    let column = HOST.chars().count() + 3;
    for title in ["NAMESPACE", "HOST "] {
        assert_eq!(row(title).find(" IOPS"), Some(column), "{seen:#?}");
    }
    // With some more room, as much of the name as fits.
    let seen = screen_of(&shows, 90, 24);
    let row = seen.iter().find(|line| line.starts_with('…')).unwrap();
    assert!(row.chars().count() <= 90, "{row}");
    assert!(
        row.contains("example:a-host-with-a-rather-long-name"),
        "{row}"
    );
}

#[test]
fn once_shortens_names_for_a_terminal_only() {
    let text = |columns| {
        let mut snapshots = vec![target(12.0, 25_000), target(10.0, 1000)];
        let mut poll = || Ok(snapshots.pop().unwrap());
        once(&mut poll, Duration::ZERO, Format::Normal, columns).unwrap()
    };
    assert!(text(None).contains(HOST));
    let narrow = text(Some(80));
    assert!(
        narrow.lines().all(|line| line.chars().count() <= 80),
        "{narrow}"
    );
}

#[test]
fn keys_sort_reverse_pause_and_quit() {
    let (mut shows, _) = shows();
    assert!(!shows.view.press(Key::Reverse));
    let seen = screen(&shows);
    let first = seen
        .iter()
        .position(|line| line.starts_with("NAMESPACE"))
        .unwrap()
        + 1;
    assert!(seen[first].contains("disk 1 "), "{seen:#?}");
    assert!(seen[23].contains("lowest first"));
    let mut sorts = Vec::new();
    for _ in 0..6 {
        shows.view.press(Key::Sort);
        sorts.push(shows.view.sort);
    }
    let expected = [
        SortKey::Read,
        SortKey::Written,
        SortKey::P99,
        SortKey::Errors,
        SortKey::Name,
        SortKey::Iops,
    ];
    assert_eq!(sorts, expected);
    shows.view.press(Key::Pause);
    assert!(screen(&shows)[0].ends_with("PAUSED"));
    assert!(shows.view.press(Key::Quit));
}

#[test]
fn keys_match_the_help_line() {
    let plain = |code| meaning(KeyEvent::new(code, KeyModifiers::NONE));
    for (code, key) in [
        (KeyCode::Char('q'), Some(Key::Quit)),
        (KeyCode::Esc, Some(Key::Quit)),
        (KeyCode::Char('s'), Some(Key::Sort)),
        (KeyCode::Char('r'), Some(Key::Reverse)),
        (KeyCode::Char('p'), Some(Key::Pause)),
        (KeyCode::Char(' '), Some(Key::Pause)),
        (KeyCode::Up, Some(Key::Up)),
        (KeyCode::Down, Some(Key::Down)),
        (KeyCode::Char('c'), None),
        (KeyCode::Enter, None),
    ] {
        assert_eq!(plain(code), key, "{code:?}");
    }
    let end = meaning(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    assert_eq!(end, Some(Key::Quit));
}

#[test]
fn events_are_listed_newest_first() {
    let (mut shows, mut before) = shows();
    let mut next = target(13.0, 25_000);
    next.hosts[0].connected = false;
    next.namespaces.remove(0);
    next.reactors[1].answered = false;
    next.reactors[0].rdma_errors = named(&[("network", 2)]);
    next.limits = named(&[("limits.controllers", 1)]);
    next.authentications = named(&[("success", 4), ("wrong_key", 2)]);
    shows.update(Ok(next), &mut before);
    let events: Vec<_> = shows
        .events
        .lines()
        .map(|line| line.split_once(' ').unwrap().1)
        .collect();
    let expected = [
        "limits.controllers was reached 1 times".to_owned(),
        "2 authentications failed: wrong_key".to_owned(),
        "reactor 1 does not respond".to_owned(),
        "2 connections lost: network".to_owned(),
        format!("{SUBNQN} namespace 1 is no longer served"),
        format!("{HOST} disconnected from {SUBNQN}"),
    ];
    assert_eq!(events, expected);
    let seen = screen(&shows);
    assert!(
        seen[19].starts_with("22:13:33 limits.controllers was reached"),
        "{seen:#?}"
    );
    assert!(
        seen.iter().any(|line| line.ends_with("no response")),
        "{seen:#?}"
    );
}

#[test]
fn failed_request_keeps_the_last_display() {
    let (mut shows, mut before) = shows();
    shows.update(Err("nothing listens there".to_owned()), &mut before);
    let seen = screen(&shows);
    assert_eq!(seen[3], "nothing listens there");
    assert!(seen.iter().any(|line| line.contains("18.0k")), "{seen:#?}");
    // The target is back after a restart.
    let mut again = target(13.0, 130);
    again.started += 0.3;
    shows.update(Ok(again), &mut before);
    let seen = screen(&shows);
    assert_eq!(seen[3], "");
    assert!(seen[1].starts_with("IOPS 20 "), "{seen:#?}");
    assert!(
        shows
            .events
            .lines()
            .next()
            .unwrap()
            .ends_with("was restarted")
    );
}

#[test]
fn long_tables_scroll() {
    let mut many = target(12.0, 25_000);
    many.namespaces = (1..=40).map(|nsid| namespace(nsid, 0)).collect();
    many.hosts = Vec::new();
    let mut shows = Display::default();
    let mut before = target(10.0, 0);
    shows.update(Ok(many), &mut before);
    shows.view.sort = SortKey::Name;
    for _ in 0..100 {
        shows.view.press(Key::Down);
    }
    let seen = screen(&shows);
    assert!(
        seen.iter().any(|line| line.contains("disk 9 ")),
        "the last by name: {seen:#?}"
    );
    assert!(seen.iter().any(|line| line.starts_with("HOST")));
}

#[test]
fn control_characters_of_host_names_are_escaped() {
    let mut evil = target(12.0, 25_000);
    evil.hosts[0].host = "nqn.\u{1b}[2J\u{9b}x".to_owned();
    let mut shows = Display::default();
    let mut before = target(10.0, 0);
    shows.update(Ok(evil), &mut before);
    for line in screen(&shows) {
        assert!(!line.contains(char::is_control), "{line:?}");
    }
    let lines = lines::all(&shows.rates, &shows.view, None);
    assert!(
        lines
            .iter()
            .all(|line| !line.text.contains(char::is_control))
    );
}

#[test]
fn once_prints_one_frame() {
    let mut snapshots = vec![target(12.0, 25_000), target(10.0, 1000)];
    let mut poll = || Ok(snapshots.pop().unwrap());
    let text = once(&mut poll, Duration::ZERO, Format::Normal, Some(80)).unwrap();
    assert!(
        text.starts_with("nvmeof-target 0.1.0  up 00:00:12"),
        "{text}"
    );
    assert!(
        text.contains("nqn.2026-11.org.example:disk 2   18.0k"),
        "{text}"
    );
    let mut snapshots = vec![target(12.0, 25_000), target(10.0, 1000)];
    let mut poll = || Ok(snapshots.pop().unwrap());
    let json = once(&mut poll, Duration::ZERO, Format::Json, None).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["total"]["iops"], 24_000.0);
    assert_eq!(json["reactors"][1]["working"], 0.125);
    assert_eq!(json["namespaces"][0]["p99"], 0.000_111_84);
}

#[test]
fn numbers_are_short() {
    let all = [
        0.0,
        9.4,
        999.4,
        999.6,
        99_940.0,
        99_960.0,
        1e6,
        12_345_678.0,
        1e18,
    ];
    let short = all.map(lines::short);
    assert_eq!(
        short,
        [
            "0", "9", "999", "1.0k", "99.9k", "100k", "1.0M", "12.3M", "1000P"
        ]
    );
    assert_eq!(lines::shortened("abcdef", 4), "…def");
    assert_eq!(lines::shortened("abcd", 4), "abcd");
}

/// The end of a message is the remedy, which must not be cut off.
#[test]
fn long_errors_are_wrapped() {
    let rates = Rates::between(&target(10.0, 1000), &target(12.0, 2000));
    let mut view = View::default();
    let long = "/a/folder/with/a/long/name".repeat(3);
    view.trouble = Some(format!(
        "{long}: there is no such socket; name one with --socket"
    ));
    let shown = lines::all(&rates, &view, None);
    let alarms = shown.iter().filter(|line| line.kind == lines::Kind::Alarm);
    let alarms: Vec<_> = alarms.map(|line| line.text.trim()).collect();
    let rest = "there is no such socket; name one with --socket";
    assert_eq!(alarms, [format!("{long}:").as_str(), rest]);
}

#[test]
fn rows_with_errors_are_highlighted() {
    let mut failing = target(12.0, 25_000);
    failing.namespaces[0].counts.errors.push(Failed {
        status: 0x281,
        name: "Unrecovered Read Error".to_owned(),
        count: 10,
    });
    let rates = Rates::between(&target(10.0, 1000), &failing);
    let shown = lines::all(&rates, &View::default(), None);
    let alarms: Vec<_> = shown
        .iter()
        .filter(|line| line.kind == lines::Kind::Alarm)
        .collect();
    assert_eq!(alarms.len(), 1);
    assert!(alarms[0].text.ends_with("    5"), "{alarms:?}");
}
