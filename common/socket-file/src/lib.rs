//! The file of a Unix socket that listens: who has it, and for how long.
//!
//! Binding makes a file that outlives its process, and a file alone does not
//! tell whether somebody still listens. So each has a lock beside it, held as
//! long as we listen; with that in hand, what a dead process left is replaced,
//! and a live one is not.
//!
//! This crate knows nothing of what goes through the socket.
#![forbid(unsafe_code)]

mod lock;

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::Flock;
use socket2::{Domain, SockAddr, Socket};

/// What the name of a lock ends with.
const LOCK: &str = ".lock";

/// The file of a socket that is bound. Dropping it removes the file, and the
/// lock's with it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode of our file: another one at that path is not ours to
    /// remove.
    ours: (u64, u64),
    lock: PathBuf,
    /// Held to the end.
    _held: Flock<File>,
}

impl SocketFile {
    /// Binds `socket`, which is of Unix's and does not listen yet, to `path`,
    /// and gives the file the permissions `mode`: who may write it may connect.
    /// What a process that is gone left there is replaced.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] when somebody listens there. Otherwise the
    /// error names the file that it is about, and keeps the kernel's kind.
    pub fn bind(socket: &Socket, path: &Path, mode: u32) -> io::Result<Self> {
        let mut lock = path.as_os_str().to_owned();
        lock.push(LOCK);
        let lock = PathBuf::from(lock);
        let held = lock::take(&lock)?;
        let bound = make_way(socket, path).and_then(|()| bind_with(socket, path, mode));
        match bound {
            Ok(ours) => Ok(Self {
                path: path.to_owned(),
                ours,
                lock,
                _held: held,
            }),
            Err(error) => {
                remove(&lock);
                Err(error)
            }
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The lock's file goes last: whoever makes a new one finds no socket.
        if fs::symlink_metadata(&self.path).is_ok_and(|there| identity(&there) == self.ours) {
            remove(&self.path);
        }
        remove(&self.lock);
    }
}

fn bind_with(socket: &Socket, path: &Path, mode: u32) -> io::Result<(u64, u64)> {
    let named = |error| about(path, error);
    socket.bind(&SockAddr::unix(path)?).map_err(named)?;
    // Nobody can connect yet, since nothing listens.
    let made = fs::set_permissions(path, Permissions::from_mode(mode))
        .and_then(|()| fs::symlink_metadata(path));
    if made.is_err() {
        remove(path);
    }
    Ok(identity(&made.map_err(named)?))
}

/// Removes what a process that is gone left at `path`. With the lock in hand no
/// program that locks listens there, but another one may.
fn make_way(socket: &Socket, path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(about(path, error)),
        Ok(there) if !there.file_type().is_socket() => {
            let path = path.display();
            let text = format!("{path} exists and is no socket; choose another path");
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        Ok(_) => {}
    }
    let caller = Socket::new(Domain::UNIX, socket.r#type()?, None)?;
    caller.set_nonblocking(true)?;
    let Err(answer) = caller.connect(&SockAddr::unix(path)?) else {
        return Err(io::ErrorKind::AddrInUse.into());
    };
    match answer.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ECONNREFUSED) => fs::remove_file(path).map_err(|error| about(path, error)),
        Some(Errno::ENOENT) => Ok(()),
        // It has no room for one more, or is a socket of another type.
        Some(Errno::EAGAIN | Errno::EPROTOTYPE) => Err(io::ErrorKind::AddrInUse.into()),
        _ => Err(about(path, answer)),
    }
}

fn identity(file: &fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::debug!(path = %path.display(), %error, "a file was not removed");
    }
}

/// The error with the file that it is about.
#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn about(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::Type;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn socket(kind: Type) -> Socket {
        Socket::new(Domain::UNIX, kind, None).unwrap()
    }

    fn listen_as(kind: Type, path: &Path) -> io::Result<(Socket, SocketFile)> {
        let socket = socket(kind);
        let file = SocketFile::bind(&socket, path, 0o600)?;
        socket.listen(4)?;
        Ok((socket, file))
    }

    fn listen(path: &Path) -> io::Result<(Socket, SocketFile)> {
        listen_as(Type::STREAM, path)
    }

    fn connect(path: &Path) -> io::Result<()> {
        socket(Type::STREAM).connect(&SockAddr::unix(path)?)
    }

    fn kind<T>(result: io::Result<T>) -> Option<io::ErrorKind> {
        result.err().map(|error| error.kind())
    }

    #[test]
    fn a_path_is_taken_once_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let listening = listen(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(kind(listen(&path)), Some(io::ErrorKind::AddrInUse));
        connect(&path).unwrap();
        drop(listening);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(listen(&path).is_ok());
    }

    #[test]
    fn what_a_dead_process_left_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let dead = socket(Type::STREAM);
        dead.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        drop(dead);
        fs::write(folder.path().join("a.sock.lock"), "").unwrap();
        assert_eq!(kind(connect(&path)), Some(io::ErrorKind::ConnectionRefused));
        let _listening = listen(&path).unwrap();
        connect(&path).unwrap();
    }

    #[test]
    fn whoever_listens_without_a_lock_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let other = socket(Type::STREAM);
        other.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        other.listen(1).unwrap();
        for kind_of_ours in [Type::STREAM, Type::SEQPACKET] {
            let refused = kind(listen_as(kind_of_ours, &path));
            assert_eq!(refused, Some(io::ErrorKind::AddrInUse));
        }
        connect(&path).unwrap();
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 1, "no lock stays behind");
    }

    #[test]
    fn what_is_no_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        fs::write(&path, "data").unwrap();
        let refused = listen(&path).unwrap_err();
        assert!(refused.to_string().contains("no socket"), "{refused}");
        assert!(!refused.to_string().contains("remove"), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), b"data");
    }

    #[test]
    fn errors_name_the_file_and_keep_their_kind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("none").join("a.sock");
        let missing = listen(&path).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert!(missing.to_string().contains("none/a.sock"), "{missing}");
    }

    #[test]
    fn a_file_that_took_the_place_of_ours_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let listening = listen(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another's").unwrap();
        drop(listening);
        assert_eq!(fs::read(&path).unwrap(), b"another's");
    }

    #[test]
    fn one_of_many_that_come_and_go_has_a_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let holders = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let Ok(_listening) = listen(&path) else {
                            continue;
                        };
                        let others = holders.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(others, 0, "two listen at once");
                        connect(&path).unwrap();
                        holders.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
    }
}
