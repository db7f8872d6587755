//! One emulated machine: its command line, its two serial ports, its end.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::Trouble;
use crate::event::Event;
use crate::image::Image;
use crate::outside::Tools;
use crate::scenario::Machine;

/// A boot takes 5 seconds, and far longer on a busy machine.
const BOOT_LIMIT: Duration = Duration::from_secs(600);

/// Maximum number of consecutive guests with a wrong clock.
const MAX_WRONG_CLOCKS: u32 = 4;

/// Properties that all guests of a run share.
#[derive(Clone, Debug)]
pub(crate) struct Blueprint {
    pub(crate) image: Image,
    /// The disk of the run.
    pub(crate) disk: PathBuf,
    /// The folder for files that the guest writes.
    pub(crate) folder: PathBuf,
    /// For scripts on this machine.
    pub(crate) outside: Tools,
}

/// The task of `/lab/guest/start.sh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Serve,
    Exec,
    Shell,
}

impl Blueprint {
    /// The command of the emulator, without the serial ports.
    fn machine(&self, purpose: Purpose, machine: Machine) -> Command {
        // KVM is not used: in a virtual machine, `/dev/kvm` often cannot run a stock
        // kernel.
        let mut qemu = Command::new("qemu-system-x86_64");
        // Without the CPU flags of fast string copies, which the emulator executes byte by
        // byte: drivers of software RDMA devices copy all payload.
        let cpu = "-accel tcg,thread=multi -cpu max,-erms,-fsrm -nodefaults";
        qemu.args(cpu.split(' '));
        qemu.args(["-smp", &machine.cpus.to_string()]);
        qemu.args(["-display", "none", "-no-reboot"]);
        qemu.args(["-m", &format!("{}M", machine.memory_mib)]);
        if machine.nodes > 1 {
            qemu.args(nodes(machine));
        }
        qemu.arg("-kernel").arg(self.image.folder.join("vmlinuz"));
        qemu.arg("-initrd").arg(self.image.folder.join("initrd"));
        qemu.args(["-append", &command_line(purpose)]);
        // Changes of a guest are written to a temporary snapshot.
        let root = self.image.folder.join("root.img");
        qemu.arg("-drive").arg(format!(
            "file={},format=raw,if=virtio,snapshot=on,cache=unsafe",
            escape(&root)
        ));
        qemu.arg("-drive").arg(format!(
            "file={},format=raw,if=virtio,readonly=on",
            escape(&self.disk)
        ));
        qemu.arg("-virtfs").arg(format!(
            "local,path={},mount_tag=out,security_model=none,multidevs=remap",
            escape(&self.folder)
        ));
        // Loopback of this machine is 10.0.2.2 in the guest, which loads the driver if a
        // scenario needs it. Network boot is off: its firmware is a package of its own.
        qemu.args(["-netdev", "user,id=outside,ipv6=off"]);
        qemu.args(["-device", "virtio-net-pci,netdev=outside,romfile="]);
        qemu
    }

