//! Scenes: the processes that a kind of workload needs, such as targets, the other side
//! of yardsticks, and idle hosts.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cores::{self, Cores};
use crate::process::{Server, Stopped};
use crate::stage::Stage;
use crate::work::{About, CROWD, IDLE_SECONDS, Store, Work};
use crate::{Arguments, Trouble};

/// The subsystem of our target.
pub(crate) const NQN: &str = "nqn.2026-11.org.example:bench";

/// The namespace with that backing store.
pub(crate) fn nsid(store: Store) -> &'static str {
    match store {
        Store::Null => "1",
        Store::File => "2",
        Store::Ram => "3",
    }
}

/// The kind of scene. Workloads of one kind are measured in the same rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A target and the other sides of the yardsticks.
    Plain,
    /// Two targets with a file each, of which one has SQPOLL, on a core of its own.
    Sqpoll,
    /// Two targets, of which one has many idle queue pairs over that provider.
    Crowd(&'static str),
    /// Two targets, of which one has two reactors.
    Reactors,
    /// A target, and another one with an initiator of its own.
    Pair,
    /// A target and idle hosts.
    Idle(About),
    /// A target with its default configuration, for one workload: hostile peers change its
    /// state.
    Hostile(About, u32),
}

impl Kind {
    pub(crate) fn of(work: &Work) -> Self {
        match work.about {
            About::Iwarp
            | About::Shm
            | About::Unix
            | About::UnixTcp
            | About::Crc
            | About::Async
            | About::Queues
            | About::Zerocopy => Self::Plain,
            About::Sqpoll => Self::Sqpoll,
            About::Crowd | About::CrowdShm => Self::Crowd(work.provider()),
            About::Reactors | About::ReactorsShm => Self::Reactors,
            About::Pair | About::PairQueues | About::PairBusy => Self::Pair,
            about @ (About::Idle | About::IdleShm | About::IdleCrowd | About::IdleCrowdShm) => {
                Self::Idle(about)
            }
            about @ (About::Hostile(_) | About::HostileSame(_)) => Self::Hostile(about, work.bytes),
        }
    }

    /// Rounds of its workloads: one for those that are not compared or take long.
    pub(crate) fn rounds(self, rounds: u32) -> u32 {
        match self {
            Self::Idle(_) | Self::Hostile(..) => 1,
            Self::Plain | Self::Sqpoll | Self::Crowd(_) | Self::Reactors | Self::Pair => rounds,
        }
    }
}

/// Properties that all scenes share.
#[derive(Debug)]
pub(crate) struct Setting<'a> {
    pub(crate) arguments: &'a Arguments,
    pub(crate) programs: Programs,
    pub(crate) cores: Cores,
    pub(crate) time: Duration,
}

/// A scene: the stage, and the processes that are killed with it.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) stage: Stage,
    servers: Vec<Server>,
}

/// Room for the crowd, and for those that are busy.
const ROOM: &str = "[limits]\nio_queues = 32\nhost_memory = 100\nport_memory = 100\n\n\
                    [reactor]\nbuffer_memory = \"256M\"\n\n";
/// Entries of each I/O queue that is idle.
const IDLE_SIZE: u16 = 8;

