//! `weir index vacuum`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use index::store::{self, StoreError};

use super::{IndexArgs, format_bytes};

/// Make an index smaller and its searches faster
///
/// Merges the short log postings that following a chain block by block leaves, and rebuilds the
/// file without holes, which temporarily needs space for a second copy. PostgreSQL reuses the space
/// of deleted rows and updates its statistics (VACUUM ANALYZE). No other process may write
/// meanwhile; readers may continue.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir index vacuum --db chain.db

Exit codes: 0 done; 1 it could not be done: nothing is lost; 2 faulty arguments.")]
pub(crate) struct Vacuum {
    #[command(flatten)]
    database: IndexArgs,
}

impl Vacuum {
    pub(crate) fn run(self) -> Result<ExitCode> {
        // Opening a missing index for writing would create it.
        if let Err(error @ StoreError::Missing(_)) =
            store::open_to_read(self.database.at(), self.database.settings()?)
        {
            return Err(error.into());
        }
        let mut store = store::open(self.database.at(), self.database.settings()?)?;
        let before = store.disk_bytes()?;
        let fewer = store.merge_postings()?;
        store.vacuum()?;
        let after = store.disk_bytes()?;
        println!(
            "{}: {} ({before} bytes) before, {} ({after} bytes) after; {fewer} lists of logs joined to \
             others",
            self.database.at(),
            format_bytes(before),
            format_bytes(after),
        );
        Ok(ExitCode::SUCCESS)
    }
}
