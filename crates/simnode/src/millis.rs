//! Serde functions for durations as milliseconds, with fractions.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de::Error};

/// Maximum duration of a setting in milliseconds: one day. With this limit, no arithmetic
/// overflows.
const MILLIS_MAX: f64 = 86_400_000.0;

pub(crate) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64() * 1_000.0)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Duration, D::Error> {
    let millis = f64::deserialize(deserializer)?;
    if !(0.0..=MILLIS_MAX).contains(&millis) {
        return Err(D::Error::custom(format!("{millis} ms: allowed are 0 to {MILLIS_MAX}")));
    }
    Ok(Duration::from_secs_f64(millis / 1_000.0))
}
