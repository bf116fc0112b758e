//! Pure decisions of a sync: no clock, socket or file.

pub mod ancestor;
pub mod backoff;
pub mod batch_size;
pub mod range;
pub mod sampling;
pub mod verification;
