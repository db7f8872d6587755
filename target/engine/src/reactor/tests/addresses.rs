//! Hosts of one address share its position in the fair queue with each other, not with
//! hosts of other addresses.

use std::time::Duration;

use nvmeof_wire::opcode::io;

use super::fairness::{arrive, by_turns, command, served};
use super::host::{Host, Sent, ready, ready_with, show};
use super::{Bench, few_buffers};

/// Several hosts of one address with many commands, followed by one of another address,
/// while backing stores are held. Their commands in this order.
fn many_names_and_one(bench: &mut Bench, hosts: &mut [Host; 2]) -> [Vec<Sent>; 2] {
    let [many, modest] = hosts;
    let names = (0..6).map(|name| {
        many.name = Some(100 + name);
        let (_, qp) = ready_with(bench, many, 32);
        show(bench, many, qp);
        qp
    });
    let names: Vec<_> = names.collect();
    let (_, one) = ready(bench, modest);
    show(bench, modest, one);
    bench.reactor.stores_mut().hold = true;
    let read = |host: &mut Host, qp| host.send_with(qp, command(io::READ, 0, 8), &[0; 4096]);
    let much = names.iter().cycle().take(6 * 30);
    let much = much.map(|queue| read(many, *queue)).collect();
    bench.run_for(&mut [many], Duration::from_millis(10));
    let little = (0..40).map(|_| read(modest, one)).collect();
    bench.run_for(&mut [many, modest], Duration::from_millis(10));
    [much, little]
}

#[test]
fn many_hosts_of_one_address_get_buffers_of_one() {
    let mut bench = by_turns(12);
    let mut hosts = [bench.host(), bench.host()];
    let sent = many_names_and_one(&mut bench, &mut hosts);
    assert_eq!(bench.reactor.free_buffers().0, 0, "they wait for buffers");
    let [many, modest] = served(&mut bench, hosts, sent, 4);
    assert_eq!(many + modest, 80);
    assert!((28..=32).contains(&modest), "{modest} of 60");
}

#[test]
fn many_hosts_of_one_address_get_store_slots_of_one() {
    let mut config = few_buffers();
    config.data[0].count = 512;
    let mut bench = Bench::with(13, config);
    bench.reactor.stores_mut().room = 8;
    let mut hosts = [bench.host(), bench.host()];
    let sent = many_names_and_one(&mut bench, &mut hosts);
    let [many, modest] = served(&mut bench, hosts, sent, 6);
    assert_eq!(many + modest, 48);
    assert!((18..=22).contains(&modest), "{modest} of 40");
}

/// The same for commands that one iteration of the reactor starts.
#[test]
fn many_hosts_of_one_address_start_commands_as_one() {
    let mut config = few_buffers();
    (config.capsules, config.data[0].count) = (4096, 2048);
    let mut bench = Bench::with(14, config);
    let (mut many, mut modest) = (bench.host(), bench.host());
    let names = (0..10).map(|name| {
        many.name = Some(100 + name);
        ready_with(&mut bench, &mut many, 32).1
    });
    let names: Vec<_> = names.collect();
    let (_, qp) = ready_with(&mut bench, &mut modest, 128);
    bench.reactor.stores_mut().hold = true;
    let zero = |host: &mut Host, qp, slba| host.send(qp, command(io::WRITE_ZEROES, slba, 8), &[]);
    for _ in 0..30 {
        for qp in &names {
            zero(&mut many, *qp, 0);
        }
    }
    arrive(&mut bench, &mut [&mut many]);
    for _ in 0..60 {
        zero(&mut modest, qp, 8);
    }
    arrive(&mut bench, &mut [&mut modest]);
    bench.reactor.poll_once(bench.net.now()).unwrap();
    let started = [0, 8].map(|slba| bench.reactor.stores_mut().in_flight_at(slba * 512));
    // 64 of the first as they arrived, then as many of each.
    assert!((28..=36).contains(&started[1]), "{started:?}");
    assert!((92..=100).contains(&started[0]), "{started:?}");
    bench.reactor.stores_mut().hold = false;
    bench.run_for(&mut [&mut many, &mut modest], Duration::from_secs(1));
    assert!(bench.reactor.resources.due.is_empty());
}
