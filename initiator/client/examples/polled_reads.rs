//! Reads the first blocks of a namespace with a queue that the caller polls,
//! all at once, and flushes it:
//! `polled_reads 127.0.0.1:4420 nqn.2026-11.org.example:disk 1`

use std::collections::VecDeque;
use std::error::Error;
use std::time::Instant;

use nvmeof_initiator::blocking::{self, BlockingAdmin};
use nvmeof_initiator::polled::{Call, IoConfig, IoQueue, Work};
use nvmeof_initiator::{
    ClassSpec, Classes, ConnectOptions, Identity, Nqn, Operation, Pages, QueueShape, Transport,
};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [addr, subnqn, nsid] = args.as_slice() else {
        return Err("usage: polled_reads ADDR:PORT NQN NSID".into());
    };
    let start = Instant::now();
    let options = ConnectOptions::new(addr.parse()?, Nqn::new(subnqn)?);
    let config = options.admin_config(&Identity::of_this_machine()?);
    let names = config.setup.names.clone();

    // The admin queue. From here on, call `poll` by its `next_deadline`.
    let provider = Transport::Auto.provider(options.addr)?;
    let mut admin = BlockingAdmin::connect(provider, options.addr, config, start)?;
    let namespace = admin.namespace(nsid.parse()?)?;

    // An I/O queue with a provider of its own; each thread may have one. It ends with
    // the admin queue.
    let io = IoConfig {
        names,
        queue: QueueShape {
            qid: 1,
            size: 128,
            flow_control: true,
        },
        command_timeout: options.command_timeout,
        connect_timeout: options.connect_timeout,
        trusts_target: false,
    };
    let provider = Transport::Auto.provider(options.addr)?;
    let info = admin.info().clone();
    let mut queue = IoQueue::connect(provider, options.addr, &info, io, start.elapsed())?;
    queue.join(admin.association());
    let len = usize::try_from(namespace.block_size())?;
    let buffers = Classes::new(&[ClassSpec { len, count: 64 }], Pages::Normal)?;
    for region in buffers.regions() {
        queue.register(region)?;
    }
    blocking::ready(&mut queue, start)?;

    let free = std::iter::from_fn(|| buffers.take(len));
    let mut calls = VecDeque::new();
    for (slba, buf) in (0..namespace.blocks).zip(free) {
        let read = namespace.run(Operation::Read, slba, 1)?;
        calls.push_back(Call::new(read.into(), Some(buf), slba));
    }
    calls.push_back(Call::new(Work::flush(namespace.nsid), None, u64::MAX >> 1));
    let (mut left, mut bytes) = (calls.len(), 0);
    let mut done = Vec::new();
    while left > 0 {
        queue.submit_batch(&mut calls, start.elapsed())?;
        queue.poll(start.elapsed(), &mut done);
        for call in done.drain(..) {
            call.result?;
            bytes += call.buf.map_or(0, |buf| buf.len());
            left -= 1;
        }
        admin.poll();
    }
    blocking::close(&mut queue, start);
    admin.shutdown();
    println!("{bytes} bytes read in blocks of {len}, and flushed");
    Ok(())
}
