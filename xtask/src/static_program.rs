//! Builds `weir` as one file without dynamic libraries, for packages and images.
//!
//! Only the crate of the program is compiled with `+crt-static`, which makes the linker include the
//! C library. The builds of all other crates are shared with ordinary builds of the same profile.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::package_files::Architecture;
use crate::shell;

/// Profile of a release.
pub(crate) const RELEASE_PROFILE: &str = "dist";

/// Builds the program with this profile and writes it, without debug information, to `path`. For an
/// architecture other than that of this machine, the GNU toolchain of that architecture compiles
/// the C code and links.
///
/// # Errors
/// Fails if a tool is missing, the program does not build or it is not static.
pub(crate) fn build(profile: &str, architecture: Architecture, path: &Path) -> Result<()> {
    let is_foreign = architecture != Architecture::of_machine()?;
    let (target, toolchain) = (architecture.target(), architecture.toolchain());
    let compiler = format!("{toolchain}-gcc");
    ensure!(
        !is_foreign || shell::find(&compiler).is_some(),
        "{compiler} is missing: install gcc-{toolchain} and libc6-dev-{}-cross, and run \
         rustup target add {target}",
        architecture.name()
    );
    let mut command = shell::cargo_command();
    if profile == RELEASE_PROFILE {
        // `cargo auditable` adds the list of crates to the program, for vulnerability scanners.
        command.arg("auditable");
    }
    command.args(["rustc", "--package", "weir", "--bin", "weir", "--profile", profile]);
    if is_foreign {
        let variable = target.to_uppercase().replace('-', "_");
        command.env(format!("CARGO_TARGET_{variable}_LINKER"), &compiler);
        command.args(["--target", target]);
    }
    command.args(["--", "-C", "target-feature=+crt-static"]);
    shell::run(&mut command)?;
    let strip = if is_foreign { format!("{toolchain}-strip") } else { "strip".to_owned() };
    strip_program(&strip, &built_path(profile, is_foreign.then_some(target)), path)
}

/// Writes the program that the tests have built, without debug information, to `path`.
///
/// # Errors
/// Fails if the tests have built no program, or it is not static.
pub(crate) fn take_from_tests(path: &Path) -> Result<()> {
    strip_program("strip", &built_path("dev", None), path)
}

/// Writes a built program, without debug information, to `path`, and checks that it is static.
fn strip_program(strip: &str, built: &Path, path: &Path) -> Result<()> {
    shell::run(Command::new(strip).arg("-o").arg(path).arg(built))?;
    check_static(path)
}

/// Returns the path of the program that cargo builds with this profile. `target` is `None` for this
/// machine's target.
fn built_path(profile: &str, target: Option<&str>) -> PathBuf {
    let folder = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let profile = if profile == "dev" { "debug" } else { profile };
    shell::root().join(folder).join(target.unwrap_or_default()).join(profile).join("weir")
}

/// Fails if the program names a dynamic loader or has a fixed address. A fixed address is allowed
/// for arm64.
fn check_static(program: &Path) -> Result<()> {
    let mut command = Command::new("readelf");
    command.args(["--file-header", "--program-headers", "--wide"]).arg(program);
    let headers = shell::read_output(&mut command)?;
    ensure!(!headers.contains("INTERP"), "{} needs a dynamic loader", program.display());
    // rustc links static programs for arm64 at a fixed address.
    let is_movable = headers.contains("DYN") || headers.contains("AArch64");
    ensure!(is_movable, "{} has a fixed address", program.display());
    Ok(())
}
