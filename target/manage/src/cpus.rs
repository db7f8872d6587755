//! Placement of reactors on the CPUs that this process may use, and on their NUMA nodes.

use std::collections::BTreeSet;
use std::fmt;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::ports::Port;
use nvmeof_target_config::{Config, ConfigError, Cores, MOST_REACTORS};

/// The CPU of one reactor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReactorCpu {
    /// Its CPU; `None`: any, as the kernel schedules it.
    pub number: Option<usize>,
    /// The NUMA node of the CPU, if the machine has several.
    pub node: Option<usize>,
    /// The CPU of the kernel thread that takes its I/O operations, if it is configured
    /// (`storage.sqpoll_cores`).
    pub sqpoll: Option<usize>,
}

/// Queries of the placement about a machine.
trait Topology {
    /// The CPUs that this process may use.
    fn allowed(&self) -> Result<BTreeSet<usize>, Errno>;

    /// The NUMA node of a CPU; `None` on machines that have only one.
    fn node_of(&self, number: usize) -> Option<usize>;

    /// The NUMA node of an RDMA device.
    fn node_of_device(&self, device: &str) -> Option<usize>;
}

/// This machine.
struct Machine;

/// Places the reactors of `config`, whose ports are served by the devices of
/// `ports`.
///
/// # Errors
/// [`ConfigError`] names the key, cause and remedy.
pub fn place(config: &Config, ports: &[Port]) -> Result<Vec<ReactorCpu>, ConfigError> {
    let providers = ports.iter().flat_map(|port| &port.providers);
    let devices = providers.flat_map(|provider| &provider.devices);
    let devices: Vec<&str> = devices.map(|device| device.name.as_str()).collect();
    let settings = config.reactor_settings();
    let cpus = place_on(&Machine, &settings.cores, &devices);
    let mut cpus = cpus.map_err(|what| config.cores_error(&what))?;
    if let Some(sqpoll) = &settings.sqpoll {
        let placed = place_sqpoll(&Machine, &sqpoll.cores, &mut cpus);
        placed.map_err(|what| config.table_error("storage", "sqpoll_cores", &what))?;
    }
    Ok(cpus)
}

/// A warning if a kernel thread that submits I/O operations (SQPOLL) shares its CPU with a reactor
/// of `config`.
#[must_use]
pub fn sqpoll_remark(config: &Config, cpus: &[ReactorCpu]) -> Option<String> {
    config.reactor_settings().sqpoll?;
    cpus.iter().find_map(|cpu| match cpu.sqpoll {
        Some(core) => {
            let own = cpus.iter().position(|cpu| cpu.number == Some(core))?;
            Some(format!(
                "storage.sqpoll_cores: CPU {core} is also the CPU of reactor {own}: each waits \
                 for the other; name CPUs that are not in reactor.cores, or set storage.sqpoll \
                 to false"
            ))
        }
        // A new thread inherits the CPU affinity of its creator, and since Linux 6.2 the affinity
        // still applies when the kernel moves the thread.
        // Source: __set_cpus_allowed_ptr() in kernel/sched/core.c, io_sq_thread() in
        // io_uring/sqpoll.c of Linux.
        None => cpu.number.map(|core| {
            format!(
                "storage.sqpoll: since Linux 6.2 the kernel thread shares CPU {core} with its \
                 reactor: each waits for the other; name other CPUs in storage.sqpoll_cores, \
                 or set storage.sqpoll to false"
            )
        }),
    })
}

/// Binds this thread to its CPU and NUMA node.
///
/// # Errors
/// If the CPU is not available any more.
pub(crate) fn take(cpu: ReactorCpu) -> Result<(), Errno> {
    let Some(number) = cpu.number else {
        return Ok(());
    };
    let mut set = CpuSet::new();
    set.set(number)?;
    sched_setaffinity(Pid::from_raw(0), &set)
}

/// Moves this thread to CPUs that are not `used`, if this process may use any.
///
/// # Errors
/// If the CPUs are not available any more.
pub(crate) fn avoid(used: &BTreeSet<usize>) -> Result<(), Errno> {
    let allowed = Machine.allowed()?;
    let mut free = allowed.difference(used).peekable();
    if used.is_empty() || free.peek().is_none() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for number in free {
        set.set(*number)?;
    }
    sched_setaffinity(Pid::from_raw(0), &set)
}

