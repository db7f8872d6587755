#!/bin/sh
# rustdoc for `listing`: its JSON output is unstable, and the variable permits it in a stable
# toolchain. Cargo itself runs without the variable: with it, cargo would build everything again.
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
