//! Loads the first bytes of a namespace into registered buffers, many reads at a time, and prints
//! the throughput and a checksum. With CHECKSUM, it fails if the data have another one:
//! `parallel_load 127.0.0.1:4420 nqn.2026-11.org.example:disk 1 1073741824 [CHECKSUM]`

use std::error::Error;
use std::time::Instant;

use nvmeof_initiator::{ConnectOptions, Host, HostConfig, Nqn};
use tokio::task::JoinSet;

/// Bytes of each read.
const CHUNK: u64 = 1 << 20;
/// Reads in flight, each with its own buffer.
const DEPTH: usize = 32;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [addr, subnqn, nsid, bytes, expected @ ..] = args.as_slice() else {
        return Err("usage: parallel_load ADDR:PORT NQN NSID BYTES [CHECKSUM]".into());
    };
    let config = HostConfig::of_this_machine()?.with_buffers_for(DEPTH, usize::try_from(CHUNK)?);
    let host = Host::new(config)?;
    let mut options = ConnectOptions::new(addr.parse()?, Nqn::new(subnqn)?);
    options.io_queues = 4;
    let controller = host.connect(options).await?;
    let namespace = controller.namespace(nsid.parse()?).await?;
    let block_size = u64::from(namespace.block_size());
    let bytes: u64 = bytes.parse()?;

    let start = Instant::now();
    let mut reads = JoinSet::new();
    for offset in (0..bytes).step_by(usize::try_from(CHUNK)?) {
        let len = usize::try_from(CHUNK.min(bytes - offset))?;
        // The buffers limit the reads in flight: this waits for the end of one.
        let buf = host.wait_for_buffer(len).await?;
        let namespace = namespace.clone();
        reads.spawn(async move {
            let buf = namespace.read(offset / block_size, buf).await?;
            // Here a program would use the data. The next read gets the buffer then.
            Ok::<_, nvmeof_initiator::Error>((offset, checksum(&buf)))
        });
    }
    let mut sums = Vec::new();
    while let Some(read) = reads.join_next().await {
        sums.push(read??);
    }
    let seconds = start.elapsed().as_secs_f64();
    controller.disconnect().await;

    sums.sort_unstable();
    let sums: Vec<u8> = sums.iter().flat_map(|(_, sum)| sum.to_le_bytes()).collect();
    let sum = format!("{:016x}", checksum(&sums));
    if expected.first().is_some_and(|expected| *expected != sum) {
        return Err(format!("checksum {sum} differs from the expected one").into());
    }
    #[allow(clippy::cast_precision_loss, reason = "a measurement")]
    let speed = bytes as f64 / seconds / 1e9;
    println!("{bytes} bytes loaded at {speed:.2} GB/s, checksum {sum}");
    Ok(())
}

/// A sum that changes with each byte and its position. It is fast, but not cryptographic.
fn checksum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let all = words.chain(rest.iter().map(|byte| u64::from(*byte)));
    all.fold(0xcbf2_9ce4_8422_2325, |sum, word| {
        (sum ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    })
}
