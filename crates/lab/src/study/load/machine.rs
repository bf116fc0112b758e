//! Measures the speed of this machine: the time of a fixed computation on one core, before each
//! run. If this time drifts during a study, the machine was not equally fast in all rounds.

use std::time::Instant;

use aws_lc_rs::digest;

use crate::analysis::statistics::median;

/// Number of bytes that one computation hashes. SHA-256 takes a few milliseconds for them.
const HASHED_BYTES: usize = 4 << 20;
/// Number of computations. Their median hides a single preemption by the scheduler.
const REPEATS: usize = 7;

/// Returns the median time of the computation in milliseconds.
pub(super) fn measure() -> f64 {
    let bytes = vec![0x5a_u8; HASHED_BYTES];
    let measure_once = |_| {
        let start = Instant::now();
        let hash = digest::digest(&digest::SHA256, std::hint::black_box(&bytes));
        std::hint::black_box(hash);
        start.elapsed().as_secs_f64() * 1e3
    };
    median(&(0..REPEATS).map(measure_once).collect::<Vec<_>>()).unwrap_or_default()
}
