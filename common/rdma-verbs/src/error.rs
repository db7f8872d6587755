//! Errors of RDMA devices and their set-up; each message names cause and remedy.

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
        /// Error of the loader.
        text: String,
    },
    /// A library is too old.
    #[error(
        "{library} has no `{symbol}`: it is older than rdma-core 28; install a newer rdma-core"
    )]
    OldLibrary {
        /// File that was loaded.
        library: &'static str,
        /// Missing symbol.
        symbol: &'static str,
    },
    /// The kernel modules for user space RDMA are not loaded.
    #[error(
        "the kernel modules for user space RDMA are not loaded ({}): \
         `modprobe rdma_ucm` and `modprobe ib_uverbs` load them, \
         a file in /etc/modules-load.d loads them at boot",
        describe(.source)
    )]
    NoModules {
        /// Error of opening the device file.
        source: io::Error,
    },
    /// There are no devices.
    #[error(
        "this machine has no RDMA device (`rdma link` shows none); a network card that can do \
         RDMA needs its kernel driver, `rdma link add rxe0 type rxe netdev IFACE` creates \
         one in software"
    )]
    NoDevice,
    /// The address belongs to a device's interface, but the device has no GID for it.
    #[error(
        "RDMA device {device} has no usable GID for {addr}: its port is down, the address is new, \
         or the table of GIDs is full; check with `rdma link show {device}` and \
         `ibv_devinfo -v -d {device}`, bring the interface up with `ip link set IFACE up`, or \
         free a GID with `ip address del`"
    )]
    NoGid {
        /// Device.
        device: String,
        /// Address that was asked for.
        addr: IpAddr,
    },
    /// The address is not assigned to an interface of this host.
    #[error(
        "address {addr} is not assigned to an interface of this host; `ip address` lists the \
         assigned ones"
    )]
    NoSuchAddress {
        /// Address that was asked for.
        addr: IpAddr,
    },
    /// The limit on locked memory is too low.
    #[error(
        "memory cannot be registered with {device}: the limit on locked memory is {limit} bytes; \
         raise it with `ulimit -l unlimited`, or `LimitMEMLOCK=infinity` in the unit of a service"
    )]
    MemoryLock {
        /// Device.
        device: String,
        /// The limit in bytes.
        limit: u64,
    },
    /// The device has lower limits than the provider, because another device of this machine
    /// has higher ones.
    #[error(
        "RDMA device {device} supports at most {max} {what} per queue pair, not {value}; lower \
         the depth of the queue"
    )]
    Size {
        /// Device.
        device: String,
        /// Name of the number.
        what: &'static str,
        /// Value asked for.
        value: u32,
        /// Maximum.
        max: u32,
    },
    /// The device cannot create a queue pair within its own limits.
    #[error(
        "RDMA device {device} cannot create a queue pair with {sends} sends and {recvs} receives \
         ({}); lower the depth of the queue, or the number of queues",
        describe(.source)
    )]
    QueuePair {
        /// Device.
        device: String,
        /// Sends asked for.
        sends: u32,
        /// Receives asked for.
        recvs: u32,
        /// Error of the driver.
        source: io::Error,
    },
    /// No permission to open the device files.
    #[error(
        "no permission to use RDMA devices ({}); the files in /dev/infiniband must be \
         readable and writable for this user; often they belong to the group rdma",
        describe(.source)
    )]
    Permission {
        /// Error of the kernel.
        source: io::Error,
    },
    /// Anything else.
    #[error("{what} failed: {}", explain(.source))]
    Call {
        /// The failed operation.
        what: &'static str,
        /// Error of the kernel or the library.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each kind that contains an error of the kernel or a driver.
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
                what: "creating a completion queue",
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
                (&errors[3], "creating a completion queue failed: ", "; "),
            ] {
                let text = error.to_string();
                assert!(!text.contains("os error"), "{text}");
                assert!(text.contains(object) && text.contains(remedy), "{text}");
            }
        }
        let message = || io::Error::from_raw_os_error(libc::ENODEV);
        let [modules, ..] = of_kernel(message);
        assert!(
            modules.to_string().contains("(no such device): `modprobe"),
            "{modules}"
        );
    }
}
