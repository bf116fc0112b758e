//! The speed of this machine: the time of a fixed computation on one core, measured before each
//! run. If it drifts during a study, the machine was not the same for all rounds.

use std::time::Instant;

use aws_lc_rs::digest;

use crate::analysis::statistics::median;

/// Bytes of one computation: a few milliseconds of SHA-256.
const HASHED_BYTES: usize = 4 << 20;
/// Number of computations. The median ignores a single preemption.
const REPEATS: usize = 7;

/// Returns the median time of the computation in milliseconds.
pub(super) fn measure() -> f64 {
    let bytes = vec![0x5a_u8; HASHED_BYTES];
    let once = |_| {
        let start = Instant::now();
        let hash = digest::digest(&digest::SHA256, std::hint::black_box(&bytes));
        std::hint::black_box(hash);
        start.elapsed().as_secs_f64() * 1e3
    };
    median(&(0..REPEATS).map(once).collect::<Vec<_>>()).unwrap_or_default()
}
