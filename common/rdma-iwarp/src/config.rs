//! Configuration and creation of the provider.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_rdma::{Limits, Steering};
use nvmeof_rdma_soft::group::Group;
use nvmeof_rdma_soft::{SoftConfig, SoftRdma};

use crate::{SocketStreams, ZeroCopy};

/// Software iWARP over TCP and Unix sockets.
pub type Iwarp = SoftRdma<SocketStreams>;

/// Configuration of the provider.
#[derive(Clone, Debug)]
pub struct IwarpConfig {
    /// Limits of the provider.
    pub limits: Limits,
    /// Whether it requests a CRC32c on every frame. TCP has a checksum of its own; this one
    /// detects what that misses. A peer that requests CRCs gets them in any case.
    pub crc: bool,
    /// Send and receive buffer of each socket in bytes, limited by the kernel
    /// (`net.core.rmem_max` and `wmem_max`). `None` leaves them to the kernel, which adapts
    /// them to the traffic.
    pub socket_buffer: Option<usize>,
    /// Permissions of the file of a listening Unix socket: processes with write permission
    /// may connect.
    pub socket_mode: u32,
    /// Where sends leave out the copy to the kernel.
    pub zero_copy: ZeroCopy,
    /// Time-out for the peer's part of the connection set-up.
    pub handshake: Duration,
    /// Time-out for a closing connection to send queued work.
    pub linger: Duration,
}

impl Default for IwarpConfig {
    fn default() -> Self {
        let soft = SoftConfig::default();
        Self {
            limits: soft.limits,
            crc: soft.crc,
            socket_buffer: Some(1 << 20),
            socket_mode: 0o660,
            zero_copy: ZeroCopy::Never,
            handshake: soft.handshake,
            linger: soft.linger,
        }
    }
}

/// Creates a provider. Its memory keys start at a random number.
///
/// # Errors
/// When the kernel cannot create an epoll instance.
pub fn new(config: IwarpConfig) -> io::Result<Iwarp> {
    Ok(over(streams(&config)?, config))
}

/// Creates a provider for each member of `steering`. They share their listeners, and each
/// connection goes to one of them before anything is read from it.
///
/// # Errors
/// When the kernel cannot create file descriptors.
pub fn group(config: &IwarpConfig, steering: &Steering) -> io::Result<Vec<Iwarp>> {
    let group = Group::new(steering.clone());
    let member = |number| {
        let mut streams = streams(config)?;
        streams.join(Arc::clone(&group), number, config.limits.max_pending)?;
        Ok(over(streams, config.clone()))
    };
    (0..steering.members()).map(member).collect()
}

fn streams(config: &IwarpConfig) -> io::Result<SocketStreams> {
    SocketStreams::new(config.socket_buffer, config.socket_mode, config.zero_copy)
}

fn over(streams: SocketStreams, config: IwarpConfig) -> Iwarp {
    let config = SoftConfig {
        limits: config.limits,
        crc: config.crc,
        handshake: config.handshake,
        linger: config.linger,
        // The standard library's hasher keys come from the kernel's random
        // numbers.
        seed: RandomState::new().hash_one(std::process::id()),
    };
    SoftRdma::new(streams, config)
}
