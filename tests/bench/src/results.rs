//! What came out: samples of every round, medians, ratios to the yardstick.

use serde::Serialize;
use serde_json::{Value, json};

use crate::Trouble;
use crate::contestant::Contestant;
use crate::machine::Machine;
use crate::profile::Sides;
use crate::sample::Sample;
use crate::stage::DISTURBED;
use crate::work::{Metric, Work};

/// All that was measured.
#[derive(Clone, Debug)]
pub(crate) struct Results {
    pub(crate) machine: Machine,
    pub(crate) rounds: u32,
    /// Seconds that each contestant was measured in a round.
    pub(crate) seconds: f64,
    pub(crate) rows: Vec<Row>,
}

/// One work: samples of each contestant, one for each round; the yardstick is
/// first.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) work: Work,
    pub(crate) samples: Vec<(Contestant, Vec<Sample>)>,
    /// Whether the machine has fewer cores than the work needs. Nothing is
    /// measured then, or what there is by force.
    pub(crate) lacks_cores: bool,
    /// Where the time of ours goes, if that was asked and the figure is not reached.
    pub(crate) profile: Option<Sides>,
}

/// Of several rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Of no values everything is 0.
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or_default();
        let last = values.len().saturating_sub(1);
        Self {
            median: f64::midpoint(at(last / 2), at(last.div_ceil(2))),
            min: at(0),
            max: at(last),
        }
    }
}

impl Row {
    pub(crate) fn new(work: Work, contestants: &[Contestant]) -> Self {
        let samples = contestants.iter().map(|one| (*one, Vec::new()));
        Self {
            work,
            samples: samples.collect(),
            lacks_cores: false,
            profile: None,
        }
    }

    /// All of them, the yardstick first.
    pub(crate) fn contestants(&self) -> impl Iterator<Item = Contestant> {
        self.samples.iter().map(|(contestant, _)| *contestant)
    }

    /// Into how many parts a measurement is cut.
    pub(crate) fn slices(&self) -> u32 {
        Contestant::slices(&self.work, self.contestants())
    }

    fn of(&self, contestant: Contestant) -> &[Sample] {
        let found = self.samples.iter().find(|(one, _)| *one == contestant);
        found
            .map(|(_, samples)| samples.as_slice())
            .unwrap_or_default()
    }

    /// The medians, figure by figure.
    pub(crate) fn median(&self, contestant: Contestant) -> Sample {
        let samples = self.of(contestant);
        let median =
            |figure: fn(&Sample) -> f64| Spread::of(samples.iter().map(figure).collect()).median;
        Sample {
            iops: median(|sample| sample.iops),
            bytes_per_s: median(|sample| sample.bytes_per_s),
            p50_us: median(|sample| sample.p50_us),
            p99_us: median(|sample| sample.p99_us),
            p99_9_us: median(|sample| sample.p99_9_us),
            longest_ms: median(|sample| sample.longest_ms),
            busy: median(|sample| sample.busy),
            busy_us: median(|sample| sample.busy_us),
            others: median(|sample| sample.others),
        }
    }

    pub(crate) fn yardstick(&self) -> Contestant {
        Contestant::yardstick(&self.work)
    }

    /// Those that are compared with the yardstick.
    pub(crate) fn others(&self) -> impl Iterator<Item = Contestant> {
        let yardstick = self.yardstick();
        self.contestants()
            .filter(move |contestant| *contestant != yardstick)
    }

    /// The figure that is compared.
    pub(crate) fn figure(&self) -> fn(&Sample) -> f64 {
        match self.work.metric() {
            Metric::Latency => |sample| sample.p50_us,
            Metric::Rate => |sample| sample.iops,
            Metric::Cpu => |sample| sample.busy,
            Metric::Busy => |sample| sample.busy_us,
        }
    }

