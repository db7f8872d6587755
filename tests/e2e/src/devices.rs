//! RDMA devices for the programs of a test: those of `tests/verbs-standin`, a separate one for
//! each side.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use nvmeof_verbs_standin::VARIABLE;

/// Devices of one test, which reach each other and no other ones.
#[derive(Clone, Debug)]
pub struct Devices {
    /// The libraries by their names.
    libraries: PathBuf,
    /// The sockets of listeners.
    links: PathBuf,
    settings: String,
}

/// The sides of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Target,
    Host,
}

impl Side {
    /// The name and the address of its device.
    fn device(self) -> (&'static str, &'static str) {
        match self {
            Self::Target => ("target0", Devices::TARGET),
            Self::Host => ("host0", Devices::HOST),
        }
    }
}

impl Devices {
    /// The address of the target's device.
    pub const TARGET: &str = "10.77.0.1";
    /// The address of the hosts' device.
    const HOST: &str = "10.77.0.2";

    /// Devices with these settings, with what they need in `folder`.
    #[must_use]
    pub fn new(folder: &Path, settings: &str) -> Self {
        let [libraries, links] = ["libraries", "links"].map(|name| folder.join(name));
        for folder in [&libraries, &links] {
            std::fs::create_dir_all(folder).unwrap();
        }
        for name in ["libibverbs.so.1", "librdmacm.so.1"] {
            let link = libraries.join(name);
            let _ = std::fs::remove_file(&link);
            symlink(shared_object(), link).unwrap();
        }
        Self {
            libraries,
            links,
            settings: settings.to_owned(),
        }
    }

    /// Gives a program the device of its side.
    pub(crate) fn give(&self, command: &mut Command, side: Side) {
        let (name, addr) = side.device();
        let links = self.links.display();
        let device = format!("{name} {} addr={addr} links={links}", self.settings);
        command
            .env("LD_LIBRARY_PATH", &self.libraries)
            .env(VARIABLE, device);
    }
}

/// The shared object, which cargo builds beside the tests.
fn shared_object() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let mut folders = tests.ancestors().skip(1).take(2);
    let file = folders.find_map(|folder| {
        let file = folder.join("libnvmeof_verbs_standin.so");
        file.exists().then_some(file)
    });
    file.expect("cargo built the shared object")
}
