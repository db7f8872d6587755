//! What a program's command line definition makes besides its help: manual
//! pages and shell completions.
#![forbid(unsafe_code)]

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, Command, Subcommand};
use clap_complete::Shell;
use clap_mangen::Man;

/// Commands that every program of ours has.
#[derive(Clone, Debug, Subcommand)]
pub enum Manual {
    /// Print the completions for a shell
    Completions(Completions),
    /// Write the manual pages into a folder
    Man(Pages),
}

/// Which completions.
#[derive(Args, Clone, Debug)]
pub struct Completions {
    /// Shell that is to complete
    shell: Shell,
}

/// Where manual pages go.
#[derive(Args, Clone, Debug)]
pub struct Pages {
    /// Folder, made if it is not there
    folder: PathBuf,
}

impl Manual {
    /// Prints or writes what was asked for, about the program `command`, whose
    /// pages are of `section` of the manual.
    ///
    /// # Errors
    /// When it cannot be written; the error names what could not.
    pub fn run(&self, mut command: Command, section: &str) -> io::Result<()> {
        match self {
            Self::Completions(completions) => {
                let (name, mut out) = (command.get_name().to_owned(), Vec::new());
                clap_complete::generate(completions.shell, &mut command, name, &mut out);
                io::stdout().write_all(&out)
            }
            Self::Man(pages) => {
                fs::create_dir_all(&pages.folder).map_err(|error| at(&pages.folder, &error))?;
                // Names of subcommands with those of their parents.
                command.build();
                let name = command.get_name().to_owned();
                write_pages(&command, &name, section, &pages.folder)
            }
        }
    }
}

/// The page of `command` and those of its subcommands, `nvmeof-read` being
/// that of `nvmeof read`.
fn write_pages(command: &Command, name: &str, section: &str, folder: &Path) -> io::Result<()> {
    let path = folder.join(format!("{name}.{section}"));
    let mut page = Vec::new();
    Man::new(command.clone())
        .title(name)
        .section(section)
        .source(format!("nvmeof {}", env!("CARGO_PKG_VERSION")))
        .manual("NVMe over Fabrics")
        .render(&mut page)?;
    fs::write(&path, page).map_err(|error| at(&path, &error))?;
    let subcommands = command.get_subcommands();
    for one in subcommands.filter(|one| one.get_name() != "help" && !one.is_hide_set()) {
        let name = format!("{name}-{}", one.get_name());
        write_pages(one, &name, section, folder)?;
    }
    Ok(())
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// Tells of disks.
    #[derive(Parser)]
    #[command(name = "example")]
    struct Example {
        #[command(subcommand)]
        command: Asked,
    }

    #[derive(Subcommand)]
    enum Asked {
        /// Read a disk
        Read {
            /// Which one
            #[arg(long)]
            disk: String,
        },
        #[command(flatten)]
        Manual(Manual),
    }

    #[test]
    fn there_is_a_page_for_each_command() {
        use clap::CommandFactory as _;
        let folder = tempfile::tempdir().unwrap();
        let pages = folder.path().join("man");
        let asked = Example::parse_from(["example", "man", pages.to_str().unwrap()]);
        let Asked::Manual(manual) = asked.command else {
            panic!("man is a command of the manual");
        };
        manual.run(Example::command(), "8").unwrap();
        let mut names: Vec<_> = fs::read_dir(&pages)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let expected = [
            "example-completions.8",
            "example-man.8",
            "example-read.8",
            "example.8",
        ];
        assert_eq!(names, expected);
        let page = fs::read_to_string(pages.join("example-read.8")).unwrap();
        assert!(
            page.contains("Which one") && page.contains("\\-\\-disk"),
            "{page}"
        );
        let page = fs::read_to_string(pages.join("example.8")).unwrap();
        assert!(
            page.contains(".TH example 8") && page.contains("Read a disk"),
            "{page}"
        );
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        use clap::CommandFactory as _;
        let manual = Manual::Man(Pages {
            folder: "/proc/no/such/folder".into(),
        });
        let error = manual.run(Example::command(), "1").unwrap_err();
        assert!(
            error.to_string().contains("/proc/no/such/folder"),
            "{error}"
        );
    }
}
