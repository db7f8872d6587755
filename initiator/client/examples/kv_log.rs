//! Keeps keys and values in a log on a namespace, with group commit: records that tasks put during
//! a write are written together by the next one. Prints what the log has, then puts pairs:
//! `kv_log 127.0.0.1:4420 nqn.2026-11.org.example:disk 1 color=red size=7`
//!
//! The log begins at block 0. A batch of records is one write of whole blocks: checksum, sequence
//! number and length (8 bytes each), and the records. The checksum includes that of the batch
//! before it, so that no batch follows one that was replaced. A batch that was written in part has
//! a wrong checksum, and recovery ends before it.
//!
//! When a write fails or the connection is lost, the log ends: the batch may still be written
//! later. A program that continues must know that this cannot happen any more, as
//! `MultipathNamespace` does.

use std::collections::BTreeMap;
use std::error::Error;

use nvmeof_initiator::{Buf, ConnectOptions, Host, HostConfig, Namespace, Nqn, WriteOptions};
use tokio::sync::{mpsc, oneshot};

/// Most bytes of a batch.
const BATCH: usize = 64 << 10;
/// Bytes of a batch before its records.
const HEADER: usize = 24;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;
type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [addr, subnqn, nsid, pairs @ ..] = args.as_slice() else {
        return Err("usage: kv_log ADDR:PORT NQN NSID [KEY=VALUE]...".into());
    };
    let config = HostConfig::of_this_machine()?.with_buffers_for(1, BATCH);
    let host = Host::new(config)?;
    let options = ConnectOptions::new(addr.parse()?, Nqn::new(subnqn)?);
    let controller = host.connect(options).await?;
    let namespace = controller.namespace(nsid.parse()?).await?;

    let mut log = Log::new(namespace, host.buffer(BATCH)?);
    let (known, is_torn) = log.recover().await?;
    println!("{} keys in {} batches", known.len(), log.sequence - 1);
    if is_torn {
        println!("batch {} was not written completely", log.sequence);
    }
    for (key, value) in &known {
        println!(
            "{}={}",
            String::from_utf8_lossy(key),
            String::from_utf8_lossy(value)
        );
    }

    let (puts, receiver) = mpsc::channel(1024);
    let committer = tokio::spawn(commit(log, receiver));
    let mut tasks = Vec::new();
    for pair in pairs {
        let (key, value) = pair.split_once('=').ok_or("a pair is KEY=VALUE")?;
        tasks.push(tokio::spawn(put(puts.clone(), record(key, value)?)));
    }
    drop(puts);
    for task in tasks {
        task.await??;
    }
    let batches = committer.await?;
    println!("{} records committed in {batches} batches", pairs.len());
    controller.disconnect().await;
    Ok(())
}

/// A record to commit, and who waits for that.
struct Put {
    record: Vec<u8>,
    done: oneshot::Sender<std::result::Result<(), String>>,
}

/// Puts a record. It is on stable media when this returns.
async fn put(puts: mpsc::Sender<Put>, record: Vec<u8>) -> Result<()> {
    let (done, committed) = oneshot::channel();
    puts.send(Put { record, done }).await?;
    Ok(committed.await??)
}

/// Commits records in batches; returns the number of batches. Ends at the first error: the log
/// must be opened again then.
async fn commit(mut log: Log, mut puts: mpsc::Receiver<Put>) -> u64 {
    let (mut waiting, mut batches) = (Vec::new(), 0);
    while !waiting.is_empty() || puts.recv_many(&mut waiting, 1024).await > 0 {
        let mut len = HEADER;
        let fits = waiting.iter().take_while(|put: &&Put| {
            len += put.record.len();
            len <= BATCH
        });
        let count = fits.count();
        let batch: Vec<Put> = waiting.drain(..count).collect();
        let result = log.append(&batch).await.map_err(|error| error.to_string());
        let has_failed = result.is_err();
        for put in batch {
            // A task that does not wait any more needs no result.
            let _ = put.done.send(result.clone());
        }
        if has_failed {
            break;
        }
        batches += 1;
    }
    batches
}

/// The end of the log, and the buffer of its batches.
struct Log {
    namespace: Namespace,
    buf: Option<Buf>,
    /// The block and the sequence number of the next batch.
    lba: u64,
    sequence: u64,
    /// The checksum of the batch before it.
    before: u64,
}

