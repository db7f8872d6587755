//! The options of a job for this engine: where to connect, and how.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nvmeof_initiator::{
    Address, AddressError, ConnectOptions, Identity, Nqn, RouteOptions, Transport,
};
use nvmeof_initiator_core::multipath::{PathPolicy, ReconnectOptions};

use crate::failure::Failure;
use crate::keys;

/// Where to connect, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The paths: address, subsystem, number of I/O queues, keep-alive time-out. At least one.
    pub paths: Vec<ConnectOptions>,
    /// Identity of this host.
    pub identity: Identity,
    /// The RDMA provider.
    pub transport: Transport,
    /// Options of the provider.
    pub route: RouteOptions,
    /// The namespace.
    pub nsid: u32,
    /// How to choose the path of an operation.
    pub policy: PathPolicy,
    /// When to connect lost paths again.
    pub reconnect: ReconnectOptions,
    /// The shortest interval without a completion that is reported; `None` for none.
    pub stall: Option<Duration>,
    /// Name of the job, for messages.
    pub job: String,
}

/// The options as fio passes them, as text.
#[derive(Clone, Copy, Debug, Default)]
pub struct RawOptions<'a> {
    /// `address`: of the target, with or without a port, or of a Unix socket; several are
    /// separated by commas.
    pub address: Option<&'a str>,
    /// `subsystem`: its NQN.
    pub subsystem: Option<&'a str>,
    /// `namespace`: identifier.
    pub nsid: u32,
    /// `provider`: of RDMA.
    pub provider: Option<&'a str>,
    /// `queues`: I/O queues of each job.
    pub queues: u32,
    /// `hostnqn`: name of this host.
    pub hostnqn: Option<&'a str>,
    /// `shm_folder`: folder where targets on this host listen for shared memory.
    pub shm_folder: Option<&'a str>,
    /// `shm_copy`: no target accesses the buffers of this host in place.
    pub shm_copy: bool,
    /// `crc`: on every frame of software iWARP.
    pub crc: bool,
    /// `path_policy`: how to choose the path of an operation.
    pub path_policy: Option<&'a str>,
    /// `reconnect_delay`: seconds.
    pub reconnect_delay: u32,
    /// `ctrl_loss_tmo`: seconds; negative: never.
    pub ctrl_loss_tmo: i32,
    /// `fast_io_fail_tmo`: seconds; negative: off.
    pub fast_io_fail_tmo: i32,
    /// `keep_alive_tmo`: seconds.
    pub keep_alive_tmo: u32,
    /// `stall_ms`: milliseconds; 0: none is reported.
    pub stall_ms: u32,
    /// `dhchap_secret`: @ and the file of the key of this host.
    pub dhchap_secret: Option<&'a str>,
    /// `dhchap_ctrl_secret`: @ and the file of the key of the controller.
    pub dhchap_ctrl_secret: Option<&'a str>,
    /// Name of the job.
    pub job: Option<&'a str>,
}

/// Where NVMe over RDMA targets listen (NVMe RDMA transport 1.0, section 3.1.1).
const PORT: u16 = 4420;

/// Seconds: KATO has 32 bits of milliseconds.
const LONGEST_KEEP_ALIVE: u32 = u32::MAX / 1000;

