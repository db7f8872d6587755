//! Listeners: a directory with a socket for each address and port.

use std::fs::{self, DirBuilder, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use nvmeof_rdma::ListenError;
use nvmeof_socket_file::SocketFile;
use socket2::Socket;

use crate::ShmConfig;
use crate::link::{self, Link};

/// Length of the accept queue, limited by the kernel (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;
/// First port to try for port 0, as in the kernel for TCP.
const FIRST_FREE: u16 = 49_152;
/// Number of ports to try.
const TRIES: u64 = 256;

/// A listening socket. Its file exists as long as this value.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Socket,
    pub(crate) addr: SocketAddr,
    _file: SocketFile,
}

impl Listener {
    /// Listens on `addr`; port 0 selects a free one.
    pub(crate) fn new(addr: SocketAddr, config: &ShmConfig) -> Result<Self, ListenError> {
        let error = |source| ListenError::new(addr, source);
        if !is_local(addr) {
            return Err(error(io::ErrorKind::AddrNotAvailable.into()));
        }
        make_folder(config).map_err(error)?;
        if addr.port() != 0 {
            return Self::at(addr, config).map_err(error);
        }
        let random = RandomState::new();
        for number in 0..TRIES {
            let [low, high, ..] = random.hash_one(number).to_le_bytes();
            let port = FIRST_FREE | u16::from_le_bytes([low, high]);
            let mut addr = addr;
            addr.set_port(port);
            match Self::at(addr, config) {
                Err(used) if used.kind() == io::ErrorKind::AddrInUse => {}
                other => return other.map_err(error),
            }
        }
        Err(error(io::ErrorKind::AddrInUse.into()))
    }

    fn at(addr: SocketAddr, config: &ShmConfig) -> io::Result<Self> {
        let path = path(&config.folder, addr);
        let socket = link::socket()?;
        // A path that is too long is an error of the directory.
        link::address(&path)?;
        let file = SocketFile::bind(&socket, &path, config.mode).map_err(of_file)?;
        socket.listen(BACKLOG)?;
        Ok(Self {
            socket,
            addr,
            _file: file,
        })
    }

    /// Accepts a pending connection.
    pub(crate) fn take(&self) -> io::Result<Socket> {
        // socket2 sets close-on-exec.
        self.socket.accept().map(|(socket, _)| socket)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Connects to the listener on `addr`, or on all addresses of this host if `addr` is one of
/// them. Returns also the address that was looked for.
pub(crate) fn connect(addr: SocketAddr, config: &ShmConfig) -> io::Result<(Link, IpAddr)> {
    let ip = addr.ip().to_canonical();
    let addr = match addr {
        SocketAddr::V6(_) if ip.is_ipv6() => addr,
        _ => SocketAddr::new(ip, addr.port()),
    };
    let at = |addr| Link::connect(&path(&config.folder, addr), &config.users);
    let mut found = at(addr);
    // `[::]` covers no IPv4 addresses, as with the other providers.
    let all: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // A listener on all addresses covers only those of this host.
    if found.as_ref().is_err_and(is_absent) && is_local(addr) {
        found = at(SocketAddr::new(all, addr.port()));
    }
    match found {
        Ok(link) => Ok((link, ip)),
        Err(error) if is_absent(&error) => {
            let folder = config.folder.display();
            let text =
                format!("nothing listens for shared memory connections to {addr} in {folder}");
            Err(io::Error::new(io::ErrorKind::ConnectionRefused, text))
        }
        Err(error) => {
            let folder = config.folder.display();
            let text = format!("{addr} in {folder}: {error}");
            Err(io::Error::new(error.kind(), text))
        }
    }
}

/// Whether no process listens: there is no file, or the process that created it is gone.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

/// Whether an address is assigned to this host.
fn is_local(mut addr: SocketAddr) -> bool {
    addr.set_port(0);
    let ip = addr.ip();
    ip.is_loopback() || ip.is_unspecified() || UdpSocket::bind(addr).is_ok()
}

/// The path of a socket. For a link-local address it contains the number of the interface,
/// because the address is not unique.
fn path(folder: &Path, addr: SocketAddr) -> PathBuf {
    let zone = match addr {
        SocketAddr::V6(addr) if addr.scope_id() != 0 => format!("%{}", addr.scope_id()),
        _ => String::new(),
    };
    folder.join(format!("{}{zone}-{}.sock", addr.ip(), addr.port()))
}

/// An error about the file. Its kind must not be mistaken for one about the port, except for
/// an address in use.
fn of_file(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::AddrInUse => error,
        _ => io::Error::other(error),
    }
}

/// Creates the directory if it does not exist. Refuses one in which other users could replace
/// the sockets, and one that denies access to permitted users.
fn make_folder(config: &ShmConfig) -> io::Result<()> {
    let others = config.mode & 0o007 != 0;
    let folder = &config.folder;
    let mode = if others { 0o711 } else { 0o700 };
    match DirBuilder::new().mode(mode).create(folder) {
        Ok(()) if others => fs::set_permissions(folder, Permissions::from_mode(mode))?,
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            let text = format!(
                "cannot create the directory {}: {error}; choose another one with shm.folder",
                folder.display()
            );
            return Err(io::Error::other(text));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(folder)?;
    let folder = folder.display();
    let wrong = |text| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    let ours = [0, geteuid().as_raw()].contains(&found.uid());
    if !found.is_dir() || !ours || found.mode() & 0o002 != 0 {
        return wrong(format!(
            "{folder} must be a directory that belongs to this user or to root and that other \
             users cannot write; choose another one with shm.folder"
        ));
    }
    if others && found.mode() & 0o001 == 0 {
        return wrong(format!(
            "{folder} cannot be searched by the users in shm.users; run `chmod o+x {folder}`"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::Ordering;

    fn config(folder: &Path) -> ShmConfig {
        ShmConfig {
            folder: folder.to_owned(),
            ..ShmConfig::default()
        }
    }

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn address_in_use_is_refused_until_released() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(&folder.path().join("new"));
        let listener = Listener::new(addr("127.0.0.1:4420"), &config).unwrap();
        let again = Listener::new(addr("127.0.0.1:4420"), &config);
        assert!(matches!(again, Err(ListenError::InUse { .. })), "{again:?}");
        assert!(connect(addr("127.0.0.1:4420"), &config).is_ok());
        let folder = fs::metadata(&config.folder).unwrap();
        assert_eq!(folder.mode() & 0o777, 0o700);
        let socket = fs::metadata(path(&config.folder, listener.addr)).unwrap();
        assert_eq!(socket.mode() & 0o777, 0o600);
        drop(listener);
        let left = fs::read_dir(&config.folder).unwrap().count();
        assert_eq!(left, 0, "nothing stays behind");
        let absent = connect(addr("127.0.0.1:4420"), &config).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::ConnectionRefused);
        assert!(Listener::new(addr("127.0.0.1:4420"), &config).is_ok());
    }

    #[test]
    fn stale_socket_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let path = path(folder.path(), addr("[::1]:7"));
        let dead = link::socket().unwrap();
        dead.bind(&link::address(&path).unwrap()).unwrap();
        drop(dead);
        let absent = connect(addr("[::1]:7"), &config).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::ConnectionRefused);
        let _listener = Listener::new(addr("[::1]:7"), &config).unwrap();
        assert!(connect(addr("[::1]:7"), &config).is_ok());
    }

    #[test]
    fn concurrent_listeners_get_address_one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let holders = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let Ok(_listener) = Listener::new(addr("127.0.0.1:1"), &config) else {
                            continue;
                        };
                        let others = holders.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(others, 0, "two listen at once");
                        assert!(connect(addr("127.0.0.1:1"), &config).is_ok());
                        holders.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
    }

