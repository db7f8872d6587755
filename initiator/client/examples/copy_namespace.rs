//! Copies a namespace to a file, several reads at a time:
//! `copy_namespace 127.0.0.1:4420 nqn.2026-11.org.example:disk 1 disk.img`

use std::collections::VecDeque;
use std::error::Error;
use std::fs::File;
use std::io::Write;

use nvmeof_initiator::{ConnectOptions, Host, HostConfig, Nqn};

/// Bytes of each read.
const CHUNK: usize = 1 << 20;
/// Reads in flight.
const DEPTH: usize = 8;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [addr, subnqn, nsid, path] = args.as_slice() else {
        return Err("usage: copy_namespace ADDR:PORT NQN NSID FILE".into());
    };
    let config = HostConfig::of_this_machine()?.with_buffers_for(DEPTH, CHUNK);
    let host = Host::new(config)?;
    let options = ConnectOptions::new(addr.parse()?, Nqn::new(subnqn)?);
    let controller = host.connect(options).await?;
    let namespace = controller.namespace(nsid.parse()?).await?;
    let mut file = File::create(path)?;

    let chunk = u64::try_from(CHUNK)? / u64::from(namespace.block_size());
    let mut reads = VecDeque::new();
    let mut lba = 0;
    loop {
        while lba < namespace.blocks() && reads.len() < DEPTH {
            let blocks = chunk.min(namespace.blocks() - lba);
            let len = usize::try_from(blocks)? * namespace.block_size() as usize;
            let buf = controller.alloc(len)?;
            let namespace = namespace.clone();
            reads.push_back(tokio::spawn(async move { namespace.read(lba, buf).await }));
            lba += blocks;
        }
        let Some(read) = reads.pop_front() else { break };
        let buf = read.await??;
        file.write_all(&buf)?;
    }
    controller.disconnect().await;
    Ok(())
}
