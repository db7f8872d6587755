//! Sends without copies (MSG_ZEROCOPY): which calls use them, and what the kernel has released.
//!
//! The kernel transmits, and retransmits, the pages of the caller. It reports on the error
//! queue of the socket which calls it has released, as ranges of their numbers
//! (Documentation/networking/msg_zerocopy.rst).

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::libc;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrIn, SockaddrStorage, connect, recvmsg, setsockopt,
    sockopt,
};
use nvmeof_rdma_soft::Accepted;
use socket2::Socket;

use crate::socket;

/// SO_ZEROCOPY, which nix does not define.
#[derive(Clone, Copy, Debug)]
struct Enable;
nix::setsockopt_impl!(
    Enable,
    libc::SOL_SOCKET,
    libc::SO_ZEROCOPY,
    bool,
    sockopt::SetBool
);

/// Where sends leave out the copy to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroCopy {
    /// Nowhere.
    #[default]
    Never,
    /// For large payloads to other machines over paths with long segments, as long as the
    /// kernel does not copy them anyway.
    Remote,
    /// For every payload to every TCP peer, whether it saves anything or not: for tests.
    Always,
}

/// Minimum payload of a call. Below it, the notification costs more than the copy saves.
const MIN_PAYLOAD: usize = 64 * 1024;
/// Minimum segment of the path. A frame is no longer than a segment, and every frame has a
/// header in other memory: with short frames, the packets consist of so many pieces that they
/// cost more than a copy.
const MIN_SEGMENT: usize = 8 * 1024;
/// Minimum average piece of a call, for the same reason: half of its pieces are headers.
const MIN_PIECE: usize = MIN_SEGMENT / 2;
/// Maximum calls that are not released: their notifications take kernel memory
/// (`net.core.optmem_max`).
const MAX_CALLS: u64 = 128;
/// Number of unreleased calls from which a call first reads notifications.
const READ_FROM: u64 = 16;
/// Released calls after which it matters how many of them the kernel copied.
const SAMPLE: u64 = 32;
/// The origin of notifications (SO_EE_ORIGIN_ZEROCOPY).
const ORIGIN: u8 = 5;
/// In the code of a notification: the data were copied (SO_EE_CODE_ZEROCOPY_COPIED).
const COPIED: u8 = 1;

/// No address family.
const AF_UNSPEC: libc::sa_family_t = 0;

/// The calls of one socket that leave out the copy.
#[derive(Debug)]
pub(crate) struct Pins {
    /// Minimum payload of a call, and whether that is final: see [`ZeroCopy::Always`].
    min_payload: usize,
    forced: bool,
    /// Number of calls.
    calls: u64,
    /// All of the first calls are released, up to this number.
    released: u64,
    /// Released ranges behind the first one that is not.
    early: Vec<(u64, u64)>,
    /// Notified calls, and how many of them the kernel copied.
    notified: u64,
    copied: u64,
}

impl Pins {
    /// Prepares an established socket. `None` if its sends are to copy.
    pub(crate) fn new(mode: ZeroCopy, socket: &Socket) -> Option<Box<Self>> {
        let forced = match mode {
            ZeroCopy::Never => return None,
            ZeroCopy::Remote => false,
            ZeroCopy::Always => true,
        };
        if !(forced || is_remote(socket) && socket::segment(socket) >= MIN_SEGMENT) {
            return None;
        }
        if let Err(error) = setsockopt(socket, Enable, &true) {
            tracing::debug!(%error, "the kernel cannot send without copies");
            return None;
        }
        Some(Box::new(Self {
            min_payload: if forced { 1 } else { MIN_PAYLOAD },
            forced,
            calls: 0,
            released: 0,
            early: Vec::new(),
            notified: 0,
            copied: 0,
        }))
    }

    /// The number of the last call of those that are released without a gap.
    pub(crate) fn released(&self) -> u64 {
        self.released
    }

    /// Whether a call is not released.
    pub(crate) fn holds(&self) -> bool {
        self.calls > self.released
    }

