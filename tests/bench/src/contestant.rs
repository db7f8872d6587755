//! Who is measured: the yardsticks, ours, a peer; how each is started and what
//! its report says.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nvmeof_bench::tcp::Direction;
use serde::Serialize;
use serde_json::Value;

use crate::cores::{self, Cores};
use crate::disturbance::Snapshot;
use crate::work::{About, Disk, Placement, Work};
use crate::{Trouble, run};

/// The figures of one measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Sample {
    pub(crate) iops: f64,
    pub(crate) bytes_per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p99_9_us: f64,
    /// What others had of our cores meanwhile, in percent of a core.
    pub(crate) others: f64,
}

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Contestant {
    /// Yardstick: bare TCP.
    Tcp,
    /// Yardstick: fio on the file itself.
    Local,
    /// Yardstick: bare shared memory.
    #[serde(rename = "shm-bare")]
    ShmBare,
    /// Ours over software iWARP.
    Iwarp,
    /// The same with CRCs.
    #[serde(rename = "iwarp-crc")]
    IwarpCrc,
    /// Ours through shared memory.
    Shm,
    /// What `--peer` says.
    Peer,
}

impl Contestant {
    /// What the others are compared with.
    pub(crate) fn yardstick(work: &Work) -> Self {
        match (work.about, work.disk) {
            (About::Crc, _) => Self::Iwarp,
            (_, Disk::File) => Self::Local,
            (About::Iwarp, Disk::Null) => Self::Tcp,
            (About::Shm, Disk::Null) => Self::ShmBare,
        }
    }

    /// Ours, as a work has it.
    pub(crate) fn ours(work: &Work) -> Self {
        match work.about {
            About::Iwarp => Self::Iwarp,
            About::Shm => Self::Shm,
            About::Crc => Self::IwarpCrc,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Local => "local",
            Self::ShmBare => "shm-bare",
            Self::Iwarp => "iwarp",
            Self::IwarpCrc => "iwarp-crc",
            Self::Shm => "shm",
            Self::Peer => "peer",
        }
    }
}

/// Everything that measurements share.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) cores: Cores,
    /// Our target.
    pub(crate) target: SocketAddr,
    /// The other side of the yardstick `tcp`.
    pub(crate) tcp: SocketAddr,
    /// The same of the yardstick `shm-bare`: its socket.
    pub(crate) shm_bare: PathBuf,
    /// Where our target listens for shared memory.
    pub(crate) shm_folder: PathBuf,
    /// The file behind the works on a file.
    pub(crate) file: PathBuf,
    /// `nvmeof`.
    pub(crate) initiator: PathBuf,
    /// `nvmeof-yardstick`.
    pub(crate) yardstick: PathBuf,
    pub(crate) peer: Option<String>,
    pub(crate) seconds: u64,
    /// Our processes that run all the time.
    pub(crate) servers: Vec<u32>,
    /// Times that a measurement is tried until nobody disturbs it.
    pub(crate) tries: u32,
}

/// More than this, in percent of a core, and a measurement is disturbed.
pub(crate) const DISTURBED: f64 = 10.0;

impl Stage {
    /// One measurement; the least disturbed of several if need be.
    pub(crate) fn measure(&self, contestant: Contestant, work: &Work) -> Result<Sample, Trouble> {
        let mut best: Option<Sample> = None;
        for _ in 0..self.tries {
            let before = Snapshot::take(self.cores, &self.servers);
            let mut sample = self.measure_once(contestant, work)?;
            let after = Snapshot::take(self.cores, &self.servers);
            sample.others = after.others_since(&before, self.cores);
            // A peer may have processes that we know nothing of.
            let quiet = sample.others <= DISTURBED || contestant == Contestant::Peer;
            if best.is_none_or(|best| sample.others < best.others) {
                best = Some(sample);
            }
            if quiet {
                break;
            }
        }
        best.ok_or_else(|| Trouble::SetUp("a measurement takes at least one try".to_owned()))
    }

