//! Manual pages and shell completions from the command line definition of a program.
//!
//! This crate does not know a particular program.
#![forbid(unsafe_code)]

mod markdown;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, Command, Subcommand};
use clap_complete::Shell;
use clap_mangen::Man;

/// Commands that every program of the project has.
#[derive(Clone, Debug, Subcommand)]
pub enum Manual {
    /// Print the completions for a shell
    Completions(Completions),
    /// Write the manual pages to a folder, such as /usr/share/man
    Man(Pages),
}

/// The shell to print completions for.
#[derive(Args, Clone, Debug)]
pub struct Completions {
    /// Shell
    shell: Shell,
}

/// The destination of manual pages.
#[derive(Args, Clone, Debug)]
pub struct Pages {
    /// Destination; its subfolders, such as man8, are created
    folder: PathBuf,
}

/// Texts of a manual besides the command line, in Markdown: headings of the second level,
/// paragraphs, lists, code, links and tables.
#[derive(Clone, Copy, Debug)]
pub struct Contents {
    /// The section of the program's own pages, such as `1` or `8`.
    pub section: u8,
    /// Sections of the program's page: exit status, environment, files, examples, see also.
    pub program: &'static str,
    /// Pages about files.
    pub files: &'static [FilePage],
}

/// The page of a file, in section 5.
#[derive(Clone, Copy, Debug)]
pub struct FilePage {
    /// Its name, such as `nvmeof-target.toml`.
    pub name: &'static str,
    /// Its purpose, in a few words.
    pub about: &'static str,
    /// Its sections. The reference is inserted below the heading `TABLES AND KEYS`.
    pub text: &'static str,
    /// The reference of its keys, with its own headings.
    pub reference: &'static str,
}

/// The section into which the reference is inserted.
const TABLES: &str = "TABLES AND KEYS";

impl Manual {
    /// Runs the command for the program `command`, whose manual has these `contents`.
    ///
    /// # Errors
    /// A write error, which names the file or folder.
    pub fn run(&self, command: Command, contents: &Contents) -> io::Result<()> {
        let mut command = without_help(command);
        match self {
            Self::Completions(completions) => {
                let (name, mut out) = (command.get_name().to_owned(), Vec::new());
                clap_complete::generate(completions.shell, &mut command, name, &mut out);
                io::stdout().write_all(&out)
            }
            Self::Man(pages) => {
                // Gives subcommands the names of their parents.
                command.build();
                let pages = pages.folder.as_path();
                write_pages(&command, &[], contents, pages)?;
                let mut files = contents.files.iter();
                files.try_for_each(|file| write(pages, file.name, 5, &file_page(file)))
            }
        }
    }
}

/// The command without the subcommand `help`, which has no page.
fn without_help(command: Command) -> Command {
    let names: Vec<_> = command
        .get_subcommands()
        .map(|subcommand| subcommand.get_name().to_owned())
        .collect();
    let command = command.disable_help_subcommand(true);
    let recurse = |command: Command, name| command.mut_subcommand(name, without_help);
    names.into_iter().fold(command, recurse)
}

/// Writes the page of `command` and those of its subcommands, such as `nvmeof-read` for
/// `nvmeof read`.
fn write_pages(
    command: &Command,
    parents: &[String],
    contents: &Contents,
    folder: &Path,
) -> io::Result<()> {
    let section = contents.section;
    let name = match parents.last() {
        Some(parent) => format!("{parent}-{}", command.get_name()),
        None => command.get_name().to_owned(),
    };
    let man = Man::new(command.clone())
        .title(&name)
        .section(section.to_string());
    // An empty date keeps the position of the arguments after it.
    let man = man.date("\"\"").source(SOURCE).manual(MANUAL);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if command.get_after_help().is_some() || command.get_after_long_help().is_some() {
        man.render_extra_section(&mut page)?;
    }
    let own = match parents {
        [] => markdown::sections(contents.program).to_owned(),
        _ => of_subcommand(parents, contents),
    };
    page.extend_from_slice(markdown::roff(&own, "SH").as_bytes());
    write(folder, &name, section, &page)?;
    let parents = [parents, &[name]].concat();
    let subcommands = command
        .get_subcommands()
        .filter(|subcommand| !subcommand.is_hide_set());
    for subcommand in subcommands {
        write_pages(subcommand, &parents, contents, folder)?;
    }
    Ok(())
}

