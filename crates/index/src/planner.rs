//! Pure decisions of a sync: which blocks to fetch, how many at once, and when to call a node
//! again. This module uses no clock, socket or file.

pub mod ancestor;
pub mod backoff;
pub mod batch_size;
pub mod range;
pub mod sampling;
pub mod verification;
