//! Samples of each workload, and the table of their ratios.

use serde_json::Value;

/// A workload: random reads or writes of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    /// The word of fio and of `nvmeof bench`.
    pub(super) rw: &'static str,
    pub(super) depth: u16,
}

impl Cell {
    pub(super) fn all() -> Vec<Self> {
        let kinds = ["randread", "randwrite"].into_iter();
        let cells = kinds.flat_map(|rw| [1, 16, 128].map(|depth| Self { rw, depth }));
        cells.collect()
    }
}

/// What one program measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    rate: f64,
    mean_us: f64,
}

impl Sample {
    /// Of the report of `nvmeof bench` or of one side of a job of fio: both use these names.
    pub(super) fn of(report: &Value) -> Option<Self> {
        let rate = report.get("iops")?.as_f64().filter(|rate| *rate > 0.0)?;
        let mean_us = report.pointer("/lat_ns/mean")?.as_f64()? / 1e3;
        Some(Self { rate, mean_us })
    }
}

/// The samples of a workload: fio, iwarp, shm in each round.
pub(super) struct Figure {
    pub(super) cell: Cell,
    rounds: Vec<[Sample; 3]>,
}

impl Figure {
    pub(super) fn new(cell: Cell) -> Self {
        Self {
            cell,
            rounds: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, samples: [Sample; 3]) {
        self.rounds.push(samples);
    }

    fn median(&self, of: impl Fn(&[Sample; 3]) -> f64) -> f64 {
        median(self.rounds.iter().map(of).collect())
    }

    fn row(&self) -> String {
        let rate = |rate: f64| format!("{rate:.0}");
        let ratio = |ratio: f64| format!("{ratio:.2}");
        let mut cells = vec![
            self.cell.rw.to_owned(),
            self.cell.depth.to_string(),
            rate(self.median(|[fio, ..]| fio.rate)),
            rate(self.median(|[_, iwarp, _]| iwarp.rate)),
            ratio(self.median(|[fio, iwarp, _]| iwarp.rate / fio.rate)),
            rate(self.median(|[.., shm]| shm.rate)),
            ratio(self.median(|[fio, _, shm]| shm.rate / fio.rate)),
        ];
        if self.cell.depth == 1 {
            let micros = |of: fn(&[Sample; 3]) -> f64| format!("{:.0} µs", self.median(of));
            cells.push(micros(|[fio, ..]| fio.mean_us));
            cells.push(micros(|[_, iwarp, _]| iwarp.mean_us));
            cells.push(ratio(
                self.median(|[fio, iwarp, _]| iwarp.mean_us / fio.mean_us),
            ));
            cells.push(micros(|[.., shm]| shm.mean_us));
            cells.push(ratio(
                self.median(|[fio, _, shm]| shm.mean_us / fio.mean_us),
            ));
        }
        cells.resize(12, String::new());
        format!("| {} |\n", cells.join(" | "))
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let upper = values.len() / 2;
    let lower = values.len().saturating_sub(1) / 2;
    let at = |at: usize| values.get(at).copied().unwrap_or(f64::NAN);
    f64::midpoint(at(lower), at(upper))
}

/// A table in Markdown. Ratios are medians of the ratios within a round.
pub(super) fn table(figures: &[Figure]) -> String {
    let mut text = String::from(
        "| work | depth | fio IOPS | iwarp IOPS | ratio | shm IOPS | ratio | fio mean | iwarp mean \
         | ratio | shm mean | ratio |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    figures.iter().for_each(|figure| text += &figure.row());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_one_round() {
        let sample = |rate, mean_us| Sample { rate, mean_us };
        let mut figure = Figure::new(Cell {
            rw: "randread",
            depth: 1,
        });
        for (fio, iwarp) in [(100.0, 50.0), (200.0, 180.0), (400.0, 240.0)] {
            let samples = [sample(fio, 10.0), sample(iwarp, 20.0), sample(fio, 5.0)];
            figure.add(samples);
        }
        let expected = "| randread | 1 | 200 | 180 | 0.60 | 200 | 1.00 | 10 µs | 20 µs | 2.00 | \
                        5 µs | 0.50 |\n";
        assert_eq!(figure.row(), expected);
        assert!(table(&[figure]).ends_with(expected));
        assert_eq!(median(vec![3.0, 1.0]), 2.0);
    }

    #[test]
    fn reports_of_both_programs() {
        let report = serde_json::json!({"iops": 12.5, "lat_ns": {"mean": 3000.0}});
        let sample = Sample::of(&report).unwrap();
        assert_eq!(
            sample,
            Sample {
                rate: 12.5,
                mean_us: 3.0
            }
        );
        assert_eq!(Sample::of(&serde_json::json!({"iops": 0})), None);
    }
}
