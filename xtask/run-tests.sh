#!/bin/sh
# Runs a test program for cargo: run-tests.sh PROGRAM ARGUMENT…
# The test harness reports times only with unstable options, which RUSTC_BOOTSTRAP allows to the test
# programs but not to the compiler.
# The tests of gateway and index mostly wait, so three of them run at once per two cores. Those of the
# lab measure, and more of them would disturb each other.
case $(basename "$1") in
  gateway-* | index-*) export RUST_TEST_THREADS=$((($(nproc) * 3 + 1) / 2)) ;;
esac
export RUSTC_BOOTSTRAP=1
exec "$@"
