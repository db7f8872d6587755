//! The plots, and the part of `docs/performance.md` that is made here.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use nvmeof_bench::tcp::Direction;

use crate::Trouble;
use crate::chart::{Chart, Line};
use crate::contestant::Contestant;
use crate::results::{Results, Row};
use crate::sample::Sample;
use crate::table;
use crate::work::{self, About, Disk, Placement, SIZES_DEPTH, Work};

const BEGIN: &str = "<!-- made by cargo xtask bench: begin -->\n";
const END: &str = "<!-- made by cargo xtask bench: end -->\n";
const BLOCK: u32 = 4096;
const LONG: u32 = 128 << 10;

/// Writes the plots into `folder`.
pub(crate) fn plots(results: &Results, folder: &Path) -> Result<(), Trouble> {
    fs::create_dir_all(folder).map_err(|error| Trouble::file("create", folder, &error))?;
    for (name, chart) in charts(results) {
        let path = folder.join(name);
        fs::write(&path, chart.to_svg()).map_err(|error| Trouble::file("write", &path, &error))?;
    }
    Ok(())
}

/// Writes the plots and the table into the documents.
pub(crate) fn refresh(results: &Results) -> Result<(), Trouble> {
    let docs = docs();
    plots(results, &docs.join("performance"))?;
    let path = docs.join("performance.md");
    let old = fs::read_to_string(&path).map_err(|error| Trouble::file("read", &path, &error))?;
    let new = replaced(&old, &part(results)).ok_or_else(|| {
        Trouble::SetUp(format!(
            "{} lacks the lines between which the table goes; put them back:\n{BEGIN}{END}",
            path.display()
        ))
    })?;
    fs::write(&path, new).map_err(|error| Trouble::file("write", &path, &error))
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn replaced(document: &str, part: &str) -> Option<String> {
    let (before, rest) = document.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{part}{END}{after}"))
}

fn part(results: &Results) -> String {
    let mut part = format!(
        "\nMeasured on {}; medians of {} rounds of {} s.\n\n{}\n",
        results.machine.line(),
        results.rounds,
        results.seconds,
        table::markdown(results)
    );
    for (name, chart) in charts(results) {
        part.push_str(&format!("![{}](performance/{name})\n", chart.title));
    }
    part.push('\n');
    part
}

/// A figure of a measurement.
type Figure = fn(&Sample) -> f64;

/// The charts for which there is something to show.
fn charts(results: &Results) -> Vec<(&'static str, Chart)> {
    let over_depth = |work: &Work| work.bytes == BLOCK;
    let long_over_depth = |work: &Work| work.bytes == LONG;
    let over_size = |work: &Work| work.depth == SIZES_DEPTH;
    let depth = Axis {
        title: "depth",
        place: |work| u32::from(work.depth),
        name: |depth| depth.to_string(),
    };
    let size = Axis {
        title: "bytes of each operation",
        place: |work| work.bytes,
        name: work::size,
    };
    let charts = [
        (
            "iops.svg",
            "4 KiB, null device: operations a second",
            "thousands a second",
            chart(results, over_depth, &depth, &[("", |one| one.iops / 1e3)]),
        ),
        (
            "latency.svg",
            "4 KiB, null device: latency",
            "microseconds",
            chart(
                results,
                over_depth,
                &depth,
                &[("p50", |one| one.p50_us), ("p99", |one| one.p99_us)],
            ),
        ),
        (
            "throughput-depth.svg",
            "128 KiB, null device: throughput",
            "GB/s",
            chart(
                results,
                long_over_depth,
                &depth,
                &[("", |one| one.bytes_per_s / 1e9)],
            ),
        ),
        (
            "throughput.svg",
            "null device, depth 32: throughput",
            "GB/s",
            chart(
                results,
                over_size,
                &size,
                &[("", |one| one.bytes_per_s / 1e9)],
            ),
        ),
        (
            "cost.svg",
            "null device, depth 32: time for each operation",
            "microseconds",
            chart(results, over_size, &size, &[("", |one| 1e6 / one.iops)]),
        ),
    ];
    let named = charts.map(|(file, title, y, mut chart)| {
        (chart.title, chart.y) = (title.to_owned(), y.to_owned());
        (file, chart)
    });
    let shown = |(_, chart): &(_, Chart)| chart.places.len() > 1;
    named.into_iter().filter(shown).collect()
}

/// What goes from left to right.
struct Axis {
    title: &'static str,
    place: fn(&Work) -> u32,
    name: fn(u32) -> String,
}

/// A line for each direction, contestant and figure.
fn chart(
    results: &Results,
    takes: impl Fn(&Work) -> bool,
    axis: &Axis,
    figures: &[(&str, Figure)],
) -> Chart {
    let shown = |row: &&Row| {
        let work = &row.work;
        let plain = work.about == About::Iwarp && work.placement == Placement::Apart;
        plain && work.disk == Disk::Null && !row.samples.is_empty() && takes(work)
    };
    let rows: Vec<&Row> = results.rows.iter().filter(shown).collect();
    let places: BTreeSet<u32> = rows.iter().map(|row| (axis.place)(&row.work)).collect();
    let mut lines = Vec::new();
    for (word, direction) in [("read", Direction::Read), ("write", Direction::Write)] {
        for contestant in [Contestant::Tcp, Contestant::Iwarp] {
            // Percentiles are shown of reads alone: more lines say less.
            if figures.len() > 1 && direction == Direction::Write {
                continue;
            }
            lines.extend(figures.iter().map(|(figure, value)| {
                let at = |place: &u32| {
                    let mut rows = rows.iter();
                    let row = rows.find(|row| {
                        row.work.direction == direction && (axis.place)(&row.work) == *place
                    });
                    row.map(|row| value(&row.median(contestant)))
                };
                let name = format!("{} {word} {figure}", contestant.name());
                Line {
                    name: name.trim_end().to_owned(),
                    values: places.iter().map(at).collect(),
                }
            }));
        }
    }
    Chart {
        x: axis.title.to_owned(),
        places: places.iter().map(|place| (axis.name)(*place)).collect(),
        lines,
        ..Chart::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::results;

    fn all() -> Results {
        Results {
            machine: Machine::default(),
            rounds: 3,
            seconds: 2.0,
            rows: work::all().into_iter().map(results::example).collect(),
        }
    }

    #[test]
    fn only_what_is_between_the_marks_changes() {
        let text = format!("before\n{BEGIN}old\n{END}after\n");
        let new = replaced(&text, "new\n").unwrap();
        assert_eq!(new, format!("before\n{BEGIN}new\n{END}after\n"));
        assert_eq!(replaced("nothing\n", "new\n"), None);
        assert_eq!(replaced(BEGIN, "new\n"), None);
    }

    #[test]
    fn the_document_has_the_marks() {
        let text = fs::read_to_string(docs().join("performance.md")).unwrap();
        assert!(replaced(&text, "").is_some());
    }

    #[test]
    fn charts_have_every_place_and_value() {
        let charts = charts(&all());
        assert_eq!(charts.len(), 5);
        for (name, chart) in &charts {
            assert_eq!(chart.lines.len(), 4, "{name}");
            for line in &chart.lines {
                assert_eq!(line.values.len(), chart.places.len(), "{name}");
                assert!(line.values.iter().all(Option::is_some), "{name} {line:?}");
            }
        }
        assert_eq!(charts[0].1.places, ["1", "4", "16", "32", "64", "128"]);
        assert_eq!(charts[2].1.places, ["1", "8", "32"]);
        assert_eq!(charts[3].1.places, ["512", "4k", "16k", "64k", "128k"]);
    }

    #[test]
    fn a_single_work_gives_no_chart() {
        let results = Results {
            rows: all().rows.into_iter().take(1).collect(),
            ..all()
        };
        assert!(charts(&results).is_empty());
    }
}
