//! Output of `ctl ha`, progress of orders, and errors.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use clap::Parser;
use nvmeof_target_api::{
    HaCandidateOut, HaGatewayOut, HaGroupOut, HaMoveOut, HaTakeoverOut, StatusOut,
};

use super::*;

fn gateway(name: &str, state: &str, first: u16) -> HaGatewayOut {
    HaGatewayOut {
        gateway: name.to_owned(),
        state: state.to_owned(),
        first_controller_id: first,
        last_controller_id: first + 999,
    }
}

fn candidate(gateway: &str, rank: Option<usize>, reason: Option<&str>) -> HaCandidateOut {
    HaCandidateOut {
        gateway: gateway.to_owned(),
        rank,
        reason: reason.map(str::to_owned),
    }
}

fn group(group: u32, owner: Option<&str>, phase: &str) -> HaGroupOut {
    HaGroupOut {
        group,
        owner: owner.map(str::to_owned),
        epoch: 7,
        phase: phase.to_owned(),
        since: Some("2026-11-28T06:00:00Z".to_owned()),
        candidates: vec![
            candidate("gw1", Some(0), None),
            candidate("gw2", Some(1), None),
        ],
        ..HaGroupOut::default()
    }
}

fn state(groups: Vec<HaGroupOut>) -> HaOut {
    HaOut {
        gateway: "gw1".to_owned(),
        record: "rbd/nvmeof-ha".to_owned(),
        standing: "member".to_owned(),
        error: None,
        gateways: vec![gateway("gw1", "alive", 1), gateway("gw2", "alive", 1001)],
        groups,
    }
}

/// A group in trouble: it moves, and a client is not fenced yet.
fn troubled() -> HaGroupOut {
    HaGroupOut {
        moves_to: Some(HaMoveOut {
            gateway: "gw1".to_owned(),
            why: "moved by an administrator".to_owned(),
        }),
        to_fence: vec!["192.0.2.2:0/77".to_owned()],
        clients: vec!["192.0.2.1:0/5".to_owned(), "192.0.2.1:0/6".to_owned()],
        last_takeover: Some(HaTakeoverOut {
            from: Some("gw2".to_owned()),
            why: "gateway gw2: no renewal for 3.1 s".to_owned(),
            fenced: vec!["192.0.2.2:0/41".to_owned()],
            fenced_at: Some("2026-11-28T05:59:59Z".to_owned()),
        }),
        note: Some("move to gateway gw2 was dropped: drained".to_owned()),
        error: Some("rbd/disk2: cannot be opened: timed out".to_owned()),
        candidates: vec![
            candidate("gw1", Some(0), Some("gave up 4 times: timed out")),
            candidate("gw2", None, Some("no renewal for 9.0 s")),
        ],
        ..group(2, Some("gw3"), "releasing")
    }
}

#[test]
fn show_has_gateways_groups_and_problems() {
    let mut first = group(1, Some("gw1"), "serving");
    first.served_here = true;
    let mut third = group(3, None, "free");
    third.since = None;
    third.candidates = vec![candidate("gw2", None, Some("drained"))];
    let mut last = group(4, Some("gw1"), "serving");
    last.candidates = third.candidates.clone();
    let all = state(vec![first, troubled(), third, last]);
    let expected = "\
gateway gw1 (this one): member, record rbd/nvmeof-ha
GATEWAY  STATE  CONTROLLER IDS
gw1      alive  1-1000
gw2      alive  1001-2000
GROUP  PHASE      SINCE                 OWNER  MOVES TO
1      serving    2026-11-28T06:00:00Z  gw1    -
2      releasing  2026-11-28T06:00:00Z  gw3    gw1
3      free       -                     -      -
4      serving    2026-11-28T06:00:00Z  gw1    -
group 2: 1 client is not fenced yet
group 2: note: move to gateway gw2 was dropped: drained
group 2: ERROR: rbd/disk2: cannot be opened: timed out
group 3: no gateway can take it: see `ctl ha why 3`
";
    assert_eq!(text::show(&all), expected);
}

