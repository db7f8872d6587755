//! Measurement of a contestant: command, order and core.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nvmeof_bench::tcp::Direction;
use serde_json::Value;

use crate::busy;
use crate::contestant::Contestant;
use crate::cores::{self, Cores};
use crate::disturbance::{Snapshot, cpu_time};
use crate::process::Stopped;
use crate::profile::{self, Sides};
use crate::sample::{Sample, sample};
use crate::work::{IDLE_PERCENT, Placement, Work};
use crate::{Trouble, scene};

/// Properties that all measurements of a scene share.
#[derive(Debug)]
pub(crate) struct Stage {
    /// The cores of the two sides.
    pub(crate) cores: Cores,
    /// The cores of initiators.
    pub(crate) initiators: Vec<usize>,
    /// Our target.
    pub(crate) target: SocketAddr,
    /// The target that is compared with it: with SQPOLL, with a crowd, with more
    /// reactors, or foreign.
    pub(crate) other: SocketAddr,
    /// The process of the foreign one.
    pub(crate) foreign: Option<Stopped>,
    /// The other side of the yardstick `tcp`.
    pub(crate) tcp: SocketAddr,
    /// The same of the yardstick `shm-bare`: its socket.
    pub(crate) shm_bare: PathBuf,
    /// Our target's Unix socket, as an address.
    pub(crate) unix: String,
    /// The same of the yardstick `unix-bare`.
    pub(crate) unix_bare: String,
    /// Folder where our targets listen for shared memory.
    pub(crate) shm_folder: PathBuf,
    /// Control socket of our target, if its busy time is measured.
    pub(crate) control: PathBuf,
    /// The backing store of workloads on a file.
    pub(crate) file: PathBuf,
    /// Folder for samples of profiles.
    pub(crate) perf: PathBuf,
    /// `nvmeof`.
    pub(crate) initiator: PathBuf,
    /// `nvmeof-yardstick`.
    pub(crate) yardstick: PathBuf,
    pub(crate) peer: Option<String>,
    /// Time of each contestant in a round.
    pub(crate) time: Duration,
    /// Time for which idle processes are observed.
    pub(crate) idle_time: Duration,
    /// Processes that run during the whole scene; in an idle scene first the target, then
    /// the initiator.
    pub(crate) servers: Vec<u32>,
    /// Attempts for a measurement while other processes disturb it.
    pub(crate) tries: u32,
}

/// Use of a core by other processes, in percent, above which a measurement is disturbed.
pub(crate) const DISTURBED: f64 = 10.0;
/// Duration of a profile.
const PROFILED: Duration = Duration::from_secs(1);

impl Stage {
    /// A round of a workload: one sample of each contestant. Disturbed measurements are
    /// repeated; the least disturbed attempt counts.
    pub(crate) fn round(
        &self,
        work: &Work,
        contestants: &[Contestant],
        backwards: bool,
    ) -> Result<Vec<Sample>, Trouble> {
        if work.is_idle() {
            return Ok(self.idle());
        }
        if let Some(peers) = work.hostile() {
            let attack = self.beside_others(|| self.attack(work, peers));
            return attack.map(|(_, samples)| samples);
        }
        // Peers may have processes that are not known here.
        let foreign = contestants.iter().any(|one| one.is_foreign());
        let mut best: Option<(f64, Vec<Sample>)> = None;
        for _ in 0..self.tries {
            let slices = || self.slices(work, contestants, backwards);
            let (others, samples) = match foreign {
                true => (0.0, slices()?),
                false => self.beside_others(slices)?,
            };
            if best.as_ref().is_none_or(|(least, _)| others < *least) {
                best = Some((others, samples));
            }
            if others <= DISTURBED {
                break;
            }
        }
        let best = best.map(|(_, samples)| samples);
        best.ok_or_else(|| Trouble::SetUp("--tries: must be 1 or more".to_owned()))
    }

    /// Takes samples, with the use of our cores by other processes.
    fn beside_others(
        &self,
        take: impl FnOnce() -> Result<Vec<Sample>, Trouble>,
    ) -> Result<(f64, Vec<Sample>), Trouble> {
        let before = Snapshot::take(self.cores, &self.servers);
        let mut samples = take()?;
        let after = Snapshot::take(self.cores, &self.servers);
        let others = after.others_since(&before, self.cores);
        for sample in &mut samples {
            sample.others = others;
        }
        Ok((others, samples))
    }

