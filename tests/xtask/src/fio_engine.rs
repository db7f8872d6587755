//! `cargo xtask fio-engine`: builds the engine for the installed fio; with `--bundle`, also
//! that fio, for machines with another version.

mod source;

use std::path::{Path, PathBuf};

use crate::profile::Profile;
use crate::run::{self, Failure, Outcome};
use crate::setup::{self, Tool};

/// What building the engine needs besides the toolchain.
pub(crate) const TOOLS: &[Tool] = &[setup::FIO, setup::DPKG_DEV];

const HELP: &str = "\
Usage: cargo xtask fio-engine [--fio-source DIR] [--bundle DIR]
                              [--profile NAME]

Builds libnvmeof_fio.so, the initiator as an I/O engine of fio, for the
installed fio. The headers come from the source package of the distribution, of
the same version; they are kept in the build folder.

  --fio-source DIR   use fio's source tree in DIR instead: if the distribution
                     is not Debian, there is no network, or fio was not
                     installed from a package
  --bundle DIR       write the engine to DIR, with fio itself, built from the
                     same sources: for a machine with another fio
  --profile NAME     cargo profile: release (default), or dev, which builds
                     faster and runs slower

Exit status: 0 success, 1 a step failed, 2 usage or set-up error.
";

/// The command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options<'a> {
    help: bool,
    source: Option<&'a Path>,
    bundle: Option<&'a Path>,
    profile: Profile,
}

impl<'a> Options<'a> {
    fn parse(mut words: &'a [String]) -> Outcome<Self> {
        let mut options = Self::default();
        while let Some((word, rest)) = words.split_first() {
            let place = match word.as_str() {
                "--help" | "-h" => {
                    options.help = true;
                    return Ok(options);
                }
                "--fio-source" => Some(&mut options.source),
                "--bundle" => Some(&mut options.bundle),
                "--profile" => None,
                extra => return Err(Failure::unexpected(extra)),
            };
            let Some((value, rest)) = rest.split_first() else {
                let what = place.map_or("the name of a profile", |_| "a folder");
                return Err(Failure::Usage(format!("{word} needs {what}")));
            };
            match place {
                Some(place) => *place = Some(Path::new(value)),
                None => options.profile = Profile::parse(value)?,
            }
            words = rest;
        }
        Ok(options)
    }
}

/// `cargo xtask fio-engine [--fio-source DIR] [--bundle DIR] [--profile NAME]`.
pub(crate) fn main(arguments: &[String]) -> Outcome {
    let options = Options::parse(arguments)?;
    if options.help {
        print!("{HELP}");
        return Ok(());
    }
    setup::ensure(&[TOOLS, setup::RDMA])?;
    let built = build(options.source, options.profile)?;
    let engine = match options.bundle {
        Some(folder) => bundle(&built, folder)?,
        None => built.engine,
    };
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

/// The result of a build of the engine.
#[derive(Debug)]
pub(crate) struct Built {
    engine: PathBuf,
    /// fio's source tree, configured.
    source: PathBuf,
}

/// Builds the engine; `given` is fio's source tree, if the user has one.
pub(crate) fn build(given: Option<&Path>, profile: Profile) -> Outcome<Built> {
    let fio = source::Installed::find()?;
    let source = source::headers(&fio, given)?;
    run::run(&mut profile.build("-p nvmeof-fio -p nvmeof-target -p nvmeof-cli"))?;
    let built = profile.folder();
    let engine = built.join("libnvmeof_fio.so");
    // Does not overwrite the old file, which fio may have open.
    let fresh = built.join("libnvmeof_fio.so.new");
    run::run(&mut link(&source, &fio.version, &built, &fresh))?;
    std::fs::rename(&fresh, &engine).map_err(|error| Failure::file("make", &engine, &error))?;
    Ok(Built { engine, source })
}

/// Writes the engine and a matching fio to a folder; returns the path of the engine. The
/// distribution's fio would require many libraries; this one requires only those of every
/// Debian, and RDMA's.
fn bundle(built: &Built, folder: &Path) -> Outcome<PathBuf> {
    let fio = source::fio(&built.source)?;
    // Relative to the folder of the caller, not to that of commands.
    let failed = |error| Failure::file("make", folder, &error);
    let folder = std::path::absolute(folder).map_err(failed)?;
    std::fs::create_dir_all(&folder).map_err(failed)?;
    let engine = folder.join("libnvmeof_fio.so");
    for (from, to) in [(&fio, &folder.join("fio")), (&built.engine, &engine)] {
        // Does not overwrite the old file, which may be open.
        let fresh = to.with_extension("new");
        std::fs::copy(from, &fresh)
            .and_then(|_| std::fs::rename(&fresh, to))
            .map_err(|error| Failure::file("make", to, &error))?;
    }
    Ok(engine)
}

/// Compiles engine.c and links both halves.
fn link(headers: &Path, version: &str, built: &Path, to: &Path) -> std::process::Command {
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
        .arg(built.join("libnvmeof_fio.a"))
        .arg(format!(
            "-Wl,--version-script={}",
            folder.join("exports.map").display()
        ))
        // Threads of the initiator may end after fio has unloaded the engine.
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
    fn usage_error_is_refused_before_any_step() {
        assert!(usage(&["--fio-source"]).contains("needs a folder"));
        assert!(usage(&["--fio-source", "/x", "--bundle"]).contains("--bundle needs"));
        assert!(usage(&["--profile"]).contains("needs the name"));
        assert!(usage(&["--profile", "quick"]).contains("`quick`"));
        assert!(usage(&["now"]).contains("`now`"));
        assert!(usage(&["--fio-source", "/x", "more"]).contains("`more`"));
        assert!(main(&["--help".to_owned()]).is_ok());
    }

    #[test]
    fn options_come_in_any_order() {
        let words = "--bundle /b --profile dev --fio-source /s";
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let options = Options {
            source: Some(Path::new("/s")),
            bundle: Some(Path::new("/b")),
            profile: Profile::Dev,
            help: false,
        };
        assert_eq!(Options::parse(&words).unwrap(), options);
        assert_eq!(Options::parse(&[]).unwrap(), Options::default());
    }

    #[test]
    fn bundle_has_fio_and_engine_and_runs() {
        let folder = std::env::temp_dir().join(format!("fio-bundle-{}", std::process::id()));
        let source = folder.join("source");
        std::fs::create_dir_all(&source).unwrap();
        // Replaces fio's Makefile: reports whether it was built for this machine only.
        let makefile = "CONFIG_BUILD_NATIVE=y\nfio:\n\t\
             printf '#!/bin/sh\\necho \"$(CONFIG_BUILD_NATIVE)\"' >fio && chmod +x fio\n";
        std::fs::write(source.join("Makefile"), makefile).unwrap();
        let engine = folder.join("engine.so");
        std::fs::write(&engine, "engine").unwrap();
        let built = Built { engine, source };
        let place = folder.join("one/two");
        let engine = bundle(&built, &place).unwrap();
        assert_eq!(std::fs::read_to_string(engine).unwrap(), "engine");
        let stdout = run::output(&mut run::command(place.join("fio"))).unwrap();
        assert_eq!(stdout, "\n");
        // Again, over what is there.
        bundle(&built, &place).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }
}
