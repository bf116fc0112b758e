#!/bin/sh
# Compiles like rustc, but links the program `weir` statically: the packages and the image of
# `cargo xtask check` need a static program, and its tests run the same one.
# Cargo calls it as RUSTC_WORKSPACE_WRAPPER: link-statically.sh RUSTC ARGUMENT…
case " $* " in
  *" --crate-name weir "*" --crate-type bin "*) exec "$@" -C target-feature=+crt-static ;;
  *) exec "$@" ;;
esac
