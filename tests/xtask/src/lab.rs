//! `cargo xtask lab`: starts the runner of `tests/lab` with all arguments.

use crate::ceph;
use crate::run::{self, Failure, Outcome};
use crate::setup::{self, Tool};
use crate::test::Extent;

/// What the lab needs besides the toolchain.
pub(crate) const TOOLS: &[Tool] = &[setup::E2FS, setup::QEMU, setup::MMDEBSTRAP];

/// `cargo xtask lab [...]`; `cargo xtask lab --help` lists what there is.
pub(crate) fn main(arguments: &[String]) -> Outcome {
    let information = ["--help", "-h", "--list"];
    if !arguments
        .iter()
        .any(|argument| information.contains(&argument.as_str()))
    {
        setup::ensure(&[TOOLS, setup::RDMA])?;
    }
    // No command line is printed: the output may have to be JSON.
    let mut lab = run::cargo("run --quiet --locked -p nvmeof-lab --");
    if let Ok(here) = std::env::current_dir() {
        // Paths on the command line are relative to the folder of the caller.
        lab.current_dir(here);
    }
    lab.args(arguments)
        .env("NVMEOF_LAB_RUNS", run::build_dir().join("lab"))
        .env("NVMEOF_CEPH_CACHE", ceph::cache());
    let status = lab
        .status()
        .map_err(|error| run::cannot_start(&lab, &error))?;
    match status.code() {
        Some(0) => Ok(()),
        Some(2) => Err(Failure::Usage("the lab cannot run; see above".to_owned())),
        _ => Err(Failure::Failed("the lab; see above".to_owned())),
    }
}

/// The step of `cargo xtask test`.
pub(crate) fn step(extent: Extent) -> Outcome {
    let arguments: &[&str] = match extent {
        Extent::Short => &["--rotate", "--profile", "dev"],
        Extent::All => &["--long"],
    };
    main(
        &arguments
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
    )
}