#[test]
fn show_names_the_reason_of_a_refusal_first() {
    let mut all = state(Vec::new());
    all.standing = "refused".to_owned();
    all.error = Some("gateway gw1: another process with this name is alive".to_owned());
    let text = text::show(&all);
    let expected = "\
gateway gw1 (this one): REFUSED, serves no group, record rbd/nvmeof-ha
  ERROR: gateway gw1: another process with this name is alive
";
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn long_names_are_wrapped() {
    let (long, other) = ("g".repeat(64), "h".repeat(64));
    let mut one = group(1, Some(&long), "releasing");
    one.moves_to = Some(HaMoveOut {
        gateway: other.clone(),
        why: "drain".to_owned(),
    });
    let mut all = state(vec![one]);
    all.gateways = vec![gateway(&long, "alive", 1)];
    let text = text::show(&all);
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(text.contains(&long) && text.contains(&other), "{text}");
}

#[test]
fn why_has_takeover_fenced_clients_and_candidates() {
    let mut first = group(1, Some("gw1"), "serving");
    first.served_here = true;
    first.last_takeover = Some(HaTakeoverOut {
        why: "no owner".to_owned(),
        ..HaTakeoverOut::default()
    });
    let expected = "\
group 1: owner gw1, serving since 2026-11-28T06:00:00Z, served by this gateway,
  epoch 7
  last takeover of a group without owner: no owner
    fenced no client
  gateway gw1: candidate 1
  gateway gw2: candidate 2
group 2: owner gw3, releasing since 2026-11-28T06:00:00Z, epoch 7
  last takeover from gw2: gateway gw2: no renewal for 3.1 s
    fenced 2026-11-28T05:59:59Z: 192.0.2.2:0/41
  clients of the owner: 192.0.2.1:0/5 192.0.2.1:0/6
  NOT FENCED YET: 192.0.2.2:0/77
  moves to gw1: moved by an administrator
  note: move to gateway gw2 was dropped: drained
  ERROR: rbd/disk2: cannot be opened: timed out
  gateway gw1: candidate 1: gave up 4 times: timed out
  gateway gw2: cannot take it: no renewal for 9.0 s
";
    assert_eq!(text::why(&state(vec![first, troubled()])), expected);
}

#[test]
fn status_has_a_line_of_high_availability() {
    let status = json!({"version": "1", "serving": "", "drained": false, "file": "f",
        "high_availability": "member; serves group 1; group 2 at gw2",
        "applied": null, "edits": 0, "deferred": 0, "state": "s", "saved": true, "ports": [],
        "controllers": [], "subsystems": []});
    let status: StatusOut = serde_json::from_value(status).unwrap();
    let text = print::status(&status);
    let expected = "\nhigh availability: member; serves group 1; group 2 at gw2\n";
    assert!(text.contains(expected), "{text}");
}

fn to_gw2() -> Awaited {
    Awaited::Move {
        group: 1,
        gateway: "gw2".to_owned(),
    }
}

fn drain_gw1() -> Awaited {
    Awaited::Drain {
        gateway: "gw1".to_owned(),
    }
}

fn changed(text: &str) -> Step {
    Step::Changed(text.to_owned())
}

#[test]
fn move_is_done_when_the_gateway_serves_the_group() {
    let at = |owner, phase| {
        state(vec![
            group(1, owner, phase),
            group(2, Some("gw2"), "serving"),
        ])
    };
    let awaited = to_gw2();
    let mut progress = Progress::new(&awaited, &at(Some("gw1"), "serving"));
    let mut step = |owner, phase| progress.step(&at(owner, phase));
    assert_eq!(
        step(Some("gw1"), "serving"),
        changed("group 1: serving at gw1")
    );
    assert_eq!(
        step(Some("gw1"), "releasing"),
        changed("group 1: releasing at gw1")
    );
    assert_eq!(step(Some("gw1"), "releasing"), Step::Same);
    assert_eq!(step(None, "free"), changed("group 1: free"));
    assert_eq!(
        step(Some("gw2"), "taking"),
        changed("group 1: taking at gw2")
    );
    let done = Step::Done("done: gateway gw2 serves group 1".to_owned());
    assert_eq!(step(Some("gw2"), "serving"), done);
}

#[test]
fn gateway_that_hands_the_group_over_again_has_not_served_the_order() {
    let mut leaving = group(1, Some("gw2"), "serving");
    leaving.moves_to = Some(HaMoveOut {
        gateway: "gw3".to_owned(),
        why: "drain".to_owned(),
    });
    let state = state(vec![leaving]);
    let awaited = to_gw2();
    let step = Progress::new(&awaited, &state).step(&state);
    assert_eq!(step, changed("group 1: serving at gw2"));
}

#[test]
fn drain_is_done_when_the_drained_gateway_owns_nothing() {
    let at = |owner, own: &str| HaOut {
        gateways: vec![gateway("gw1", own, 1), gateway("gw2", "alive", 1001)],
        ..state(vec![
            group(1, Some(owner), "serving"),
            group(2, Some("gw2"), "serving"),
        ])
    };
    let awaited = drain_gw1();
    let mut progress = Progress::new(&awaited, &at("gw1", "alive"));
    let expected = changed("group 1: serving at gw1");
    assert_eq!(progress.step(&at("gw1", "alive")), expected);
    assert_eq!(
        progress.step(&at("gw2", "alive")),
        changed("waiting for the record")
    );
    let done = "done: gateway gw1 owns no group; `ctl ha resume gw1` ends the drain";
    assert_eq!(
        progress.step(&at("gw2", "drained")),
        Step::Done(done.to_owned())
    );
    let mut taking = at("gw2", "drained");
    for one in &mut taking.groups {
        "taking".clone_into(&mut one.phase);
    }
    // Group 2 was not at the drained gateway.
    let done = format!("{done}\ngroup 1 is not served yet: taking at gw2");
    assert_eq!(progress.step(&taking), Step::Done(done));
}

#[test]
fn messages_that_appear_meanwhile_fail_the_wait() {
    let with = |note: Option<&str>, error: Option<&str>| {
        let mut one = group(1, Some("gw1"), "serving");
        one.note = note.map(str::to_owned);
        one.error = error.map(str::to_owned);
        state(vec![one])
    };
    let awaited = to_gw2();
    let mut progress = Progress::new(&awaited, &with(Some("old"), Some("attempt 1")));
    let mut step = |note, error| progress.step(&with(note, error));
    let expected = changed("group 1: serving at gw1");
    assert_eq!(step(Some("old"), Some("attempt 2")), expected);
    assert_eq!(step(None, None), Step::Same);
    let failed = |text: &str| {
        let text = format!("group 1: {text}; it may still move: see `ctl ha why 1`");
        Step::Failed(text)
    };
    assert_eq!(step(Some("old"), None), failed("old"));
    assert_eq!(
        step(Some("new"), Some("attempt 3")),
        failed("new; attempt 3")
    );
}

#[test]
fn gateway_that_is_refused_meanwhile_fails_the_wait() {
    let mut state = state(vec![group(1, Some("gw1"), "serving")]);
    state.standing = "refused".to_owned();
    state.error = Some("record was removed".to_owned());
    let awaited = to_gw2();
    let step = Progress::new(&awaited, &state).step(&state);
    let expected = "gateway gw1: refused, so that it cannot follow the order: record was removed";
    assert_eq!(step, Step::Failed(expected.to_owned()));
}

#[test]
fn wait_that_takes_too_long_names_cause_and_remedy() {
    let mut all = state(vec![group(1, Some("gw1"), "serving")]);
    let minute = Duration::from_secs(60);
    let awaited = to_gw2();
    let text = Progress::new(&awaited, &all).too_late(&all, minute);
    let expected = "group 1: gateway gw2 does not serve it after 60 s: serving at gw1; it may \
                    still move: see `ctl ha why 1`";
    assert_eq!(text, expected);
    for one in &mut all.groups {
        one.candidates = vec![
            candidate("gw1", None, Some("drained")),
            candidate("gw2", None, Some("no renewal for 9.0 s")),
        ];
    }
    let awaited = drain_gw1();
    let text = Progress::new(&awaited, &all).too_late(&all, minute);
    let expected = "gateway gw1: not drained after 60 s: group 1 is serving at gw1, and no other \
                    gateway can take it (gw2: no renewal for 9.0 s); start another gateway, or \
                    cancel with `ctl ha resume gw1`";
    assert_eq!(text, expected);
}

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    ctl: Ctl,
}

