//! Connections that are opened, closed, lost or stalled.

use std::sync::mpsc::channel;
use std::time::Duration;

use nvmeof_rdma::{Provider, Steering};
use nvmeof_wire::admin::bare;
use nvmeof_wire::cm::{Reject, RejectStatus, Request};
use nvmeof_wire::fabrics::{Connect, ConnectData, disconnect};
use nvmeof_wire::nvm::{Io, flush};
use nvmeof_wire::opcode::{admin as opcode, io};
use nvmeof_wire::{Nqn, Status};

use super::host::{Host, admin, connect, establish, ready, run};
use super::{Bench, NQN};
use crate::{Mail, Order};
use zerocopy::IntoBytes;

#[test]
fn invalid_request_is_rejected_with_its_status() {
    let mut bench = Bench::new(1);
    let mut host = bench.host();
    let mut request = Request::new(1, 128);
    request.hsqsize = 1000.into();
    let qp = host.open(bench.net.now(), &request);
    bench.until(&mut [&mut host], |_, hosts| !hosts[0].closed.is_empty());
    let (rejected, private_data) = host.rejected[0].clone();
    assert_eq!(rejected, qp);
    let reject = Reject::parse(&private_data).unwrap();
    assert_eq!(reject.status, RejectStatus::INVALID_HSQSIZE);
    assert_eq!(bench.reactor.queue_pairs(), 0);
}

#[test]
fn all_resources_are_released_after_host_vanishes() {
    let mut bench = Bench::new(3);
    let free = bench.reactor.free_buffers();
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    bench.reactor.stores_mut().hold = true;
    let write = |opcode| Io::new(1, 0, 8).to_sqe(opcode);
    for at in 0..60 {
        let opcode = if at % 2 == 0 { io::WRITE } else { io::READ };
        host.send_with(qp, write(opcode), &[7; 4096]);
    }
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.stores_mut().in_flight() >= 10
    });
    drop(host);
    let mut other = bench.host();
    bench.until(&mut [&mut other], |bench, _| {
        bench.reactor.queue_pairs() == 0
    });
    // Operations that the backing store still has complete for a queue that is closed.
    bench.reactor.stores_mut().hold = false;
    bench.until(&mut [&mut other], |bench, _| {
        bench.reactor.free_buffers() == free
    });
    ready(&mut bench, &mut other);
}

#[test]
fn silent_host_is_disconnected_with_all_queues() {
    let mut bench = Bench::new(4);
    let mut host = bench.host();
    let (_, cntlid) = admin(&mut bench, &mut host, 3000);
    connect(&mut bench, &mut host, &Connect::new(1, 128, 0), cntlid);
    assert_eq!(bench.reactor.queue_pairs(), 2);
    bench.run_for(&mut [&mut host], Duration::from_secs(2));
    assert_eq!(bench.reactor.queue_pairs(), 2);
    bench.run_for(&mut [&mut host], Duration::from_secs(2));
    assert_eq!((bench.reactor.queue_pairs(), host.closed.len()), (0, 2));
}

/// The reactor was busy elsewhere; the host was not silent.
#[test]
fn received_commands_are_processed_before_keep_alive_timeout() {
    let mut bench = Bench::new(12);
    let mut host = bench.host();
    let (qp, _) = admin(&mut bench, &mut host, 1000);
    bench.run_for(&mut [&mut host], Duration::from_millis(100));
    let sent = host.send(qp, bare(opcode::KEEP_ALIVE), &[]);
    let late = bench.net.now() + Duration::from_millis(1500);
    host.poll_once(bench.net.now());
    while bench.net.now() < late {
        assert!(bench.net.advance_to_next(Some(late)));
    }
    assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    assert_eq!(bench.reactor.queue_pairs(), 1);
}