impl Options {
    /// Parses the options of a job.
    ///
    /// # Errors
    /// [`Failure`] that names the option.
    pub fn parse(given: &RawOptions<'_>) -> Result<Self, Failure> {
        let address = given.address.ok_or_else(|| {
            wrong(
                "address=: the job has no address of the target; add address=IP, address=IP:PORT \
                 or address=unix:/path",
            )
        })?;
        let subsystem = given.subsystem.ok_or_else(|| {
            wrong(
                "subsystem=: the job has no subsystem; add subsystem=NQN \
                 (`nvmeof discover` lists the subsystems)",
            )
        })?;
        let subnqn = nqn("subsystem", subsystem)?;
        let io_queues = u16::try_from(given.queues)
            .ok()
            .filter(|queues| *queues > 0)
            .ok_or_else(|| wrong(format!("queues={} is out of range (1-65535)", given.queues)))?;
        let keep_alive = keep_alive(given.keep_alive_tmo)?;
        let variable = |name: &str| std::env::var_os(name);
        let keys = keys::read(given.dhchap_secret, given.dhchap_ctrl_secret, variable)?;
        let path = |addr: &str| {
            let mut path = ConnectOptions::new(resolve(addr)?, subnqn);
            path.keys.clone_from(&keys);
            (path.io_queues, path.keep_alive) = (io_queues, keep_alive);
            Ok(path)
        };
        let paths: Result<Vec<_>, Failure> = address.split(',').map(path).collect();
        let paths = paths?;
        for (at, path) in paths.iter().enumerate() {
            if paths.iter().take(at).any(|other| other.addr == path.addr) {
                let addr = path.addr;
                let text = format!("address={address}: has {addr} twice; give each path its own");
                return Err(wrong(text));
            }
        }
        let identity = match given.hostnqn {
            Some(name) => Identity::of_name(nqn("hostnqn", name)?),
            None => Identity::of_this_machine()?,
        };
        let transport = given.provider.unwrap_or("auto").parse::<Transport>();
        Ok(Self {
            paths,
            identity,
            transport: transport.map_err(|error| wrong(format!("provider: {error}")))?,
            route: RouteOptions {
                shm_folder: given.shm_folder.map(PathBuf::from),
                shm_copies: given.shm_copy,
                crc: given.crc,
            },
            nsid: given.nsid,
            policy: policy(given.path_policy)?,
            reconnect: ReconnectOptions {
                reconnect_delay: Duration::from_secs(given.reconnect_delay.into()),
                ctrl_loss: seconds(given.ctrl_loss_tmo),
                fast_io_fail: seconds(given.fast_io_fail_tmo),
            },
            stall: Some(Duration::from_millis(given.stall_ms.into()))
                .filter(|stall| !stall.is_zero()),
            job: given.job.unwrap_or("job").to_owned(),
        })
    }
}

/// Without keep alive, neither side would detect that a path is lost.
fn keep_alive(seconds: u32) -> Result<Duration, Failure> {
    match seconds {
        1..=LONGEST_KEEP_ALIVE => Ok(Duration::from_secs(seconds.into())),
        _ => Err(wrong(format!(
            "keep_alive_tmo={seconds} is out of range (1-{LONGEST_KEEP_ALIVE})"
        ))),
    }
}

/// Seconds; `None` if negative.
fn seconds(seconds: i32) -> Option<Duration> {
    Some(Duration::from_secs(u64::try_from(seconds).ok()?))
}

fn policy(name: Option<&str>) -> Result<PathPolicy, Failure> {
    Ok(match name {
        None | Some("round-robin") => PathPolicy::RoundRobin,
        Some("queue-depth") => PathPolicy::QueueDepth,
        Some("latency") => PathPolicy::Latency,
        Some("numa") => PathPolicy::Numa,
        Some(other) => {
            return Err(wrong(format!(
                "path_policy={other}: must be round-robin, queue-depth, latency or numa"
            )));
        }
    })
}

fn nqn(option: &str, name: &str) -> Result<Nqn, Failure> {
    Nqn::new(name).map_err(|error| wrong(format!("{option}={name}: {error}")))
}

/// An address or a name, with or without a port: `192.0.2.1`, `disk:4421`,
/// `[2001:db8::1]:4420`, `2001:db8::1`. Or a Unix socket: `unix:/path`.
fn resolve(text: &str) -> Result<Address, Failure> {
    if Address::is_unix_text(text) {
        return text
            .parse()
            .map_err(|error: AddressError| wrong(format!("address={text}: {error}")));
    }
    Ok(resolve_ip(text)?.into())
}