    /// The ratios of a figure to the yardstick's, each within one round.
    fn ratios(&self, contestant: Contestant, figure: fn(&Sample) -> f64) -> Vec<f64> {
        let pairs = self.of(contestant).iter().zip(self.of(self.yardstick()));
        pairs
            .map(|(one, yardstick)| figure(one) / figure(yardstick).max(f64::MIN_POSITIVE))
            .collect()
    }

    pub(crate) fn ratio(&self, contestant: Contestant) -> Spread {
        Spread::of(self.ratios(contestant, self.figure()))
    }

    /// Ours, if it was measured and does not reach a figure.
    pub(crate) fn missed(&self) -> Option<Contestant> {
        let mut ours = self.others().filter(|one| !one.is_foreign());
        ours.find(|one| {
            let figure = self.work.is_met(self.ratio(*one).median);
            let tail = self.work.is_tail_met(self.tail(*one).median);
            !self.lacks_cores && (figure == Some(false) || tail == Some(false))
        })
    }

    /// The same of the 99th percentile of the latency.
    pub(crate) fn tail(&self, contestant: Contestant) -> Spread {
        Spread::of(self.ratios(contestant, |sample| sample.p99_us))
    }

    fn to_value(&self) -> Value {
        let contestants = self.samples.iter().map(|(contestant, samples)| {
            let mut value = json!({ "rounds": samples, "median": self.median(*contestant) });
            if *contestant != self.yardstick()
                && let Some(value) = value.as_object_mut()
            {
                let ratio = self.ratio(*contestant);
                let ratios = self.ratios(*contestant, self.figure());
                value.insert("ratios".to_owned(), json!(ratios));
                value.insert("ratio".to_owned(), json!(ratio));
                value.insert("met".to_owned(), json!(self.work.is_met(ratio.median)));
                if self.work.tail_goal.is_some() {
                    let tail = self.tail(*contestant);
                    let met = self.work.is_tail_met(tail.median);
                    value.insert("p99_ratio".to_owned(), json!(tail));
                    value.insert("p99_met".to_owned(), json!(met));
                }
            }
            (contestant.name().to_owned(), value)
        });
        json!({
            "work": self.work.name(),
            "about": self.work.about,
            "disk": self.work.store,
            "rw": self.work.kind(),
            "bs": self.work.bytes,
            "iodepth": self.work.depth,
            "cores": self.work.placement,
            "metric": self.work.metric(),
            "goal": self.work.goal,
            "p99_goal": self.work.tail_goal,
            "queues": self.work.queues(),
            "slices": self.slices(),
            "lacks_cores": self.lacks_cores,
            "profile": self.profile,
            "yardstick": self.yardstick().name(),
            "contestants": contestants.collect::<serde_json::Map<_, _>>(),
        })
    }
}

impl Results {
    /// A sentence about measurements that other processes disturbed, of workloads with
    /// hostile peers or of all others; empty without any.
    pub(crate) fn disturbed(&self, hostile: bool) -> String {
        let rows = self.rows.iter();
        let rows = rows.filter(|row| row.work.hostile().is_some() == hostile);
        let rows = rows.flat_map(|row| &row.samples);
        let samples = rows.filter(|(contestant, _)| !contestant.is_foreign());
        let others: Vec<f64> = samples
            .flat_map(|(_, samples)| samples.iter().map(|sample| sample.others))
            .collect();
        let disturbed = others.iter().filter(|percent| **percent > DISTURBED);
        match disturbed.count() {
            0 => String::new(),
            count => format!(
                "{count} of {} measurements were disturbed: other processes used up to {:.0} % of \
                 a core.",
                others.len(),
                Spread::of(others).max
            ),
        }
    }

    /// The result as JSON.
    pub(crate) fn to_json(&self) -> Result<String, Trouble> {
        let value = json!({
            "machine": self.machine,
            "rounds": self.rounds,
            "seconds": self.seconds,
            "works": self.rows.iter().map(Row::to_value).collect::<Vec<_>>(),
        });
        serde_json::to_string_pretty(&value)
            .map_err(|error| Trouble::Failed(format!("cannot write the result as JSON: {error}")))
    }
}