    /// Measures in slices with alternating order, so that no contestant is always first:
    /// A B B A A B B A.
    fn slices(
        &self,
        work: &Work,
        contestants: &[Contestant],
        backwards: bool,
    ) -> Result<Vec<Sample>, Trouble> {
        let count = Contestant::slices(work, contestants.iter().copied());
        let mut slices = vec![Vec::new(); contestants.len()];
        for slice in 0..count {
            let mut order: Vec<_> = contestants.iter().zip(&mut slices).collect();
            if is_reversed(slice, backwards) {
                order.reverse();
            }
            for (contestant, samples) in order {
                samples.push(self.measure(*contestant, work, self.time / count)?);
            }
        }
        Ok(slices.iter().map(|slices| Sample::of(slices)).collect())
    }

    fn measure(
        &self,
        contestant: Contestant,
        work: &Work,
        time: Duration,
    ) -> Result<Sample, Trouble> {
        let mut command = self.command(contestant, work, time);
        let cores = self.initiators_of(work);
        let foreign = self.foreign.as_ref();
        let running = foreign.filter(|_| contestant.has_foreign_target());
        let _running = running.map(Stopped::resume).transpose()?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let ours = work.rate().is_some() && !contestant.is_foreign();
        let busy = || ours.then(|| busy::time(&self.control)).transpose();
        let before = busy()?;
        let output = cores::spawn(cores, &mut command)?.wait_with_output();
        let after = busy()?;
        let (name, work) = (contestant.name(), work.name());
        let output = output.map_err(|e| Trouble::Failed(format!("{name}, {work}: {e}")))?;
        let report = serde_json::from_slice::<Value>(&output.stdout);
        let mut sample = report.ok().and_then(|report| sample(&report));
        if let (Some(sample), Some(before), Some(after)) = (&mut sample, before, after) {
            sample.busy_us = 1e6 * (after - before) / (sample.iops * time.as_secs_f64());
        }
        match sample {
            Some(sample) if output.status.success() => Ok(sample),
            _ => Err(Trouble::Failed(format!(
                "{name}, {work}: no report, {}\n{command:?}\n{}{}",
                output.status,
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr),
            ))),
        }
    }

    /// Profiles our target and our initiator.
    pub(crate) fn profile(&self, ours: Contestant, work: &Work) -> Result<Sides, Trouble> {
        let mut targets = self.servers.iter();
        let target = match ours {
            Contestant::ShmSqpoll | Contestant::Crowd | Contestant::TwoReactors => targets.nth(1),
            _ => targets.next(),
        };
        let target = *target.ok_or_else(|| Trouble::SetUp("no target runs".to_owned()))?;
        let files = ["target", "initiator"].map(|side| {
            let name = format!("{}-{side}.perf", work.name());
            self.perf.join(name)
        });
        let [of_target, of_initiator] = &files;
        let watch = profile::watch(target, PROFILED, of_target)?;
        let command = self.command(ours, work, PROFILED);
        profile::run(&command, self.initiators_of(work), of_initiator)?;
        profile::ended(watch)?;
        Ok([profile::read(of_target)?, profile::read(of_initiator)?])
    }

    pub(crate) fn initiators_of(&self, work: &Work) -> &[usize] {
        match work.placement {
            Placement::Apart => &self.initiators,
            Placement::Together => std::slice::from_ref(&self.cores.target),
        }
    }

    /// Measures the CPU time of idle processes.
    fn idle(&self) -> Vec<Sample> {
        let times = || self.servers.iter().map(|pid| cpu_time(*pid)).collect();
        let before: Vec<Duration> = times();
        let start = Instant::now();
        std::thread::sleep(self.idle_time);
        let (after, passed): (Vec<Duration>, _) = (times(), start.elapsed());
        let mut samples = vec![Sample {
            busy: IDLE_PERCENT,
            ..Sample::default()
        }];
        samples.extend(before.iter().zip(&after).map(|(before, after)| Sample {
            busy: 100.0 * after.saturating_sub(*before).as_secs_f64() / passed.as_secs_f64(),
            ..Sample::default()
        }));
        samples
    }

    fn command(&self, contestant: Contestant, work: &Work, time: Duration) -> Command {
        let on = |target: SocketAddr, work: &Work| {
            let (ip, port) = (target.ip().to_string(), target.port().to_string());
            self.ours(work, &["-a", &ip, "-s", &port], time)
        };
        let ours = |target| on(target, work);
        let tcp = || self.yardstick(work, "tcp-ask", self.tcp.to_string(), time);
        match contestant {
            Contestant::Tcp => tcp(),
            Contestant::TcpZerocopy => with(tcp(), &["--zerocopy"]),
            Contestant::Local => self.local(work, time),
            Contestant::UnixBare => self.yardstick(work, "tcp-ask", &self.unix_bare, time),
            Contestant::Unix => self.ours(work, &["-a", &self.unix], time),
            Contestant::ShmBare => self.yardstick(work, "shm-ask", &self.shm_bare, time),
            Contestant::IwarpCrc => with(ours(self.target), &["--crc"]),
            // The busy queues of a crowd have one thread: eight threads would contend for one
            // core.
            Contestant::ShmAsync | Contestant::Alone | Contestant::Queues => {
                with(ours(self.target), AWAITED)
            }
            Contestant::OneQueue => on(self.target, &work.on_one_queue()),
            Contestant::Crowd => with(ours(self.other), AWAITED),
            Contestant::ShmSqpoll | Contestant::TwoReactors | Contestant::PeerTarget => {
                ours(self.other)
            }
            Contestant::Iwarp | Contestant::Shm | Contestant::OneReactor => ours(self.target),
            // Idle processes and hosts beside hostile peers are not started here.
            Contestant::Limit
            | Contestant::Target
            | Contestant::Initiator
            | Contestant::Quiet
            | Contestant::Beside => Command::new("false"),
            Contestant::Peer => self.peer(work, time, self.target),
            Contestant::PeerPair => self.peer(work, time, self.other),
        }
    }

    fn yardstick(
        &self,
        work: &Work,
        side: &str,
        other: impl AsRef<OsStr>,
        time: Duration,
    ) -> Command {
        let mut ask = Command::new(&self.yardstick);
        let direction = match work.direction {
            Direction::Read => "read",
            Direction::Write => "write",
        };
        ask.arg(side).arg(other).args(["--rw", direction]);
        ask.args(shape(work)).args(["--runtime", &seconds(time)]);
        if work.placement == Placement::Together {
            ask.arg("--block");
        }
        ask
    }

    fn ours(&self, work: &Work, target: &[&str], time: Duration) -> Command {
        let provider = work.provider();
        let mut bench = Command::new(&self.initiator);
        bench.args(["bench", "-t", "rdma", "--provider", provider]);
        bench.args(target).args(["-n", scene::NQN]);
        bench.args([
            "--namespace-id",
            scene::nsid(work.store),
            "--rw",
            work.kind(),
        ]);
        bench.args(shape(work)).args(["--runtime", &seconds(time)]);
        bench.args(["--nr-io-queues", &work.queues().to_string(), "-o", "json"]);
        if let Some(rate) = work.rate() {
            bench.args(["--rate", &rate.to_string()]);
        }
        if provider == "shm" {
            bench.arg("--shm-folder").arg(&self.shm_folder);
        }
        bench
    }

    fn local(&self, work: &Work, time: Duration) -> Command {
        let mut filename = OsString::from("--filename=");
        filename.push(&self.file);
        let mut fio = Command::new("fio");
        fio.args(["--name=local", "--ioengine=io_uring", "--direct=1"]);
        fio.args(["--fixedbufs=1", "--registerfiles=1", "--time_based=1"]);
        fio.args(["--output-format=json", "--lat_percentiles=1"]);
        fio.args(["--clat_percentiles=0", "--percentile_list=50:99:99.9"]);
        fio.arg(filename).arg(format!("--rw={}", work.kind()));
        for pair in shape(work).chunks(2) {
            fio.arg(pair.join("="));
        }
        fio.arg(format!("--runtime={}ms", time.as_millis()));
        fio
    }

    fn peer(&self, work: &Work, time: Duration, target: SocketAddr) -> Command {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(self.peer.as_deref().unwrap_or("false"));
        shell.envs([
            ("BENCH_RW", work.kind().to_owned()),
            ("BENCH_BS", work.bytes.to_string()),
            ("BENCH_IODEPTH", work.depth.to_string()),
            ("BENCH_RUNTIME", time.as_secs_f64().ceil().to_string()),
            ("BENCH_SIDE", "initiator".to_owned()),
            ("BENCH_QUEUES", work.queues().to_string()),
            (
                "BENCH_RATE",
                work.rate().map(|rate| rate.to_string()).unwrap_or_default(),
            ),
            ("BENCH_TRADDR", target.ip().to_string()),
            ("BENCH_TRSVCID", target.port().to_string()),
            ("BENCH_NQN", scene::NQN.to_owned()),
            ("BENCH_NSID", scene::nsid(work.store).to_owned()),
            ("BENCH_TARGET_CORE", self.cores.target.to_string()),
        ]);
        shell
    }
}