/// An operation carries the tag of its queue, which must not be reused.
#[test]
fn slot_is_not_reused_while_a_store_has_its_operation() {
    let mut bench = Bench::new(13);
    let mut host = bench.host();
    let (_, qp) = ready(&mut bench, &mut host);
    bench.reactor.stores_mut().hold = true;
    let sent = host.send(qp, flush(1), &[]);
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.stores_mut().in_flight() == 1
    });
    let of_io = bench.reactor.queues.ids()[1].index;
    drop(host);
    let mut other = bench.host();
    bench.until(&mut [&mut other], |bench, _| {
        bench.reactor.queue_pairs() == 0
    });
    for _ in 0..3 {
        establish(&mut bench, &mut other, &Request::new(0, 32));
    }
    let taken = |bench: &Bench| {
        let ids = bench.reactor.queues.ids();
        ids.iter().any(|id| id.index == of_io)
    };
    assert!(!taken(&bench), "{sent:?} is in the backing store");
    bench.reactor.stores_mut().hold = false;
    bench.run_for(&mut [&mut other], Duration::from_millis(1));
    establish(&mut bench, &mut other, &Request::new(0, 32));
    assert!(taken(&bench));
}

#[test]
fn connection_without_connect_times_out() {
    let mut bench = Bench::new(5);
    let mut host = bench.host();
    establish(&mut bench, &mut host, &Request::new(0, 32));
    bench.run_for(&mut [&mut host], Duration::from_secs(9));
    assert_eq!(bench.reactor.queue_pairs(), 1);
    bench.run_for(&mut [&mut host], Duration::from_secs(2));
    assert_eq!(bench.reactor.queue_pairs(), 0);
}

#[test]
fn loss_of_the_admin_queue_closes_io_queues() {
    let mut bench = Bench::new(6);
    let mut host = bench.host();
    let (admin, _io) = ready(&mut bench, &mut host);
    host.provider.disconnect(admin);
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.queue_pairs() == 0
    });
}

#[test]
fn disconnect_completes_before_the_queue_closes() {
    let mut bench = Bench::new(7);
    let mut host = bench.host();
    let (_, io) = ready(&mut bench, &mut host);
    let sent = host.send(io, disconnect(), &[]);
    let (cqe, _) = run(&mut bench, &mut host, sent);
    assert!(cqe.status().is_success());
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.queue_pairs() == 1
    });
}

#[test]
fn held_event_requests_take_no_slot() {
    let mut bench = Bench::new(8);
    let mut host = bench.host();
    let (qp, _) = admin(&mut bench, &mut host, 0);
    let free = bench.reactor.free_buffers();
    for _ in 0..4 {
        host.send(qp, bare(opcode::ASYNC_EVENT_REQUEST), &[]);
    }
    let fifth = host.send(qp, bare(opcode::ASYNC_EVENT_REQUEST), &[]);
    let (cqe, _) = run(&mut bench, &mut host, fifth);
    assert_eq!(cqe.status().kind(), Status::ASYNC_EVENT_LIMIT_EXCEEDED);
    assert_eq!(bench.reactor.free_buffers(), free);
}

#[test]
fn short_capsule_closes_its_connection_only() {
    let mut bench = Bench::new(9);
    let (mut good, mut bad) = (bench.host(), bench.host());
    let (_, io) = ready(&mut bench, &mut good);
    let qp = establish(&mut bench, &mut bad, &Request::new(0, 32));
    let head = nvmeof_rdma::Inline::new(&[0; 10]).unwrap();
    let work = nvmeof_rdma::Work::Send {
        head,
        body: None,
        invalidate: None,
        solicited: false,
    };
    bad.provider.post(qp, nvmeof_rdma::Tag(0), work).unwrap();
    bench.until(&mut [&mut good, &mut bad], |bench, _| {
        bench.reactor.queue_pairs() == 2
    });
    let sent = good.send(io, flush(1), &[]);
    assert!(run(&mut bench, &mut good, sent).0.status().is_success());
}

#[test]
fn drain_completes_commands_and_flushes() {
    let mut bench = Bench::new(10);
    let mut host = bench.host();
    let (_, io) = ready(&mut bench, &mut host);
    bench.reactor.stores_mut().hold = true;
    let sent = host.send(io, flush(1), &[]);
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.stores_mut().in_flight() == 1
    });
    bench.reactor.mailbox().send(Mail::DRAIN);
    bench.run_for(&mut [&mut host], Duration::from_secs(1));
    // The admin queue is idle, but its I/O queue is not.
    assert_eq!(bench.reactor.queue_pairs(), 2);
    bench.reactor.stores_mut().hold = false;
    let (cqe, _) = run(&mut bench, &mut host, sent);
    assert!(cqe.status().is_success());
    bench.until(&mut [&mut host], |bench, _| bench.drained);
    assert_eq!(bench.reactor.stores_mut().flushes, 2);
}

