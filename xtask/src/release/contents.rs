//! Writes the files that the packages contain: man pages, shell completions, the systemd unit,
//! examples.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::copy_into;
use crate::package_files::{self as files, Effort, VERSION};
use crate::shell;

/// Files of the repository that the packages contain, or that describe the packages.
const FILES: &[&str] = &[
    "CHANGELOG.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "deploy/packages/copyright",
    "deploy/packages/gateway.toml",
    "deploy/packages/lintian-overrides",
    "deploy/packages/sysusers.conf",
];
/// Maintainer of the packages.
pub(super) const MAINTAINER: &str = "The Weir authors <weir@users.noreply.github.com>";

/// Writes all files except the program into `folder`.
///
/// `write_man_pages` writes the man pages into the folder that it gets.
pub(super) fn write(
    program: &Path,
    folder: &Path,
    write_man_pages: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    for file in FILES {
        copy_into(folder, file)?;
    }
    let man = files::create_empty_folder(&folder.join("man"))?;
    write_man_pages(&man)?;
    let pages = fs::read_dir(&man)?.collect::<Result<Vec<_>, _>>()?;
    for page in pages {
        files::compress(&page.path(), Effort::Best)?;
    }
    write_completions(program, &files::create_empty_folder(&folder.join("completions"))?)?;
    let examples = files::create_empty_folder(&folder.join("examples"))?;
    for entry in fs::read_dir(shell::root().join("examples"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".toml") {
            copy_into(&examples, &format!("examples/{name}"))?;
        }
    }
    write_unit(folder)?;
    write_changelog(folder)
}

fn write_completions(program: &Path, folder: &Path) -> Result<()> {
    for (shell, name) in [("bash", "weir.bash"), ("fish", "weir.fish"), ("zsh", "_weir")] {
        let script = shell::read_output(Command::new(program).args(["completions", shell]))?;
        fs::write(folder.join(name), script + "\n")?;
    }
    Ok(())
}

/// Writes the systemd unit with the path at which packages install the program.
fn write_unit(folder: &Path) -> Result<()> {
    let unit = fs::read_to_string(shell::root().join("deploy/systemd/weir.service"))
        .context("cannot read the unit")?;
    ensure!(unit.contains("=/usr/local/bin/weir "), "the unit does not run /usr/local/bin/weir");
    let unit = unit.replace("=/usr/local/bin/weir ", "=/usr/bin/weir ");
    Ok(fs::write(folder.join("weir.service"), unit)?)
}

/// Writes a changelog in Debian's format that refers to CHANGELOG.md.
fn write_changelog(folder: &Path) -> Result<()> {
    let date = files::format_commit_date("+%a, %d %b %Y %H:%M:%S +0000")?;
    let text = format!(
        "weir ({VERSION}) unstable; urgency=medium\n\n  * CHANGELOG.md of the release lists the \
         changes.\n\n -- {MAINTAINER}  {date}\n"
    );
    fs::write(folder.join("changelog"), text)?;
    files::compress(&folder.join("changelog"), Effort::Best).map(drop)
}
