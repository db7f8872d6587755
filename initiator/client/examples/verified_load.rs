//! Loads a namespace over several paths and verifies that no acknowledged write is undone and
//! nothing is torn, while paths and targets fail. Overwrites the first 8 MiB of the namespace.
//! SECONDS is a number, or `-`: until the end of standard input. Exits with status 1 at the first
//! error or wrong block:
//! `verified_load nqn.2026-11.org.example:disk 1 60 192.0.2.10:4420 198.51.100.10:4420`

use std::error::Error;
use std::io::Read as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvmeof_initiator::multipath::{Multipath, MultipathNamespace, MultipathOptions};
use nvmeof_initiator::{Buf, ConnectOptions, Host, HostConfig, Nqn, WriteOptions, ZeroOptions};
use tokio::task::JoinSet;

/// Length of one write in bytes.
const LEN: usize = 8 << 10;
/// Concurrent tasks, each with its own blocks.
const TASKS: u64 = 16;
/// Writes of a task that do not overwrite one another: together the tasks use 8 MiB.
const SLOTS: u64 = 64;
/// Calls that take longer are printed.
const STALL: Duration = Duration::from_millis(100);
/// Pause of a task between two calls: this is no benchmark, and leaves CPU time to others.
const PAUSE: Duration = Duration::from_millis(1);
/// Keep Alive Timeout of each path: it limits how long a silent path is used.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(5);

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [subnqn, nsid, seconds, addresses @ ..] = args.as_slice() else {
        return Err("usage: verified_load NQN NSID SECONDS|- ADDR:PORT...".into());
    };
    let calls = usize::try_from(TASKS)?;
    let host = Host::new(HostConfig::of_this_machine()?.with_buffers_for(calls, LEN))?;
    let mut paths = Vec::new();
    for address in addresses {
        let mut path = ConnectOptions::new(address.parse()?, Nqn::new(subnqn)?);
        path.keep_alive = KEEP_ALIVE;
        path.connect_timeout = KEEP_ALIVE;
        paths.push(path);
    }
    let multipath = Multipath::connect(&host, &paths, MultipathOptions::default()).await?;
    let disk = multipath.namespace(nsid.parse()?).await?;
    println!("connected");

    let load = Arc::new(Load::default());
    stop_after(&load, seconds)?;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        tasks.spawn(run(Arc::clone(&load), host.clone(), disk.clone(), task));
    }
    let report = tokio::spawn(report(Arc::clone(&load), multipath.clone()));
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    report.abort();
    print(&load, &multipath);
    for path in multipath.paths() {
        let (addr, losses, fenced) = (path.addr, path.losses, path.fenced);
        println!("path {addr}: lost {losses} times, fenced {fenced:?}");
    }
    println!("every read returned the last acknowledged write");
    multipath.disconnect().await;
    Ok(())
}

/// What all tasks share.
#[derive(Default)]
struct Load {
    is_over: AtomicBool,
    reads: AtomicU64,
    writes: AtomicU64,
    /// The longest read and the longest write.
    longest: Mutex<[Duration; 2]>,
}

/// Kinds of calls, as an index of the longest ones.
#[derive(Clone, Copy)]
enum Kind {
    Read,
    Write,
}

impl Load {
    /// Waits for a call, counts it, and prints it if it took long.
    async fn timed<T, E>(
        &self,
        kind: Kind,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let began = Instant::now();
        let result = call.await;
        let took = began.elapsed();
        let (name, count) = match kind {
            Kind::Read => ("read", &self.reads),
            Kind::Write => ("write", &self.writes),
        };
        count.fetch_add(1, Ordering::Relaxed);
        if took > STALL {
            println!("stall: {name} {} ms", took.as_millis());
        }
        let mut longest = self.longest.lock().unwrap_or_else(PoisonError::into_inner);
        let [read, write] = &mut *longest;
        let one = match kind {
            Kind::Read => read,
            Kind::Write => write,
        };
        *one = took.max(*one);
        result
    }
}

/// Ends the load after that many seconds, or at the end of standard input.
fn stop_after(load: &Arc<Load>, seconds: &str) -> Result<(), Failure> {
    let load = Arc::clone(load);
    if seconds == "-" {
        std::thread::spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            load.is_over.store(true, Ordering::Relaxed);
        });
        return Ok(());
    }
    let seconds = Duration::from_secs(seconds.parse()?);
    tokio::spawn(async move {
        tokio::time::sleep(seconds).await;
        load.is_over.store(true, Ordering::Relaxed);
    });
    Ok(())
}

