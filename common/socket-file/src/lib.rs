//! The file of a listening Unix socket: its owner and its lifetime.
//!
//! Binding creates a file that outlives its process, and the file alone does not
//! show whether a process still listens. Each socket therefore has a lock file
//! beside it, which is held while the socket listens. The holder of the lock
//! replaces the stale file of a dead process, and never that of a live one.
//!
//! This crate does not know what the socket carries.
#![forbid(unsafe_code)]

mod lock;

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::Flock;
use socket2::{Domain, SockAddr, Socket};

/// Suffix of the name of a lock file.
const LOCK: &str = ".lock";

/// The file of a bound socket. Dropping it removes the file and its lock file.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode of our file: another file at that path is not removed.
    identity: (u64, u64),
    lock: PathBuf,
    /// Held until the drop.
    _held: Flock<File>,
}

impl SocketFile {
    /// Binds `socket`, a Unix socket that does not listen yet, to `path` and gives
    /// the file the permissions `mode`: write permission is permission to connect.
    /// The file of a process that has exited is replaced.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] when another process listens there. Any other
    /// error names its file and keeps the kind that the kernel gave.
    pub fn bind(socket: &Socket, path: &Path, mode: u32) -> io::Result<Self> {
        let mut lock = path.as_os_str().to_owned();
        lock.push(LOCK);
        let lock = PathBuf::from(lock);
        let held = lock::take(&lock)?;
        let bound = remove_stale(socket, path).and_then(|()| bind_with(socket, path, mode));
        match bound {
            Ok(identity) => Ok(Self {
                path: path.to_owned(),
                identity,
                lock,
                _held: held,
            }),
            Err(error) => {
                remove(&lock);
                Err(error)
            }
        }
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The lock file is removed last: the next owner of the lock finds no socket.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity) {
            remove(&self.path);
        }
        remove(&self.lock);
    }
}

fn bind_with(socket: &Socket, path: &Path, mode: u32) -> io::Result<(u64, u64)> {
    let named = |error| about(path, error);
    socket.bind(&SockAddr::unix(path)?).map_err(named)?;
    // No client can connect before the socket listens.
    let bound = fs::set_permissions(path, Permissions::from_mode(mode))
        .and_then(|()| fs::symlink_metadata(path));
    if bound.is_err() {
        remove(path);
    }
    Ok(identity(&bound.map_err(named)?))
}

/// Removes the file that a process which has exited left at `path`. The lock excludes
/// processes that take it; another program may listen there without a lock.
fn remove_stale(socket: &Socket, path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(about(path, error)),
        Ok(found) if !found.file_type().is_socket() => {
            let path = path.display();
            let text = format!("{path}: exists and is not a socket; choose another path");
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        Ok(_) => {}
    }
    let client = Socket::new(Domain::UNIX, socket.r#type()?, None)?;
    client.set_nonblocking(true)?;
    let Err(error) = client.connect(&SockAddr::unix(path)?) else {
        return Err(io::ErrorKind::AddrInUse.into());
    };
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ECONNREFUSED) => fs::remove_file(path).map_err(|error| about(path, error)),
        Some(Errno::ENOENT) => Ok(()),
        // Its backlog is full, or it is a socket of another type.
        Some(Errno::EAGAIN | Errno::EPROTOTYPE) => Err(io::ErrorKind::AddrInUse.into()),
        _ => Err(about(path, error)),
    }
}

fn identity(file: &fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::debug!(path = %path.display(), %error, "cannot remove file");
    }
}

/// The error, with the path of its file.
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
    fn path_is_bound_once_and_removed_on_drop() {
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
    fn stale_socket_of_dead_process_is_replaced() {
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
    fn listener_without_lock_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let other = socket(Type::STREAM);
        other.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        other.listen(1).unwrap();
        for kind_of_socket in [Type::STREAM, Type::SEQPACKET] {
            let refused = kind(listen_as(kind_of_socket, &path));
            assert_eq!(refused, Some(io::ErrorKind::AddrInUse));
        }
        connect(&path).unwrap();
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 1, "the lock file is removed");
    }

    #[test]
    fn file_that_is_not_a_socket_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        fs::write(&path, "data").unwrap();
        let refused = listen(&path).unwrap_err();
        assert!(refused.to_string().contains("not a socket"), "{refused}");
        assert!(!refused.to_string().contains("remove"), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), b"data");
    }

    #[test]
    fn error_names_file_and_keeps_kind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("none").join("a.sock");
        let missing = listen(&path).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert!(missing.to_string().contains("none/a.sock"), "{missing}");
    }

    #[test]
    fn foreign_file_at_path_is_kept_on_drop() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let listening = listen(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another's").unwrap();
        drop(listening);
        assert_eq!(fs::read(&path).unwrap(), b"another's");
    }

    #[test]
    fn path_has_one_owner_under_concurrent_binds() {
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
                        assert_eq!(others, 0, "two listeners at one path");
                        connect(&path).unwrap();
                        holders.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
    }
}
