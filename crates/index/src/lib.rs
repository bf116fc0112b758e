//! A verified local copy of a chain's immutable data: blocks, transactions, receipts, logs.
//!
//! Reading order: `sync` (copies blocks from nodes, every step in order), `planner` (pure decisions
//! of a sync), `nodes` (calls to nodes), `verify` (checks responses by hashes and roots), `encode`
//! (from JSON to rows), `store` (SQL), `reader` and `search` (from rows to JSON), `serve`
//! (responses to calls), `audit` (integrity of an index), `export` (tables and requests for other
//! tools). These modules share `contents` (properties of an index), `fragments` (parts of a block's
//! JSON), `compression`, `postings` (the search index of logs) and `harmony` (blocks of Harmony
//! chains).
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod audit;
pub mod compression;
pub mod contents;
pub mod encode;
pub mod error;
pub mod export;
pub mod fragments;
pub mod harmony;
pub mod nodes;
pub mod planner;
pub mod postings;
pub mod reader;
pub mod search;
pub mod serve;
pub mod store;
pub mod sync;
pub mod verify;

#[cfg(test)]
mod fixture;
