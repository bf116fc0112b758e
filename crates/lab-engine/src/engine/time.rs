//! Times of a run as numbers: nanoseconds since its start.

use std::time::Duration;

/// Returns the nanoseconds of `time`. If they do not fit into a `u64`, returns half of its maximum,
/// so that the sum of two times does not overflow.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2)
}
