//! The machine of a measurement.

use std::process::Command;

use serde::Serialize;

/// Properties of the machine that explain its figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    pub(crate) system: String,
    /// Day in UTC, YYYY-MM-DD.
    pub(crate) date: String,
}

impl Machine {
    /// Reads the properties of this machine; unknown ones are empty.
    pub(crate) fn find() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let date = Command::new("date").args(["-u", "+%Y-%m-%d"]).output();
        let date = date.map(|output| output.stdout).unwrap_or_default();
        Self {
            cpu: value(&read("/proc/cpuinfo"), "model name", ':'),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            system: value(&read("/etc/os-release"), "PRETTY_NAME", '='),
            date: String::from_utf8_lossy(&date).trim().to_owned(),
        }
    }

    pub(crate) fn line(&self) -> String {
        format!(
            "{} with {} cores, Linux {}, {}, {}",
            self.cpu, self.cores, self.kernel, self.system, self.date
        )
    }
}

/// The value of the first line `key SIGN value`, without quotes.
fn value(text: &str, key: &str, sign: char) -> String {
    let mut pairs = text.lines().filter_map(|line| line.split_once(sign));
    let found = pairs.find(|(name, _)| name.trim() == key);
    let value = found.map(|(_, value)| value.trim()).unwrap_or_default();
    value.trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found() {
        let text = "model\t: 17\nmodel name\t: Some CPU: fast\nmodel name\t: other\n";
        assert_eq!(value(text, "model name", ':'), "Some CPU: fast");
        assert_eq!(value("A=\"Debian 12\"\n", "A", '='), "Debian 12");
        assert_eq!(value("", "A", '='), "");
    }

    #[test]
    fn properties_of_this_machine_are_read() {
        let machine = Machine::find();
        assert!(machine.cores > 0 && !machine.kernel.is_empty());
        assert_eq!(machine.date.len(), "2026-11-20".len());
    }
}
