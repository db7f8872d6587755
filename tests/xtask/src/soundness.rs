//! Checks of the unsafe crates by tools that watch every access to memory:
//! AddressSanitizer, and Miri where it is installed.

use std::path::Path;

use crate::run::{self, Outcome};

/// The crates with unsafe code that need no device, and who uses them most.
const CRATES: &str = "-p nvmeof-memory -p nvmeof-uring -p nvmeof-rdma-shm --lib --tests";
/// Those that Miri can run: it knows anonymous mappings, and no io_uring.
const FOR_MIRI: &str = "-p nvmeof-memory --lib";

/// Runs their tests with AddressSanitizer, whose runtime comes with the stable
/// toolchain; the flag that asks for it is an unstable one.
pub(crate) fn address_sanitizer() -> Outcome {
    let host = run::host()?;
    if !has_runtime(&host) {
        println!("skipped: this toolchain has no runtime of AddressSanitizer for {host}");
        return Ok(());
    }
    // A target of its own keeps build scripts and macros out of it.
    let mut test = run::cargo(&format!(
        "test --locked --no-fail-fast --target {host} {CRATES}"
    ));
    test.env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=address -Cdebuginfo=1")
        // A model of loom that panics, as some are to, keeps its threads' memory.
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .env("CARGO_TARGET_DIR", run::build_dir().join("asan"));
    run::run(&mut test)
}

/// Runs with Miri what it can run, where it is installed.
pub(crate) fn miri() -> Outcome {
    if run::output(&mut run::cargo("miri --version")).is_err() {
        println!(
            "skipped: no Miri in this toolchain; it comes with nightly ones alone \
             (`rustup +nightly component add miri`, then RUSTUP_TOOLCHAIN=nightly)"
        );
        return Ok(());
    }
    let mut test = run::cargo(&format!("miri test --locked {FOR_MIRI}"));
    run::run(test.env("MIRIFLAGS", "-Zmiri-disable-isolation"))
}

fn has_runtime(host: &str) -> bool {
    let Ok(root) = run::output(run::command("rustc").args(["--print", "sysroot"])) else {
        return false;
    };
    let folder = Path::new(root.trim()).join(format!("lib/rustlib/{host}/lib"));
    std::fs::read_dir(folder).is_ok_and(|mut files| {
        files.any(|file| file.is_ok_and(|file| file.file_name().to_string_lossy().contains("asan")))
    })
}
