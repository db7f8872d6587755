//! A provider that keeps the buffers of a connection, and reports its end, only some time after
//! the connection is over: as one whose kernel still refers to sent memory.

use std::time::Duration;

use nvmeof_rdma::{Event, Provider, QpId};
use nvmeof_rdma_sim::Sim;
use nvmeof_wire::opcode::io;

use super::host::{ready, ready_with, run};
use super::io::command;
use super::{Bench, few_buffers, limits};
use crate::Mail;

/// Time for which it keeps them.
const RELEASE: Duration = Duration::from_millis(100);

struct Releasing {
    inner: Sim,
    /// Those that its owner disconnected.
    left: Vec<QpId>,
    /// What it returns at that time.
    kept: Vec<(Duration, Event)>,
}

impl Provider for Releasing {
    nvmeof_rdma_layers::forward!(inner: limits name register listen unlisten connect set_owner
        local_addr peer_may_invalidate prepare accept reject post_recv post expose withdraw
        submit wait_fd rest);

    fn disconnect(&mut self, qp: QpId) {
        self.left.push(qp);
        self.inner.disconnect(qp);
    }

    fn poll(&mut self, now: Duration, events: &mut Vec<Event>) -> bool {
        let mut found = Vec::new();
        let busy = self.inner.poll(now, &mut found);
        let closed = |event: &Event| match event {
            Event::Closed { qp, .. } => Some(*qp),
            _ => None,
        };
        let over: Vec<QpId> = found.iter().filter_map(closed).collect();
        let unexpected = over.iter().filter(|qp| !self.left.contains(qp));
        events.extend(unexpected.map(|qp| Event::Ending { qp: *qp }));
        for event in found {
            match qp_of(&event).is_some_and(|qp| over.contains(&qp)) {
                true => self.kept.push((now + RELEASE, event)),
                false => events.push(event),
            }
        }
        let due = |kept: &mut (Duration, Event)| kept.0 <= now;
        let before = events.len();
        events.extend(self.kept.extract_if(.., due).map(|(_, event)| event));
        busy || events.len() > before
    }

    fn next_deadline(&self) -> Option<Duration> {
        let kept = self.kept.iter().map(|(at, _)| *at);
        kept.chain(self.inner.next_deadline()).min()
    }
}

/// The connection that an end of work or of itself belongs to.
fn qp_of(event: &Event) -> Option<QpId> {
    match event {
        Event::Completion(done) => Some(done.qp),
        Event::Received(received) => Some(received.qp),
        Event::Closed { qp, .. } => Some(*qp),
        _ => None,
    }
}

fn bench(seed: u64) -> Bench {
    Bench::over(seed, few_buffers(), limits(), |inner| {
        Box::new(Releasing {
            inner,
            left: Vec::new(),
            kept: Vec::new(),
        })
    })
}

fn closing(bench: &mut Bench) -> usize {
    let queues = &mut bench.reactor.queues;
    let ids = queues.ids();
    let closing = |id| queues.get(id).is_some_and(|queue| queue.is_closing());
    ids.into_iter().map(closing).filter(|is| *is).count()
}

#[test]
fn buffers_of_lost_queue_return_when_provider_releases_them() {
    let mut bench = bench(90);
    let (mut gone, mut host) = (bench.host(), bench.host());
    let (admin, qp) = ready_with(&mut bench, &mut gone, 16);
    let (_, other) = ready(&mut bench, &mut host);
    let all = bench.reactor.free_buffers().0;
    gone.send_with(qp, command(io::WRITE, 0, 512), &vec![1; 256 << 10]);
    let free = |bench: &Bench| bench.reactor.free_buffers().0;
    bench.until(&mut [&mut gone], |bench, _| free(bench) < all);
    let left = free(&bench);
    gone.provider.disconnect(qp);
    gone.provider.disconnect(admin);
    bench.until(&mut [&mut gone], |bench, _| closing(bench) == 2);
    let from = bench.net.now();
    // Meanwhile another host is served, and this one connects again.
    let sent = host.send_with(other, command(io::WRITE, 0, 8), &[2; 4096]);
    assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    let (_, again) = ready_with(&mut bench, &mut gone, 16);
    assert!(bench.net.now() < from + RELEASE, "neither waits");
    assert_eq!((closing(&mut bench), free(&bench)), (2, left));
    bench.until(&mut [&mut gone, &mut host], |bench, _| closing(bench) == 0);
    assert!(bench.net.now() >= from + RELEASE);
    assert_eq!(free(&bench), all);
    let sent = gone.send_with(again, command(io::WRITE, 0, 512), &vec![3; 256 << 10]);
    assert!(run(&mut bench, &mut gone, sent).0.status().is_success());
}

#[test]
fn drain_waits_for_release() {
    let mut bench = bench(91);
    let mut host = bench.host();
    ready(&mut bench, &mut host);
    bench.reactor.mailbox().send(Mail::DRAIN);
    bench.until(&mut [&mut host], |bench, _| bench.drained);
    assert_eq!(bench.reactor.queue_pairs(), 0);
}
