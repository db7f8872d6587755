//! Cases: log lines.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, Once};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::Endpoint::{A, B};
use crate::rig::{Link, Rig};
use nvmeof_rdma::{CloseReason, QpOwner, Rights};

/// A log line: its fields; `message` is the text.
type Line = BTreeMap<&'static str, String>;

/// Collects every line of provider crates.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<Line>>>);

struct Fields<'a>(&'a mut Line);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("nvmeof_rdma")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::new();
        event.record(&mut Fields(&mut line));
        self.0.lock().unwrap().push(line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The host, subsystem and queue of each queue pair.
fn whose() -> QpOwner {
    QpOwner::of_host(
        "nqn.2026-11.org.example:host",
        "nqn.2026-11.org.example:disk",
        3,
    )
}

/// Connects A to B, and sets the names of both ends as early as possible.
fn link(rig: &mut Rig<'_>) -> Link {
    let config = rig.config();
    let a = rig.call();
    rig[A].provider().set_owner(a, whose());
    let b = rig.request(B).qp;
    rig[B].provider().set_owner(b, whose());
    rig.accept(B, b, &config, "");
    rig.established(A, a);
    rig.established(B, b);
    Link { a, b }
}

/// Each log line about a peer contains host, subsystem and queue, once they are known.
pub fn log_lines_about_peer_name_its_host(rig: &mut Rig<'_>) {
    // Another thread may query the interest in a line for the first time while this one
    // starts to listen: there is always a subscriber.
    static FOR_ALL: Once = Once::new();
    FOR_ALL.call_once(|| {
        drop(tracing::subscriber::set_global_default(Lines::default()));
        tracing::callsite::rebuild_interest_cache();
    });
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || {
        // Orderly end, and end by a protocol violation.
        let good = link(rig);
        rig.assert_alive(good);
        rig[A].disconnect(good.a);
        assert_eq!(rig.closed(A, good.a), CloseReason::Local);
        rig.closed(B, good.b);
        let bad = link(rig);
        let memory = rig[B].buf(64);
        let slice = rig[B].expose(bad.b, memory, Rights::REMOTE_READ);
        rig[A].write(bad.a, 1, 64, slice);
        rig.closed(A, bad.a);
        rig.closed(B, bad.b);
        rig[B].withdraw(slice.key);
        // The peer dies, of an established connection and of a pending request.
        let standing = link(rig);
        let waiting = rig.call();
        rig[A].provider().set_owner(waiting, whose());
        let asked = rig.request(B).qp;
        rig[B].provider().set_owner(asked, whose());
        rig[B].vanish();
        rig.closed(A, standing.a);
        rig.closed(A, waiting);
    });
    let lines = lines.0.lock().unwrap();
    let about_a_peer: Vec<_> = lines
        .iter()
        .filter(|line| line.contains_key("peer"))
        .collect();
    assert!(
        !about_a_peer.is_empty(),
        "there is no line about a peer: {lines:#?}"
    );
    for line in about_a_peer {
        for (field, value) in [
            ("host", format!("{:?}", whose().host().unwrap())),
            ("subsystem", format!("{:?}", whose().subsystem().unwrap())),
            ("queue", "3".to_owned()),
        ] {
            assert_eq!(line.get(field), Some(&value), "{field}: {line:#?}");
        }
    }
}
