//! What can be wrong with a machine: each message names cause and remedy.

use std::io;
use std::net::IpAddr;

use nvmeof_rdma::{describe, explain};

/// Why RDMA devices cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// The libraries are not installed.
    #[error(
        "rdma-core is missing: {library} cannot be loaded ({text}); install its libraries and \
         drivers (Debian: libibverbs1 librdmacm1 ibverbs-providers; Fedora: libibverbs \
         librdmacm)"
    )]
    NoLibrary {
        /// File that was looked for.
        library: &'static str,
        /// What the loader said.
        text: String,
    },
    /// A library is too old.
    #[error(
        "{library} has no `{symbol}`: it is older than rdma-core 28; install a newer rdma-core"
    )]
    OldLibrary {
        /// File that was loaded.
        library: &'static str,
        /// What it lacks.
        symbol: &'static str,
    },
    /// The kernel offers no connection management to programs.
    #[error(
        "the kernel modules for RDMA in programs are not loaded ({}): \
         `modprobe rdma_ucm` and `modprobe ib_uverbs` load them, \
         /etc/modules-load.d makes that last",
        describe(.source)
    )]
    NoModules {
        /// What opening the device file said.
        source: io::Error,
    },
    /// Libraries and modules are there, devices are not.
    #[error(
        "this machine has no RDMA device (`rdma link` shows none); a network card that can do \
         RDMA needs its kernel driver, `rdma link add rxe0 type rxe netdev IFACE` makes one in \
         software"
    )]
    NoDevice,
    /// The address belongs to a device's interface, but the device does not
    /// know it.
    #[error(
        "RDMA device {device} has no usable GID for {addr}: its port is down, the address is new, \
         or the table of GIDs is full; `rdma link show {device}` and `ibv_devinfo -v -d {device}` \
         tell, `ip link set IFACE up` brings the interface up, `ip address del` makes room"
    )]
    NoGid {
        /// Device.
        device: String,
        /// Address that was asked for.
        addr: IpAddr,
    },
    /// The address is on no interface of this machine.
    #[error(
        "address {addr} is on no interface of this machine; `ip address` shows those there are"
    )]
    NoSuchAddress {
        /// Address that was asked for.
        addr: IpAddr,
    },
    /// Not enough memory may be locked.
    #[error(
        "memory cannot be registered with {device}: the limit of locked memory is {limit} bytes; \
         raise it: `ulimit -l unlimited`, for a service `LimitMEMLOCK=infinity` in its unit"
    )]
    MemoryLock {
        /// Device.
        device: String,
        /// The limit in bytes.
        limit: u64,
    },
    /// A device that can do less than the provider's limits say, because
    /// another one of the machine can do more.
    #[error(
        "RDMA device {device} has room for {max} {what} of a queue pair, not for {value}: lower \
         the depth of the queue"
    )]
    Size {
        /// Device.
        device: String,
        /// Which number.
        what: &'static str,
        /// Value asked for.
        value: u32,
        /// Largest possible.
        max: u32,
    },
    /// A device makes no queue pair, although it says that it could.
    #[error(
        "RDMA device {device} makes no queue pair with {sends} sends and {recvs} receives \
         ({}): lower the depth of the queue, or the number of queues",
        describe(.source)
    )]
    QueuePair {
        /// Device.
        device: String,
        /// Sends asked for.
        sends: u32,
        /// Receives asked for.
        recvs: u32,
        /// What the driver said.
        source: io::Error,
    },
    /// Device files may not be opened.
    #[error(
        "no permission to use RDMA devices ({}); the files in /dev/infiniband must be \
         readable and writable for this user, often by membership of the group rdma",
        describe(.source)
    )]
    Permission {
        /// What the kernel said.
        source: io::Error,
    },
    /// Anything else.
    #[error("{what} failed: {}", explain(.source))]
    Call {
        /// What was tried.
        what: &'static str,
        /// What the kernel or the library said.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each kind that passes on what the kernel or a driver said.
    fn of_kernel(source: impl Fn() -> io::Error) -> [VerbsError; 4] {
        [
            VerbsError::NoModules { source: source() },
            VerbsError::QueuePair {
                device: "rxe0".to_owned(),
                sends: 128,
                recvs: 64,
                source: source(),
            },
            VerbsError::Permission { source: source() },
            VerbsError::Call {
                what: "making a completion queue",
                source: source(),
            },
        ]
    }

    #[test]
    fn verbs_errors_name_object_and_remedy_without_error_number() {
        for number in 1..134 {
            let errors = of_kernel(|| io::Error::from_raw_os_error(number));
            for (error, object, remedy) in [
                (&errors[0], "kernel modules", "modprobe rdma_ucm"),
                (&errors[1], "rxe0", "lower the depth"),
                (&errors[2], "RDMA devices", "group rdma"),
                (&errors[3], "making a completion queue failed: ", "; "),
            ] {
                let text = error.to_string();
                assert!(!text.contains("os error"), "{text}");
                assert!(text.contains(object) && text.contains(remedy), "{text}");
            }
        }
        let said = || io::Error::from_raw_os_error(libc::ENODEV);
        let [modules, ..] = of_kernel(said);
        assert!(
            modules.to_string().contains("(no such device): `modprobe"),
            "{modules}"
        );
    }
}
