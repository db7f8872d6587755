//! Writes and verifies blocks over several paths while paths fail and recover, and prints each
//! change of a path. Overwrites the first 1 MiB of the namespace:
//! `failover nqn.2026-11.org.example:disk 1 60 192.0.2.10:4420 198.51.100.10:4420`

use std::error::Error;
use std::time::{Duration, Instant};

use nvmeof_initiator::multipath::{Multipath, MultipathNamespace, MultipathOptions};
use nvmeof_initiator::{Buf, ConnectOptions, Host, HostConfig, Nqn, WriteOptions};

/// Length of one write in bytes.
const LEN: usize = 4096;
/// Number of concurrent writers, each with its own blocks.
const WRITERS: u64 = 4;
/// Writes of a writer before it overwrites its first one: together the writers use 1 MiB.
const SLOTS: u64 = 1 << 20 >> 12 >> 2;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [subnqn, nsid, seconds, addresses @ ..] = args.as_slice() else {
        return Err("usage: failover NQN NSID SECONDS ADDR:PORT...".into());
    };
    let host = Host::new(HostConfig::of_this_machine()?)?;
    let mut paths = Vec::new();
    for address in addresses {
        let mut path = ConnectOptions::new(address.parse()?, Nqn::new(subnqn)?);
        path.keep_alive = Duration::from_secs(2);
        paths.push(path);
    }
    let multipath = Multipath::connect(&host, &paths, MultipathOptions::default()).await?;
    let disk = multipath.namespace(nsid.parse()?).await?;

    let until = Instant::now() + Duration::from_secs(seconds.parse()?);
    let report = tokio::spawn(report(multipath.clone()));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| tokio::spawn(write_and_verify(host.clone(), disk.clone(), writer, until)))
        .collect();
    let mut writes = 0;
    for writer in writers {
        writes += writer.await??;
    }
    report.abort();
    for path in multipath.paths() {
        println!(
            "{}: lost {} times, {:?}",
            path.addr, path.losses, path.fenced
        );
    }
    println!("{writes} writes were read back: the same");
    multipath.disconnect().await;
    Ok(())
}

/// Prints the state of all paths whenever a path changes.
async fn report(multipath: Multipath) {
    let mut shown = String::new();
    let mut changes = multipath.changes();
    loop {
        let paths = multipath.paths().into_iter();
        let states: Vec<_> = paths
            .map(|path| format!("{} {}", path.addr, if path.is_live { "up" } else { "down" }))
            .collect();
        let states = states.join(", ");
        if states != shown {
            println!("{states}");
            shown = states;
        }
        if !changes.changed().await {
            return;
        }
    }
}

/// Writes different data each time and reads them back. Each write must persist, even if a path
/// failed meanwhile. Returns the number of writes.
async fn write_and_verify(
    host: Host,
    disk: MultipathNamespace,
    writer: u64,
    until: Instant,
) -> Result<u64, nvmeof_initiator::Error> {
    let blocks = LEN as u64 / u64::from(disk.block_size());
    let mut writes = 0;
    while Instant::now() < until {
        let lba = (writer * SLOTS + writes % SLOTS) * blocks;
        let data = |at: usize| u8::try_from((writes + writer + at as u64) % 251).unwrap_or(0);
        let mut buf: Buf = host.buffer(LEN)?;
        for (at, byte) in buf.iter_mut().enumerate() {
            *byte = data(at);
        }
        let mut buf = disk.write(lba, buf, WriteOptions::default()).await?;
        buf.fill(0);
        let buf = disk.read(lba, buf).await?;
        let is_same = buf.iter().enumerate().all(|(at, byte)| *byte == data(at));
        assert!(is_same, "write {writes} of writer {writer} is lost");
        writes += 1;
    }
    Ok(writes)
}
