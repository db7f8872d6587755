//! Sends of payloads with MSG_ZEROCOPY. The kernel reports on the error queue of the
//! socket when it has released the pages, and whether it copied them
//! (Documentation/networking/msg_zerocopy.rst of the kernel).

use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, send, sendmsg};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::Socket;

/// SO_ZEROCOPY, which nix does not define.
#[derive(Clone, Copy, Debug)]
struct ZeroCopy;
nix::setsockopt_impl!(
    ZeroCopy,
    libc::SOL_SOCKET,
    libc::SO_ZEROCOPY,
    bool,
    sockopt::SetBool
);

/// In the code of a notification: the data were copied
/// (SO_EE_CODE_ZEROCOPY_COPIED).
const COPIED: u8 = 1;
/// Sends after which notifications are fetched: their memory is limited.
const FETCH: u32 = 16;

/// Counters of the sends of a socket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sends {
    /// All sends.
    pub(super) all: u64,
    /// Sends that the kernel copied.
    pub(super) copied: u64,
    /// Sends without a notification yet.
    waiting: u32,
}

impl Sends {
    /// Prepares the socket.
    pub(super) fn prepare(stream: &Socket) -> io::Result<()> {
        Ok(setsockopt(stream, ZeroCopy, &true)?)
    }

    /// Sends the head of a payload.
    pub(super) fn head(stream: &Socket, bytes: &[u8]) -> io::Result<usize> {
        let flags = MsgFlags::from_bits_retain(libc::MSG_MORE) | MsgFlags::MSG_NOSIGNAL;
        Ok(send(stream.as_raw_fd(), bytes, flags)?)
    }

    /// Sends bytes that do not change from now on.
    pub(super) fn payload(&mut self, stream: &Socket, bytes: &[u8]) -> io::Result<usize> {
        if self.waiting >= FETCH {
            self.fetch(stream)?;
        }
        let flags = MsgFlags::from_bits_retain(libc::MSG_ZEROCOPY) | MsgFlags::MSG_NOSIGNAL;
        let pieces = [IoSlice::new(bytes)];
        match sendmsg::<()>(stream.as_raw_fd(), &pieces, &[], flags, None) {
            // No memory for another notification.
            Err(Errno::ENOBUFS) => {
                self.fetch(stream)?;
                Err(io::ErrorKind::WouldBlock.into())
            }
            sent => {
                let sent = sent?;
                self.all += 1;
                self.waiting += 1;
                Ok(sent)
            }
        }
    }

    /// Reads the pending notifications.
    fn fetch(&mut self, stream: &Socket) -> io::Result<()> {
        let mut control = cmsg_space!([u8; 64]);
        loop {
            let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
            let fd = stream.as_raw_fd();
            let message = match recvmsg::<SockaddrIn>(fd, &mut [], Some(&mut control), flags) {
                Err(Errno::EAGAIN | Errno::EINTR) => return Ok(()),
                message => message?,
            };
            for part in message.cmsgs()? {
                if let ControlMessageOwned::Ipv4RecvErr(notice, _) = part {
                    // A notification is for the sends from ee_info to ee_data.
                    let count = notice.ee_data.wrapping_sub(notice.ee_info).wrapping_add(1);
                    self.waiting = self.waiting.saturating_sub(count);
                    if notice.ee_code == COPIED {
                        self.copied += u64::from(count);
                    }
                }
            }
        }
    }
}
