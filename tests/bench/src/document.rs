//! The plots, and the generated parts of `docs/performance.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use nvmeof_bench::tcp::Direction;

use crate::chart::{Chart, Line};
use crate::contestant::Contestant;
use crate::results::{Results, Row};
use crate::sample::Sample;
use crate::work::{self, About, Placement, SIZES_DEPTH, Store, Work};
use crate::{Trouble, attack, table};

const BEGIN: &str = "<!-- made by cargo xtask bench: begin -->\n";
const END: &str = "<!-- made by cargo xtask bench: end -->\n";
const BEGIN_HOSTILE: &str = "<!-- made by cargo xtask bench hostile: begin -->\n";
const END_HOSTILE: &str = "<!-- made by cargo xtask bench hostile: end -->\n";
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
    replace([BEGIN, END], &part(results))?;
    refresh_hostile(results)
}

/// Writes the table of the workloads with hostile peers into the document.
pub(crate) fn refresh_hostile(results: &Results) -> Result<(), Trouble> {
    replace([BEGIN_HOSTILE, END_HOSTILE], &hostile_part(results))
}

/// Replaces the part between two marks in the document.
fn replace(marks: [&str; 2], part: &str) -> Result<(), Trouble> {
    let path = docs().join("performance.md");
    let old = fs::read_to_string(&path).map_err(|error| Trouble::file("read", &path, &error))?;
    let new = replaced(&old, marks, part).ok_or_else(|| {
        Trouble::SetUp(format!(
            "{} lacks the lines that enclose the table; restore them:\n{}",
            path.display(),
            marks.concat()
        ))
    })?;
    fs::write(&path, new).map_err(|error| Trouble::file("write", &path, &error))
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn replaced(document: &str, [begin, end]: [&str; 2], part: &str) -> Option<String> {
    let (before, rest) = document.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    Some(format!("{before}{begin}{part}{end}{after}"))
}

fn hostile_part(results: &Results) -> String {
    let mut part = format!(
        "\nMeasured on {}.\n\n{}\n",
        results.machine.line(),
        attack::markdown(results)
    );
    let disturbed = results.disturbed(true);
    if !disturbed.is_empty() {
        part.push_str(&format!("{disturbed}\n\n"));
    }
    part
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

/// A plot: the workloads, the axes and the file.
struct Plot {
    file: &'static str,
    title: &'static str,
    y: &'static str,
    /// The comparison whose workloads are shown.
    about: About,
    takes: fn(&Work) -> bool,
    axis: &'static Axis,
    directions: &'static [Direction],
    figures: &'static [(&'static str, Figure)],
    logarithmic: bool,
}

const BOTH: &[Direction] = &[Direction::Read, Direction::Write];
const READS: &[Direction] = &[Direction::Read];
const WRITES: &[Direction] = &[Direction::Write];
const RATE: &[(&str, Figure)] = &[("", |one| one.iops / 1e3)];
const THROUGHPUT: &[(&str, Figure)] = &[("", |one| one.bytes_per_s / 1e9)];
const COST: &[(&str, Figure)] = &[("", |one| 1e6 / one.iops)];
const LATENCY: &[(&str, Figure)] = &[("p50", |one| one.p50_us), ("p99", |one| one.p99_us)];

/// IOPS over the depth; the other plots are based on it.
const IOPS: Plot = Plot {
    file: "iops.svg",
    title: "4 KiB, null device: IOPS",
    y: "thousand IOPS",
    about: About::Iwarp,
    takes: |work| work.bytes == BLOCK,
    axis: &DEPTH,
    directions: BOTH,
    figures: RATE,
    logarithmic: false,
};

/// Latency over the depth, on a logarithmic scale.
const LATENCY_OF_READS: Plot = Plot {
    file: "latency.svg",
    title: "4 KiB reads, null device: latency",
    y: "microseconds",
    directions: READS,
    figures: LATENCY,
    logarithmic: true,
    ..IOPS
};

const PLOTS: &[Plot] = &[
    IOPS,
    LATENCY_OF_READS,
    Plot {
        file: "latency-write.svg",
        title: "4 KiB writes, null device: latency",
        directions: WRITES,
        ..LATENCY_OF_READS
    },
    Plot {
        file: "throughput-depth.svg",
        title: "128 KiB, null device: throughput",
        y: "GB/s",
        takes: |work| work.bytes == LONG,
        figures: THROUGHPUT,
        ..IOPS
    },
    Plot {
        file: "throughput.svg",
        title: "null device, depth 32: throughput",
        y: "GB/s",
        takes: |work| work.depth == SIZES_DEPTH,
        axis: &SIZE,
        figures: THROUGHPUT,
        ..IOPS
    },
    Plot {
        file: "cost.svg",
        title: "null device, depth 32: time for each operation",
        y: "microseconds",
        takes: |work| work.depth == SIZES_DEPTH,
        axis: &SIZE,
        figures: COST,
        logarithmic: true,
        ..IOPS
    },
    Plot {
        file: "shm-iops.svg",
        title: "shared memory, 4 KiB, null device: IOPS",
        about: About::Shm,
        ..IOPS
    },
    Plot {
        file: "shm-latency.svg",
        title: "shared memory, 4 KiB reads, null device: latency",
        about: About::Shm,
        ..LATENCY_OF_READS
    },
    Plot {
        file: "shm-latency-write.svg",
        title: "shared memory, 4 KiB writes, null device: latency",
        about: About::Shm,
        directions: WRITES,
        ..LATENCY_OF_READS
    },
];

