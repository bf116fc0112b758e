//! Formats numbers and writes the sentences of results and reports.

pub(crate) mod assessment;
pub(crate) mod bottleneck;
pub(crate) mod capacity;
pub(crate) mod checks;
pub(crate) mod comparability;
pub(crate) mod conclude;
pub(crate) mod difference;
pub(crate) mod equal;
pub mod number;
pub mod probe;
pub(crate) mod target;
pub(crate) mod transactions;
pub(crate) mod verdict;
