//! Studies: runs arranged to answer one question. Here: which of several arms syncs faster, and why.
//!
//! Order of a study: courses are read (`study/read.rs`: logs, tables, samples), polled
//! (`study/poll.rs`: running nodes) or made (`study/runner.rs`, by a file of `study/file.rs`);
//! [`analyse()`] turns them into a [`StudyResult`](lab_model::results::study::StudyResult), in which nothing is decided that is not in
//! `analysis/sync.rs`; reports are `report/study.rs`.

mod analyse;
mod fault;
pub mod file;
pub mod poll;
pub mod read;
pub mod runner;

#[cfg(test)]
pub(crate) mod tests;

pub use analyse::{Options, analyse};
pub use fault::StudyFault;