/// The horizontal axis.
struct Axis {
    title: &'static str,
    place: fn(&Work) -> u32,
    name: fn(u32) -> String,
}

const DEPTH: Axis = Axis {
    title: "depth",
    place: |work| u32::from(work.depth),
    name: |depth| depth.to_string(),
};
const SIZE: Axis = Axis {
    title: "bytes of each operation",
    place: |work| work.bytes,
    name: work::size,
};

/// The charts for which there is something to show.
fn charts(results: &Results) -> Vec<(&'static str, Chart)> {
    let charts = PLOTS.iter().map(|plot| (plot.file, plot.chart(results)));
    charts.filter(|(_, chart)| chart.places.len() > 1).collect()
}

impl Plot {
    /// Lines for each direction and figure: of the yardstick, then of ours.
    fn chart(&self, results: &Results) -> Chart {
        let rows = results.rows.iter().filter(|row| self.shows(row));
        let rows: Vec<&Row> = rows.collect();
        let place = self.axis.place;
        let places: BTreeSet<u32> = rows.iter().map(|row| place(&row.work)).collect();
        let mut lines = Vec::new();
        for direction in self.directions {
            let of = rows.iter().filter(|row| row.work.direction == *direction);
            let of: Vec<&Row> = of.copied().collect();
            let Some(first) = of.first() else { continue };
            for (figure, value) in self.figures {
                lines.extend(Contestant::of(&first.work).iter().map(|contestant| {
                    let at = |at: &u32| {
                        let row = of.iter().find(|row| place(&row.work) == *at)?;
                        Some(value(&row.median(*contestant)))
                    };
                    let word = match direction {
                        // The title says it.
                        _ if self.directions.len() == 1 => "",
                        Direction::Read => "read",
                        Direction::Write => "write",
                    };
                    let words = [contestant.name(), word, *figure];
                    let words = words.into_iter().filter(|word| !word.is_empty());
                    Line {
                        name: words.collect::<Vec<_>>().join(" "),
                        yardstick: *contestant == first.yardstick(),
                        values: places.iter().map(at).collect(),
                    }
                }));
            }
        }
        Chart {
            title: self.title.to_owned(),
            x: self.axis.title.to_owned(),
            places: places
                .iter()
                .map(|place| (self.axis.name)(*place))
                .collect(),
            y: self.y.to_owned(),
            logarithmic: self.logarithmic,
            lines,
        }
    }

    fn shows(&self, row: &Row) -> bool {
        let work = &row.work;
        let plain = work.about == self.about && work.placement == Placement::Apart;
        plain && work.store == Store::Null && !row.samples.is_empty() && (self.takes)(work)
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
    fn only_text_between_the_marks_changes() {
        let text = format!("before\n{BEGIN}old\n{END}after\n");
        let marks = [BEGIN, END];
        let new = replaced(&text, marks, "new\n").unwrap();
        assert_eq!(new, format!("before\n{BEGIN}new\n{END}after\n"));
        assert_eq!(replaced("nothing\n", marks, "new\n"), None);
        assert_eq!(replaced(BEGIN, marks, "new\n"), None);
    }

    #[test]
    fn the_document_has_the_marks() {
        let text = fs::read_to_string(docs().join("performance.md")).unwrap();
        for marks in [[BEGIN, END], [BEGIN_HOSTILE, END_HOSTILE]] {
            assert!(replaced(&text, marks, "").is_some(), "{marks:?}");
        }
    }

    #[test]
    fn charts_have_every_place_and_value() {
        let charts = charts(&all());
        assert_eq!(charts.len(), PLOTS.len());
        for (name, chart) in &charts {
            assert_eq!(chart.lines.len(), 4, "{name}");
            for line in &chart.lines {
                assert_eq!(line.values.len(), chart.places.len(), "{name}");
                assert!(line.values.iter().all(Option::is_some), "{name} {line:?}");
            }
        }
        assert_eq!(charts[0].1.places, ["1", "4", "16", "32", "64", "128"]);
        assert_eq!(charts[3].1.places, ["1", "8", "32"]);
        assert_eq!(charts[4].1.places, ["512", "4k", "16k", "64k", "128k"]);
        let names = |at: usize| charts[at].1.lines.iter().map(|line| line.name.as_str());
        let latency = ["shm-bare p50", "shm p50", "shm-bare p99", "shm p99"];
        assert!(names(8).eq(latency));
        let both = ["shm-bare read", "shm read", "shm-bare write", "shm write"];
        assert!(names(6).eq(both));
    }

    #[test]
    fn single_workload_gives_no_chart() {
        let results = Results {
            rows: all().rows.into_iter().take(1).collect(),
            ..all()
        };
        assert!(charts(&results).is_empty());
    }
}
