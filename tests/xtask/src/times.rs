//! Durations of the steps when they last succeeded in this clone, to estimate the next
//! run.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::run;

/// Seconds by step, in a file with a line for each. Errors of the file are ignored.
pub(crate) struct Times {
    file: PathBuf,
    seconds: BTreeMap<String, u64>,
}

impl Times {
    /// The times of this clone.
    pub(crate) fn read() -> Self {
        Self::of(run::build_dir().join("test-times"))
    }

    pub(crate) fn of(file: PathBuf) -> Self {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let seconds = text.lines().filter_map(|line| {
            let (step, seconds) = line.split_once(' ')?;
            Some((step.to_owned(), seconds.parse().ok()?))
        });
        let seconds = seconds.collect();
        Self { file, seconds }
    }

    pub(crate) fn expected(&self, step: &str) -> Option<Duration> {
        self.seconds.get(step).copied().map(Duration::from_secs)
    }

    /// Records a step that succeeded.
    pub(crate) fn took(&mut self, step: &str, took: Duration) {
        self.seconds.insert(step.to_owned(), took.as_secs());
        let lines = self.seconds.iter();
        let text: String = lines
            .map(|(step, seconds)| format!("{step} {seconds}\n"))
            .collect();
        drop(fs::write(&self.file, text));
    }
}

/// `5 s`, or from two minutes on `3 min`.
pub(crate) fn in_words(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds < 120 => format!("{seconds} s"),
        seconds => format!("{} min", (seconds + 30) / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_duration_is_the_estimate() {
        let file = std::env::temp_dir().join(format!("test-times-{}", std::process::id()));
        let mut times = Times::of(file.clone());
        assert_eq!(times.expected("unit"), None);
        times.took("unit", Duration::from_millis(70_900));
        times.took("lab@all", Duration::from_secs(9));
        fs::write(&file, "unit 70\nnonsense\nlab@all 9\nfmt x\n").unwrap();
        let again = Times::of(file.clone());
        fs::remove_file(file).unwrap();
        assert_eq!(again.expected("unit"), Some(Duration::from_secs(70)));
        assert_eq!(again.expected("lab@all"), Some(Duration::from_secs(9)));
        assert_eq!(again.expected("fmt"), None);
    }

    #[test]
    fn times_are_rounded_for_people() {
        let words = [0, 119, 120, 149, 150, 3600].map(|s| in_words(Duration::from_secs(s)));
        assert_eq!(words, ["0 s", "119 s", "2 min", "2 min", "3 min", "60 min"]);
    }
}