/// A target that gives these responses, one for each request, and returns the requests.
struct Fake {
    folder: tempfile::TempDir,
    thread: std::thread::JoinHandle<Vec<String>>,
}

/// Method, path and body of a request.
fn request(stream: &mut UnixStream) -> String {
    let (mut text, mut bytes) = (String::new(), [0; 4096]);
    loop {
        let len = stream.read(&mut bytes).unwrap();
        text += std::str::from_utf8(bytes.get(..len).unwrap()).unwrap();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let head = head.to_lowercase();
        let length = head.split_once("content-length: ");
        let length = length.map_or("0", |(_, rest)| rest.lines().next().unwrap());
        if body.len() == length.parse::<usize>().unwrap() {
            let (line, _) = text.split_once(" HTTP/1.1").unwrap();
            return format!("{line} {body}").trim_end().to_owned();
        }
    }
}

impl Fake {
    fn new(responses: Vec<(u16, Value)>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("control.sock")).unwrap();
        let thread = std::thread::spawn(move || {
            let respond = |(status, body): (u16, Value)| {
                let (mut stream, _) = listener.accept().unwrap();
                let request = request(&mut stream);
                let body = body.to_string();
                let head = format!(
                    "HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                stream.write_all((head + &body).as_bytes()).unwrap();
                request
            };
            responses.into_iter().map(respond).collect()
        });
        Self { folder, thread }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    /// Runs a command; returns its error with the exit status, and the requests.
    fn run(self, line: &str) -> (Option<(u8, String)>, Vec<String>) {
        let socket = self.socket().display().to_string();
        let words = ["x", "--socket", &socket]
            .into_iter()
            .chain(line.split(' '));
        let ctl = Program::try_parse_from(words).unwrap().ctl;
        let error = ctl.ask().err();
        let error = error.map(|error| (error.status(), error.to_string()));
        (error, self.thread.join().unwrap())
    }
}

fn at(owner: &str) -> (u16, Value) {
    (200, json!(state(vec![group(1, Some(owner), "serving")])))
}

fn refusal(status: u16, message: &str) -> (u16, Value) {
    (status, json!({ "error": { "message": message } }))
}

#[test]
fn move_waits_until_the_gateway_serves_the_group() {
    let fake = Fake::new(vec![at("gw1"), at("gw1"), at("gw1"), at("gw2")]);
    let (error, requests) = fake.run("ha move 1 gw2");
    assert_eq!(error, None);
    let order = "POST /v1/ha/move {\"gateway\":\"gw2\",\"group\":1}";
    assert_eq!(requests, ["GET /v1/ha", order, "GET /v1/ha", "GET /v1/ha"]);
}

#[test]
fn order_without_waiting_is_one_request() {
    let fake = Fake::new(vec![at("gw1")]);
    let (error, requests) = fake.run("ha drain gw2 --no-wait");
    assert_eq!(error, None);
    assert_eq!(requests, ["POST /v1/ha/drain {\"gateway\":\"gw2\"}"]);
    let fake = Fake::new(vec![at("gw1")]);
    let (error, requests) = fake.run("ha forget gw3");
    assert_eq!(error, None);
    assert_eq!(requests, ["POST /v1/ha/forget {\"gateway\":\"gw3\"}"]);
}

#[test]
fn gateway_defaults_to_this_one() {
    for (line, order) in [
        (
            "ha drain --no-wait",
            "POST /v1/ha/drain {\"gateway\":\"gw1\"}",
        ),
        ("ha resume", "POST /v1/ha/resume {\"gateway\":\"gw1\"}"),
    ] {
        let (error, requests) = Fake::new(vec![at("gw1"), at("gw1")]).run(line);
        assert_eq!(error, None);
        assert_eq!(requests, ["GET /v1/ha", order]);
    }
}

#[test]
fn errors_have_an_exit_status_and_name_the_remedy() {
    let configure = "high availability is not configured: add [ha] to the configuration file";
    let dropped = || {
        let mut one = group(1, Some("gw1"), "serving");
        one.note = Some("move to gateway gw2 was dropped: drained".to_owned());
        (200, json!(state(vec![one])))
    };
    for (line, responses, status, message) in [
        ("ha", vec![refusal(404, configure)], 2, configure),
        ("ha move 1 gw2", vec![refusal(404, configure)], 2, configure),
        (
            "ha why 9",
            vec![at("gw1")],
            2,
            "group 9: not configured; `ctl ha` lists the groups",
        ),
        (
            "ha move 1 gw2",
            vec![
                at("gw1"),
                refusal(409, "gateway gw2 cannot take it: drained"),
            ],
            1,
            "gateway gw2 cannot take it: drained",
        ),
        (
            "ha resume gw2",
            vec![refusal(
                504,
                "no response from the high-availability thread",
            )],
            1,
            "no response from the high-availability thread",
        ),
        (
            "ha drain gw2",
            vec![
                at("gw1"),
                refusal(422, "gateway: \"gw2\": a name has 1 to 64 letters"),
            ],
            2,
            "gateway: \"gw2\": a name has 1 to 64 letters",
        ),
        (
            "ha move 1 gw2 -o json",
            vec![at("gw1"), at("gw1"), dropped()],
            1,
            "group 1: move to gateway gw2 was dropped: drained; it may still move: see `ctl ha \
             why 1`",
        ),
    ] {
        let (error, _) = Fake::new(responses).run(line);
        assert_eq!(error, Some((status, message.to_owned())), "{line}");
    }
}