/// Made-up results of a work, for tests: ours has 0.9, 0.8 and 0.7 of the
/// yardstick's rate.
#[cfg(test)]
pub(crate) fn example(work: Work) -> Row {
    let sample = |iops: f64| Sample {
        iops,
        bytes_per_s: iops * f64::from(work.bytes),
        p50_us: 1e6 / iops,
        p99_us: 2e6 / iops,
        p99_9_us: 3e6 / iops,
        longest_ms: 0.0,
        busy: iops / 1e6,
        busy_us: iops / 1e6,
        others: 0.0,
    };
    let mut row = Row::new(work, Contestant::of(&work));
    for (factor, (_, samples)) in [[1.0, 1.0, 1.0], [0.9, 0.7, 0.8], [0.9, 0.7, 0.8]]
        .iter()
        .zip(&mut row.samples)
    {
        let bare = [100_000.0, 50_000.0, 110_000.0];
        samples.extend(
            bare.iter()
                .zip(factor)
                .map(|(bare, factor)| sample(bare * factor)),
        );
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work;

    #[test]
    fn medians_and_extremes() {
        let spread = |values: &[f64]| Spread::of(values.to_vec());
        let (median, min, max) = (2.0, 1.0, 9.0);
        assert_eq!(spread(&[9.0, 1.0, 2.0]), Spread { median, min, max });
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(spread(&[]), Spread::default());
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let works = work::all();
        let rate = example(*works.iter().find(|work| work.depth == 16).unwrap());
        let ratio = rate.ratio(Contestant::Iwarp);
        assert!((ratio.median - 0.8).abs() < 1e-9, "{ratio:?}");
        assert!((ratio.min - 0.7).abs() < 1e-9, "{ratio:?}");
        // Of a latency, less is better.
        let latency = example(*works.iter().find(|work| work.depth == 1).unwrap());
        assert!((latency.ratio(Contestant::Iwarp).median - 1.25).abs() < 1e-9);
        // So it is of the slowest hundredth.
        let file = works.iter().find(|work| work.tail_goal.is_some());
        let file = example(*file.unwrap());
        assert!((file.tail(Contestant::Shm).median - 1.25).abs() < 1e-9);
        let idle = example(*works.iter().find(|work| work.is_idle()).unwrap());
        assert!((idle.ratio(Contestant::Initiator).median - 0.8).abs() < 1e-9);
    }

    #[test]
    fn disturbed_measurements_are_reported() {
        let mut results = Results {
            machine: Machine::default(),
            rounds: 3,
            seconds: 2.0,
            rows: vec![example(work::all()[0])],
        };
        assert_eq!(results.disturbed(false), "");
        results.rows[0].samples[1].1[2].others = 42.0;
        let expected =
            "1 of 6 measurements were disturbed: other processes used up to 42 % of a core.";
        assert_eq!(results.disturbed(false), expected);
        assert_eq!(results.disturbed(true), "");
    }

    #[test]
    fn json_has_rounds_and_verdict() {
        let works = work::all();
        let file = |work: &&Work| work.name() == "file-randread-4k-qd128";
        let row = example(*works.iter().find(file).unwrap());
        let results = Results {
            machine: Machine::default(),
            rounds: 3,
            seconds: 2.0,
            rows: vec![row],
        };
        let json: Value = serde_json::from_str(&results.to_json().unwrap()).unwrap();
        let work = &json["works"][0];
        assert_eq!(work["yardstick"], "local");
        let ours = &work["contestants"]["iwarp"];
        assert_eq!(ours["rounds"].as_array().unwrap().len(), 3);
        assert_eq!(ours["met"], false);
        assert_eq!(work["contestants"]["local"]["met"], Value::Null);
    }
}