impl Setting<'_> {
    /// Starts the processes for workloads of that kind.
    pub(crate) fn open(&self, kind: Kind, works: &[Work]) -> Result<Scene, Trouble> {
        match kind {
            Kind::Plain => self.plain(works),
            Kind::Sqpoll => self.sqpoll(),
            Kind::Crowd(provider) => self.crowd(provider),
            Kind::Reactors => self.reactors(),
            Kind::Pair => self.pair(),
            Kind::Idle(about) => self.idle(about),
            Kind::Hostile(..) => self.hostile(),
        }
    }

    fn plain(&self, works: &[Work]) -> Result<Scene, Trouble> {
        let stores: BTreeSet<&str> = works.iter().map(|work| nsid(work.store)).collect();
        let core = self.cores.target;
        // A path that is too long for a socket must not fail other workloads.
        let unix = works.iter().any(Work::is_unix);
        let port = format!("[[port]]\ntraddr = '{}'\n\n", self.unix("target"));
        let head = if unix { port.as_str() } else { "" };
        let target = self.target("target", head, &stores, &[core])?;
        let mut serve = Command::new(&self.programs.yardstick);
        serve.arg("tcp-serve");
        let tcp = Server::start(&mut serve, &[core], &self.path("tcp.log"), ":")?;
        let mut serve = Command::new(&self.programs.yardstick);
        serve.arg("shm-serve").arg(self.path("shm-bare.sock"));
        let shm = Server::start(&mut serve, &[core], &self.path("shm-bare.log"), "on ")?;
        let mut stage = self.stage(target.addr()?, target.addr()?);
        stage.tcp = tcp.addr()?;
        let mut servers = vec![target, tcp, shm];
        if unix {
            let mut serve = Command::new(&self.programs.yardstick);
            serve.arg("tcp-serve").arg(self.unix("unix-bare"));
            let log = self.path("unix-bare.log");
            servers.push(Server::start(&mut serve, &[core], &log, "unix:")?);
        }
        if let Some(peer) = &self.arguments.peer_target {
            let peer = self.foreign(peer, &mut stage)?;
            servers.push(peer);
        }
        Ok(Scene::new(stage, servers))
    }

    fn pair(&self) -> Result<Scene, Trouble> {
        let stores = BTreeSet::from([Store::Null, Store::Ram].map(nsid));
        let control = self.path("control.sock");
        let head = format!("[control]\nsocket = '{}'\n\n", control.display());
        let target = self.target("target", &head, &stores, &[self.cores.target])?;
        let mut stage = self.stage(target.addr()?, target.addr()?);
        stage.control = control;
        let script = self.arguments.peer_pair.as_deref().unwrap_or("false");
        let peer = self.foreign(script, &mut stage)?;
        Ok(Scene::new(stage, vec![target, peer]))
    }

    fn sqpoll(&self) -> Result<Scene, Trouble> {
        let (store, core) = (BTreeSet::from([nsid(Store::File)]), self.cores.target);
        let without = self.target("target", "", &store, &[core])?;
        let mut all = cores::allowed()?.into_iter();
        let spare = all.find(|core| ![self.cores.target, self.cores.initiator].contains(core));
        // With --force and without a spare core: the initiator's, which is the target's after
        // the sides have exchanged cores.
        let spare = spare.unwrap_or(self.cores.initiator);
        let head = format!("[storage]\nsqpoll = true\nsqpoll_cores = [{spare}]\n\n");
        let text = head + &target_toml(&store, &self.second_file(), &self.shm_folder());
        let mut with = self.serve("target-sqpoll", &text, &[core, spare])?;
        with.move_to(&[core])?;
        let stage = self.stage(without.addr()?, with.addr()?);
        Ok(Scene::new(stage, vec![without, with]))
    }

    fn crowd(&self, provider: &str) -> Result<Scene, Trouble> {
        let (null, cores) = (BTreeSet::from([nsid(Store::Null)]), [self.cores.target]);
        let alone = self.target("target-alone", ROOM, &null, &cores)?;
        let crowded = self.target("target-crowd", ROOM, &null, &cores)?;
        let stage = self.stage(alone.addr()?, crowded.addr()?);
        let hosts = self.hosts(crowded.addr()?, provider, CROWD)?;
        Ok(Scene::new(stage, vec![alone, crowded, hosts]))
    }

    fn reactors(&self) -> Result<Scene, Trouble> {
        let all = cores::allowed()?;
        let (own, rest) = all.split_at(all.len().min(2));
        // With too few cores, both sides use all of them.
        let initiators = if rest.len() < 2 { &all } else { rest };
        let null = BTreeSet::from([nsid(Store::Null)]);
        let mut targets = Vec::new();
        for count in [1, 2] {
            let some: Vec<String> = own.iter().take(count).map(usize::to_string).collect();
            let head = format!("[reactor]\ncores = [{}]\n\n", some.join(", "));
            targets.push(self.target(&format!("target-{count}"), &head, &null, own)?);
        }
        let mut addrs = targets.iter().map(Server::addr);
        let mut next = || addrs.next().unwrap_or(Ok(NOWHERE));
        let mut stage = self.stage(next()?, next()?);
        stage.initiators = initiators.to_vec();
        Ok(Scene::new(stage, targets))
    }

    fn idle(&self, about: About) -> Result<Scene, Trouble> {
        let (head, provider, count) = held(about);
        let null = BTreeSet::from([nsid(Store::Null)]);
        let target = self.target("target-idle", head, &null, &[self.cores.target])?;
        let addr = target.addr()?;
        let hosts = self.hosts(addr, provider, count)?;
        // Work that connecting caused is over after this.
        std::thread::sleep(Duration::from_millis(500));
        Ok(Scene::new(self.stage(addr, addr), vec![target, hosts]))
    }

    fn hostile(&self) -> Result<Scene, Trouble> {
        let null = BTreeSet::from([nsid(Store::Null)]);
        let target = self.target("target-hostile", "", &null, &[self.cores.target])?;
        let addr = target.addr()?;
        Ok(Scene::new(self.stage(addr, addr), vec![target]))
    }

    /// Idle controllers with I/O queues.
    fn hosts(
        &self,
        target: SocketAddr,
        provider: &str,
        (controllers, queues): (u16, u16),
    ) -> Result<Server, Trouble> {
        let mut hold = Command::new(&self.programs.yardstick);
        hold.arg("hold").arg(target.to_string());
        hold.args(["--nqn", NQN, "--provider", provider]);
        hold.args(["--controllers", &controllers.to_string()]);
        hold.args(["--io-queues", &queues.to_string()]);
        hold.args(["--queue-size", &IDLE_SIZE.to_string()]);
        hold.arg("--shm-folder").arg(self.shm_folder());
        let log = self.path("hold.log");
        Server::start(&mut hold, &[self.cores.initiator], &log, "holds")
    }

    /// Our target with these namespaces, on these cores.
    fn target(
        &self,
        name: &str,
        head: &str,
        nsids: &BTreeSet<&str>,
        cores: &[usize],
    ) -> Result<Server, Trouble> {
        let text = head.to_owned() + &target_toml(nsids, &self.file(), &self.shm_folder());
        self.serve(name, &text, cores)
    }

    /// Our target with that configuration.
    fn serve(&self, name: &str, text: &str, cores: &[usize]) -> Result<Server, Trouble> {
        let config = self.path(&format!("{name}.toml"));
        fs::write(&config, text).map_err(|error| Trouble::file("write", &config, &error))?;
        let mut serve = Command::new(&self.programs.target);
        serve.arg("serve").arg("--config").arg(&config);
        serve.env_remove("RUST_LOG");
        let log = self.path(&format!("{name}.log"));
        Server::start(&mut serve, cores, &log, "ready: serving")
    }

    /// Another target, which prints its address when it is ready. It is stopped until it is
    /// measured.
    fn foreign(&self, script: &str, stage: &mut Stage) -> Result<Server, Trouble> {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script).env("BENCH_SIDE", "target");
        shell.env("BENCH_TRADDR", Ipv4Addr::LOCALHOST.to_string());
        shell.env("BENCH_NQN", NQN).env("BENCH_FILE", self.file());
        let log = self.path("peer-target.log");
        let server = Server::start(&mut shell, &[self.cores.target], &log, "ready")?;
        stage.other = server.addr()?;
        stage.foreign = Some(Stopped::stop(server.id())?);
        Ok(server)
    }

    fn stage(&self, target: SocketAddr, other: SocketAddr) -> Stage {
        Stage {
            cores: self.cores,
            initiators: vec![self.cores.initiator],
            target,
            other,
            tcp: NOWHERE,
            shm_bare: self.path("shm-bare.sock"),
            unix: self.unix("target"),
            unix_bare: self.unix("unix-bare"),
            shm_folder: self.shm_folder(),
            control: PathBuf::new(),
            file: self.file(),
            perf: self.arguments.folder.clone(),
            initiator: self.programs.initiator.clone(),
            yardstick: self.programs.yardstick.clone(),
            peer: self
                .arguments
                .peer
                .clone()
                .or_else(|| self.arguments.peer_pair.clone()),
            time: self.time,
            idle_time: Duration::from_secs(IDLE_SECONDS),
            foreign: None,
            servers: Vec::new(),
            tries: self.arguments.tries,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.arguments.folder.join(name)
    }

    /// The address of a Unix socket.
    fn unix(&self, name: &str) -> String {
        format!("unix:{}", self.path(&format!("{name}.sock")).display())
    }

    /// The backing store of workloads on a file.
    pub(crate) fn file(&self) -> PathBuf {
        self.path("disk.img")
    }

    /// Another one for a second target, because the first target locks its file.
    pub(crate) fn second_file(&self) -> PathBuf {
        self.path("disk-2.img")
    }

    /// Folder for shared memory of our targets and initiators.
    fn shm_folder(&self) -> PathBuf {
        self.path("shm")
    }
}

