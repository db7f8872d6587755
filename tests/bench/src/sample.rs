//! The figures of one measurement, read from reports.

use serde::Serialize;
use serde_json::Value;

use crate::results::Spread;

/// The figures of one measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Sample {
    pub(crate) iops: f64,
    pub(crate) bytes_per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p99_9_us: f64,
    /// The longest latency, if measured.
    pub(crate) longest_ms: f64,
    /// CPU time of the process in percent of a core, if measured.
    pub(crate) busy: f64,
    /// Busy time of the target for each operation, if measured.
    pub(crate) busy_us: f64,
    /// Use of our cores by other processes, in percent of a core.
    pub(crate) others: f64,
}

impl Sample {
    /// Combines slices: the mean of the rates, the median of the latencies.
    pub(crate) fn of(slices: &[Self]) -> Self {
        let figures = |figure: fn(&Self) -> f64| slices.iter().map(figure).collect::<Vec<_>>();
        let mean = |figure| {
            let figures: Vec<f64> = figures(figure);
            #[allow(clippy::cast_precision_loss, reason = "a few slices")]
            let count = figures.len().max(1) as f64;
            figures.iter().sum::<f64>() / count
        };
        let median = |figure| Spread::of(figures(figure)).median;
        Self {
            iops: mean(|one| one.iops),
            bytes_per_s: mean(|one| one.bytes_per_s),
            p50_us: median(|one| one.p50_us),
            p99_us: median(|one| one.p99_us),
            p99_9_us: median(|one| one.p99_9_us),
            busy_us: mean(|one| one.busy_us),
            ..Self::default()
        }
    }
}

/// The figures of a report, ours or fio's.
pub(crate) fn sample(report: &Value) -> Option<Sample> {
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
        longest_ms: latency("max").unwrap_or_default() / 1e3,
        busy_us: report
            .get("target_busy_us")
            .and_then(Value::as_f64)
            .unwrap_or_default(),
        ..Sample::default()
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
        ..Sample::default()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SAMPLE: Sample = Sample {
        iops: 1000.0,
        bytes_per_s: 4_096_000.0,
        p50_us: 10.0,
        p99_us: 20.0,
        p99_9_us: 30.0,
        longest_ms: 0.0,
        busy: 0.0,
        busy_us: 0.0,
        others: 0.0,
    };

    #[test]
    fn reports_of_nvmeof_and_fio_are_parsed() {
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

    #[test]
    fn slices_are_combined() {
        let slice = |iops: f64, p50_us| Sample {
            iops,
            p50_us,
            ..Sample::default()
        };
        // One of two speeds in each slice: as many operations as in all of them.
        let whole = Sample::of(&[slice(200.0, 9.0), slice(600.0, 3.0), slice(400.0, 5.0)]);
        assert_eq!((whole.iops, whole.p50_us), (400.0, 5.0));
    }
}