fn resolve_ip(text: &str) -> Result<SocketAddr, Failure> {
    if let Ok(addr) = text.parse::<SocketAddr>() {
        return Ok(addr);
    }
    if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, PORT));
    }
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let found = match (bracketed, text.rsplit_once(':')) {
        // The zone of a link-local address may be a name: fe80::1%eth0.
        (Some((ip, rest)), _) => {
            let port = match rest.strip_prefix(':') {
                Some(port) => port.parse(),
                None => Ok(PORT),
            };
            let port = port.map_err(|error| wrong(format!("address={text}: port: {error}")))?;
            (ip, port).to_socket_addrs()
        }
        (None, Some(_)) if !text.contains('%') => text.to_socket_addrs(),
        _ => (text, PORT).to_socket_addrs(),
    };
    let found = found.map_err(|error| {
        wrong(format!(
            "address={text}: {error}; give an IP address or a name that resolves, with or \
             without :PORT"
        ))
    })?;
    let mut found = found.into_iter();
    found.next().ok_or_else(|| {
        wrong(format!(
            "address={text}: the name does not resolve to an address"
        ))
    })
}

fn wrong(text: impl Into<String>) -> Failure {
    Failure::new(text, Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: RawOptions<'_> = RawOptions {
        address: Some("127.0.0.1"),
        subsystem: Some("nqn.2026-11.org.example:disk"),
        nsid: 1,
        provider: None,
        queues: 1,
        hostnqn: Some("nqn.2026-11.org.example:host"),
        shm_folder: None,
        shm_copy: false,
        crc: false,
        path_policy: None,
        reconnect_delay: 1,
        ctrl_loss_tmo: 600,
        fast_io_fail_tmo: -1,
        keep_alive_tmo: 5,
        stall_ms: 1000,
        dhchap_secret: None,
        dhchap_ctrl_secret: None,
        job: None,
    };

    #[test]
    fn address_without_port_has_the_default_port() {
        for (text, addr) in [
            ("127.0.0.1", "127.0.0.1:4420"),
            ("127.0.0.1:99", "127.0.0.1:99"),
            ("::1", "[::1]:4420"),
            ("[::1]", "[::1]:4420"),
            ("[::1]:99", "[::1]:99"),
            ("unix:/run/a.sock", "unix:/run/a.sock"),
        ] {
            assert_eq!(resolve(text).unwrap(), addr.parse().unwrap(), "{text}");
        }
        assert!(resolve_ip("localhost:99").unwrap().ip().is_loopback());
        assert!(resolve_ip("localhost").unwrap().ip().is_loopback());
        let link = resolve_ip("[fe80::1%lo]:99").unwrap();
        assert_eq!(resolve_ip("fe80::1%lo").unwrap().ip(), link.ip());
        assert!(matches!(link, SocketAddr::V6(link) if link.scope_id() > 0 && link.port() == 99));
    }

    #[test]
    fn omitted_options_have_defaults() {
        let options = Options::parse(&GIVEN).unwrap();
        assert_eq!(options.transport, Transport::Auto);
        assert_eq!((options.paths[0].io_queues, options.nsid), (1, 1));
        assert_eq!(options.paths.len(), 1);
        assert_eq!(options.reconnect, ReconnectOptions::default());
        assert_eq!(options.policy, PathPolicy::RoundRobin);
        assert_eq!(options.route, RouteOptions::default());
        let hostnqn = None;
        assert!(Options::parse(&RawOptions { hostnqn, ..GIVEN }).is_ok());
    }

    #[test]
    fn path_options_are_those_of_the_job() {
        let given = RawOptions {
            address: Some("10.0.0.1,10.0.0.2:99,unix:/run/a.sock"),
            path_policy: Some("queue-depth"),
            reconnect_delay: 3,
            ctrl_loss_tmo: -1,
            fast_io_fail_tmo: 0,
            keep_alive_tmo: 7,
            stall_ms: 0,
            job: Some("verify"),
            ..GIVEN
        };
        let options = Options::parse(&given).unwrap();
        let addrs = options.paths.iter().map(|path| path.addr.to_string());
        assert_eq!(
            addrs.collect::<Vec<_>>(),
            ["10.0.0.1:4420", "10.0.0.2:99", "unix:/run/a.sock"]
        );
        let keep_alive = options.paths.iter().map(|path| path.keep_alive.as_secs());
        assert_eq!(keep_alive.collect::<Vec<_>>(), [7; 3]);
        let reconnect = ReconnectOptions {
            reconnect_delay: Duration::from_secs(3),
            ctrl_loss: None,
            fast_io_fail: Some(Duration::ZERO),
        };
        assert_eq!(options.reconnect, reconnect);
        assert_eq!(options.policy, PathPolicy::QueueDepth);
        assert_eq!((options.stall, &options.job[..]), (None, "verify"));
    }

    #[test]
    fn refusals_of_path_options_name_the_option() {
        let address = Some("127.0.0.1,");
        let path_policy = Some("fast");
        let keep_alive_tmo = u32::MAX;
        for (given, words) in [
            (RawOptions { address, ..GIVEN }, "address="),
            (
                RawOptions {
                    path_policy,
                    ..GIVEN
                },
                "path_policy=fast: must be round-robin",
            ),
            (
                RawOptions {
                    keep_alive_tmo: 0,
                    ..GIVEN
                },
                "keep_alive_tmo=0 is out of range",
            ),
            (
                RawOptions {
                    keep_alive_tmo,
                    ..GIVEN
                },
                "keep_alive_tmo=4294967295",
            ),
        ] {
            let failure = Options::parse(&given).unwrap_err();
            assert!(failure.to_string().contains(words), "{failure}");
        }
    }

    #[test]
    fn route_options_are_those_of_the_job() {
        let given = RawOptions {
            shm_folder: Some("/run/disks"),
            shm_copy: true,
            ..GIVEN
        };
        let route = Options::parse(&given).unwrap().route;
        assert_eq!(route.shm_folder.as_deref(), Some("/run/disks".as_ref()));
        assert!(route.shm_copies && !route.crc);
        let route = Options::parse(&RawOptions { crc: true, ..GIVEN })
            .unwrap()
            .route;
        assert!(route.crc && !route.shm_copies);
    }

    #[test]
    fn refusals_name_the_option() {
        let refused = [
            (
                RawOptions {
                    address: None,
                    ..GIVEN
                },
                "address=",
            ),
            (
                RawOptions {
                    address: Some("127.0.0.1:no"),
                    ..GIVEN
                },
                "address=127.0.0.1:no",
            ),
            (
                RawOptions {
                    address: Some("unix:a.sock"),
                    ..GIVEN
                },
                "absolute",
            ),
            (
                RawOptions {
                    subsystem: None,
                    ..GIVEN
                },
                "subsystem=",
            ),
            (
                RawOptions {
                    subsystem: Some("di\nsk"),
                    ..GIVEN
                },
                "subsystem=di",
            ),
            (
                RawOptions {
                    provider: Some("roce"),
                    ..GIVEN
                },
                "iwarp",
            ),
            (RawOptions { queues: 0, ..GIVEN }, "queues=0"),
            (
                RawOptions {
                    queues: 65536,
                    ..GIVEN
                },
                "queues=65536",
            ),
            (
                RawOptions {
                    hostnqn: Some("m\ne"),
                    ..GIVEN
                },
                "hostnqn=m",
            ),
        ];
        for (given, words) in refused {
            let failure = Options::parse(&given).unwrap_err();
            assert!(failure.to_string().contains(words), "{failure}");
            assert_eq!(failure.errno(), Errno::EINVAL);
        }
    }
}
