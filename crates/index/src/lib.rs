//! A verified local copy of a chain's immutable data: blocks, transactions, receipts, logs.
//!
//! Reading order: `sync` (the path: every step in order), `rules` (decisions), `nodes` (asking),
//! `verify` (hashes and roots), `store` (SQL), `serve` (answers), `audit` (is the file sound),
//! `export` (tables and requests for other tools).
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod audit;
pub mod cut;
pub mod export;
pub mod harmony;
pub mod nodes;
pub mod pack;
pub mod pieces;
pub mod places;
pub mod reader;
pub mod rules;
#[cfg(test)]
mod sample;
pub mod search;
pub mod serve;
pub mod store;
pub mod sync;
mod tls;
pub mod verify;
