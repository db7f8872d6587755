//! The NUMA distance of a device, from sysfs and procfs.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::sys::socket::SockaddrStorage;

use crate::transport::Device;

/// The distance within a node (ACPI 6.4, section 5.2.17, SLIT), and of a device whose node is not
/// known.
pub(super) const LOCAL: u32 = 10;

/// Most virtual interfaces between an interface and its device, such as VLANs and bonds.
const MAX_LAYERS: usize = 4;

/// The CPUs, nodes and devices of a machine.
#[derive(Clone, Debug)]
pub(super) struct Topology {
    /// The folder of `proc` and `sys`.
    root: PathBuf,
}

impl Topology {
    pub(super) fn of_this_machine() -> Self {
        Self { root: "/".into() }
    }

    /// The CPU that the calling thread runs on.
    pub(super) fn current_cpu(&self) -> Option<u32> {
        let stat = fs::read_to_string(self.root.join("proc/thread-self/stat")).ok()?;
        // proc_pid_stat(5): the name, field 2, may have spaces and parentheses; field 39 is the
        // processor.
        let (_, after_name) = stat.rsplit_once(')')?;
        after_name
            .split_ascii_whitespace()
            .nth(39 - 3)?
            .parse()
            .ok()
    }

    /// The distance of `device` from `cpu`. Queries the route from the kernel, which may block
    /// briefly.
    pub(super) fn distance(&self, cpu: Option<u32>, device: &Device) -> u32 {
        let node = match device {
            Device::Memory => None,
            Device::Rdma(name) => self.node(&Path::new("sys/class/infiniband").join(name)),
            Device::Network(addr) => {
                let interface = interface_towards(*addr);
                interface.and_then(|name| self.node_of_interface(&name, MAX_LAYERS))
            }
        };
        let distance = || self.between(self.node_of_cpu(cpu?)?, node?);
        distance().unwrap_or(LOCAL)
    }

    /// The node of the device behind that entry of a class.
    fn node(&self, entry: &Path) -> Option<u32> {
        let file = self.root.join(entry).join("device/numa_node");
        // -1: none.
        fs::read_to_string(file).ok()?.trim().parse().ok()
    }

    /// The node of the device of an interface, or of the first one below a virtual interface.
    fn node_of_interface(&self, name: &str, layers: usize) -> Option<u32> {
        let entry = Path::new("sys/class/net").join(name);
        let own = self.node(&entry);
        if own.is_some() || layers == 0 {
            return own;
        }
        let mut lower: Vec<_> = names(&self.root.join(entry))
            .filter_map(|name| Some(name.strip_prefix("lower_")?.to_owned()))
            .collect();
        lower.sort_unstable();
        let nodes = |name: &String| self.node_of_interface(name, layers - 1);
        lower.iter().find_map(nodes)
    }

    fn node_of_cpu(&self, cpu: u32) -> Option<u32> {
        let folder = format!("sys/devices/system/cpu/cpu{cpu}");
        names(&self.root.join(folder)).find_map(|name| name.strip_prefix("node")?.parse().ok())
    }

    /// The distance between two nodes. The file of a node has one number for each node that is
    /// online, in ascending order.
    fn between(&self, from: u32, to: u32) -> Option<u32> {
        let nodes = self.root.join("sys/devices/system/node");
        let mut known: Vec<u32> = names(&nodes)
            .filter_map(|name| name.strip_prefix("node")?.parse().ok())
            .collect();
        known.sort_unstable();
        let at = known.iter().position(|node| *node == to)?;
        let distances = fs::read_to_string(nodes.join(format!("node{from}/distance"))).ok()?;
        distances.split_ascii_whitespace().nth(at)?.parse().ok()
    }
}

/// The names in a folder; none if it cannot be read.
fn names(folder: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// The interface that the kernel would send packets to `addr` from.
fn interface_towards(addr: SocketAddr) -> Option<String> {
    let any: IpAddr = match addr {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // A connected UDP socket sends nothing, and has the source address of the route.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(addr).ok()?;
    let source = socket.local_addr().ok()?.ip();
    let mut all = getifaddrs().ok()?;
    let has_source = |one: &InterfaceAddress| {
        let address = one.address.as_ref();
        let v4 = address.and_then(SockaddrStorage::as_sockaddr_in);
        let v6 = address.and_then(SockaddrStorage::as_sockaddr_in6);
        match source {
            IpAddr::V4(source) => v4.is_some_and(|v4| v4.ip() == source),
            IpAddr::V6(source) => v6.is_some_and(|v6| v6.ip() == source),
        }
    };
    all.find(has_source).map(|one| one.interface_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes, of which the first is number 0 and the second number 2.
    fn machine() -> (tempfile::TempDir, Topology) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_owned();
        let write = |file: &str, text: &str| {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("sys/devices/system/node/node0/distance", "10 21\n");
        write("sys/devices/system/node/node2/distance", "21 10\n");
        write("sys/devices/system/node/online", "0,2\n");
        write("sys/devices/system/cpu/cpu5/node2/cpumap", "");
        write("sys/devices/system/cpu/cpu1/node0/cpumap", "");
        write("sys/class/infiniband/mlx5_0/device/numa_node", "0\n");
        write("sys/class/infiniband/rxe0/device/numa_node", "-1\n");
        write("sys/class/net/eth0/device/numa_node", "2\n");
        write("sys/class/net/bond0/lower_eth0/x", "");
        write("sys/class/net/bond0.5/lower_bond0/x", "");
        write("sys/class/net/loop/lower_loop/x", "");
        let name = "4711 (a) b (c)) R 1";
        let fields = "0 ".repeat(39 - 5);
        write("proc/thread-self/stat", &format!("{name} {fields}17 0 0\n"));
        (folder, Topology { root })
    }

    #[test]
    fn distance_is_that_of_the_nodes_of_cpu_and_device() {
        let (_folder, machine) = machine();
        let device = |name: &str| Device::Rdma(name.to_owned());
        assert_eq!(machine.distance(Some(5), &device("mlx5_0")), 21);
        assert_eq!(machine.distance(Some(1), &device("mlx5_0")), 10);
        // Neither is known: as near as any.
        for (cpu, name) in [(None, "mlx5_0"), (Some(9), "mlx5_0"), (Some(5), "rxe0")] {
            assert_eq!(machine.distance(cpu, &device(name)), LOCAL, "{name}");
        }
        assert_eq!(machine.distance(Some(5), &Device::Memory), LOCAL);
    }

    #[test]
    fn virtual_interface_has_the_node_of_its_device() {
        let (_folder, machine) = machine();
        for (name, node) in [
            ("eth0", Some(2)),
            ("bond0", Some(2)),
            ("bond0.5", Some(2)),
            ("loop", None),
            ("none", None),
        ] {
            assert_eq!(machine.node_of_interface(name, MAX_LAYERS), node, "{name}");
        }
        assert_eq!(machine.between(0, 2), Some(21));
    }

    #[test]
    fn current_cpu_is_field_39() {
        let (_folder, machine) = machine();
        assert_eq!(machine.current_cpu(), Some(17));
        let cpus = std::thread::available_parallelism().unwrap().get();
        let cpu = Topology::of_this_machine().current_cpu().unwrap();
        assert!(usize::try_from(cpu).unwrap() < cpus.max(1024));
    }

    #[test]
    fn route_to_loopback_leaves_through_lo() {
        let addr = "127.0.0.1:4420".parse().unwrap();
        assert_eq!(interface_towards(addr).as_deref(), Some("lo"));
    }
}
