//! Commands that wait for a worker: their connection ends, or their host does I/O meanwhile.

use nvmeof_dhchap::{Exchange, SystemRandom};
use nvmeof_polling::PollingConfig;
use nvmeof_wire::fabrics::PropertyAccess;
use nvmeof_wire::registers::{Property, PropertyValue};

use super::*;
use crate::{Clock, Mail};

/// A queue whose Negotiate waits for a worker.
fn waiting(bench: &mut Bench, workers: &Held, host: &mut Host) -> (QpId, Sent) {
    let (qp, _) = unproven(bench, host, &Connect::new(0, 32, 0), 0xffff);
    let (_, step) = start(host, right(host, false));
    let before = workers.count();
    let sent = send_step(host, qp, &step);
    bench.until(&mut [host], |_, _| workers.count() > before);
    (qp, sent)
}

#[test]
fn result_wakes_the_reactor_and_completes_the_command() {
    let (mut bench, workers) = held(1, limits());
    let mut host = bench.host();
    let (_, sent) = waiting(&mut bench, &workers, &mut host);
    bench.run_for(&mut [&mut host], Duration::from_secs(1));
    assert!(host.take(sent).is_none(), "it waits");
    assert!(has_all_messages(&bench), "it holds no buffer meanwhile");
    workers.run_all();
    assert!(bench.reactor.mailbox().holds(Mail::ORDERS));
    assert!(run(&mut bench, &mut host, sent).0.status().is_success());
}

#[test]
fn closed_queue_cancels_its_job() {
    let (mut bench, workers) = held(2, limits());
    let mut host = bench.host();
    let (qp, _) = waiting(&mut bench, &workers, &mut host);
    host.provider.disconnect(qp);
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.queue_pairs() == 0
    });
    let jobs = workers.take();
    assert!(jobs.iter().all(ComputeJob::is_cancelled));
    for job in jobs {
        job.run(&mut Numbers::default());
    }
    assert!(
        !bench.reactor.mailbox().holds(Mail::all()),
        "nothing is reported"
    );
    // Another queue gets its slot.
    bench.reactor.set_workers(Arc::new(Inline));
    let (_, io) = ready(&mut bench, &mut host, true);
    assert!(read(&mut bench, &mut host, io).is_success());
    assert!(has_all_messages(&bench));
}

/// Not only when the provider has closed it, which may take long.
#[test]
fn closing_queue_cancels_its_job_at_once() {
    let (mut bench, workers) = held(9, limits());
    let mut host = bench.host();
    waiting(&mut bench, &workers, &mut host);
    let now = bench.net.now();
    bench
        .reactor
        .each_queue(now, |queue_pair, io| queue_pair.abandon("a test", io));
    assert_eq!(bench.reactor.queue_pairs(), 1);
    assert!(workers.take()[0].is_cancelled());
}

/// The reactor closes the queue while the result is in its mailbox.
#[test]
fn result_of_closed_queue_is_dropped() {
    let (mut bench, workers) = held(3, limits());
    let mut host = bench.host();
    let (_, sent) = waiting(&mut bench, &workers, &mut host);
    workers.run_all();
    let now = bench.net.now();
    bench
        .reactor
        .each_queue(now, |queue_pair, io| queue_pair.abandon("a test", io));
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.queue_pairs() == 0
    });
    assert!(host.take(sent).is_none());
}

#[test]
fn drain_waits_for_a_computation_in_progress() {
    let (mut bench, workers) = held(4, limits());
    let mut host = bench.host();
    let (_, sent) = waiting(&mut bench, &workers, &mut host);
    bench.reactor.start_drain(bench.net.now());
    bench.run_for(&mut [&mut host], Duration::from_secs(1));
    assert_eq!(bench.reactor.queue_pairs(), 1);
    workers.run_all();
    let mut reply = None;
    bench.until(&mut [&mut host], |bench, hosts| {
        reply = reply.take().or_else(|| hosts[0].take(sent));
        bench.drained
    });
    assert!(reply.unwrap().0.status().is_success());
}

/// Workers that do not respond do not stop the target.
#[test]
fn drain_ends_without_its_workers() {
    let (mut bench, workers) = held(5, limits());
    let mut host = bench.host();
    waiting(&mut bench, &workers, &mut host);
    bench.reactor.start_drain(bench.net.now());
    bench.until(&mut [&mut host], |bench, _| bench.drained);
    assert_eq!(
        workers
            .take()
            .iter()
            .filter(|job| job.is_cancelled())
            .count(),
        1
    );
}

