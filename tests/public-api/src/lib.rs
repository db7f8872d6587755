//! Lists of the public items of crates, from the JSON output of rustdoc.
//!
//! It lists names and signatures, and the traits that each type implements. It does not list
//! documentation, values of constants, bounds of implementations, hidden items, or what an item
//! does. It does not decide whether a change is compatible.
#![forbid(unsafe_code)]

mod condense;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use condense::Item;

/// A crate with a list.
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    /// Its name.
    pub package: &'static str,
    /// Its folder, relative to the root of the repository. `api.txt` in it has the list.
    pub folder: &'static str,
    /// The features to enable: none that changes the public API by a type of its own.
    pub features: &'static str,
    /// The external crates of types in its signatures.
    pub externals: &'static [&'static str],
}

/// `nvmeof-initiator` and the crates that it exports.
pub const LISTED: &[Listed] = &[
    Listed {
        package: "nvmeof-initiator",
        folder: "initiator/client",
        features: "async,iwarp,shm",
        externals: &[],
    },
    Listed {
        package: "nvmeof-initiator-core",
        folder: "initiator/core",
        features: "",
        externals: &[],
    },
    Listed {
        package: "nvmeof-dhchap",
        folder: "common/dhchap",
        features: "",
        externals: &["zeroize"],
    },
    Listed {
        package: "nvmeof-memory",
        folder: "common/memory",
        features: "",
        externals: &["nix"],
    },
    Listed {
        package: "nvmeof-rdma",
        folder: "common/rdma",
        features: "",
        externals: &["bitflags"],
    },
    Listed {
        package: "nvmeof-wire",
        folder: "common/wire",
        features: "",
        externals: &["bitflags", "zerocopy"],
    },
];

/// The root folder of the repository.
#[must_use]
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// Builds the documentation of a crate of this repository as JSON, and lists its public items.
///
/// # Errors
/// The crate does not build, or rustdoc and the library that reads its output have different
/// versions of the format.
pub fn listing(listed: &Listed) -> Result<String, String> {
    let Listed {
        package, features, ..
    } = listed;
    let build = build_dir();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(root())
        .args(["rustdoc", "--quiet", "--locked", "--lib", "-p", package])
        .args(["--no-default-features", "--features", features])
        .arg("--target-dir")
        .arg(&build)
        .args(["--", "-Zunstable-options", "--output-format=json"])
        .env("RUSTDOC", root().join("tests/public-api/rustdoc.sh"))
        .status()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    if !status.success() {
        return Err(format!("{package}: cargo rustdoc: {status}"));
    }
    let json = format!("doc/{}.json", package.replace('-', "_"));
    list(&build.join(json))
}

/// The external crates of types in a list, without the standard library.
#[must_use]
pub fn external_crates(list: &str) -> BTreeSet<&str> {
    let words = list.split(|c: char| !(c.is_alphanumeric() || "_:".contains(c)));
    let crates = words.filter_map(|word| Some(word.split_once("::")?.0));
    let is_own = |name: &str| name.starts_with("nvmeof_");
    crates
        .filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
        .filter(|name| !is_own(name) && !["alloc", "core", "std"].contains(name))
        .collect()
}

/// The build folder of the workspace: `build`, unless `CARGO_TARGET_DIR` is set.
fn build_dir() -> PathBuf {
    let chosen = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| OsString::from("build"));
    root().join(chosen)
}

/// Lists the items in a JSON file of rustdoc, one line each, sorted by module and type.
///
/// # Errors
/// The file cannot be read, or has another version of the format.
fn list(json: &Path) -> Result<String, String> {
    // Every type has blanket implementations, and no change of this project changes them.
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .build()
        .map_err(|error| {
            format!(
                "{}: {error}; choose the version of the crate public-api that reads the format \
                 of this toolchain",
                json.display()
            )
        })?;
    let items = api.items();
    let items = items.map(|item| Item {
        id: item.id(),
        parent: item.parent_id(),
        text: item.to_string(),
    });
    Ok(condense::lines(&items.collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_crates_are_found_in_signatures() {
        let list = "pub fn nvmeof_a::B::c(&self, &mut tokio::net::TcpStream) -> Self::D\n\
                    pub nvmeof_a::B::e: core::option::Option<zerocopy::U16>\n";
        assert_eq!(external_crates(list), BTreeSet::from(["tokio", "zerocopy"]));
    }
}
