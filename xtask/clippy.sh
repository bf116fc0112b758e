#!/bin/sh
# Compiles like rustc, with Clippy's lints, and denies warnings: one build compiles and lints.
# Cargo calls it as RUSTC_WORKSPACE_WRAPPER: clippy.sh RUSTC ARGUMENT…
exec clippy-driver "$@" --deny warnings
