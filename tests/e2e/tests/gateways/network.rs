//! Links that can be cut. A gateway in a network namespace of its own reaches the cluster only
//! through them; to create one requires CAP_SYS_ADMIN.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;

use nix::sched::{CloneFlags, setns};
use nvmeof_e2e::{Proxy, Traffic, binary};

use crate::fleet::{Fleet, run, variable};

/// Bytes of both directions arrive when the link works again.
pub(crate) const CUT: Traffic = Traffic::Silent {
    to_target: true,
    to_host: true,
};

/// The links of the first gateway, which is in a network namespace.
pub(crate) struct Links {
    cluster: Vec<Proxy>,
    _hosts: Proxy,
    _namespace: Namespace,
}

/// A network namespace with a loopback interface.
struct Namespace {
    name: String,
}

impl Links {
    /// Starts the first gateway in a network namespace.
    ///
    /// # Errors
    /// The machine does not permit network namespaces.
    pub(crate) fn start(fleet: &mut Fleet) -> Result<Self, String> {
        let namespace = Namespace::create()?;
        let proxy = |to: SocketAddr| {
            let listener = namespace.inside(|| TcpListener::bind(to).unwrap());
            Proxy::on(listener, to)
        };
        let cluster = cluster_addresses().into_iter().map(proxy).collect();
        let gateway = &mut fleet.gateways[0];
        let target = gateway.address;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        gateway.address = listener.local_addr().unwrap();
        let hosts = namespace.inside(|| Proxy::on(listener, target));
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &namespace.name])
            .arg(binary("nvmeof-target"))
            .args(["serve", "--config"])
            .arg(gateway.setup.config())
            .env_remove("RUST_LOG");
        gateway.run_as(&mut command);
        Ok(Self {
            cluster,
            _hosts: hosts,
            _namespace: namespace,
        })
    }

    /// Cuts the link to the cluster, or restores it.
    pub(crate) fn cut(&self, is_cut: bool) {
        for proxy in &self.cluster {
            proxy.set(if is_cut { CUT } else { Traffic::Forward });
        }
    }
}

/// Where the monitor and the OSD listen.
fn cluster_addresses() -> Vec<SocketAddr> {
    let conf = std::fs::read_to_string(variable("NVMEOF_CEPH_CONF")).unwrap();
    let monitor = conf
        .lines()
        .find_map(|line| line.strip_prefix("mon_host = [v2:"));
    let monitor = monitor.and_then(|it| it.strip_suffix(']')).unwrap();
    let dump = run("ceph", "osd dump --format json");
    let dump: serde_json::Value = serde_json::from_str(&dump).unwrap();
    let osd = dump["osds"][0]["public_addrs"]["addrvec"][0]["addr"].as_str();
    [monitor, osd.unwrap()].map(|it| it.parse().unwrap()).into()
}

impl Namespace {
    fn create() -> Result<Self, String> {
        let name = format!("nvmeof-gateways-{}", std::process::id());
        ip(&["netns", "add", &name])?;
        let this = Self { name };
        ip(&["-n", &this.name, "link", "set", "lo", "up"])?;
        Ok(this)
    }

    /// Calls `inside` in a thread in the network namespace. Its threads are in it as well, and so
    /// are its sockets, wherever they are used.
    fn inside<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{}", self.name)).unwrap();
        std::thread::scope(|scope| {
            let inside = || {
                setns(&file, CloneFlags::CLONE_NEWNET).unwrap();
                inside()
            };
            scope.spawn(inside).join().unwrap()
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Nothing depends on it.
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let line = format!("ip {}", arguments.join(" "));
    let output = Command::new("ip").args(arguments).output();
    let output = output.map_err(|error| format!("{line}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{line}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}