    /// Runs `/lab/script` with its output on standard output. Returns its exit status.
    pub(crate) fn exec(&self, machine: Machine, limit: Duration) -> Result<i32, Trouble> {
        let console = self.folder.join("console");
        let mut qemu = self.machine(Purpose::Exec, machine);
        qemu.arg("-serial")
            .arg(format!("file:{}", escape(&console)));
        qemu.args(["-serial", "stdio"]).stdin(Stdio::null());
        let mut child = qemu.spawn().map_err(|error| no_emulator(&error))?;
        let started = Instant::now();
        while matches!(child.try_wait(), Ok(None)) {
            if started.elapsed() > limit {
                kill(&mut child);
                let limit = limit.as_secs();
                return Err(died(&console, &format!("has not ended after {limit} s")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let status = fs::read_to_string(self.folder.join("status")).ok();
        let status = status.and_then(|text| text.trim().parse().ok());
        status.ok_or_else(|| died(&console, "ended without a status"))
    }

    /// A shell on this terminal.
    pub(crate) fn shell(&self, machine: Machine) -> Result<(), Trouble> {
        let mut qemu = self.machine(Purpose::Shell, machine);
        // Control-C belongs to the shell in the guest.
        qemu.args(["-chardev", "stdio,id=terminal,signal=off"]);
        qemu.args(["-serial", "chardev:terminal", "-serial", "null"]);
        let status = qemu.status().map_err(|error| no_emulator(&error))?;
        if status.success() {
            return Ok(());
        }
        Err(Trouble::SetUp(format!("qemu-system-x86_64: {status}")))
    }

    /// Boots a guest that runs scenarios; `number` tells guests apart.
    pub(crate) fn boot(&self, number: u32, machine: Machine) -> Result<Guest, Trouble> {
        for _ in 0..MAX_WRONG_CLOCKS {
            let mut guest = self.start(number, machine)?;
            match guest.next(Instant::now() + BOOT_LIMIT) {
                Ok(Event::Ready { kernel }) => {
                    guest.kernel = kernel;
                    return Ok(guest);
                }
                Ok(Event::WrongClock) => {}
                Ok(Event::Broken(why)) => {
                    return Err(died(&guest.console, &format!("is not usable: {why}")));
                }
                Ok(other) => {
                    return Err(died(
                        &guest.console,
                        &format!("sent an unexpected event: {other:?}"),
                    ));
                }
                Err(why) => return Err(died(&guest.console, &why)),
            }
        }
        Err(Trouble::Failed(format!(
            "the clocks of {MAX_WRONG_CLOCKS} consecutive guests were wrong; this machine may be \
             overloaded: stop other programs and try again"
        )))
    }

    /// Starts the emulator; the guest is not ready yet.
    fn start(&self, number: u32, machine: Machine) -> Result<Guest, Trouble> {
        let console = self.folder.join(format!("guest-{number}.console"));
        let mut qemu = self.machine(Purpose::Serve, machine);
        qemu.arg("-serial")
            .arg(format!("file:{}", escape(&console)));
        qemu.args(["-serial", "stdio"]);
        qemu.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = qemu.spawn().map_err(|error| no_emulator(&error))?;
        let (sender, events) = mpsc::channel();
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                let lines = BufReader::new(output).split(b'\n').map_while(Result::ok);
                let events = lines.filter_map(|line| Event::parse(&String::from_utf8_lossy(&line)));
                for event in events {
                    if sender.send(event).is_err() {
                        break;
                    }
                }
            });
        }
        let orders = child.stdin.take();
        Ok(Guest {
            child,
            orders,
            events,
            console,
            machine,
            kernel: String::new(),
        })
    }
}

/// Options that divide CPUs and memory among NUMA nodes: the last one has the remainder.
fn nodes(machine: Machine) -> Vec<String> {
    let Machine {
        memory_mib,
        cpus,
        nodes,
    } = machine;
    let part = |of: u32, node: u32| match node == nodes {
        true => of,
        false => of / nodes * node,
    };
    let node = |node: u32| {
        let memory = part(memory_mib, node + 1) - part(memory_mib, node);
        let (first, last) = (part(cpus, node), part(cpus, node + 1) - 1);
        [
            "-object".to_owned(),
            format!("memory-backend-ram,id=memory{node},size={memory}M"),
            "-numa".to_owned(),
            format!("node,nodeid={node},memdev=memory{node},cpus={first}-{last}"),
        ]
    };
    (0..nodes).flat_map(node).collect()
}

fn command_line(purpose: Purpose) -> String {
    let purpose = match purpose {
        Purpose::Serve => "serve",
        Purpose::Exec => "exec",
        Purpose::Shell => "shell",
    };
    // An oops ends the guest, and a panic ends the emulator. Stalls of an emulated CPU are
    // no error of the kernel. Address randomization is off: the emulator translates code for
    // the address at which it runs, and translation dominates the start of a program.
    format!(
        "console=ttyS0 quiet panic=-1 oops=panic mitigations=off nokaslr norandmaps nowatchdog \
         tsc=reliable rcupdate.rcu_cpu_stall_suppress=1 lab={purpose}"
    )
}

/// Doubles commas, which end a value in the options of the emulator.
fn escape(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

fn no_emulator(error: &std::io::Error) -> Trouble {
    Trouble::SetUp(format!(
        "cannot start qemu-system-x86_64: {error}; `cargo xtask setup` installs it"
    ))
}

fn died(console: &Path, why: &str) -> Trouble {
    let text = fs::read_to_string(console).unwrap_or_default();
    let tail: Vec<_> = text.lines().rev().take(20).collect();
    let tail: Vec<_> = tail.into_iter().rev().collect();
    Trouble::Failed(format!(
        "the guest {why}; its console, {}, ends with\n{}",
        console.display(),
        tail.join("\n")
    ))
}

fn kill(child: &mut Child) {
    // It may have ended by itself.
    drop(child.kill());
    drop(child.wait());
}

/// A guest that waits for scenarios. Dropping it ends it: its files are on this machine
/// already.
#[derive(Debug)]
pub(crate) struct Guest {
    child: Child,
    orders: Option<ChildStdin>,
    events: Receiver<Event>,
    console: PathBuf,
    pub(crate) machine: Machine,
    pub(crate) kernel: String,
}

impl Guest {
    /// Sends a command to the guest.
    pub(crate) fn order(&mut self, line: &str) -> Result<(), String> {
        let orders = self
            .orders
            .as_mut()
            .ok_or("the guest accepts no commands")?;
        writeln!(orders, "{line}")
            .and_then(|()| orders.flush())
            .map_err(|error| format!("the guest is gone: {error}"))
    }

    /// The next event of the guest, or why there is none.
    pub(crate) fn next(&mut self, until: Instant) -> Result<Event, String> {
        let left = until.saturating_duration_since(Instant::now());
        self.events.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => "does not respond".to_owned(),
            RecvTimeoutError::Disconnected => {
                let text = fs::read(&self.console).unwrap_or_default();
                cause_of_death(&String::from_utf8_lossy(&text))
            }
        })
    }

