//! What a controller is connected with.

use std::time::Duration;

use nvmeof_initiator_core::{Names, QueueShape, SetupConfig};
use nvmeof_rdma::Address;
use nvmeof_wire::Nqn;

use crate::identity::Identity;
use crate::polled::AdminConfig;

/// What to connect to and how.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The target's address.
    pub addr: Address,
    /// Name of the subsystem.
    pub subnqn: Nqn,
    /// I/O queues wanted; the controller may grant fewer. 0 for admin commands
    /// alone.
    pub io_queues: u16,
    /// Entries of each I/O queue; one less is the most commands in flight.
    pub queue_size: u16,
    /// Keep-alive time-out: how long the controller waits for a sign of life.
    /// Zero turns it off.
    pub keep_alive: Duration,
    /// How long a command may take before its queue is given up.
    pub command_timeout: Duration,
    /// How long a connection may take to stand.
    pub connect_timeout: Duration,
    /// Most bytes that a write puts into its capsule, if the controller takes
    /// as many.
    pub in_capsule: u32,
    /// How long the task that drives a queue looks for answers at most before it
    /// sleeps while calls are in flight: waking up takes longer than most
    /// commands. Where looking does not pay it learns to look for less. Zero
    /// sleeps at once. The polled interface does not look at this.
    pub spin: Duration,
}

impl ConnectOptions {
    /// One I/O queue of 128 entries, keep-alive of 5 s, commands may take 30 s,
    /// connections 10 s, writes of up to 4 KiB go with their command, drivers
    /// look for answers for 100 µs.
    #[must_use]
    pub fn new(addr: Address, subnqn: Nqn) -> Self {
        Self {
            addr,
            subnqn,
            io_queues: 1,
            queue_size: 128,
            keep_alive: Duration::from_secs(5),
            command_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            in_capsule: 4096,
            spin: Duration::from_micros(100),
        }
    }

    /// What an admin queue is set up with for these options.
    #[must_use]
    pub fn admin_config(&self, identity: &Identity) -> AdminConfig {
        let names = Names {
            hostid: identity.hostid,
            hostnqn: identity.hostnqn,
            subnqn: self.subnqn,
        };
        AdminConfig {
            setup: SetupConfig {
                names,
                queue: QueueShape {
                    qid: 0,
                    size: ADMIN_SIZE,
                    flow_control: true,
                },
                keep_alive: self.keep_alive,
                io_queues: self.io_queues,
                in_capsule: self.in_capsule,
            },
            command_timeout: self.command_timeout,
            connect_timeout: self.connect_timeout,
        }
    }
}

/// Entries of an admin queue: what every controller has (NVMe Base 2.0, section
/// 5.16.1.23, ASQSZ).
const ADMIN_SIZE: u16 = 32;
