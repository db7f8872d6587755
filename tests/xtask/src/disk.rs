//! Free space for builds. Without it, linkers fail, the Ceph monitor ends and guests do not boot,
//! with errors that do not name the cause.

use std::path::Path;
use std::process::Command;

use crate::run;

const GIB: u64 = 1 << 30;

/// Below this, the next step may not have enough. Ceph's monitor of the tests ends below 1 % of the
/// disk.
const LOW: u64 = 4 * GIB;

/// A warning if little space is left for builds.
pub(crate) fn warning() -> Option<String> {
    let folder = run::build_dir();
    let existing = folder.ancestors().find(|folder| folder.exists())?;
    let mut df = Command::new("df");
    df.args(["--output=avail", "--block-size=1"]).arg(existing);
    let output = df.output().ok()?;
    warning_of(
        &folder,
        available(&String::from_utf8_lossy(&output.stdout))?,
    )
}

fn warning_of(folder: &Path, available: u64) -> Option<String> {
    (available < LOW).then(|| {
        format!(
            "warning: {}: {:.1} GiB available, a step may need {} GiB: remove other files there, \
             or set CARGO_TARGET_DIR to a folder on another disk",
            folder.display(),
            available as f64 / GIB as f64,
            LOW / GIB
        )
    })
}

/// The available bytes in the output of df: a heading and a number.
fn available(output: &str) -> Option<u64> {
    output.lines().nth(1)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warning_names_folder_value_and_remedy() {
        let of = |available| warning_of(Path::new("/b/build"), available);
        assert_eq!(of(LOW), None);
        let warning = of(GIB / 2).unwrap();
        for part in ["/b/build", "0.5 GiB", "CARGO_TARGET_DIR"] {
            assert!(warning.contains(part), "{warning}");
        }
    }

    #[test]
    fn available_space_is_in_the_second_line() {
        assert_eq!(available("   Avail\n12345\n"), Some(12345));
        assert_eq!(available("Avail\n-\n"), None);
        assert_eq!(available(""), None);
    }
}
