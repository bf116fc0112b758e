//! Steps that packages and images share: folders, reproducible archives, checksums, sizes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::shell;

/// Version of the workspace, which all crates share.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// An architecture that programs are built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Architecture {
    Amd64,
    Arm64,
}

impl Architecture {
    /// Returns the architecture of this machine.
    ///
    /// # Errors
    /// Fails if programs are not built for it.
    pub(crate) fn of_machine() -> Result<Architecture> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Architecture::Amd64),
            "aarch64" => Ok(Architecture::Arm64),
            other => bail!("releases are not built for {other}"),
        }
    }

    /// Returns the name that Debian, Go and container images use.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Architecture::Amd64 => "amd64",
            Architecture::Arm64 => "arm64",
        }
    }

    /// Returns Rust's name of the target.
    pub(crate) fn target(self) -> &'static str {
        match self {
            Architecture::Amd64 => "x86_64-unknown-linux-gnu",
            Architecture::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// Returns the name of the GNU toolchain. The names of the toolchain's programs begin with it.
    pub(crate) fn toolchain(self) -> &'static str {
        match self {
            Architecture::Amd64 => "x86_64-linux-gnu",
            Architecture::Arm64 => "aarch64-linux-gnu",
        }
    }
}

/// Creates a folder, or empties it if it exists. Returns its path.
pub(crate) fn create_empty_folder(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder.to_owned())
}

/// Returns the time of the last commit, in seconds since 1970, as text. All files of a release have
/// this time, so that two builds of one commit are equal.
pub(crate) fn read_commit_time() -> Result<String> {
    shell::read_output(Command::new("git").current_dir(shell::root()).args([
        "log",
        "-1",
        "--format=%ct",
    ]))
}

/// Formats the time of the last commit with a format string of `date`.
pub(crate) fn format_commit_date(format: &str) -> Result<String> {
    let time = format!("@{}", read_commit_time()?);
    shell::read_output(
        Command::new("date").env("LC_ALL", "C").args(["--utc", "--date", &time, format]),
    )
}

/// Writes the files and folders `names` of `folder` to a tar archive. The archive does not depend
/// on the machine: its order, owners, modes and times are fixed.
pub(crate) fn write_tar(folder: &Path, names: &[&str], archive: &Path) -> Result<()> {
    let mut command = Command::new("tar");
    command.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    command.args(["--format=gnu", "--mode=u=rwX,go=rX"]);
    command.arg(format!("--mtime=@{}", read_commit_time()?)).arg("--file").arg(archive);
    shell::run(command.arg("--directory").arg(folder).args(names))
}

/// Effort of compression, as an option of gzip.
#[derive(Clone, Copy)]
pub(crate) enum Effort {
    /// The default of gzip. The best compression takes three times as long and saves 1 %.
    Normal,
    /// The best compression, for small files. lintian requires it.
    Best,
}

/// Replaces a file by its compressed form with the ending `.gz`. Returns the new path.
pub(crate) fn compress(file: &Path, effort: Effort) -> Result<PathBuf> {
    // `--no-name` omits the name and the time, so equal input gives equal output.
    let level = match effort {
        Effort::Normal => "-6",
        Effort::Best => "-9",
    };
    shell::run(Command::new("gzip").args(["--force", "--no-name", level]).arg(file))?;
    let mut path = file.as_os_str().to_owned();
    path.push(".gz");
    Ok(PathBuf::from(path))
}

/// Returns the SHA-256 of a file in hexadecimal digits.
pub(crate) fn compute_sha256(file: &Path) -> Result<String> {
    let line = shell::read_output(Command::new("sha256sum").arg("--").arg(file))?;
    let digest = line.split_whitespace().next().unwrap_or_default();
    ensure!(digest.len() == 64, "sha256sum printed {line}");
    Ok(digest.to_owned())
}

/// Writes the file `name` into a folder. It has the SHA-256 of each other file of the folder, in
/// the format of `sha256sum --check`.
pub(crate) fn write_checksums(folder: &Path, name: &str) -> Result<()> {
    let mut text = String::new();
    for file in list_names(folder)?.iter().filter(|file| *file != name) {
        text.push_str(&format!("{}  {file}\n", compute_sha256(&folder.join(file))?));
    }
    fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))
}

/// Returns a line with size and name for each file of a folder.
pub(crate) fn list_sizes(folder: &Path) -> Result<String> {
    let mut text = String::new();
    for file in list_names(folder)? {
        let bytes = folder.join(&file).metadata()?.len();
        text.push_str(&format!("{:>9.2} MB  {file}\n", bytes as f64 / 1e6));
    }
    Ok(text)
}

/// Returns the names of the files in a folder, sorted.
fn list_names(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("no {}", folder.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests;