    /// Sends `bufs`, without a copy if that pays for their `payload`.
    pub(crate) fn send(
        &mut self,
        socket: &Socket,
        bufs: &[IoSlice<'_>],
        payload: usize,
    ) -> io::Result<Accepted> {
        if self.pays(bufs.len(), payload) {
            if self.calls - self.released >= READ_FROM {
                self.read_notifications(socket);
            }
            if self.calls - self.released < MAX_CALLS {
                match send(socket, bufs, libc::MSG_ZEROCOPY) {
                    // Above the limit of locked memory, or of memory for notifications.
                    Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                    Err(error) => return Err(error),
                    // An interrupted call has no number.
                    Ok(0) => return Ok(self.accepted(0)),
                    Ok(bytes) => {
                        self.calls += 1;
                        return Ok(self.accepted(bytes));
                    }
                }
            }
        }
        let bytes = send(socket, bufs, 0)?;
        Ok(self.accepted(bytes))
    }

    /// Whether a call with so many pieces saves more by leaving out the copy than that costs.
    fn pays(&self, pieces: usize, payload: usize) -> bool {
        payload >= self.min_payload && (self.forced || payload >= pieces * MIN_PIECE)
    }

    fn accepted(&self, bytes: usize) -> Accepted {
        let kept = if self.holds() { self.calls } else { 0 };
        Accepted { bytes, kept }
    }

    /// Reads all notifications.
    pub(crate) fn read_notifications(&mut self, socket: &Socket) {
        let mut control = cmsg_space!([u8; 64]);
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        loop {
            let fd = socket.as_raw_fd();
            let message = match recvmsg::<SockaddrStorage>(fd, &mut [], Some(&mut control), flags) {
                Ok(message) => message,
                Err(Errno::EINTR) => continue,
                // There are none; other errors are those of the connection.
                Err(_) => break,
            };
            let Ok(parts) = message.cmsgs() else {
                continue;
            };
            for part in parts {
                if let ControlMessageOwned::Ipv4RecvErr(notice, _)
                | ControlMessageOwned::Ipv6RecvErr(notice, _) = part
                    && notice.ee_origin == ORIGIN
                {
                    let copied = notice.ee_code & COPIED != 0;
                    self.note(notice.ee_info, notice.ee_data, copied);
                }
            }
        }
        self.judge();
    }

    /// The calls `first` to `last` are released. The kernel counts from 0, in 32 bits.
    fn note(&mut self, first: u32, last: u32, copied: bool) {
        let [a, b, c, d, ..] = self.released.to_le_bytes();
        let next = u32::from_le_bytes([a, b, c, d]);
        let start = self.released + u64::from(first.wrapping_sub(next));
        let end = start + u64::from(last.wrapping_sub(first)) + 1;
        if end > self.calls {
            tracing::debug!(first, last, "the kernel released calls that were not made");
            return;
        }
        self.notified += end - start;
        self.copied += if copied { end - start } else { 0 };
        self.early.push((start, end));
        while let Some(at) = self.early.iter().position(|(at, _)| *at == self.released) {
            self.released = self.early.swap_remove(at).1;
        }
    }

    /// Ends sends without copies if the kernel copied most of them: some devices cannot
    /// collect the pieces of a packet, and between network namespaces data are copied.
    fn judge(&mut self) {
        let useless = self.notified >= SAMPLE && self.copied * 2 > self.notified;
        if useless && !self.forced && self.min_payload != usize::MAX {
            let (copied, of) = (self.copied, self.notified);
            tracing::debug!(copied, of, "the kernel copies; sending without copies ends");
            self.min_payload = usize::MAX;
        }
    }

    /// Resets the connection: what is queued is dropped, and nothing is retransmitted. The
    /// socket stays, and its error queue with it (connect(2): AF_UNSPEC dissolves the
    /// association; for TCP, `tcp_disconnect` of the kernel).
    pub(crate) fn reset(&mut self, socket: &Socket) {
        let nowhere = SockaddrIn::from(libc::sockaddr_in {
            sin_family: AF_UNSPEC,
            sin_port: 0,
            sin_addr: libc::in_addr { s_addr: 0 },
            sin_zero: [0; 8],
        });
        if let Err(error) = connect(socket.as_raw_fd(), &nowhere) {
            tracing::debug!(%error, "cannot reset a connection");
        }
        self.read_notifications(socket);
    }
}

/// One send call; 0 bytes if it was interrupted.
pub(crate) fn send(socket: &Socket, bufs: &[IoSlice<'_>], flags: libc::c_int) -> io::Result<usize> {
    // A closed peer is an error, not a signal.
    match socket.send_vectored_with_flags(bufs, flags | libc::MSG_NOSIGNAL) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        sent => sent,
    }
}

/// Whether the peer is on another machine: to sockets of this one, the kernel copies all data.
fn is_remote(socket: &Socket) -> bool {
    let peer = socket.peer_addr().ok().and_then(|addr| addr.as_socket());
    let Some(peer) = peer.map(|addr| addr.ip()) else {
        return false;
    };
    !peer.is_loopback() && !is_local(peer)
}

/// Whether an interface has this address. Without an answer of the kernel, it counts as one.
fn is_local(addr: IpAddr) -> bool {
    let Ok(interfaces) = getifaddrs() else {
        return true;
    };
    interfaces
        .filter_map(|one| ip(&one.address?))
        .any(|own| own == addr)
}

fn ip(addr: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = addr.as_sockaddr_in().map(|addr| IpAddr::V4(addr.ip()));
    v4.or_else(|| addr.as_sockaddr_in6().map(|addr| IpAddr::V6(addr.ip())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pins(calls: u64, forced: bool) -> Pins {
        Pins {
            min_payload: 1,
            forced,
            calls,
            released: 0,
            early: Vec::new(),
            notified: 0,
            copied: 0,
        }
    }

    #[test]
    fn calls_are_released_without_a_gap() {
        let mut pins = pins(9, false);
        for (first, last, released) in [(1, 2, 0), (5, 5, 0), (0, 0, 3), (3, 4, 6), (6, 8, 9)] {
            pins.note(first, last, false);
            assert_eq!(pins.released(), released, "after {first}-{last}");
        }
        assert!(!pins.holds());
    }

    #[test]
    fn numbers_of_kernel_wrap() {
        let wrap = u64::from(u32::MAX) + 1;
        let mut pins = pins(2 * wrap + 2, false);
        pins.released = 2 * wrap - 2;
        pins.note(0, 0, false);
        assert_eq!(pins.released(), 2 * wrap - 2);
        pins.note(u32::MAX - 1, u32::MAX, false);
        assert_eq!(pins.released(), 2 * wrap + 1);
        pins.note(1, 1, false);
        assert!(!pins.holds());
    }

    #[test]
    fn release_of_calls_that_were_not_made_is_ignored() {
        let mut pins = pins(2, false);
        pins.note(0, 2, false);
        pins.note(5, 4, false);
        assert_eq!(pins.released(), 0);
    }

    #[test]
    fn sends_are_copied_once_kernel_copies_most() {
        let ends = |copied: u32, of: u32, forced| {
            let mut pins = pins(of.into(), forced);
            for call in 0..of {
                pins.note(call, call, call < copied);
            }
            pins.judge();
            pins.min_payload == usize::MAX
        };
        assert!(ends(17, 32, false));
        assert!(!ends(16, 32, false));
        assert!(!ends(31, 31, false), "too few to tell");
        assert!(!ends(32, 32, true));
    }

    #[test]
    fn short_frames_are_copied() {
        let mut pins = pins(0, false);
        pins.min_payload = MIN_PAYLOAD;
        let pays = |frames: usize, each: usize| pins.pays(2 * frames + 1, frames * each);
        // Payload in frames of 8,900 bytes, and many small messages at the same time.
        assert!(pays(15, 8900) && pays(100, 8900));
        assert!(!pays(7, 8900));
        assert!(!pays(16, 4096) && !pays(127, 1024));
    }

    #[test]
    fn own_addresses_are_not_remote() {
        for addr in ["127.0.0.1", "::1"] {
            // Without IPv6 there is no such address.
            assert!(addr == "::1" || is_local(addr.parse().unwrap()));
        }
        assert!(!is_local("192.0.2.1".parse().unwrap()));
    }
}