/// Authenticates a queue that serves already. Between its steps, `meanwhile` runs.
fn again(
    bench: &mut Bench,
    workers: &Held,
    host: &mut Host,
    qp: QpId,
    mut meanwhile: impl FnMut(&mut Bench, &mut Host),
) {
    let (mut auth, mut step) = start(host, right(host, true));
    while !matches!(step, HostStep::Done) {
        let sent = send_step(host, qp, &step);
        meanwhile(bench, host);
        let mut reply = None;
        bench.until(&mut [host], |_, hosts| {
            workers.run_all();
            reply = hosts[0].take(sent);
            reply.is_some()
        });
        let (cqe, data) = reply.unwrap();
        assert!(cqe.status().is_success(), "{:?}", cqe.status());
        step = next(&mut auth, &step, &data);
    }
}

#[test]
fn queue_serves_while_it_authenticates_again() {
    let mut bench = inline(6, limits());
    let mut host = bench.host();
    let (admin, io) = ready(&mut bench, &mut host, false);
    let workers = Arc::new(Held::default());
    bench.reactor.set_workers(workers.clone());
    let mut reads = 0;
    for qp in [admin, io] {
        again(&mut bench, &workers, &mut host, qp, |bench, host| {
            for _ in 0..4 {
                assert!(read(bench, host, io).is_success());
                reads += 1;
            }
        });
    }
    assert_eq!(reads, 2 * 4 * 5, "five commands on each queue");
    assert!(
        has_all_messages(&bench),
        "a connected queue uses data buffers"
    );
    assert_eq!(bench.reactor.free_buffers().0, 20);
}

#[test]
fn disconnect_during_a_computation_of_a_served_queue_cancels_it() {
    let mut bench = inline(7, limits());
    let mut host = bench.host();
    let (admin, _) = ready(&mut bench, &mut host, false);
    let workers = Arc::new(Held::default());
    bench.reactor.set_workers(workers.clone());
    let (_, step) = start(&host, right(&host, false));
    send_step(&mut host, admin, &step);
    bench.until(&mut [&mut host], |_, _| workers.count() == 1);
    host.provider.disconnect(admin);
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.queue_pairs() == 0
    });
    assert!(workers.take()[0].is_cancelled());
}

/// The command of before the reset gets no response, and its result nothing; the queue can
/// authenticate again.
#[test]
fn reset_during_a_computation_leaves_the_queue_usable() {
    let mut bench = inline(11, limits());
    let mut host = bench.host();
    let (admin, _) = ready(&mut bench, &mut host, false);
    let workers = Arc::new(Held::default());
    bench.reactor.set_workers(workers.clone());
    let (_, step) = start(&host, right(&host, false));
    let lost = send_step(&mut host, admin, &step);
    bench.until(&mut [&mut host], |_, _| workers.count() == 1);
    let disable = PropertyAccess::set(Property::CC, PropertyValue::Dword(0));
    let sent = host.send(admin, disable, &[]);
    assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    enable(&mut bench, &mut host, admin);
    workers.run_all();
    bench.run_for(&mut [&mut host], Duration::from_secs(1));
    assert!(host.take(lost).is_none());
    again(&mut bench, &workers, &mut host, admin, |_, _| {});
    assert_eq!(bench.reactor.queue_pairs(), 1);
    assert_eq!(bench.reactor.free_buffers().0, 20);
}

#[test]
fn command_that_waits_for_a_worker_is_reported() {
    let (mut bench, workers) = held(8, limits());
    let mut host = bench.host();
    waiting(&mut bench, &workers, &mut host);
    let lines = super::super::log::logged(|| {
        bench.run_for(&mut [&mut host], Duration::from_secs(12));
    });
    let line = "waiting for a worker that authenticates hosts";
    assert!(lines.iter().any(|text| text.contains(line)), "{lines:?}");
}

/// No reactor ever exponentiates: the thread that runs one would panic.
#[test]
#[cfg(debug_assertions)]
fn exponentiation_on_the_thread_of_a_reactor_panics() {
    let generate = || Exchange::generate(GroupId::FFDHE2048, &mut SystemRandom).map(drop);
    assert!(generate().is_ok());
    let thread = std::thread::spawn(move || {
        let mut bench = inline(10, limits());
        bench.reactor.start_drain(bench.net.now());
        let polling = PollingConfig {
            longest: Duration::from_secs(60),
            learns: false,
        };
        crate::run(&mut bench.reactor, Clock::start(), polling).unwrap();
        generate()
    });
    let panicked = thread.join().unwrap_err();
    let text = panicked.downcast_ref::<&str>().unwrap();
    assert!(text.contains("reactor"), "{text}");
}