fn place_on(
    machine: &dyn Topology,
    cores: &Cores,
    devices: &[&str],
) -> Result<Vec<ReactorCpu>, String> {
    if let Cores::Anywhere(count) = cores {
        return Ok(vec![ReactorCpu::default(); *count]);
    }
    let allowed = allowed(machine)?;
    let cores = match cores {
        Cores::On(cores) => cores.clone(),
        Cores::Auto(count) => first_of(&near(machine, &allowed, devices), *count)?,
        Cores::Anywhere(_) => Vec::new(),
    };
    all_are_allowed(&cores, &allowed, " or \"auto\"")?;
    let cpu = |core: usize| ReactorCpu {
        number: Some(core),
        node: machine.node_of(core),
        sqpoll: None,
    };
    Ok(cores.into_iter().map(cpu).collect())
}

/// Assigns these CPUs to the kernel threads, in the order of the reactors. If there are fewer
/// CPUs than reactors, it starts again with the first.
fn place_sqpoll(
    machine: &dyn Topology,
    cores: &[usize],
    cpus: &mut [ReactorCpu],
) -> Result<(), String> {
    if cores.is_empty() {
        return Ok(());
    }
    all_are_allowed(cores, &allowed(machine)?, "")?;
    for (cpu, core) in cpus.iter_mut().zip(cores.iter().cycle()) {
        cpu.sqpoll = Some(*core);
    }
    Ok(())
}

fn allowed(machine: &dyn Topology) -> Result<BTreeSet<usize>, String> {
    machine
        .allowed()
        .map_err(|errno| format!("cannot get the CPUs of this process: {errno}; omit this key"))
}

/// Checks that all CPUs are allowed; `or` is a further valid value for the message.
fn all_are_allowed(cores: &[usize], allowed: &BTreeSet<usize>, or: &str) -> Result<(), String> {
    match cores.iter().find(|core| !allowed.contains(core)) {
        Some(core) => Err(format!(
            "CPU {core} is not available to this process, which may use {}; name some of \
             these{or}, or change its affinity (CPUAffinity= and AllowedCPUs= of its systemd \
             unit, `taskset`, the cpuset of its container)",
            Ranges(allowed)
        )),
        None => Ok(()),
    }
}

/// The allowed CPUs of the NUMA nodes of the devices, or all allowed CPUs if the nodes are not
/// known or have none.
fn near(machine: &dyn Topology, allowed: &BTreeSet<usize>, devices: &[&str]) -> BTreeSet<usize> {
    let nodes = devices
        .iter()
        .filter_map(|device| machine.node_of_device(device));
    let nodes: BTreeSet<_> = nodes.collect();
    let is_near = |core: &usize| {
        machine
            .node_of(*core)
            .is_some_and(|node| nodes.contains(&node))
    };
    let near: BTreeSet<_> = allowed.iter().copied().filter(is_near).collect();
    if near.is_empty() {
        return allowed.clone();
    }
    near
}

/// The first `count` CPUs, or as many as there can be reactors.
fn first_of(allowed: &BTreeSet<usize>, count: Option<usize>) -> Result<Vec<usize>, String> {
    let available = allowed.len();
    if let Some(count) = count.filter(|count| *count > available) {
        return Err(format!(
            "\"auto\" finds {available} CPUs ({}), fewer than the {count} of reactor.count; \
             lower that, or name CPUs",
            Ranges(allowed)
        ));
    }
    let count = count.unwrap_or(available).min(MOST_REACTORS);
    Ok(allowed.iter().copied().take(count).collect())
}

/// The CPUs that this process may use. Tests name the first of these, because CPU 0 may
/// not be among them.
#[cfg(test)]
pub(crate) fn usable() -> Vec<usize> {
    let usable = Machine.allowed().unwrap_or_default();
    usable.into_iter().collect()
}

/// CPUs as the kernel lists them.
#[cfg(test)]
pub(crate) fn list(cpus: &BTreeSet<usize>) -> String {
    Ranges(cpus).to_string()
}

#[cfg(test)]
pub(crate) fn first_usable() -> usize {
    usable().first().copied().unwrap_or(0)
}

impl Topology for Machine {
    fn allowed(&self) -> Result<BTreeSet<usize>, Errno> {
        let set = sched_getaffinity(Pid::from_raw(0))?;
        let is_set = |core: &usize| set.is_set(*core).unwrap_or(false);
        Ok((0..CpuSet::count()).filter(is_set).collect())
    }

    fn node_of(&self, number: usize) -> Option<usize> {
        // With one node there is no choice.
        let nodes = node_names("/sys/devices/system/node");
        if nodes.len() < 2 {
            return None;
        }
        let node = node_names(&format!("/sys/devices/system/cpu/cpu{number}"));
        node.first().copied()
    }