async fn report(load: Arc<Load>, multipath: Multipath) {
    loop {
        tokio::time::sleep(PROGRESS).await;
        print(&load, &multipath);
    }
}

fn print(load: &Load, multipath: &Multipath) {
    let paths = multipath.paths();
    let live = paths.iter().filter(|path| path.is_live).count();
    let [read, write] = *load.longest.lock().unwrap_or_else(PoisonError::into_inner);
    println!(
        "reads {}, writes {}, longest read {} ms, longest write {} ms, paths {live} of {}",
        load.reads.load(Ordering::Relaxed),
        load.writes.load(Ordering::Relaxed),
        read.as_millis(),
        write.as_millis(),
        paths.len()
    );
}

/// The content of the blocks of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Unknown,
    Zeroes,
    /// The pattern of the write with that number.
    Write(u64),
}

/// Writes and verifies slots at random until the load is over, and then verifies all of them.
async fn run(
    load: Arc<Load>,
    host: Host,
    disk: MultipathNamespace,
    task: u64,
) -> Result<(), Failure> {
    let blocks = u64::try_from(LEN)? / u64::from(disk.block_size());
    let mut slots = vec![Content::Unknown; usize::try_from(SLOTS)?];
    let mut random = task;
    let mut number = 0;
    while !load.is_over.load(Ordering::Relaxed) {
        tokio::time::sleep(PAUSE).await;
        random = mix(random);
        let slot = random % SLOTS;
        let lba = (task * SLOTS + slot) * blocks;
        let Some(content) = slots.get_mut(usize::try_from(slot)?) else {
            continue;
        };
        let mut buf = host.buffer(LEN)?;
        match (random >> 32) % 16 {
            0..6 if *content != Content::Unknown => {
                let buf = load.timed(Kind::Read, disk.read(lba, buf)).await?;
                verify(&buf, (task, slot), *content)?;
            }
            0..7 => {
                let options = ZeroOptions::default();
                let zeroes = disk.write_zeroes(lba, blocks, options);
                load.timed(Kind::Write, zeroes).await?;
                *content = Content::Zeroes;
            }
            7 => load.timed(Kind::Write, disk.flush()).await?,
            other => {
                number += 1;
                let seed = seed((task, slot), number);
                for (at, word) in (0..).zip(buf.chunks_exact_mut(8)) {
                    word.copy_from_slice(&mix(seed ^ at).to_le_bytes());
                }
                let options = WriteOptions { fua: other == 8 };
                load.timed(Kind::Write, disk.write(lba, buf, options))
                    .await?;
                *content = Content::Write(number);
            }
        }
    }
    for (slot, content) in (0..).zip(slots) {
        let lba = (task * SLOTS + slot) * blocks;
        let buf = load
            .timed(Kind::Read, disk.read(lba, host.buffer(LEN)?))
            .await?;
        verify(&buf, (task, slot), content)?;
    }
    Ok(())
}

/// Checks each word of a slot. An old number means an undone write, different ones in one slot a
/// torn write.
fn verify(buf: &Buf, (task, slot): (u64, u64), content: Content) -> Result<(), Failure> {
    let seed = match content {
        Content::Unknown => return Ok(()),
        Content::Zeroes => None,
        Content::Write(number) => Some(seed((task, slot), number)),
    };
    for (at, word) in (0..).zip(buf.chunks_exact(8)) {
        let expected = seed.map_or(0, |seed| mix(seed ^ at)).to_le_bytes();
        if word == expected {
            continue;
        }
        let last = match content {
            Content::Write(number) => number,
            _ => 0,
        };
        // The newest write of this slot that has this word, if any.
        let found: [u8; 8] = word.try_into()?;
        let old = (1..last)
            .rev()
            .find(|old| found == mix(self::seed((task, slot), *old) ^ at).to_le_bytes());
        return Err(format!(
            "task {task}, slot {slot}, byte {}: {content:?} was acknowledged; the data are those \
             of {}",
            at * 8,
            match (old, found) {
                (Some(old), _) => format!("the older write {old}"),
                (None, [0, 0, 0, 0, 0, 0, 0, 0]) => "zeroes".to_owned(),
                (None, _) => "no write of this task".to_owned(),
            }
        )
        .into());
    }
    Ok(())
}

/// The start of the pattern of a write.
fn seed((task, slot): (u64, u64), number: u64) -> u64 {
    mix(mix(task << 32 | slot) ^ number)
}

/// SplitMix64 (Steele, Lea, Flood 2014): each input has an output that looks random.
fn mix(value: u64) -> u64 {
    let mut bits = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}
