//! The configurations that the documents show.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::path::Path;

use nvmeof_e2e::{Run, Setup, image, target_command};

/// The blocks of a document that are TOML.
fn toml_blocks(document: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(document);
    let text = std::fs::read_to_string(path).unwrap();
    let after_fences = text.split("```toml\n").skip(1);
    after_fences
        .map(|rest| rest.split("```").next().unwrap().to_owned())
        .collect()
}

const NULL_DISK: &str = "\n[[subsystem]]\nnqn = \"nqn.2026-11.org.example:disk\"\n\
                         allow_any_host = true\n\
                         [[subsystem.namespace]]\nnsid = 1\npath = \"null:1M\"\n";

#[test]
fn every_configuration_shown_is_good() {
    for document in ["README.md", "docs/configuration.md"] {
        let blocks = toml_blocks(document);
        assert!(!blocks.is_empty(), "{document} shows none");
        for block in blocks {
            let setup = Setup::new();
            let disk = setup.path("disk.img");
            image(&disk, 1, 1 << 20);
            // Only where things are differs from machine to machine.
            let mut text = block;
            for shown in ["/tmp/disk.img", "/srv/disk.img"] {
                text = text.replace(shown, &disk.display().to_string());
            }
            // What shows ports alone has nothing to serve.
            if !text.contains("[[subsystem]]") {
                text.push_str(NULL_DISK);
            }
            let sockets = setup.path("");
            text = text.replace("/run/nvmeof/", &sockets.display().to_string());
            let file = setup.path("shown.toml");
            std::fs::write(&file, text.replace("4420", "0")).unwrap();
            let mut check = target_command();
            check.arg("check-config").arg(&file);
            Run::new(check).ok();
        }
    }
}