impl Log {
    fn new(namespace: Namespace, buf: Buf) -> Self {
        let buf = Some(buf);
        Self {
            namespace,
            buf,
            lba: 0,
            sequence: 1,
            before: 0,
        }
    }

    /// Reads the batches up to the end of the log. Returns what it has, and whether the next batch
    /// was written in part.
    async fn recover(&mut self) -> Result<(Pairs, bool)> {
        let mut known = Pairs::new();
        let block_size = u64::from(self.namespace.block_size());
        loop {
            let left = (self.namespace.blocks() - self.lba) * block_size;
            let len = usize::try_from(left).map_or(BATCH, |left| left.min(BATCH));
            let mut buf = self.buf.take().ok_or("the log has failed")?;
            buf.set_len(len)?;
            let buf = self.buf.insert(self.namespace.read(self.lba, buf).await?);
            let Some((mut records, sum, written)) = parse(buf, self.sequence, self.before) else {
                return Ok((known, false));
            };
            if sum != written {
                return Ok((known, true));
            }
            self.before = sum;
            let len = u64::try_from(HEADER + records.len())?;
            while let Some((key, value)) = next_record(&mut records) {
                known.insert(key.to_vec(), value.to_vec());
            }
            self.lba += len.div_ceil(block_size);
            self.sequence += 1;
        }
    }

    /// Writes a batch, with Force Unit Access: it is on stable media when this returns.
    async fn append(&mut self, puts: &[Put]) -> Result<()> {
        let records = puts.iter().flat_map(|put| &put.record).copied();
        let records: Vec<u8> = records.collect();
        let len = u64::try_from(HEADER + records.len())?;
        let numbers = [self.sequence.to_le_bytes(), len.to_le_bytes()].concat();
        let sum = checksum(
            self.before
                .to_le_bytes()
                .iter()
                .chain(&numbers)
                .chain(&records),
        );
        let mut bytes = [&sum.to_le_bytes()[..], &numbers, &records].concat();
        bytes.resize(
            bytes
                .len()
                .next_multiple_of(self.namespace.block_size() as usize),
            0,
        );

        let mut buf = self.buf.take().ok_or("the log has failed")?;
        buf.set_len(bytes.len())?;
        buf.copy_from_slice(&bytes);
        let options = WriteOptions { fua: true };
        self.buf = Some(self.namespace.write(self.lba, buf, options).await?);
        self.lba += len.div_ceil(self.namespace.block_size().into());
        self.sequence += 1;
        self.before = sum;
        Ok(())
    }
}

/// The records of the batch with that sequence number at the start of `bytes`, after one with the
/// checksum `before`: its checksum as it should be, and as it is. `None`: there is no such batch.
fn parse(bytes: &[u8], sequence: u64, before: u64) -> Option<(&[u8], u64, u64)> {
    let mut rest = bytes;
    let mut number = || Some(u64::from_le_bytes(*rest.split_off(..8)?.as_array()?));
    let (written, found, len) = (number()?, number()?, number()?);
    let len = usize::try_from(len).ok().filter(|_| found == sequence)?;
    let records = bytes.get(HEADER..len)?;
    let summed = bytes.get(8..len)?;
    let sum = checksum(before.to_le_bytes().iter().chain(summed));
    Some((records, sum, written))
}

/// A record: lengths of key and value (2 bytes each), key and value.
fn record(key: &str, value: &str) -> Result<Vec<u8>> {
    let lens = [key.len(), value.len()].map(u16::try_from);
    let [Ok(key_len), Ok(value_len)] = lens else {
        return Err("a key or a value has more than 65535 bytes".into());
    };
    let lens = [key_len.to_le_bytes(), value_len.to_le_bytes()].concat();
    let record = [&lens, key.as_bytes(), value.as_bytes()].concat();
    if record.len() > BATCH - HEADER {
        return Err("a record is longer than a batch".into());
    }
    Ok(record)
}

/// Takes the first record: its key and its value.
fn next_record<'a>(records: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let mut len = || {
        Some(usize::from(u16::from_le_bytes(
            *records.split_off(..2)?.as_array()?,
        )))
    };
    let (key, value) = (len()?, len()?);
    Some((records.split_off(..key)?, records.split_off(..value)?))
}

/// FNV-1a, which detects batches that were written in part. Against other damage, use CRC-32C.
fn checksum<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, step)
}
