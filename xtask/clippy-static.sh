#!/bin/sh
# Compiles like clippy.sh, but links the program `weir` statically: the packages and the image of
# `cargo xtask check` need a static program, and its tests run the same one.
case " $* " in
  *" --crate-name weir "*" --crate-type bin "*) set -- "$@" -C target-feature=+crt-static ;;
esac
exec "$(dirname "$0")/clippy.sh" "$@"