/// The connections of idle hosts: a part of the target's configuration, the provider,
/// controllers and I/O queues of each.
fn held(about: About) -> (&'static str, &'static str, (u16, u16)) {
    match about {
        About::IdleCrowd => (ROOM, "iwarp", CROWD),
        About::IdleCrowdShm => (ROOM, "shm", CROWD),
        About::IdleShm => ("", "shm", (1, 1)),
        _ => ("", "iwarp", (1, 1)),
    }
}

/// The address of a server that a scene does not have.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl Scene {
    fn new(mut stage: Stage, servers: Vec<Server>) -> Self {
        stage.servers = servers.iter().map(Server::id).collect();
        Self { stage, servers }
    }

    /// Exchanges the cores of the two sides, if each has one: interrupts may be bound to
    /// one of them.
    pub(crate) fn swap(&mut self) -> Result<(), Trouble> {
        let sides = self.stage.cores;
        if !sides.are_two() || self.stage.initiators != [sides.initiator] {
            return Ok(());
        }
        let mut servers = self.servers.iter_mut();
        servers.try_for_each(|server| server.swap(sides))?;
        self.stage.cores = sides.swapped();
        self.stage.initiators = vec![self.stage.cores.initiator];
        Ok(())
    }

    /// Checks that all servers are running.
    pub(crate) fn check(&mut self) -> Result<(), Trouble> {
        let mut servers = self.servers.iter_mut();
        servers.try_for_each(Server::must_run)
    }

    /// The output of all servers, for errors.
    pub(crate) fn output(&self) -> String {
        self.servers.iter().map(Server::output).collect()
    }
}

