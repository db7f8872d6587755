//! A folder with a configuration, and a target with it.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use crate::devices::{Devices, Side};
use crate::{Target, binary, image};

/// The subsystem.
pub const NQN: &str = "nqn.2026-11.org.example:e2e";
/// The host that connects.
pub const HOST: &str = "nqn.2026-11.org.example:host";

/// A configuration with one port and one subsystem, and a temporary folder for its files.
#[derive(Debug)]
pub struct Setup {
    /// Shared with its targets, which log there.
    folder: Arc<TempDir>,
    ip: IpAddr,
    port: u16,
    port_id: Option<usize>,
    /// The path of a Unix socket instead of both.
    socket: Option<PathBuf>,
    provider: String,
    devices: Option<Devices>,
    head: String,
    access: String,
    namespaces: String,
    count: u32,
    shm: Option<String>,
}

impl Default for Setup {
    fn default() -> Self {
        Self::new()
    }
}

impl Setup {
    /// A configuration with a port only.
    ///
    /// Its folder is on the disk of the build folder: the temporary folder of the system is
    /// tmpfs on many machines, which behaves differently.
    #[must_use]
    pub fn new() -> Self {
        let program = std::env::current_exe().unwrap();
        Self::in_folder(program.parent().unwrap())
    }

    /// The same with its folder below `parent`.
    #[must_use]
    pub fn in_folder(parent: &Path) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("e2e-")
            .tempdir_in(parent)
            .unwrap();
        Self {
            folder: Arc::new(folder),
            ip: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            port_id: None,
            socket: None,
            provider: "\"iwarp\"".to_owned(),
            devices: None,
            head: String::new(),
            access: "allow_any_host = true".to_owned(),
            namespaces: String::new(),
            count: 0,
            shm: None,
        }
    }

    /// A file of `len` patterned bytes as the next namespace.
    #[must_use]
    pub fn file(self, len: usize) -> Self {
        self.file_with(len, "")
    }

    /// The same with more keys.
    #[must_use]
    pub fn file_with(self, len: usize, keys: &str) -> Self {
        let nsid = self.count + 1;
        let path = self.image_path(nsid);
        image(&path, nsid, len);
        self.namespace(&path.display().to_string(), keys)
    }

    /// The next namespace.
    #[must_use]
    pub fn namespace(mut self, path: &str, keys: &str) -> Self {
        self.count += 1;
        let nsid = self.count;
        let namespaces = &mut self.namespaces;
        let head = "[[subsystem.namespace]]";
        writeln!(namespaces, "{head}\nnsid = {nsid}\npath = '{path}'\n{keys}").unwrap();
        self
    }

    /// Lines for the head of the configuration.
    #[must_use]
    pub fn head(mut self, lines: &str) -> Self {
        self.head = format!("{}{lines}\n", self.head);
        self
    }

    /// Lines instead of `allow_any_host = true`.
    #[must_use]
    pub fn access(mut self, lines: &str) -> Self {
        lines.clone_into(&mut self.access);
        self
    }

    /// The address to listen on; otherwise 127.0.0.1.
    #[must_use]
    pub fn ip(mut self, ip: IpAddr) -> Self {
        self.ip = ip;
        self
    }

    /// The port to listen on; otherwise any that is free.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// The ID of the port; otherwise its position among the ports, which the removal of an earlier
    /// one changes.
    #[must_use]
    pub fn port_id(mut self, id: usize) -> Self {
        self.port_id = Some(id);
        self
    }

    /// Listens on the Unix socket at `path` instead of an IP address.
    #[must_use]
    pub fn socket(mut self, path: &Path) -> Self {
        self.socket = Some(path.to_owned());
        self
    }

    /// The value of the key `provider`; otherwise `"iwarp"`.
    #[must_use]
    pub fn provider(mut self, value: &str) -> Self {
        value.clone_into(&mut self.provider);
        self
    }

    /// Target and hosts have RDMA devices with these settings, over which the target serves.
    #[must_use]
    pub fn devices(mut self, settings: &str) -> Self {
        self.devices = Some(Devices::new(self.folder.path(), settings));
        let setup = self.provider("\"verbs\"");
        setup.ip(Devices::TARGET.parse().unwrap())
    }

    /// Lines of the table `[shm]`; otherwise its sockets are in
    /// [`shm_folder`](Self::shm_folder).
    #[must_use]
    pub fn shm(mut self, lines: &str) -> Self {
        self.shm = Some(lines.to_owned());
        self
    }

    /// The folder for sockets of shared memory.
    #[must_use]
    pub fn shm_folder(&self) -> PathBuf {
        self.path("shm")
    }

    /// The path of the file of a namespace.
    #[must_use]
    pub fn image_path(&self, nsid: u32) -> PathBuf {
        self.path(&format!("disk{nsid}.img"))
    }

    /// A path in the folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The configuration.
    #[must_use]
    pub fn text(&self) -> String {
        let shm = match &self.shm {
            Some(lines) => lines.clone(),
            None => format!("folder = '{}'", self.shm_folder().display()),
        };
        let at = match &self.socket {
            Some(path) => format!("traddr = \"unix:{}\"", path.display()),
            None => format!("traddr = \"{}\"\ntrsvcid = {}", self.ip, self.port),
        };
        let id = self.port_id.map(|id| format!("id = {id}\n"));
        let id = id.unwrap_or_default();
        format!(
            "{}[[port]]\n{id}{at}\nprovider = {}\n\n\
             [shm]\n{shm}\n\n[[subsystem]]\nnqn = \"{NQN}\"\n{}\n{}",
            self.head, self.provider, self.access, self.namespaces
        )
    }

    /// Writes the configuration; returns its path.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        let path = self.path("target.toml");
        std::fs::write(&path, self.text()).unwrap();
        path
    }

    /// `nvmeof-target serve` with the configuration.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = target_command();
        command.arg("serve").arg("--config").arg(self.config());
        if let Some(devices) = &self.devices {
            devices.give(&mut command, Side::Target);
        }
        command
    }

    /// Starts a target.
    #[must_use]
    pub fn start(&self) -> Target {
        self.start_as(&mut self.command())
    }

    /// Starts a target that may not become ready.
    #[must_use]
    pub fn start_anyhow(&self) -> Target {
        self.start_anyhow_as(&mut self.command())
    }

    /// The same with another command.
    #[must_use]
    pub fn start_anyhow_as(&self, command: &mut Command) -> Target {
        Target::start_anyhow(command, Arc::clone(&self.folder)).reached_over(self.devices.clone())
    }

    /// Starts a target with another command.
    #[must_use]
    pub fn start_as(&self, command: &mut Command) -> Target {
        Target::start(command, Arc::clone(&self.folder)).reached_over(self.devices.clone())
    }
}

/// A loopback address that no other process uses, so that a free port of it stays free.
#[must_use]
pub fn own_ip() -> IpAddr {
    let own = 0x7f80_0000 | std::process::id() & 0x7f_ffff;
    Ipv4Addr::from_bits(own).into()
}

/// A port of 127.0.0.1 that is free at the moment and outside of the ephemeral ports, which
/// begin at 32768 (`net.ipv4.ip_local_port_range`).
#[must_use]
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut ports = std::iter::repeat_with(|| {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        // Each process begins at another port.
        let at = std::process::id().wrapping_mul(97).wrapping_add(next);
        u16::try_from(10_000 + at % 20_000).unwrap()
    });
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.find(free).unwrap()
}

/// `nvmeof-target`, without the log level in the environment of the tests.
#[must_use]
pub fn target_command() -> Command {
    let mut command = Command::new(binary("nvmeof-target"));
    command.env_remove("RUST_LOG");
    command
}
