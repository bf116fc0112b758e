//! Sync studies. A *variant* is one of the compared ways to sync a chain, for example a node with
//! one setting. A sync study has runs of each variant. It answers the question: which variant syncs
//! faster, and why?
//!
//! The runs of a study are read from files (`study/read.rs`), polled from running nodes
//! (`study/poll.rs`), or started by a study file (`study/runner.rs`, `study/file.rs`).
//! [`analyse()`] turns them into a [`StudyResult`](lab_model::results::study::StudyResult) by the
//! rules of `analysis/sync.rs`. `report/study.rs` writes the reports. `study/load.rs` has the
//! studies of load runs.

use std::io;
use std::path::Path;

mod analyse;
mod fault;
pub mod file;
pub mod load;
pub mod poll;
pub mod read;
pub mod runner;

#[cfg(test)]
pub(crate) mod tests;

pub use analyse::{Options, analyse};
pub use fault::StudyFault;

/// Removes a folder with its contents, if it exists.
fn remove_folder(folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
