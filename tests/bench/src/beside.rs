//! An honest host that measures twice over the same connection: while it is alone
//! with the target, and then beside other hosts.

use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvmeof_initiator::{
    Address, Buf, ConnectOptions, Controller, Error, Host, HostConfig, Namespace, Nqn, Transport,
    UsageError, WriteOptions,
};
use nvmeof_rdma_layers::Dice;
use tokio::runtime::Builder;

use crate::tally::Tally;

/// An honest host.
#[derive(Clone, Debug)]
pub struct Beside {
    /// Where the target listens.
    pub addr: Address,
    /// Name of its subsystem, whose namespace 1 is read and written at random.
    pub subnqn: Nqn,
    /// Bytes of each operation.
    pub bytes: u32,
    /// Operations in flight.
    pub depth: u16,
    /// Duration of the measurement alone, and of that beside others.
    pub runtimes: [Duration; 2],
}

/// Measures alone and prints the report; waits for a line of standard input,
/// measures again and prints the second report.
///
/// # Errors
/// When connecting or an operation fails.
pub fn measure(beside: &Beside) -> Result<(), Error> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| other(&error))?;
    runtime.block_on(async {
        let controller = connect(beside).await?;
        let [alone, together] = beside.runtimes;
        round(beside, &controller, alone).await?;
        // Waits on another thread: this one keeps the connection alive.
        let line = tokio::task::spawn_blocking(|| io::stdin().read_line(&mut String::new()));
        let line = line.await.map_err(|error| other(&error))?;
        line.map_err(|error| other(&error))?;
        round(beside, &controller, together).await?;
        controller.disconnect().await;
        Ok(())
    })
}

async fn connect(beside: &Beside) -> Result<Controller, Error> {
    let bytes = usize::try_from(beside.bytes).unwrap_or(usize::MAX);
    let config = HostConfig::of_this_machine()?;
    let mut config = config.with_buffers_for(beside.depth.into(), bytes);
    config.transport = Transport::Iwarp;
    let mut options = ConnectOptions::new(beside.addr, beside.subnqn);
    // All data are transferred by RDMA, so that short writes need buffers as well.
    options.in_capsule = 0;
    Host::new(config)?.connect(options).await
}

/// Measures for `time`, and until the operations in flight have completed.
async fn round(beside: &Beside, controller: &Controller, time: Duration) -> Result<(), Error> {
    let namespace = controller.namespace(1).await?;
    let tally = Arc::new(Mutex::new(Tally::default()));
    let begin = Instant::now();
    let mut lanes = Vec::new();
    for number in 0..beside.depth {
        let lane = Lane {
            namespace: namespace.clone(),
            buf: controller.alloc(usize::try_from(beside.bytes).unwrap_or(usize::MAX))?,
            dice: Dice::new(number.into()),
            tally: Arc::clone(&tally),
        };
        lanes.push(tokio::spawn(lane.run(begin, time)));
    }
    for lane in lanes {
        lane.await.map_err(|error| other(&error))??;
    }
    let tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    println!("{}", tally.report(beside.bytes, begin.elapsed()));
    io::stdout().flush().map_err(|error| other(&error))
}

/// One operation after the other.
struct Lane {
    namespace: Namespace,
    buf: Buf,
    dice: Dice,
    tally: Arc<Mutex<Tally>>,
}

impl Lane {
    async fn run(mut self, begin: Instant, time: Duration) -> Result<(), Error> {
        let blocks = u64::try_from(self.buf.len()).unwrap_or(u64::MAX);
        let blocks = blocks / u64::from(self.namespace.block_size()).max(1);
        let positions = self.namespace.blocks() / blocks.max(1);
        let mut now = Instant::now();
        while now.duration_since(begin) < time {
            let lba = self.dice.roll() % positions.max(1) * blocks;
            let ended = match self.dice.roll().is_multiple_of(2) {
                true => self.namespace.read(lba, self.buf).await,
                false => {
                    let options = WriteOptions::default();
                    self.namespace.write(lba, self.buf, options).await
                }
            };
            self.buf = ended.map_err(Error::from)?;
            let before = std::mem::replace(&mut now, Instant::now());
            let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
            tally.record(now.duration_since(before));
        }
        Ok(())
    }
}

fn other(error: &dyn std::fmt::Display) -> Error {
    UsageError::Other(error.to_string()).into()
}
