//! `cargo xtask release`: builds the static program and writes the files of a release:
//! an archive, a deb, an rpm, an image, an SBOM and checksums.
//!
//! `release/contents.rs` writes what the packages contain, and `release/packages.rs` packs it.
//! RELEASE.md has the steps of a release.

mod contents;
mod packages;
mod sbom;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::package_files::{self as files, Architecture, VERSION};
use crate::static_program::{self, RELEASE_PROFILE};
use crate::{generate, image, shell};

/// Folder of a release.
const RELEASE_FILES: &str = "target/release-files";
/// Folder of the packages and the image that the tests use.
const CHECK_FILES: &str = "target/check-files";
/// Name of the file with the SHA-256 of each other file.
const CHECKSUMS: &str = "SHA256SUMS";

/// Builds with this profile and writes the files of a release, and prints their sizes.
///
/// # Errors
/// Fails if a program is missing, the build fails or a file cannot be written.
pub(crate) fn run(profile: &str) -> Result<()> {
    let folder = shell::root().join(RELEASE_FILES);
    let write_program =
        |program: &Path| static_program::build(profile, Architecture::of_machine()?, program);
    write(&folder, write_program, generate::write_man_pages)?;
    let architecture = Architecture::of_machine()?;
    let sbom = folder.join(format!("weir-{VERSION}-{}.cdx.json", architecture.name()));
    if profile == RELEASE_PROFILE {
        sbom::write(&sbom)?;
    } else {
        println!("no SBOM: only a release with the profile {RELEASE_PROFILE} has one");
    }
    files::write_checksums(&folder, CHECKSUMS)?;
    println!("{RELEASE_FILES}:");
    print!("{}", files::list_sizes(&folder)?);
    Ok(())
}

/// Writes the packages and the image that the tests use.
///
/// # Errors
/// Fails if the tests have built no static program, or a file cannot be written.
pub(crate) fn write_for_check() -> Result<()> {
    let folder = shell::root().join(CHECK_FILES);
    write(&folder, static_program::take_from_tests, generate::write_man_pages_built)?;
    files::write_checksums(&folder, CHECKSUMS)
}

/// Writes archive, deb, rpm and image to `folder`. `write_program` writes the program to the path
/// that it gets, and `write_man_pages` the man pages into the folder that it gets.
fn write(
    folder: &Path,
    write_program: impl FnOnce(&Path) -> Result<()>,
    write_man_pages: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let sources = files::create_empty_folder(&folder.with_extension("contents"))?;
    let program = sources.join("weir");
    write_program(&program)?;
    files::create_empty_folder(folder)?;
    contents::write(&program, &sources, write_man_pages)?;
    packages::write_archive(&sources, folder)?;
    packages::write_packages(&sources, folder)?;
    let architecture = Architecture::of_machine()?;
    let image = format!("weir-{VERSION}-image-{}.tar", architecture.name());
    image::write_archive(architecture, &program, &folder.join(image))
}

/// Copies a file of the repository into a folder, under its own name.
fn copy_into(folder: &Path, file: &str) -> Result<()> {
    let source = shell::root().join(file);
    let name = source.file_name().with_context(|| format!("{file} is no file"))?;
    fs::copy(&source, folder.join(name)).with_context(|| format!("cannot copy {file}"))?;
    Ok(())
}
