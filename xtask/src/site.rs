//! `cargo xtask docs`: builds the site from docs/ with mdBook.
//!
//! `docs/SUMMARY.md` has the order of the pages; that it lists every page, and that links lead
//! somewhere, is checked without mdBook (`tidy/book.rs`, `tidy/paths.rs`).

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::shell;

/// Where the built site lies, below the root.
const SITE: &str = "target/site";
/// Where `cargo xtask check` puts mdBook if the machine has none, below the root.
pub(crate) const FETCHED: &str = "target/mdbook";

/// Builds the site and prints its address.
///
/// # Errors
/// If mdBook is missing, or finds a fault in a page.
pub(crate) fn build() -> Result<()> {
    let mdbook = find().context(
        "mdbook is missing. Install it and try again: cargo install mdbook --version 0.5.4 \
         --locked --no-default-features --features search",
    )?;
    let site = shell::root().join(SITE);
    let out = Command::new(mdbook)
        .arg("build")
        .arg(shell::root().join("docs"))
        .arg("--dest-dir")
        .arg(&site)
        .output()
        .context("cannot run mdbook")?;
    let log = String::from_utf8_lossy(&out.stderr);
    // mdBook only warns of HTML that it cannot read, and drops it.
    let sound = out.status.success() && !log.contains("WARN") && !log.contains("ERROR");
    ensure!(sound, "mdbook found faults in docs/:\n{log}");
    println!("docs: the site is at file://{}/index.html", site.display());
    Ok(())
}

/// The machine's mdBook, or the one that the check has fetched.
pub(crate) fn find() -> Option<PathBuf> {
    let fetched = shell::root().join(FETCHED).join("bin/mdbook");
    shell::find("mdbook").or_else(|| fetched.is_file().then_some(fetched))
}