    #[test]
    fn listener_on_all_addresses_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let listener = Listener::new(addr("0.0.0.0:0"), &config).unwrap();
        let port = listener.addr.port();
        assert!(port >= FIRST_FREE);
        assert!(connect(addr(&format!("127.1.2.3:{port}")), &config).is_ok());
        assert!(connect(addr(&format!("[::1]:{port}")), &config).is_err());
        // An address reserved for documentation (RFC 5737), which no host has.
        assert!(connect(addr(&format!("192.0.2.1:{port}")), &config).is_err());
        drop(listener);
        let listener = Listener::new(addr("[::]:0"), &config).unwrap();
        let port = listener.addr.port();
        let at = |ip: &str| connect(addr(&format!("{ip}:{port}")), &config);
        let (_, sought) = at("[::1]").unwrap();
        assert_eq!(sought, addr("[::1]:1").ip());
        for other in ["127.0.0.1", "[::ffff:127.0.0.1]"] {
            assert!(at(other).is_err(), "{other} is an address of IPv4");
        }
    }

    #[test]
    fn address_of_other_host_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let other = Listener::new(addr("192.0.2.1:1"), &config(folder.path()));
        assert!(
            matches!(other, Err(ListenError::NoSuchAddress { .. })),
            "{other:?}"
        );
    }

    #[test]
    fn permitted_users_reach_socket_and_cannot_list_folder() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(&folder.path().join("new"));
        config.mode = 0o666;
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        let listener = Listener::new(addr("127.0.0.1:1"), &config).unwrap();
        assert_eq!(mode(&config.folder), 0o711);
        assert_eq!(mode(&path(&config.folder, listener.addr)), 0o666);
        drop(listener);
        fs::set_permissions(&config.folder, Permissions::from_mode(0o700)).unwrap();
        let shut = Listener::new(addr("127.0.0.1:1"), &config).unwrap_err();
        assert!(shut.to_string().contains("chmod o+x"), "{shut}");
    }

    #[test]
    fn other_users_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(folder.path());
        let listener = Listener::new(addr("127.0.0.1:1"), &config).unwrap();
        let users = std::mem::replace(&mut config.users, vec![54_321]);
        let refused = connect(addr("127.0.0.1:1"), &config).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        let accepted = || Link::new(listener.take().unwrap()).unwrap();
        assert!(accepted().check_peer(&[54_321]).is_err());
        config.users = users;
        let _link = connect(addr("127.0.0.1:1"), &config).unwrap();
        assert!(accepted().check_peer(&config.users).is_ok());
    }

    #[test]
    fn folder_writable_by_others_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        let link = folder.path().join("link");
        symlink(folder.path(), &link).unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let long = folder.path().join("long".repeat(30));
        for bad in [open, link, file, long, folder.path().join("a/b")] {
            let refused = Listener::new(addr("127.0.0.1:1"), &config(&bad));
            assert!(
                matches!(refused, Err(ListenError::Io { .. })),
                "{bad:?}: {refused:?}"
            );
            // It may be a folder such as /tmp.
            let text = refused.unwrap_err().to_string();
            assert!(!text.contains("remove"), "{text}");
        }
    }
}
