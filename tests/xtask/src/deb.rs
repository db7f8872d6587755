//! `cargo xtask deb`: Debian packages of both programs.
//!
//! Creates the tree of each package and packs it with `dpkg-deb`, without debhelper: for
//! two programs this is short, and needs no second build system.

mod contents;
mod links;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};

use crate::profile::Profile;
use crate::run::{self, Failure, Outcome};
use crate::setup::{self, Tool};
use contents::{PACKAGES, Package};
use tree::Tree;

/// What it needs besides the toolchain.
pub(crate) const TOOLS: &[Tool] = &[setup::DPKG_DEV, setup::BINUTILS];

const HELP: &str = "\
Usage: cargo xtask deb [--revision N] [--programs DIR] [--output DIR]

Builds both programs and their Debian packages, nvmeof-target and nvmeof, in
build/deb. The packages are for the architecture of this machine, and for this
release of Debian and later ones.

  --revision N    Debian revision of this version (1)
  --programs DIR  build nothing; package the programs in DIR
  --output DIR    write the packages to DIR

Exit status: 0 success, 1 a step failed, 2 usage or set-up error.
";

/// The command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options<'a> {
    help: bool,
    revision: Option<u32>,
    programs: Option<&'a Path>,
    output: Option<&'a Path>,
}

impl<'a> Options<'a> {
    fn parse(mut words: &'a [String]) -> Outcome<Self> {
        let mut options = Self::default();
        while let Some((word, rest)) = words.split_first() {
            if ["--help", "-h"].contains(&word.as_str()) {
                options.help = true;
                return Ok(options);
            }
            if !["--revision", "--programs", "--output"].contains(&word.as_str()) {
                return Err(Failure::unexpected(word));
            }
            let Some((value, rest)) = rest.split_first() else {
                return Err(Failure::Usage(format!("{word}: no value given")));
            };
            match word.as_str() {
                "--revision" => {
                    let revision = value.parse().ok().filter(|revision| *revision > 0);
                    let wrong = || Failure::Usage(format!("--revision {value}: must be a number"));
                    options.revision = Some(revision.ok_or_else(wrong)?);
                }
                "--programs" => options.programs = Some(Path::new(value)),
                _ => options.output = Some(Path::new(value)),
            }
            words = rest;
        }
        Ok(options)
    }
}

/// `cargo xtask deb [...]`.
pub(crate) fn main(arguments: &[String]) -> Outcome {
    let options = Options::parse(arguments)?;
    if options.help {
        print!("{HELP}");
        return Ok(());
    }
    setup::ensure(&[TOOLS])?;
    let here = std::env::current_dir().unwrap_or_default();
    let programs = match options.programs {
        Some(folder) => here.join(folder),
        None => {
            setup::ensure(&[setup::RDMA])?;
            run::run(&mut Profile::Release.build(""))?;
            Profile::Release.folder()
        }
    };
    let output = match options.output {
        Some(folder) => here.join(folder),
        None => run::build_dir().join("deb"),
    };
    let version = format!("{}-{}", version()?, options.revision.unwrap_or(1));
    for package in PACKAGES {
        run::heading(&format!("package {}", package.name));
        let file = make(package, &version, &programs, &output)?;
        println!("{}", file.display());
    }
    Ok(())
}

