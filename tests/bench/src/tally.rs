//! The result of one run, in the format of `nvmeof bench -o json`.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Upper bound of the histogram: ten minutes.
const LONGEST_NS: u64 = 600_000_000_000;

/// Completed operations and their latencies.
#[derive(Debug)]
pub struct Tally {
    latency_ns: Histogram<u64>,
}

impl Default for Tally {
    #[allow(
        clippy::expect_used,
        reason = "constant bounds, and three digits are possible"
    )]
    fn default() -> Self {
        let latency_ns = Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("bounds in order");
        Self { latency_ns }
    }
}

impl Tally {
    /// Records a completed operation.
    pub fn record(&mut self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.latency_ns.saturating_record(nanos);
    }

    /// The report of a run of operations of `bytes` bytes that took `time`.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        reason = "figures for people; 53 bits are enough"
    )]
    pub fn report(&self, bytes: u32, time: Duration) -> Value {
        let seconds = time.as_secs_f64().max(f64::MIN_POSITIVE);
        let iops = self.latency_ns.len() as f64 / seconds;
        let quantile = |quantile| self.latency_ns.value_at_quantile(quantile);
        json!({
            "bs": bytes,
            "runtime_s": time.as_secs_f64(),
            "operations": self.latency_ns.len(),
            "iops": iops,
            "bytes_per_s": iops * f64::from(bytes),
            "lat_ns": {
                "mean": self.latency_ns.mean(),
                "p50": quantile(0.5),
                "p99": quantile(0.99),
                "p99_9": quantile(0.999),
                "max": self.latency_ns.max(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_has_rates_and_latencies() {
        let mut tally = Tally::default();
        for micros in [10, 20, 30, 40] {
            tally.record(Duration::from_micros(micros));
        }
        let report = tally.report(4096, Duration::from_secs(2));
        assert_eq!(report["operations"], 4);
        assert_eq!(report["iops"], 2.0);
        assert_eq!(report["bytes_per_s"], 8192.0);
        let p50 = report["lat_ns"]["p50"].as_u64().unwrap();
        assert!((19_900..20_100).contains(&p50), "{p50}");
        let max = report["lat_ns"]["max"].as_u64().unwrap();
        assert!((39_900..40_100).contains(&max), "{max}");
    }
}
