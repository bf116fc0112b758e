//! `cargo xtask docs`: builds the site from docs/ with mdBook.
//!
//! `docs/SUMMARY.md` lists the pages in order. `tidy/book.rs` and `tidy/paths.rs` check that list
//! and all links without mdBook.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::shell;

/// Folder of the built site, relative to the root.
const SITE: &str = "target/site";

/// Builds the site and prints its address.
///
/// # Errors
/// Fails if mdBook is missing, or reports a problem in a page.
pub(crate) fn build() -> Result<()> {
    let mdbook = shell::find("mdbook").context(
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
    // mdBook drops HTML that it cannot parse, with only a warning.
    let clean = out.status.success() && !log.contains("WARN") && !log.contains("ERROR");
    ensure!(clean, "mdbook reports problems in docs/:\n{log}");
    println!("docs: the site is at file://{}/index.html", site.display());
    Ok(())
}
