//! Options of a connection to a controller.

use std::sync::Arc;
use std::time::Duration;

use nvmeof_initiator_core::dhchap::HostKeys;
use nvmeof_initiator_core::{Names, QueueShape, SetupConfig};
use nvmeof_rdma::Address;
use nvmeof_wire::Nqn;

use crate::identity::Identity;
use crate::polled::AdminConfig;

/// Options of a connection to a controller.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The target's address.
    pub addr: Address,
    /// Name of the subsystem.
    pub subnqn: Nqn,
    /// I/O queues to request; the controller may grant fewer. 0 for admin commands only.
    pub io_queues: u16,
    /// Entries of each I/O queue; one less is the maximum of commands in flight. Reduced to
    /// the limits of controller and provider: see
    /// [`ControllerInfo`](crate::ControllerInfo).
    pub queue_size: u16,
    /// Keep-alive time-out. Zero disables keep-alive.
    pub keep_alive: Duration,
    /// Time-out of commands. When it expires, the queue is closed.
    pub command_timeout: Duration,
    /// Time-out of connecting.
    pub connect_timeout: Duration,
    /// Maximum in-capsule data of a write, if the controller supports as much.
    pub in_capsule: u32,
    /// Maximum time that the task of a queue polls for completions before it sleeps, while
    /// calls are in flight: a wake-up takes longer than most commands. The time adapts to
    /// the success of polling. Zero disables polling. The polled interface ignores this.
    pub spin: Duration,
    /// Keys for in-band authentication (DH-HMAC-CHAP). With a key of the controller, only a
    /// controller that proves it is used.
    pub keys: Option<Arc<HostKeys>>,
    /// Whether the target is trusted with all buffers of this host. I/O queues then expose their
    /// buffers once, when they connect, and not each buffer for the duration of a command. That
    /// saves a work request for each command with data over InfiniBand and RoCE devices, and two
    /// system calls over iWARP devices and devices without memory windows of type 2B. Over
    /// software iWARP and shared memory, it has no effect.
    ///
    /// Risk: a faulty or malicious target can read and write every
    /// buffer of the host at any time, in use or not, until the connection is closed. If it
    /// writes after its response, it corrupts the data of a later call or of the program, and
    /// nothing detects that. Targets of other connections still access nothing.
    pub trusts_target: bool,
}

impl ConnectOptions {
    /// Defaults: one I/O queue of 128 entries, keep-alive time-out 5 s, command time-out
    /// 30 s, connect time-out 10 s, in-capsule data up to 4 KiB, polling for 100 µs.
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
            keys: None,
            trusts_target: false,
        }
    }

    /// The configuration of the admin queue for these options.
    #[must_use]
    pub fn admin_config(&self, identity: &Identity) -> AdminConfig {
        let names = Names {
            hostid: identity.hostid,
            hostnqn: identity.hostnqn,
            subnqn: self.subnqn,
            keys: self.keys.clone(),
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

/// Entries of an admin queue: every controller supports as many (NVMe Base 2.0, section
/// 5.16.1.23, ASQSZ).
const ADMIN_SIZE: u16 = 32;

#[cfg(test)]
mod tests {
    use nvmeof_initiator_core::dhchap::Key;

    use super::*;

    /// Bytes 00h to 1Fh.
    const KNOWN: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    #[test]
    fn debug_output_has_no_key() {
        let key = Arc::new(Key::parse(KNOWN).unwrap());
        let addr = "127.0.0.1:4420".parse().unwrap();
        let subnqn = Nqn::new("nqn.2026-11.org.example:disk").unwrap();
        let mut options = ConnectOptions::new(addr, subnqn);
        options.keys = Some(Arc::new(HostKeys::new(Arc::clone(&key), Some(key))));
        let config = options.admin_config(&Identity::of_name(subnqn));
        for text in [format!("{options:?}"), format!("{config:#?}")] {
            assert!(text.contains("controller_key"), "{text}");
            assert!(!text.contains("AAEC"), "{text}");
            // As numbers.
            let digits: String = text.split_whitespace().collect();
            assert!(
                !digits.contains("0,1,2,3") && !digits.contains("00010203"),
                "{text}"
            );
        }
    }
}
