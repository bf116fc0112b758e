//! A verified local copy of a chain's immutable data: blocks, transactions, receipts, logs.
//!
//! Reading order: `sync` (the path: every step in order), `planner` (pure decisions), `nodes`
//! (calls to nodes), `verify` (hashes and roots), `encode` (from JSON to rows), `store` (SQL),
//! `reader` and `search` (from rows to JSON), `serve` (responses to calls), `audit` (integrity of
//! an index), `export` (tables and requests for other tools).
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod contents;

pub mod planner;

pub mod postings;

pub mod compression;

pub mod fragments;

pub mod harmony;

mod tls;

pub mod nodes;

pub mod verify;

pub mod store;

pub mod encode;

pub mod error;

pub mod search;

pub mod reader;

pub mod serve;

pub mod audit;

pub mod export;

pub mod sync;

#[cfg(test)]
mod fixture;