    fn measure_once(&self, contestant: Contestant, work: &Work) -> Result<Sample, Trouble> {
        let mut command = self.command(contestant, work);
        let core = match work.placement {
            Placement::Apart => self.cores.initiator,
            Placement::Together => self.cores.target,
        };
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let output = cores::spawn(core, &mut command)?.wait_with_output();
        let (name, work) = (contestant.name(), work.name());
        let output = output.map_err(|e| Trouble::Failed(format!("{name}, {work}: {e}")))?;
        let report = serde_json::from_slice::<Value>(&output.stdout);
        let sample = report.ok().and_then(|report| sample(&report));
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

    fn command(&self, contestant: Contestant, work: &Work) -> Command {
        match contestant {
            Contestant::Tcp => self.tcp(work),
            Contestant::Local => self.local(work),
            Contestant::ShmBare => self.shm_bare(work),
            Contestant::Iwarp => self.ours(work, "iwarp"),
            Contestant::IwarpCrc => {
                let mut bench = self.ours(work, "iwarp");
                bench.arg("--crc");
                bench
            }
            Contestant::Shm => {
                let mut bench = self.ours(work, "shm");
                bench.arg("--shm-folder").arg(&self.shm_folder);
                bench
            }
            Contestant::Peer => self.peer(work),
        }
    }

    fn tcp(&self, work: &Work) -> Command {
        let mut ask = self.yardstick(work, "tcp-ask", self.tcp.to_string());
        if work.placement == Placement::Together {
            ask.arg("--block");
        }
        ask
    }

    fn shm_bare(&self, work: &Work) -> Command {
        self.yardstick(work, "shm-ask", &self.shm_bare)
    }

    fn yardstick(&self, work: &Work, side: &str, other: impl AsRef<OsStr>) -> Command {
        let mut ask = Command::new(&self.yardstick);
        let direction = match work.direction {
            Direction::Read => "read",
            Direction::Write => "write",
        };
        ask.arg(side).arg(other).args(["--rw", direction]);
        ask.args(shape(work, work.bytes.to_string(), self.seconds));
        ask
    }

    fn ours(&self, work: &Work, provider: &str) -> Command {
        let mut bench = Command::new(&self.initiator);
        let (ip, port) = (self.target.ip().to_string(), self.target.port().to_string());
        bench.args(["bench", "-t", "rdma", "--provider", provider]);
        bench.args(["-a", &ip, "-s", &port, "-n", run::NQN]);
        bench.args(["--namespace-id", run::nsid(work.disk), "--rw", work.kind()]);
        bench.args(shape(work, work.bytes.to_string(), self.seconds));
        bench.args(["-o", "json"]);
        bench
    }

    fn local(&self, work: &Work) -> Command {
        let mut filename = OsString::from("--filename=");
        filename.push(&self.file);
        let mut fio = Command::new("fio");
        fio.args(["--name=local", "--ioengine=io_uring", "--direct=1"]);
        fio.args(["--fixedbufs=1", "--registerfiles=1", "--time_based=1"]);
        fio.args(["--output-format=json", "--lat_percentiles=1"]);
        fio.args(["--clat_percentiles=0", "--percentile_list=50:99:99.9"]);
        fio.arg(filename).arg(format!("--rw={}", work.kind()));
        for pair in shape(work, work.bytes.to_string(), self.seconds).chunks(2) {
            fio.arg(pair.join("="));
        }
        fio
    }

    fn peer(&self, work: &Work) -> Command {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(self.peer.as_deref().unwrap_or("false"));
        shell.envs([
            ("BENCH_RW", work.kind().to_owned()),
            ("BENCH_BS", work.bytes.to_string()),
            ("BENCH_IODEPTH", work.depth.to_string()),
            ("BENCH_RUNTIME", self.seconds.to_string()),
            ("BENCH_TRADDR", self.target.ip().to_string()),
            ("BENCH_TRSVCID", self.target.port().to_string()),
            ("BENCH_NQN", run::NQN.to_owned()),
            ("BENCH_NSID", run::nsid(work.disk).to_owned()),
            ("BENCH_TARGET_CORE", self.cores.target.to_string()),
        ]);
        shell
    }
}

/// The options that all of them have in common.
fn shape(work: &Work, bytes: String, seconds: u64) -> [String; 6] {
    let (depth, seconds) = (work.depth.to_string(), seconds.to_string());
    let name = str::to_owned;
    [
        name("--bs"),
        bytes,
        name("--iodepth"),
        depth,
        name("--runtime"),
        seconds,
    ]
}

/// The figures of a report, ours or fio's.
fn sample(report: &Value) -> Option<Sample> {
    match report.get("jobs") {
        Some(jobs) => of_fio(jobs.get(0)?),
        None => of_ours(report),
    }
}

fn of_ours(report: &Value) -> Option<Sample> {
    let latency = |key: &str| Some(report.get("lat_ns")?.get(key)?.as_f64()? / 1e3);
    let sample = Sample {
        iops: report.get("iops")?.as_f64()?,
        bytes_per_s: report.get("bytes_per_s")?.as_f64()?,
        p50_us: latency("p50")?,
        p99_us: latency("p99")?,
        p99_9_us: latency("p99_9")?,
        others: 0.0,
    };
    (sample.iops > 0.0).then_some(sample)
}

fn of_fio(job: &Value) -> Option<Sample> {
    let sides = ["read", "write"].into_iter().filter_map(|key| job.get(key));
    let side = sides
        .into_iter()
        .find(|side| side.get("iops").and_then(Value::as_f64) > Some(0.0))?;
    let percentiles = ["lat_ns", "clat_ns"].into_iter();
    let percentiles = percentiles
        .filter_map(|key| side.get(key)?.get("percentile"))
        .next()?;
    let latency = |key: &str| Some(percentiles.get(key)?.as_f64()? / 1e3);
    Some(Sample {
        iops: side.get("iops")?.as_f64()?,
        bytes_per_s: side.get("bw_bytes")?.as_f64()?,
        p50_us: latency("50.000000")?,
        p99_us: latency("99.000000")?,
        p99_9_us: latency("99.900000")?,
        others: 0.0,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::work;

    const SAMPLE: Sample = Sample {
        iops: 1000.0,
        bytes_per_s: 4_096_000.0,
        p50_us: 10.0,
        p99_us: 20.0,
        p99_9_us: 30.0,
        others: 0.0,
    };

    #[test]
    fn both_kinds_of_reports_are_understood() {
        let ours = json!({
            "iops": 1000.0, "bytes_per_s": 4_096_000.0,
            "lat_ns": { "mean": 1.0, "p50": 10_000, "p99": 20_000, "p99_9": 30_000 },
        });
        assert_eq!(sample(&ours), Some(SAMPLE));
        let side = json!({
            "iops": 1000.0, "bw_bytes": 4_096_000,
            "lat_ns": { "percentile":
                { "50.000000": 10_000, "99.000000": 20_000, "99.900000": 30_000 } },
        });
        let fio = json!({ "jobs": [{ "read": { "iops": 0.0 }, "write": side }] });
        assert_eq!(sample(&fio), Some(SAMPLE));
        assert_eq!(sample(&json!({ "iops": 1 })), None);
        assert_eq!(sample(&json!({ "jobs": [] })), None);
    }

    fn stage(peer: &str) -> Stage {
        let nowhere = "127.0.0.1:1".parse().unwrap();
        Stage {
            cores: Cores::find().unwrap(),
            target: nowhere,
            tcp: nowhere,
            shm_bare: "a socket".into(),
            shm_folder: "a folder".into(),
            file: "a file".into(),
            initiator: "nvmeof".into(),
            yardstick: "nvmeof-yardstick".into(),
            peer: Some(peer.to_owned()),
            seconds: 7,
            servers: Vec::new(),
            tries: 1,
        }
    }

    #[test]
    fn a_peer_is_told_what_to_measure() {
        let script = r#"echo "{\"iops\": $BENCH_BS, \"bytes_per_s\": $BENCH_IODEPTH, \"lat_ns\":
            {\"p50\": ${BENCH_RUNTIME}000, \"p99\": ${BENCH_NSID}000, \"p99_9\": 0}}""#;
        let work = work::all()[0];
        let sample = stage(script).measure(Contestant::Peer, &work).unwrap();
        assert_eq!(sample.iops, f64::from(work.bytes));
        assert_eq!(sample.bytes_per_s, f64::from(work.depth));
        assert_eq!((sample.p50_us, sample.p99_us), (7.0, 1.0));
    }

    #[test]
    fn failure_quotes_the_peer() {
        let work = work::all()[0];
        for script in ["echo out of order >&2; exit 1", "echo out of order"] {
            let failed = stage(script).measure(Contestant::Peer, &work);
            let text = failed.unwrap_err().to_string();
            assert!(text.contains("out of order"), "{text}");
        }
    }

    #[test]
    fn fio_gets_its_options_in_one_word() {
        let fio = stage("").local(&work::all()[0]);
        let words: Vec<_> = fio.get_args().map(|word| word.to_string_lossy()).collect();
        for word in [
            "--bs=4096",
            "--iodepth=1",
            "--runtime=7",
            "--filename=a file",
        ] {
            assert!(words.iter().any(|one| one == word), "{word}: {words:?}");
        }
    }
}
