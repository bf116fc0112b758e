//! Writes the SBOM (software bill of materials): every crate of the program with version, license
//! and hash, as CycloneDX.

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
    command.args(["cyclonedx", "--format", "json", "--spec-version", "1.5", "--quiet"]);
    command.args(["--override-filename", NAME, "--manifest-path", "crates/weir/Cargo.toml"]);
    command.env("SOURCE_DATE_EPOCH", package_files::read_commit_time()?);
    shell::run(&mut command)?;
    let file = format!("{NAME}.json");
    let written = shell::root().join("crates/weir").join(&file);
    let text = fs::read_to_string(&written).with_context(|| format!("no {}", written.display()))?;
    // The references of our own crates contain the path of the repository on this machine.
    fs::write(path, text.replace(&shell::root().display().to_string(), ""))?;
    // cargo-cyclonedx writes a file for each crate of the workspace; all of them are removed.
    let mut folders = vec![shell::root().join("xtask")];
    for entry in fs::read_dir(shell::root().join("crates"))? {
        folders.push(entry?.path());
    }
    for file in folders.iter().map(|folder| folder.join(&file)).filter(|file| file.exists()) {
        fs::remove_file(file)?;
    }
    Ok(())
}