#[test]
fn drain_is_bounded_in_time() {
    let mut bench = Bench::new(11);
    let mut host = bench.host();
    let (_, io) = ready(&mut bench, &mut host);
    bench.reactor.stores_mut().hold = true;
    host.send(io, flush(1), &[]);
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.stores_mut().in_flight() == 1
    });
    bench.reactor.mailbox().send(Mail::DRAIN);
    bench.until(&mut [&mut host], |bench, _| bench.drained);
    assert!(bench.net.now() < Duration::from_secs(60));
}

#[test]
fn admin_queue_counts_less_than_an_io_queue() {
    let mut bench = Bench::new(13);
    let steering = Steering::new(2);
    bench.reactor.set_steering(steering.clone(), 1);
    // As the providers of a group do for each connection.
    let peer = bench.address.ip().unwrap();
    let _guard = [steering.add(1, peer), steering.add(1, peer)];
    let mut host = bench.host();
    let (admin, io) = ready(&mut bench, &mut host);
    let load = Steering::FULL + Steering::LIGHT;
    assert_eq!([steering.load(0), steering.load(1)], [0, load]);
    for queue in [admin, io] {
        host.provider.disconnect(queue);
    }
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.queue_pairs() == 0
    });
    assert_eq!(steering.load(1), 2 * Steering::FULL);
}

/// A drain at each point of the setup of a controller: what the host is told, it may retry.
#[test]
fn drain_during_connect_never_answers_do_not_retry() {
    let mut outcomes = [0; 4];
    for detach in [false, true] {
        for step in 0..40 {
            let mut bench = Bench::new(15);
            let mut host = bench.host();
            let qp = host.open(bench.net.now(), &Request::new(0, 32));
            let mut sent = None;
            let mut start = |bench: &mut Bench, host: &mut Host| {
                let open = host.closed.is_empty() && host.established.contains(&qp);
                if sent.is_none() && open {
                    let name = |text| Nqn::new(text).unwrap();
                    let hostnqn = name("nqn.2026-11.org.example:host");
                    let data = ConnectData::new([7; 16], 0xffff, &name(NQN), &hostnqn);
                    let connect = Connect::new(0, 32, 0).to_sqe();
                    sent = Some(host.send_with(qp, connect, data.as_bytes()));
                }
                bench.run_for(&mut [host], Duration::from_micros(20));
            };
            for _ in 0..step {
                start(&mut bench, &mut host);
            }
            let (answer, _receiver) = channel();
            match detach {
                true => bench
                    .reactor
                    .mailbox()
                    .order(Order::Detach { reply: answer }),
                false => bench.reactor.mailbox().send(Mail::DRAIN),
            }
            for _ in 0..500 {
                start(&mut bench, &mut host);
            }
            bench.run_for(&mut [&mut host], Duration::from_secs(20));
            assert_eq!(bench.reactor.queue_pairs(), 0);
            for (_, private_data) in &host.rejected {
                let reject = Reject::parse(private_data).unwrap();
                assert_eq!(reject.status, RejectStatus::NO_RESOURCES);
                outcomes[0] += 1;
            }
            match sent.and_then(|sent| host.take(sent)) {
                Some((cqe, _)) if cqe.status().is_success() => outcomes[1] += 1,
                Some((cqe, _)) => {
                    assert!(!cqe.status().dnr(), "{:?} at step {step}", cqe.status());
                    outcomes[2] += 1;
                }
                None => outcomes[3] += 1,
            }
        }
    }
    let [rejected, connected, _, unanswered] = outcomes;
    assert!(
        rejected > 0 && connected > 0 && unanswered > 0,
        "{outcomes:?}"
    );
}
