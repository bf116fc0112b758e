//! `weir index vacuum`. Log postings are the inverted index for log searches (`index::postings`).

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use index::store::{self, StoreError};

use super::{IndexArgs, format_bytes};

/// Compact an index, so that it is smaller and its searches are faster
///
/// Merges short log postings, which accumulate while a sync follows the chain block by block. Then
/// rebuilds the file without holes, which temporarily needs space for a second copy. A PostgreSQL
/// server instead reuses the space of deleted rows and updates its statistics (VACUUM ANALYZE). No
/// other process may write meanwhile; readers may continue.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir index vacuum --db chain.db

Exit codes: 0 done; 1 failed, without loss of data; 2 faulty arguments.")]
pub(crate) struct Vacuum {
    #[command(flatten)]
    database: IndexArgs,
}

impl Vacuum {
    pub(crate) fn run(self) -> Result<ExitCode> {
        // Opening a missing index for writing would create it.
        if let Err(error @ StoreError::Missing(_)) =
            store::open_to_read(&self.database.db, self.database.settings()?)
        {
            return Err(error.into());
        }
        let mut store = store::open(&self.database.db, self.database.settings()?)?;
        let old_bytes = store.disk_bytes()?;
        let merged = store.merge_postings()?;
        store.vacuum()?;
        let new_bytes = store.disk_bytes()?;
        println!(
            "{}: {} ({old_bytes} bytes) before, {} ({new_bytes} bytes) after; {merged} log postings merged \
             into others",
            self.database.db,
            format_bytes(old_bytes),
            format_bytes(new_bytes),
        );
        Ok(ExitCode::SUCCESS)
    }
}