    /// The output of the kernel and the boot.
    pub(crate) fn console(&self) -> &Path {
        &self.console
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}

/// The first line of the console that shows why the guest ended.
fn cause_of_death(console: &str) -> String {
    let signs = [
        "BUG:",
        "Oops",
        "WARNING:",
        "Kernel panic",
        "general protection",
    ];
    let found = console
        .lines()
        .find(|line| signs.iter().any(|sign| line.contains(sign)));
    found.map_or_else(
        || "ended by itself".to_owned(),
        |line| format!("crashed: {}", line.trim()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_of_death_is_the_first_sign() {
        let console = "[ 1.0] lab: begin smoke\n[ 2.0] BUG: kernel NULL pointer\n\
             [ 2.1] Kernel panic - not syncing: Fatal exception\n";
        assert_eq!(
            cause_of_death(console),
            "crashed: [ 2.0] BUG: kernel NULL pointer"
        );
        assert_eq!(cause_of_death("reboot: Power down"), "ended by itself");
    }

    #[test]
    fn cpus_and_memory_are_divided_among_nodes() {
        let machine = Machine {
            memory_mib: 1025,
            cpus: 3,
            nodes: 2,
        };
        let options = nodes(machine).join(" ");
        assert_eq!(
            options,
            "-object memory-backend-ram,id=memory0,size=512M \
             -numa node,nodeid=0,memdev=memory0,cpus=0-0 \
             -object memory-backend-ram,id=memory1,size=513M \
             -numa node,nodeid=1,memdev=memory1,cpus=1-2"
        );
    }

    #[test]
    fn options_keep_commas() {
        assert_eq!(escape(Path::new("/a,b")), "/a,,b");
    }
}
