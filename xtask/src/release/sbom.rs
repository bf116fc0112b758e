//! Writes the SBOM: every crate of the program with version, license and hash, as CycloneDX.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::package_files;
use crate::shell;

/// Name of the file that cargo-cyclonedx writes beside each manifest, without its ending.
const NAME: &str = "weir-sbom";

/// Writes the SBOM of the program to `path`.
pub(super) fn write(path: &Path) -> Result<()> {
    let mut command = shell::cargo_command();
    command.args(["cyclonedx", "--format", "json", "--spec-version", "1.5", "--describe"]);
    command.args(["binaries", "--override-filename", NAME, "--quiet"]);
    command.args(["--manifest-path", "crates/weir/Cargo.toml"]);
    command.env("SOURCE_DATE_EPOCH", package_files::commit_time()?);
    shell::run(&mut command)?;
    // It writes a file for each crate of the workspace.
    for entry in fs::read_dir(shell::root().join("crates"))? {
        let written = entry?.path().join(format!("{NAME}.json"));
        if written.parent().is_some_and(|folder| folder.ends_with("weir")) {
            fs::copy(&written, path).with_context(|| format!("no {}", written.display()))?;
        }
        if written.exists() {
            fs::remove_file(written)?;
        }
    }
    Ok(())
}
