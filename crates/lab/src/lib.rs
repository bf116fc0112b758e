//! The lab: load runs, capacity searches, comparisons and studies of JSON-RPC servers. It talks to
//! the measured servers over sockets only, and imports neither the gateway nor the index.
//!
//! Reading order: `run` (the steps of a run), `analysis` (decisions), `wording` (sentences about
//! the decisions), `report` (results as documents).
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod analysis;
pub mod assessment;
pub mod capabilities;
pub mod capacity;
pub mod compare;
pub mod equal;
pub mod export;
mod fingerprint;
pub mod import;
mod inclusion;
pub mod live;
pub mod probe;
mod reference;
pub mod report;
pub mod run;
pub mod self_check;
pub mod study;
pub mod target;
pub mod variant;
pub mod wording;

/// Returns the items without repetitions, in the order of their first occurrence.
pub(crate) fn distinct<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut distinct_items = Vec::new();
    for item in items {
        if !distinct_items.contains(&item) {
            distinct_items.push(item);
        }
    }
    distinct_items
}