/// Builds one package; returns its path.
fn make(package: &Package, version: &str, programs: &Path, output: &Path) -> Outcome<PathBuf> {
    let architecture = run::output(run::command("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    let tree = Tree::new(output.join("tree").join(package.name))?;
    contents::lay_out(package, programs, &tree)?;
    links::check(&tree, package.name)?;
    tree.compress_all(&tree.folder("usr/share/man")?)?;
    let documents = format!("usr/share/doc/{}", package.name);
    tree.compress(&contents::changelog(package, &tree)?)?;
    let entry = changelog(package.name, version)?;
    tree.compress(&tree.text(&entry, &format!("{documents}/changelog.Debian"))?)?;
    for_dpkg(package, version, architecture, &tree)?;
    let file = output.join(format!("{}_{version}_{architecture}.deb", package.name));
    let mut pack = run::command("dpkg-deb");
    pack.args(["--root-owner-group", "-Zxz", "--build"])
        .arg(tree.root())
        .arg(&file);
    if let Ok(seconds) = of_commit("%ct") {
        // Reproducible: the same sources give the same package.
        pack.env("SOURCE_DATE_EPOCH", seconds);
    }
    run::run(&mut pack)?;
    Ok(file)
}

/// The control files of the package for dpkg.
fn for_dpkg(package: &Package, version: &str, architecture: &str, tree: &Tree) -> Outcome {
    let own = run::root().join("systemd/debian").join(package.name);
    let path = own.join("control");
    let text = fs::read_to_string(&path).map_err(|error| Failure::file("read", &path, &error))?;
    let libraries = libraries(&tree.root().join("usr/bin").join(package.name), tree)?;
    let control = format!(
        "Package: {}\nVersion: {version}\nArchitecture: {architecture}\n\
         Maintainer: {}\nInstalled-Size: {}\n{}",
        package.name,
        maintainer(),
        tree.kib()?,
        text.replace("${libraries}", &libraries)
    );
    let sums = tree.sums()?;
    tree.text(&control, "DEBIAN/control")?;
    tree.text(&sums, "DEBIAN/md5sums")?;
    if !package.conffiles.is_empty() {
        tree.text(
            &format!("{}\n", package.conffiles.join("\n")),
            "DEBIAN/conffiles",
        )?;
    }
    for script in package.scripts {
        tree.program(&own.join(script), &format!("DEBIAN/{script}"))?;
    }
    Ok(())
}

/// The packages of the libraries that a program is linked with.
fn libraries(program: &Path, tree: &Tree) -> Outcome<String> {
    // It requires the folder of a source package.
    let folder = tree.root().with_extension("source");
    let control = folder.join("debian/control");
    let written = fs::create_dir_all(folder.join("debian")).and_then(|()| {
        fs::write(
            &control,
            "Source: nvmeof\n\nPackage: nvmeof\nArchitecture: any\n",
        )
    });
    written.map_err(|error| Failure::file("write", &control, &error))?;
    let mut find = run::command("dpkg-shlibdeps");
    find.current_dir(&folder).arg("-O").arg(program);
    let found = run::output(&mut find)?;
    let found = found.trim().strip_prefix("shlibs:Depends=");
    found
        .map(str::to_owned)
        .ok_or_else(|| Failure::Failed("dpkg-shlibdeps finds no libraries".to_owned()))
}

/// The version of the workspace.
fn version() -> Outcome<String> {
    let path = run::root().join("Cargo.toml");
    let text = fs::read_to_string(&path).map_err(|error| Failure::file("read", &path, &error))?;
    version_of(&text)
        .map(str::to_owned)
        .ok_or_else(|| Failure::Failed(format!("{} has no version", path.display())))
}

fn version_of(manifest: &str) -> Option<&str> {
    let (_, package) = manifest.split_once("[workspace.package]")?;
    let line = package
        .lines()
        .find_map(|line| line.strip_prefix("version = "))?;
    Some(line.trim_matches('"'))
}

/// The maintainer: Debian's variables, or the project.
fn maintainer() -> String {
    let name = std::env::var("DEBFULLNAME");
    let mail = std::env::var("DEBEMAIL");
    format!(
        "{} <{}>",
        name.as_deref().unwrap_or("The nvmeof maintainers"),
        mail.as_deref().unwrap_or("nvmeof@packages.invalid")
    )
}

/// The entry of Debian's own changelog.
fn changelog(name: &str, version: &str) -> Outcome<String> {
    // Without a repository, the current time.
    let date = of_commit("%cD").or_else(|_| run::output(run::command("date").arg("-R")))?;
    Ok(format!(
        "{name} ({version}) unstable; urgency=medium\n\n  \
         * Changes: see changelog.gz.\n\n -- {}  {}\n",
        maintainer(),
        date.trim()
    ))
}

/// A property of the current commit.
fn of_commit(format: &str) -> Outcome<String> {
    let mut log = run::command("git");
    log.args(["log", "-1", &format!("--format={format}")]);
    let text = run::output(&mut log)?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Outcome<String> {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&words).map(|options| format!("{options:?}"))
    }

    #[test]
    fn command_line_is_parsed_or_refused() {
        let all = parse("--revision 2 --programs a --output b").unwrap();
        for part in ["Some(2)", "\"a\"", "\"b\""] {
            assert!(all.contains(part), "{all}");
        }
        assert!(parse("--help").unwrap().contains("help: true"));
        for wrong in [
            "now",
            "--revision",
            "--revision 0",
            "--revision x",
            "--output",
        ] {
            assert!(matches!(parse(wrong), Err(Failure::Usage(_))), "{wrong}");
        }
    }

    #[test]
    fn version_is_that_of_the_workspace() {
        let manifest = "[a]\nversion = \"9\"\n[workspace.package]\nversion = \"0.1.0\"\n";
        assert_eq!(version_of(manifest), Some("0.1.0"));
        assert!(version().unwrap().contains('.'));
    }

    #[test]
    fn changelog_has_debian_format() {
        let text = changelog("nvmeof", "1.0-1").unwrap();
        assert!(
            text.starts_with("nvmeof (1.0-1) unstable; urgency="),
            "{text}"
        );
        let (_, trailer) = text.rsplit_once("\n -- ").unwrap();
        assert!(trailer.contains(">  "), "{text}");
    }

    #[test]
    fn quick_start_installs_the_files_that_are_made() {
        let path = run::root().join("docs/quick-start.md");
        let text = fs::read_to_string(path).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("# dpkg -i "));
        let mut named: Vec<_> = line.unwrap().split(' ').map(str::to_owned).collect();
        let version = version().unwrap();
        let file = |package: &Package| format!("build/deb/{}_{version}-1_amd64.deb", package.name);
        let mut made: Vec<_> = PACKAGES.iter().map(file).collect();
        named.sort();
        made.sort();
        assert_eq!(named, made);
    }
}