/// Whether a slice has reverse order: every second one, so that A and B give A B B A.
fn is_reversed(slice: u32, backwards: bool) -> bool {
    slice.is_multiple_of(2) == backwards
}

/// Options for size and depth, for the yardsticks, `nvmeof bench` and fio.
fn shape(work: &Work) -> [String; 4] {
    let (bytes, depth) = (work.bytes.to_string(), work.depth.to_string());
    ["--bs".to_owned(), bytes, "--iodepth".to_owned(), depth]
}

/// Selects the async interface of `nvmeof bench`.
const AWAITED: &[&str] = &["--interface", "async"];

fn with(mut command: Command, options: &[&str]) -> Command {
    command.args(options);
    command
}

fn seconds(time: Duration) -> String {
    time.as_secs_f64().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work;

    const TIME: Duration = Duration::from_millis(6500);

    fn stage(peer: &str) -> Stage {
        let nowhere = "127.0.0.1:1".parse().unwrap();
        Stage {
            cores: Cores::find().unwrap(),
            initiators: vec![Cores::find().unwrap().initiator],
            target: nowhere,
            other: nowhere,
            tcp: nowhere,
            shm_bare: "a socket".into(),
            unix: "unix:/target".to_owned(),
            unix_bare: "unix:/bare".to_owned(),
            shm_folder: "a folder".into(),
            control: PathBuf::new(),
            file: "a file".into(),
            perf: PathBuf::from("/perf"),
            initiator: "nvmeof".into(),
            yardstick: "nvmeof-yardstick".into(),
            peer: Some(peer.to_owned()),
            time: TIME,
            idle_time: Duration::from_millis(20),
            foreign: None,
            servers: Vec::new(),
            tries: 1,
        }
    }

    #[test]
    fn peer_environment_describes_the_measurement() {
        let script = r#"echo "{\"iops\": $BENCH_BS, \"bytes_per_s\": $BENCH_IODEPTH, \"lat_ns\":
            {\"p50\": ${BENCH_RUNTIME}000, \"p99\": ${BENCH_NSID}000, \"p99_9\": 0}}""#;
        let work = work::all()[0];
        let sample = stage(script)
            .measure(Contestant::Peer, &work, TIME)
            .unwrap();
        assert_eq!(sample.iops, f64::from(work.bytes));
        assert_eq!(sample.bytes_per_s, f64::from(work.depth));
        assert_eq!((sample.p50_us, sample.p99_us), (7.0, 1.0));
    }

    #[test]
    fn order_of_contestants_alternates() {
        let order = |backwards| [0, 1, 2, 3].map(|slice| is_reversed(slice, backwards));
        assert_eq!(order(false), [false, true, false, true]);
        assert_eq!(order(true), [true, false, true, false]);
    }

    #[test]
    fn idle_processes_are_observed_not_started() {
        let mut stage = stage("false");
        stage.servers = vec![std::process::id(); 2];
        let work = work::all().into_iter().find(Work::is_idle).unwrap();
        let samples = stage.round(&work, Contestant::of(&work), false).unwrap();
        assert_eq!(samples.len(), Contestant::of(&work).len());
        assert_eq!(samples[0].busy, IDLE_PERCENT);
        assert!(
            samples.iter().all(|sample| sample.busy < 100.0),
            "{samples:?}"
        );
    }

    #[test]
    fn failure_quotes_the_peer() {
        let work = work::all()[0];
        for script in ["echo out of order >&2; exit 1", "echo out of order"] {
            let failed = stage(script).measure(Contestant::Peer, &work, TIME);
            let text = failed.unwrap_err().to_string();
            assert!(text.contains("out of order"), "{text}");
        }
    }

    #[test]
    fn yardsticks_on_one_core_do_not_poll() {
        for work in work::all() {
            let yardstick = stage("").command(Contestant::yardstick(&work), &work, TIME);
            let blocks = yardstick.get_args().any(|word| word == "--block");
            assert_eq!(
                blocks,
                work.placement == Placement::Together,
                "{}",
                work.name()
            );
        }
    }

    #[test]
    fn fio_options_are_single_arguments() {
        let words = words_of_fio();
        for word in [
            "--bs=4096",
            "--iodepth=1",
            "--runtime=6500ms",
            "--filename=a file",
        ] {
            assert!(words.iter().any(|one| one == word), "{word}: {words:?}");
        }
    }

    /// What the yardstick `local` is said to be: without one of these it would be
    /// easier to reach.
    #[test]
    fn fio_yardstick_uses_registered_buffers_and_files() {
        let words = words_of_fio();
        for word in [
            "--ioengine=io_uring",
            "--direct=1",
            "--registerfiles=1",
            "--fixedbufs=1",
        ] {
            let count = words.iter().filter(|one| *one == word).count();
            assert_eq!(count, 1, "{word}: {words:?}");
        }
    }

    fn words_of_fio() -> Vec<String> {
        let fio = stage("").local(&work::all()[0], TIME);
        let words = fio.get_args().map(|word| word.to_string_lossy());
        words.map(|word| word.into_owned()).collect()
    }
}
