//! Packs the archive, the deb and the rpm.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::contents::MAINTAINER;
use super::copy_into;
use crate::package_files::{self as files, Architecture, Effort, VERSION};
use crate::shell;

/// Files and folders that the archive contains, relative to the folder of the packages' sources.
const ARCHIVED: &[&str] = &[
    "weir",
    "weir.service",
    "gateway.toml",
    "examples",
    "man",
    "completions",
    "CHANGELOG.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
];
/// The scripts that package managers run on installation and removal.
const SCRIPTS: &[&str] =
    &["deb.postinst", "deb.prerm", "deb.postrm", "rpm.post", "rpm.preun", "rpm.postun"];

/// Writes `weir-VERSION-linux-ARCH.tar.gz`. The archive contains one folder with all files.
pub(super) fn write_archive(sources: &Path, folder: &Path) -> Result<()> {
    let name = format!("weir-{VERSION}-linux-{}", Architecture::of_machine()?.name());
    let parent = files::create_empty_folder(&sources.join("archive"))?;
    let inside = files::create_empty_folder(&parent.join(&name))?;
    for file in ARCHIVED {
        let mut command = Command::new("cp");
        shell::run(command.args(["--recursive", "--"]).arg(sources.join(file)).arg(&inside))?;
    }
    let archive = folder.join(format!("{name}.tar"));
    files::write_tar(&parent, &[&name], &archive)?;
    fs::remove_dir_all(&parent)?;
    files::compress(&archive, Effort::Normal).map(drop)
}

/// Writes the deb and the rpm, as `deploy/packages/nfpm.yaml` describes them.
pub(super) fn write_packages(sources: &Path, folder: &Path) -> Result<()> {
    let nfpm = shell::find("nfpm").context("nfpm is missing; cargo xtask release installs it")?;
    copy_into(sources, "deploy/packages/nfpm.yaml")?;
    for script in SCRIPTS {
        copy_into(sources, &format!("deploy/packages/{script}"))?;
    }
    for packager in ["deb", "rpm"] {
        let mut command = Command::new(&nfpm);
        command.current_dir(sources).args(["package", "--packager", packager, "--target"]);
        command.arg(folder).env("VERSION", VERSION).env("ARCH", Architecture::of_machine()?.name());
        command.env("MAINTAINER", MAINTAINER).env("SOURCE_DATE_EPOCH", files::read_commit_time()?);
        shell::read_output(&mut command)?;
    }
    Ok(())
}