fn target_toml(nsids: &BTreeSet<&str>, file: &Path, shm: &Path) -> String {
    let mut text = format!(
        "[shm]\nfolder = '{}'\n\n\
         [[port]]\ntraddr = \"{}\"\ntrsvcid = 0\nprovider = [\"iwarp\", \"shm\"]\n\n\
         [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n",
        shm.display(),
        Ipv4Addr::LOCALHOST
    );
    for (store, path) in [
        (Store::Null, "null:16G".to_owned()),
        (Store::File, file.display().to_string()),
        (Store::Ram, "ram:64M".to_owned()),
    ] {
        if nsids.contains(nsid(store)) {
            text.push_str(&format!(
                "\n[[subsystem.namespace]]\nnsid = {}\npath = '{path}'\n",
                nsid(store)
            ));
        }
    }
    text
}

/// Paths of the programs.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) target: PathBuf,
    pub(crate) initiator: PathBuf,
    pub(crate) yardstick: PathBuf,
}

impl Programs {
    /// Finds them.
    pub(crate) fn find(folder: Option<&Path>) -> Result<Self, Trouble> {
        let ours = std::env::current_exe().map_err(|error| {
            Trouble::SetUp(format!("cannot find the path of this program: {error}"))
        })?;
        let beside = ours.parent().unwrap_or(Path::new("."));
        let find = |folder: &Path, name: &str| {
            let path = folder.join(name);
            if path.is_file() {
                return Ok(path);
            }
            Err(Trouble::SetUp(format!(
                "{} is not there: run `cargo xtask bench`, which builds it, or name its \
                 folder with --bin-dir",
                path.display()
            )))
        };
        let folder = folder.unwrap_or(beside);
        Ok(Self {
            target: find(folder, "nvmeof-target")?,
            initiator: find(folder, "nvmeof")?,
            yardstick: find(beside, "nvmeof-yardstick")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_hosts_have_the_connections_of_the_workload() {
        for work in crate::work::all().iter().filter(|work| work.is_idle()) {
            let (_, provider, (controllers, queues)) = held(work.about);
            let (name, many) = (work.name(), controllers * (1 + queues) > 900);
            assert!(name.contains(provider), "{name}");
            assert_eq!(work.provider(), provider, "{name}");
            assert_eq!(name.ends_with("-1000"), many, "{name}");
        }
    }

    #[test]
    fn target_serves_only_required_namespaces() {
        let file = Path::new("/a/disk.img");
        let shm = Path::new("/a/shm");
        let text = target_toml(&BTreeSet::from(["1"]), file, shm);
        assert!(text.contains("folder = '/a/shm'"), "{text}");
        assert!(text.contains("nsid = 1\npath = 'null:16G'"), "{text}");
        assert!(!text.contains("disk.img"), "{text}");
        let text = target_toml(&BTreeSet::from(["2"]), file, shm);
        assert!(text.contains("nsid = 2\npath = '/a/disk.img'"), "{text}");
    }
}
