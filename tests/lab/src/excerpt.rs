//! The end of the logs of a failed case, so that the output of a run shows the cause.

use std::fs;
use std::path::Path;

/// Lines of each log.
const LINES: usize = 12;
/// Characters of a line.
const WIDTH: usize = 240;

/// The end of the kernel's log and the warnings of the target, as kept in `folder`.
pub(crate) fn excerpt(folder: &Path) -> Vec<String> {
    let read = |name: &str| {
        let bytes = fs::read(folder.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let kernel = read("dmesg");
    let target = read("target.log");
    let mut lines = end_of("kernel", since_begin(&kernel));
    lines.extend(end_of("target", target.lines().filter(|line| warns(line))));
    lines
}

/// A guest runs one case after the other.
fn since_begin(kernel: &str) -> impl DoubleEndedIterator<Item = &str> {
    let begin = kernel.rfind("lab: begin").unwrap_or(0);
    // Repeated lines, and those of the lab itself, are left out.
    let noise = ["no usable path", "sysrq", "lab: begin", "lab: end"];
    let lines = kernel.get(begin..).unwrap_or_default().lines();
    lines.filter(move |line| !noise.iter().any(|word| line.contains(word)))
}

fn warns(line: &str) -> bool {
    [" WARN ", " ERROR ", "panicked"]
        .iter()
        .any(|word| line.contains(word))
}

fn end_of<'a>(name: &str, lines: impl DoubleEndedIterator<Item = &'a str>) -> Vec<String> {
    let cut = |line: &str| line.chars().take(WIDTH).collect::<String>();
    let mut last: Vec<_> = lines
        .rev()
        .take(LINES)
        .map(|line| format!("  {name}: {}", cut(line)))
        .collect();
    last.reverse();
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_both_logs_is_shown() {
        let folder = std::env::temp_dir().join(format!("lab-excerpt-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert!(excerpt(&folder).is_empty(), "there are no logs");
        let mut kernel = "[1] of another case\n[2] lab: begin smoke@iwarp\n".to_owned();
        for number in 0..20 {
            kernel += &format!("[3] line {number}\n[3] nvme0n1: no usable path - requeuing\n");
        }
        fs::write(folder.join("dmesg"), kernel).unwrap();
        let target = format!("t  INFO fine\nt  WARN lost: {}\n", "x".repeat(500));
        fs::write(folder.join("target.log"), target).unwrap();
        let lines = excerpt(&folder);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(lines.len(), LINES + 1, "{lines:#?}");
        assert_eq!(lines.first().unwrap(), "  kernel: [3] line 8");
        assert!(lines.last().unwrap().starts_with("  target: t  WARN lost:"));
        assert!(lines.iter().all(|line| line.len() <= WIDTH + 20));
    }

    #[test]
    fn what_came_before_the_case_is_left_out() {
        let kernel = "a\nlab: begin x\nb\nlab: begin y\nc";
        assert_eq!(since_begin(kernel).collect::<Vec<_>>(), ["c"]);
        assert_eq!(since_begin("d").collect::<Vec<_>>(), ["d"]);
    }
}
