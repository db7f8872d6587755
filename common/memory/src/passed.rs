//! Descriptors that a message passes (SCM_RIGHTS).
//!
//! It is in this crate because a descriptor arrives as a number, and taking ownership of a
//! number is unsafe.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Room for the control message of one descriptor; rounded up, there is room for two.
#[repr(C, align(8))]
struct Control([u8; 24]);

const _: () = {
    assert!(size_of::<RawFd>() == 4);
    // SAFETY: pure arithmetic.
    let need = unsafe { libc::CMSG_SPACE(4) };
    assert!(size_of::<Control>() == need as usize);
    assert!(align_of::<Control>() >= align_of::<libc::cmsghdr>());
};

/// Receives a message from a `SOCK_SEQPACKET` socket, without waiting, and the descriptor
/// that it may pass. Returns the length of the message; 0 is the end of the stream. `bytes`
/// must be at least one byte longer than any expected message.
///
/// # Errors
/// The error of recvmsg(2); [`io::ErrorKind::InvalidData`] when the message is longer than
/// `bytes` or passes more than one descriptor. All received descriptors are closed then.
pub fn receive_passed(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control = Control([0; 24]);
    let mut piece = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: a message header of zeroes is valid and empty.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>();
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: the header names local memory, which lives until the call returns, with its
    // correct lengths.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    // Also if there were more than fit or than may be opened: those that arrived must be
    // closed.
    let mut fds = take(&message);
    let cut = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    if cut || fds.len() > 1 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((received, fds.pop()))
}

/// Takes the descriptors out of the control messages.
fn take(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the kernel filled in the header; its control memory is aligned
    // and `msg_controllen` is the length that was written.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: `next` is null or in that memory, including the header.
    while let Some(header) = unsafe { next.as_ref() } {
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: pure arithmetic.
            let start = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = header.cmsg_len.saturating_sub(start) / size_of::<RawFd>();
            // SAFETY: the data follow the header.
            let data = unsafe { libc::CMSG_DATA(next) }.cast::<RawFd>();
            for number in 0..count {
                // SAFETY: there are `count` numbers.
                let place = unsafe { data.add(number) };
                // SAFETY: the kernel wrote it; it may be aligned or not.
                let fd = unsafe { place.read_unaligned() };
                // SAFETY: the kernel just created this descriptor for this process, and no
                // other owner exists.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        // SAFETY: `next` is a header in that memory.
        next = unsafe { libc::CMSG_NXTHDR(message, next) };
    }
    fds
}

// Miri knows no memfd.
#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use nix::fcntl::readlink;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::sys::socket::{
        AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair,
    };
    use std::io::IoSlice;
    use std::os::fd::AsFd;

    const NAME: &str = "passed-in-a-test";

    /// Number of open descriptors of the memfd; other tests run at the same time.
    fn open() -> usize {
        let all = std::fs::read_dir("/proc/self/fd").unwrap();
        let links = all.filter_map(|entry| readlink(&entry.unwrap().path()).ok());
        links
            .filter(|link| link.to_string_lossy().contains(NAME))
            .count()
    }

    #[test]
    fn message_passes_one_descriptor_and_leaks_none() {
        let kind = (AddressFamily::Unix, SockType::SeqPacket);
        let (here, there) = socketpair(kind.0, kind.1, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let fd = memfd_create(NAME, MFdFlags::MFD_CLOEXEC).unwrap();
        let send = |count: usize| {
            let fds = vec![fd.as_raw_fd(); count];
            let control = [ControlMessage::ScmRights(&fds)];
            let control = if count == 0 { &[][..] } else { &control };
            let pieces = [IoSlice::new(b"take this")];
            sendmsg::<()>(there.as_raw_fd(), &pieces, control, MsgFlags::empty(), None).unwrap();
        };
        let mut bytes = [0; 32];
        send(1);
        let (len, got) = receive_passed(here.as_fd(), &mut bytes).unwrap();
        assert_eq!((&bytes[..len], got.is_some()), (&b"take this"[..], true));
        assert_eq!(open(), 2);
        drop(got);
        send(0);
        let (_, got) = receive_passed(here.as_fd(), &mut bytes).unwrap();
        assert!(got.is_none());
        for count in [2, 3, 100] {
            send(count);
            let refused = receive_passed(here.as_fd(), &mut bytes).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
            assert_eq!(open(), 1, "{count} descriptors");
        }
        send(1);
        assert!(receive_passed(here.as_fd(), &mut bytes[..3]).is_err());
        assert_eq!(open(), 1);
        let nothing = receive_passed(here.as_fd(), &mut bytes).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        drop(there);
        assert_eq!(receive_passed(here.as_fd(), &mut bytes).unwrap().0, 0);
    }
}
