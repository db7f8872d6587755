//! Checks of the crates with unsafe code by tools that check each memory access:
//! AddressSanitizer, and Miri where it is installed.

use std::path::Path;

use crate::run::{self, Outcome};

/// The crates with unsafe code, and their main users. The stand-in for RDMA devices runs the
/// provider for these.
const CRATES: &str = "-p nvmeof-memory -p nvmeof-uring -p nvmeof-rdma-shm -p nvmeof-verbs-standin \
                      --lib --tests";
/// The crates that Miri supports: it has anonymous mappings, but no io_uring.
const FOR_MIRI: &str = "-p nvmeof-memory --lib";

/// Runs their tests with AddressSanitizer. Its runtime is part of the stable toolchain, but
/// the flag is unstable.
pub(crate) fn address_sanitizer() -> Outcome {
    let host = run::host()?;
    if !has_runtime(&host) {
        println!("skipped: this toolchain has no AddressSanitizer runtime for {host}");
        return Ok(());
    }
    // With an explicit target, build scripts and macros are not instrumented.
    let mut test = run::cargo(&format!(
        "test --locked --no-fail-fast --target {host} {CRATES}"
    ));
    test.env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=address -Cdebuginfo=1")
        // A loom model that panics, as expected in some tests, leaks memory of its threads.
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .env("CARGO_TARGET_DIR", run::build_dir().join("asan"));
    run::run(&mut test)
}

/// Runs the tests that Miri supports, if it is installed.
pub(crate) fn miri() -> Outcome {
    if run::output(&mut run::cargo("miri --version")).is_err() {
        println!(
            "skipped: this toolchain has no Miri, which is part of nightly toolchains only \
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
