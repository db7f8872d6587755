//! The report of a benchmark.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::job::{Side, Tally};
use crate::args::{self, Format};
use crate::failure::Failure;
use crate::interrupt::Signal;
use crate::output;

/// Prints the measurement.
pub(super) fn print(
    args: &args::Bench,
    tally: &Tally,
    signal: Option<Signal>,
) -> Result<(), Failure> {
    match args.subsystem.target.output_format {
        Format::Normal => output::print(to_text(args, tally).as_bytes()),
        Format::Json => {
            let mut report = to_json(args, tally);
            if let (Some(signal), Value::Object(report)) = (signal, &mut report) {
                report.insert("interrupted".to_owned(), signal.name().into());
            }
            output::json(&report)
        }
    }
}

fn both(tally: &Tally) -> Histogram<u64> {
    let mut both = tally.read.latency_ns.clone();
    let added = both.add(&tally.write.latency_ns);
    debug_assert!(added.is_ok(), "histograms have the same bounds");
    both
}

fn to_json(args: &args::Bench, tally: &Tally) -> Value {
    let seconds = tally.time.as_secs_f64();
    let side = |side: &Side| {
        json!({
            "iops": rate(side.operations, seconds),
            "bytes_per_s": rate(side.bytes, seconds),
            "operations": side.operations,
            "lat_ns": latencies(&side.latency_ns),
        })
    };
    json!({
        "rw": args.rw.name(),
        "bs": args.bs,
        "iodepth": args.iodepth,
        "io_queues": args.queues.nr_io_queues,
        "runtime_s": seconds,
        "iops": rate(tally.read.operations + tally.write.operations, seconds),
        "bytes_per_s": rate(tally.read.bytes + tally.write.bytes, seconds),
        "lat_ns": latencies(&both(tally)),
        "read": side(&tally.read),
        "write": side(&tally.write),
    })
}

fn latencies(latency_ns: &Histogram<u64>) -> Value {
    json!({
        "mean": latency_ns.mean(),
        "p50": latency_ns.value_at_quantile(0.5),
        "p99": latency_ns.value_at_quantile(0.99),
        "p99_9": latency_ns.value_at_quantile(0.999),
    })
}

fn to_text(args: &args::Bench, tally: &Tally) -> String {
    let seconds = tally.time.as_secs_f64();
    let queues = args.queues.nr_io_queues;
    let mut text = format!(
        "{}, {} bytes each, {} in flight on {queues} queue{}, {seconds:.1} s\n\
         {:8}{:>12}{:>12}{:>11}{:>11}{:>11}{:>12}\n",
        args.rw.name(),
        args.bs,
        args.iodepth,
        if queues == 1 { "" } else { "s" },
        "",
        "IOPS",
        "MiB/s",
        "mean us",
        "p50 us",
        "p99 us",
        "p99.9 us",
    );
    for (name, side) in [("read", &tally.read), ("write", &tally.write)] {
        if side.operations == 0 {
            continue;
        }
        let latency = &side.latency_ns;
        let micros = |quantile| rate(latency.value_at_quantile(quantile), 1000.0);
        text.push_str(&format!(
            "{name:8}{:>12.0}{:>12.1}{:>11.1}{:>11.1}{:>11.1}{:>12.1}\n",
            rate(side.operations, seconds),
            rate(side.bytes, seconds) / f64::from(1 << 20),
            latency.mean() / 1000.0,
            micros(0.5),
            micros(0.99),
            micros(0.999),
        ));
    }
    text
}

/// `count` per `seconds`.
#[allow(
    clippy::cast_precision_loss,
    reason = "figures for people; 53 bits are enough"
)]
pub(super) fn rate(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        count as f64 / seconds
    } else {
        0.0
    }
}

/// Bytes in few characters, in powers of 1024: 812 B, 45.2 KiB.
pub(super) fn binary(bytes: f64) -> String {
    let mut scaled = bytes;
    for unit in ["B", "KiB", "MiB"] {
        if scaled < 1024.0 {
            return format!("{scaled:.1} {unit}");
        }
        scaled /= 1024.0;
    }
    format!("{scaled:.1} GiB")
}

/// A count in few characters, in powers of 1000: 812, 45.2k, 1.3M.
pub(super) fn short(figure: f64) -> String {
    match figure {
        f if f >= 1e9 => format!("{:.1}G", f / 1e9),
        f if f >= 1e6 => format!("{:.1}M", f / 1e6),
        f if f >= 1e3 => format!("{:.1}k", f / 1e3),
        f => format!("{f:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn args() -> args::Bench {
        let line =
            "nvmeof bench -a ::1 -n nqn.2026-11.org.example:disk --namespace-id 1 --rw randrw";
        match Cli::parse_from(line.split_whitespace()).command {
            Command::Bench(args) => args,
            other => panic!("{other:?}"),
        }
    }

    fn tally() -> Tally {
        let mut tally = Tally {
            time: Duration::from_secs(2),
            ..Tally::default()
        };
        for side in [&mut tally.read, &mut tally.write] {
            side.operations = 1000;
            side.bytes = 1000 * 4096;
            side.latency_ns.saturating_record_n(20_000, 1000);
        }
        tally
    }

    #[test]
    fn json_has_rates_and_latencies() {
        let json = to_json(&args(), &tally());
        assert_eq!(json["iops"], 1000.0);
        assert_eq!(json["bytes_per_s"], 4_096_000.0);
        assert_eq!(json["read"]["iops"], 500.0);
        for key in ["mean", "p50", "p99", "p99_9"] {
            let value = json["lat_ns"][key].as_f64().unwrap();
            assert!((19_990.0..20_020.0).contains(&value), "{key} {value}");
        }
    }

    #[test]
    fn text_is_a_table_of_eighty_columns() {
        let text = to_text(&args(), &tally());
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(
            text.contains("\nread             500         2.0"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 4);
        for (bytes, message) in [
            (812.0, "812.0 B"),
            (1536.0, "1.5 KiB"),
            (3.0 * 1024.0 * 1024.0, "3.0 MiB"),
            (2e12, "1862.6 GiB"),
        ] {
            assert_eq!(binary(bytes), message);
        }
        assert_eq!(
            (short(812.4), short(45_200.0), short(1.3e6)),
            ("812".to_owned(), "45.2k".to_owned(), "1.3M".to_owned())
        );
    }
}
