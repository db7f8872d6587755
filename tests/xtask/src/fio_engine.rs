//! `cargo xtask fio-engine`: builds the engine for the fio that is installed.

mod source;

use std::path::{Path, PathBuf};

use crate::run::{self, Failure, Outcome};
use crate::setup::{self, Tool};

/// What building the engine needs besides the toolchain.
pub(crate) const TOOLS: &[Tool] = &[setup::FIO, setup::DPKG_DEV];

const HELP: &str = "\
Usage: cargo xtask fio-engine [--fio-source DIR]

Builds libnvmeof_fio.so, the initiator as an engine of fio, for the fio that is
installed. The headers that this needs come from the distribution's source
package of that very version; they are kept in the build folder.

  --fio-source DIR   take fio's source tree from DIR instead: where the
                     distribution is not Debian, there is no network, or fio
                     does not come from a package

Exit status: 0 success, 1 something failed, 2 wrong usage or set-up.
";

/// `cargo xtask fio-engine [--fio-source DIR]`.
pub(crate) fn main(arguments: &[String]) -> Outcome {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let given = match words.as_slice() {
        [] => None,
        ["--fio-source", folder] => Some(Path::new(folder)),
        ["--help" | "-h", ..] => {
            print!("{HELP}");
            return Ok(());
        }
        ["--fio-source"] => {
            return Err(Failure::Usage("--fio-source needs a folder".to_owned()));
        }
        ["--fio-source", _, extra, ..] | [extra, ..] => return Err(Failure::unexpected(extra)),
    };
    setup::ensure(&[TOOLS, setup::RDMA])?;
    let engine = build(given)?;
    println!(
        "\nThe engine is {engine}. A job uses it with\n\n    \
         ioengine=external:{engine}\n    \
         address=192.0.2.10\n    \
         subsystem=nqn.2026-11.org.example:disk\n\n\
         Its other options: fio --enghelp={engine}; the jobs of this project: \
         fio-configs/run --help",
        engine = engine.display()
    );
    Ok(())
}

/// Builds the engine; returns where it is.
pub(crate) fn build(given: Option<&Path>) -> Outcome<PathBuf> {
    let fio = source::Installed::find()?;
    let headers = source::headers(&fio, given)?;
    run::run(&mut run::cargo(
        "build --release --locked -p nvmeof-fio -p nvmeof-target -p nvmeof-cli",
    ))?;
    let release = run::build_dir().join("release");
    let engine = release.join("libnvmeof_fio.so");
    // Not over the old one, which a fio may have open.
    let fresh = release.join("libnvmeof_fio.so.new");
    run::run(&mut link(&headers, &fio.version, &release, &fresh))?;
    std::fs::rename(&fresh, &engine).map_err(|error| Failure::file("make", &engine, &error))?;
    Ok(engine)
}

/// Compiles fio's side and links it with ours.
fn link(headers: &Path, version: &str, release: &Path, to: &Path) -> std::process::Command {
    let folder = Path::new("initiator/fio/engine");
    let mut cc = run::command("cc");
    cc.args(["-std=gnu99", "-O2", "-g", "-Wall", "-fPIC", "-shared"])
        .args(["-D_GNU_SOURCE", "-include"])
        .arg(headers.join("config-host.h"))
        .arg("-I")
        .arg(headers)
        .arg(format!("-DENGINE_FIO_VERSION=\"{version}\""))
        .arg("-o")
        .arg(to)
        .arg(folder.join("engine.c"))
        .arg(release.join("libnvmeof_fio.a"))
        .arg(format!(
            "-Wl,--version-script={}",
            folder.join("exports.map").display()
        ))
        // Threads of ours may end after fio closed it.
        .args(["-Wl,-z,nodelete", "-Wl,--gc-sections"])
        .args(["-lgcc_s", "-lpthread", "-ldl", "-lm", "-lc"]);
    cc
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(line: &[&str]) -> String {
        let line: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
        match main(&line) {
            Err(Failure::Usage(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn wrong_usage_is_refused_before_anything_is_done() {
        assert!(usage(&["--fio-source"]).contains("needs a folder"));
        assert!(usage(&["now"]).contains("`now`"));
        assert!(usage(&["--fio-source", "/x", "more"]).contains("`more`"));
        assert!(main(&["--help".to_owned()]).is_ok());
    }
}
