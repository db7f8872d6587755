//! Sending payloads without copying them (MSG_ZEROCOPY), where the kernel can.
//! It tells on the socket's error queue when it is done with the pages, and
//! whether it copied them all the same
//! (Documentation/networking/msg_zerocopy.rst of the kernel).

use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, send, sendmsg};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::Socket;

/// SO_ZEROCOPY, which nix does not name; it has the call itself.
#[derive(Clone, Copy, Debug)]
struct ZeroCopy;
nix::setsockopt_impl!(
    ZeroCopy,
    libc::SOL_SOCKET,
    libc::SO_ZEROCOPY,
    bool,
    sockopt::SetBool
);

/// In the code of a notification: the data was copied
/// (SO_EE_CODE_ZEROCOPY_COPIED).
const COPIED: u8 = 1;
/// Sends after which notifications are fetched: their memory is limited.
const FETCH: u32 = 16;

/// What became of the sends of a socket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sends {
    /// All of them.
    pub(super) all: u64,
    /// Those that the kernel copied although it was asked not to.
    pub(super) copied: u64,
    /// Those of which it did not tell yet.
    waiting: u32,
}

impl Sends {
    /// Prepares the socket.
    pub(super) fn prepare(stream: &Socket) -> io::Result<()> {
        Ok(setsockopt(stream, ZeroCopy, &true)?)
    }

    /// Sends what goes before a payload.
    pub(super) fn head(stream: &Socket, bytes: &[u8]) -> io::Result<usize> {
        let flags = MsgFlags::from_bits_retain(libc::MSG_MORE) | MsgFlags::MSG_NOSIGNAL;
        Ok(send(stream.as_raw_fd(), bytes, flags)?)
    }

    /// Sends bytes that stay as they are from now on.
    pub(super) fn payload(&mut self, stream: &Socket, bytes: &[u8]) -> io::Result<usize> {
        if self.waiting >= FETCH {
            self.fetch(stream)?;
        }
        let flags = MsgFlags::from_bits_retain(libc::MSG_ZEROCOPY) | MsgFlags::MSG_NOSIGNAL;
        let pieces = [IoSlice::new(bytes)];
        match sendmsg::<()>(stream.as_raw_fd(), &pieces, &[], flags, None) {
            // No memory for one more notification.
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

    /// Takes the notifications that are there.
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
                if let ControlMessageOwned::Ipv4RecvErr(told, _) = part {
                    // One tells of the sends from ee_info to ee_data.
                    let count = told.ee_data.wrapping_sub(told.ee_info).wrapping_add(1);
                    self.waiting = self.waiting.saturating_sub(count);
                    if told.ee_code == COPIED {
                        self.copied += u64::from(count);
                    }
                }
            }
        }
    }
}
