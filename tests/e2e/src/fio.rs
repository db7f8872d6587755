//! fio with the engine of this project.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::run::built;
use crate::{Ended, HOST, NQN, Run, Setup, Target};

/// The engine.
#[must_use]
pub fn engine() -> PathBuf {
    built("libnvmeof_fio.so", "cargo xtask fio-engine")
}

/// A job file for namespace 1 of a target.
#[derive(Debug)]
pub struct Jobs {
    text: String,
    folder: PathBuf,
}

impl Jobs {
    /// `sections` with `global` for all; fio writes its files to the folder of `setup`.
    #[must_use]
    pub fn new(setup: &Setup, target: &Target, global: &str, sections: &str) -> Self {
        let (engine, address) = (engine(), target.place());
        let text = format!(
            "[global]\nioengine=external:{}\naddress={address}\nsubsystem={NQN}\n\
             hostnqn={HOST}\nverify_state_save=0\nrandrepeat=0\n{global}\n{sections}\n",
            engine.display()
        );
        let folder = setup.path("fio");
        std::fs::create_dir_all(&folder).unwrap();
        Self { text, folder }
    }

    /// fio with these jobs.
    #[must_use]
    pub fn fio(&self) -> Run {
        let file = self.folder.join("jobs.fio");
        std::fs::write(&file, &self.text).unwrap();
        let mut fio = Command::new("fio");
        fio.current_dir(&self.folder)
            .args([
                "--eta=never",
                "--output-format=json",
                "--output=report.json",
            ])
            .arg(file);
        Run::new(fio)
    }

    /// Runs all jobs, which must succeed; returns the report of each.
    #[track_caller]
    #[must_use]
    pub fn ok(&self) -> Vec<Value> {
        let ended = self.fio().ok();
        let jobs = self.report();
        assert!(!jobs.is_empty(), "{ended}");
        for job in &jobs {
            assert_eq!(job["error"], 0, "{}: {ended}", job["jobname"]);
        }
        jobs
    }

    /// Runs the jobs, which must fail with a message that contains all of `words`.
    #[track_caller]
    pub fn fails(&self, words: &[&str]) -> Ended {
        self.fio().fails(1, words)
    }

    /// The report of each job.
    #[must_use]
    pub fn report(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder.join("report.json")).unwrap();
        // fio writes messages in front of the first brace.
        let start = text
            .find('{')
            .unwrap_or_else(|| panic!("no report: {text}"));
        let report: Value =
            serde_json::from_str(&text[start..]).unwrap_or_else(|error| panic!("{error}: {text}"));
        report["jobs"].as_array().unwrap().clone()
    }
}
