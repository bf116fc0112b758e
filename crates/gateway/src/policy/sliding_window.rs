//! A sliding window: values of the recent past, in buckets of equal duration. All values of a
//! bucket leave the window together.

use std::time::Duration;

/// Number of buckets, as in Finagle's windowed adder. More buckets make the window more exact and
/// cost more.
const BUCKETS: u64 = 10;

/// One value per bucket. The caller passes the duration of the window (`length`) with each call.
#[derive(Debug, Clone, Default)]
pub(super) struct SlidingWindow<T> {
    buckets: [Bucket<T>; BUCKETS as usize],
}

#[derive(Debug, Clone, Copy, Default)]
struct Bucket<T> {
    /// Number of bucket durations from time 0 to the start of the bucket.
    number: u64,
    value: T,
}

impl<T: Copy + Default> SlidingWindow<T> {
    /// Returns the value of the present bucket, which begins as the default value.
    pub(super) fn current(&mut self, now: Duration, length: Duration) -> &mut T {
        let number = bucket_number(now, length);
        let bucket = &mut self.buckets[(number % BUCKETS) as usize];
        if bucket.number != number {
            *bucket = Bucket { number, value: T::default() };
        }
        &mut bucket.value
    }

    /// Returns the values of all buckets in the window, in no particular order.
    pub(super) fn values(&self, now: Duration, length: Duration) -> impl Iterator<Item = T> {
        let oldest = (bucket_number(now, length) + 1).saturating_sub(BUCKETS);
        let in_window = self.buckets.iter().filter(move |bucket| bucket.number >= oldest);
        in_window.map(|bucket| bucket.value)
    }
}

/// Returns the number of the bucket at a time, counted from time 0.
fn bucket_number(now: Duration, length: Duration) -> u64 {
    let bucket_nanos = (length.as_nanos() / u128::from(BUCKETS)).max(1);
    u64::try_from(now.as_nanos() / bucket_nanos).unwrap_or(u64::MAX - 1)
}