/// The own sections of the page of a subcommand: exit status of the program, see also.
fn of_subcommand(parents: &[String], contents: &Contents) -> String {
    let section = contents.section;
    let parents = parents.iter().rev();
    let mut also: Vec<_> = parents.map(|name| format!("`{name}`({section})")).collect();
    also.extend(
        contents
            .files
            .iter()
            .map(|file| format!("`{}`(5)", file.name)),
    );
    let status = markdown::section(contents.program, "EXIT STATUS");
    format!(
        "## EXIT STATUS\n{status}\n## SEE ALSO\n\n{}\n",
        also.join(", ")
    )
}

/// The page of a file.
fn file_page(file: &FilePage) -> Vec<u8> {
    let FilePage {
        name,
        about,
        text,
        reference,
    } = file;
    let text = markdown::roff(markdown::sections(text), "SH");
    let reference = markdown::roff(reference, "SS");
    let heading = format!(".SH {TABLES}\n");
    let text = text.replace(&heading, &format!("{heading}{reference}"));
    let page = format!(
        ".TH {name} 5 \"\" \"{SOURCE}\" \"{MANUAL}\"\n.SH NAME\n{name} \\- {about}\n{text}"
    );
    page.into_bytes()
}

/// The source field of a page.
const SOURCE: &str = concat!("nvmeof ", env!("CARGO_PKG_VERSION"));
/// The title of the manual.
const MANUAL: &str = "NVMe over Fabrics";

/// Writes a page to the folder of its section.
fn write(folder: &Path, name: &str, section: u8, page: &[u8]) -> io::Result<()> {
    let folder = folder.join(format!("man{section}"));
    fs::create_dir_all(&folder).map_err(|error| at(&folder, &error))?;
    let path = folder.join(format!("{name}.{section}"));
    fs::write(&path, page).map_err(|error| at(&path, &error))
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// Shows disks.
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
            /// Its name
            #[arg(long)]
            disk: String,
        },
        #[command(flatten)]
        Manual(Manual),
    }

    #[test]
    fn each_command_has_a_page() {
        use clap::CommandFactory as _;
        let folder = tempfile::tempdir().unwrap();
        let pages = folder.path().join("man");
        let asked = Example::parse_from(["example", "man", pages.to_str().unwrap()]);
        let Asked::Manual(manual) = asked.command else {
            panic!("man is a command of the manual");
        };
        manual.run(Example::command(), &CONTENTS).unwrap();
        let read = |name: &str| fs::read_to_string(pages.join(name)).unwrap();
        let mut names: Vec<_> = fs::read_dir(pages.join("man8"))
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
        let page = read("man8/example-read.8");
        for part in [
            "Its name",
            "\\-\\-disk",
            ".SH EXIT STATUS\n.TP\n\\fB0\\fR\nSuccess.\n",
            ".SH SEE ALSO\n\\fBexample\\fR(8), \\fBexample.toml\\fR(5)\n",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("EXAMPLES"), "{page}");
        let page = read("man8/example.8");
        for part in [
            ".TH example 8 \"\" \"nvmeof",
            "Read a disk",
            ".SH EXAMPLES\n",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        // The command `help` has no page.
        assert!(!page.contains("help(8)"), "{page}");
        let page = read("man5/example.toml.5");
        let tables =
            ".SH TABLES AND KEYS\n.SS [disk]\n.TP\n\\fBsize\\fR (number)\nBytes.\n.SH FILES\n";
        for part in [
            ".TH example.toml 5",
            "example.toml \\- what disks there are",
            tables,
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }

    const CONTENTS: Contents = Contents {
        section: 8,
        program: "## EXIT STATUS\n\n| status | meaning |\n| --- | --- |\n| `0` | Success. |\n\n\
                  ## EXAMPLES\n\nMany.\n",
        files: &[FilePage {
            name: "example.toml",
            about: "what disks there are",
            text: "## TABLES AND KEYS\n\n## FILES\n",
            reference: "## `[disk]`\n\n| key | value | default | meaning |\n\
                        | --- | --- | --- | --- |\n| `size` | number |  | Bytes. |\n",
        }],
    };

    #[test]
    fn error_names_folder_that_cannot_be_created() {
        use clap::CommandFactory as _;
        let manual = Manual::Man(Pages {
            folder: "/proc/no/such/folder".into(),
        });
        let error = manual.run(Example::command(), &CONTENTS).unwrap_err();
        assert!(
            error.to_string().contains("/proc/no/such/folder"),
            "{error}"
        );
    }
}