    fn node_of_device(&self, device: &str) -> Option<usize> {
        // -1 if the firmware does not report it.
        // Source: Documentation/ABI/testing/sysfs-bus-pci.
        let path = format!("/sys/class/infiniband/{device}/device/numa_node");
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }
}

/// Numbers of the entries `nodeN` of a folder. The folder of a CPU has one, which is its node.
/// Source: Documentation/ABI/stable/sysfs-devices-node.
fn node_names(folder: &str) -> Vec<usize> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names
        .filter_map(|name| name.strip_prefix("node")?.parse().ok())
        .collect()
}

impl fmt::Display for ReactorCpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.number, self.node) {
            (None, _) => f.write_str("any CPU"),
            (Some(number), None) => write!(f, "CPU {number}"),
            (Some(number), Some(node)) => {
                write!(f, "CPU {number} (NUMA node {node})")
            }
        }?;
        match self.sqpoll {
            Some(core) => write!(f, ", SQPOLL on CPU {core}"),
            None => Ok(()),
        }
    }
}

/// Numbers as ranges: `0-3,8`.
struct Ranges<'a>(&'a BTreeSet<usize>);

impl fmt::Display for Ranges<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for number in self.0.iter().copied() {
            match ranges.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
                _ => ranges.push((number, number)),
            }
        }
        for (at, (first, last)) in ranges.into_iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error for a configuration that begins with `text`.
    fn refusal(text: &str) -> String {
        let config = format!(
            "{text}\n[[port]]\ntraddr = \"127.0.0.1\"\n[[subsystem]]\n\
             nqn = \"nqn.2026-11.org.example:disk\"\nallow_any_host = true\n"
        );
        let config = Config::parse(std::path::Path::new("target.toml"), config).unwrap();
        place(&config, &[]).unwrap_err().to_string()
    }

    #[test]
    fn unavailable_cpu_is_reported_with_its_line() {
        let core = first_usable();
        let cores = refusal(&format!("[reactor]\ndrain_s = 1\ncores = [{core}, 1023]"));
        let sqpoll = format!("[storage]\nsqpoll = true\nsqpoll_cores = [{core}, 1023]");
        let sqpoll = refusal(&sqpoll);
        for word in ["target.toml:3: ", "reactor.cores", "CPU 1023", "taskset"] {
            assert!(cores.contains(word), "{word}: {cores}");
        }
        for word in [
            "target.toml:3: ",
            "sqpoll_cores",
            "CPU 1023 is not available",
        ] {
            assert!(sqpoll.contains(word), "{word}: {sqpoll}");
        }
    }

    /// Two nodes with four CPUs each; the process may use those in the list.
    struct TwoNodes(&'static [usize]);

    impl Topology for TwoNodes {
        fn allowed(&self) -> Result<BTreeSet<usize>, Errno> {
            Ok(self.0.iter().copied().collect())
        }

        fn node_of(&self, number: usize) -> Option<usize> {
            Some(number / 4)
        }

        fn node_of_device(&self, device: &str) -> Option<usize> {
            device.strip_prefix("mlx5_")?.parse().ok()
        }
    }

    const ALL: TwoNodes = TwoNodes(&[0, 1, 2, 3, 4, 5, 6, 7]);

    fn cpus_of(machine: &TwoNodes, cores: &Cores, devices: &[&str]) -> Vec<usize> {
        let cpus = place_on(machine, cores, devices).unwrap();
        cpus.into_iter().filter_map(|cpu| cpu.number).collect()
    }

    #[test]
    fn reactors_run_on_configured_cpus() {
        let cpus = place_on(&ALL, &Cores::On(vec![5, 0, 0]), &["mlx5_1"]).unwrap();
        let cpu = |number, node| ReactorCpu {
            number: Some(number),
            node: Some(node),
            sqpoll: None,
        };
        assert_eq!(cpus, [cpu(5, 1), cpu(0, 0), cpu(0, 0)]);
        assert_eq!(cpus[0].to_string(), "CPU 5 (NUMA node 1)");
        let anywhere = place_on(&ALL, &Cores::Anywhere(2), &[]).unwrap();
        assert_eq!(anywhere, [ReactorCpu::default(); 2]);
        assert_eq!(anywhere[0].to_string(), "any CPU");
    }

    #[test]
    fn auto_selects_cpus_close_to_the_devices() {
        let auto = Cores::Auto(None);
        assert_eq!(cpus_of(&ALL, &auto, &["mlx5_1"]), [4, 5, 6, 7]);
        assert_eq!(
            cpus_of(&ALL, &auto, &["mlx5_0", "mlx5_1"]),
            [0, 1, 2, 3, 4, 5, 6, 7]
        );
        assert_eq!(cpus_of(&ALL, &Cores::Auto(Some(2)), &["mlx5_1"]), [4, 5]);
        // Software devices have no node, and for some devices it is unknown.
        for devices in [&[][..], &["rxe0"], &["mlx5_-1"]] {
            assert_eq!(cpus_of(&ALL, &Cores::Auto(Some(3)), devices), [0, 1, 2]);
        }
        // The process may use none of the CPUs of the device's node.
        let half = TwoNodes(&[1, 3]);
        assert_eq!(cpus_of(&half, &auto, &["mlx5_1"]), [1, 3]);
    }

    #[test]
    fn disallowed_cpus_are_refused() {
        let some = TwoNodes(&[0, 1, 2, 5, 7]);
        let error = place_on(&some, &Cores::On(vec![1, 3]), &[]).unwrap_err();
        assert!(error.contains("CPU 3 is not available"), "{error}");
        assert!(error.contains("may use 0-2,5,7;"), "{error}");
        let error = place_on(&some, &Cores::Auto(Some(3)), &["mlx5_1"]).unwrap_err();
        assert!(error.contains("finds 2 CPUs (5,7)"), "{error}");
    }

    /// The CPUs of the kernel threads, for `reactors` reactors.
    fn taking(cores: &[usize], reactors: usize) -> Result<Vec<Option<usize>>, String> {
        let mut cpus = vec![ReactorCpu::default(); reactors];
        place_sqpoll(&TwoNodes(&[0, 1, 2, 5]), cores, &mut cpus)?;
        Ok(cpus.into_iter().map(|cpu| cpu.sqpoll).collect())
    }

    #[test]
    fn sqpoll_threads_get_cpus_round_robin() {
        assert_eq!(taking(&[], 2).unwrap(), [None, None]);
        assert_eq!(taking(&[5, 2], 3).unwrap(), [Some(5), Some(2), Some(5)]);
        assert_eq!(taking(&[5, 2], 1).unwrap(), [Some(5)]);
        let error = taking(&[5, 3], 1).unwrap_err();
        assert!(error.contains("CPU 3 is not available"), "{error}");
        assert!(
            error.contains("may use 0-2,5; name some of these, or"),
            "{error}"
        );
        let cpu = ReactorCpu {
            sqpoll: Some(5),
            ..ReactorCpu::default()
        };
        assert_eq!(cpu.to_string(), "any CPU, SQPOLL on CPU 5");
    }

    #[test]
    fn cpu_shared_by_reactor_and_sqpoll_is_reported() {
        let remark = |head: &str| {
            let port = "[[port]]\ntraddr = \"127.0.0.1\"\nprovider = \"iwarp\"\n";
            let config = Config::parse("target.toml".as_ref(), format!("{head}\n{port}")).unwrap();
            let settings = config.reactor_settings();
            let mut cpus = place_on(&ALL, &settings.cores, &[]).unwrap();
            let cores = settings.sqpoll.map(|sqpoll| sqpoll.cores);
            place_sqpoll(&ALL, &cores.unwrap_or_default(), &mut cpus).unwrap();
            sqpoll_remark(&config, &cpus)
        };
        let sqpoll = "[storage]\nsqpoll = true";
        let (placed, counted) = ("[reactor]\ncores = [1, 2]", "[reactor]\ncount = 2");
        assert_eq!(remark(placed), None);
        assert_eq!(remark(&format!("{counted}\n{sqpoll}")), None);
        let others = format!("{placed}\n{sqpoll}\nsqpoll_cores = [3, 4]");
        assert_eq!(remark(&others), None);
        for (text, words) in [
            ("", "shares CPU 1"),
            (
                "sqpoll_cores = [3, 1]",
                "CPU 1 is also the CPU of reactor 0",
            ),
        ] {
            let remark = remark(&format!("{placed}\n{sqpoll}\n{text}")).unwrap();
            assert!(remark.contains(words), "{remark}");
            assert!(remark.contains("storage.sqpoll_cores"), "{remark}");
        }
    }

    #[test]
    fn thread_is_bound_to_its_cpu() {
        let number = *Machine.allowed().unwrap().last().unwrap();
        let thread = std::thread::spawn(move || {
            let node = Machine.node_of(number);
            take(ReactorCpu {
                number: Some(number),
                node,
                sqpoll: None,
            })
            .unwrap();
            Machine.allowed().unwrap()
        });
        assert_eq!(thread.join().unwrap(), BTreeSet::from([number]));
    }
}
