//! `weir index vacuum`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use index::store::Store;

use super::{Database, shown_bytes};

/// Make a file smaller, and its searches faster
///
/// Joins the short lists of logs that following a chain block by block leaves, and rebuilds the file
/// without holes. It needs room for a second copy meanwhile, and to be the only writer; readers may
/// go on.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir index vacuum --db chain.db

Exit codes: 0 done; 1 it could not be done: the file is as it was; 2 faulty arguments.")]
pub(crate) struct Vacuum {
    #[command(flatten)]
    database: Database,
}

impl Vacuum {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if !self.database.path.exists() {
            // To open it for writing would make it.
            Store::open_to_read(&self.database.path, self.database.settings())?;
        }
        let mut store = Store::open(&self.database.path, self.database.settings())?;
        let before = store.disk_bytes();
        let fewer = store.merge_lists()?;
        store.vacuum()?;
        let after = store.disk_bytes();
        println!(
            "{}: {} ({before} bytes) before, {} ({after} bytes) after; {fewer} lists of logs joined to \
             others",
            self.database.path.display(),
            shown_bytes(before),
            shown_bytes(after),
        );
        Ok(ExitCode::SUCCESS)
    }
}
