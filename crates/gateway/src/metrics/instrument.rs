//! Counters, gauges and histograms, and arrays of such instruments with one element per value of a
//! label.
//!
//! Only one thread writes each number. So counting takes a load and a store, without an atomic
//! read-modify-write operation or an allocation. The sum over all threads is an instrument of the
//! same type.

use std::fmt;
use std::ops::Index;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use super::label::Label;
use crate::policy::trace_context::TraceId;

/// Upper bounds of the latency buckets in seconds. Starting at 100 µs, each bound is twice the
/// previous one. So both cache hits and slow responses have several buckets.
pub(crate) const LATENCY_BOUNDS: [f64; 18] = [
    0.0001, 0.0002, 0.0004, 0.0008, 0.0016, 0.0032, 0.0064, 0.0128, 0.0256, 0.0512, 0.1024, 0.2048,
    0.4096, 0.8192, 1.6384, 3.2768, 6.5536, 13.1072,
];

/// Sums up the numbers of several threads.
pub(crate) trait Sum {
    /// Adds the numbers of `other`.
    fn merge(&self, other: &Self);

    /// Adds nonzero test data that depends only on the seed.
    #[cfg(test)]
    fn fill(&self, seed: u64);
}

/// A number that never falls.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds to the number.
    pub(crate) fn add(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Reads the number.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Sum for Counter {
    fn merge(&self, other: &Counter) {
        self.add(other.get());
    }

    #[cfg(test)]
    fn fill(&self, seed: u64) {
        self.add(100 + seed % 900);
    }
}

/// A number that rises and falls.
#[derive(Debug, Default)]
pub(crate) struct Gauge(Counter);

impl Gauge {
    /// Adds to the number.
    pub(crate) fn add(&self, amount: u64) {
        self.0.add(amount);
    }

    /// Subtracts one from the number.
    pub(crate) fn subtract_one(&self) {
        self.set(self.get().wrapping_sub(1));
    }

    /// Replaces the number.
    pub(crate) fn set(&self, value: u64) {
        self.0.0.store(value, Ordering::Relaxed);
    }

    /// Reads the number.
    pub(crate) fn get(&self) -> u64 {
        self.0.get()
    }
}

impl Sum for Gauge {
    fn merge(&self, other: &Gauge) {
        self.0.merge(&other.0);
    }

    #[cfg(test)]
    fn fill(&self, seed: u64) {
        self.0.fill(seed);
    }
}

/// Number of buckets: one more than the bounds, because the last bucket has no upper bound.
const BUCKETS: usize = LATENCY_BOUNDS.len() + 1;

/// A histogram of durations.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// Number of durations in each bucket.
    pub(super) buckets: [Counter; BUCKETS],
    /// Sum of all durations in microseconds.
    pub(crate) sum_micros: Counter,
    /// The newest exemplar of each bucket; `None` until a trace is sampled. Only sampled traces and
    /// exports take the lock.
    exemplars: Mutex<Option<Box<[Option<Exemplar>; BUCKETS]>>>,
}

/// A duration whose trace was sampled. It links a bucket of a histogram to a trace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exemplar {
    /// The sampled trace.
    pub(super) trace: TraceId,
    /// The duration in microseconds.
    pub(super) micros: u64,
    /// When the duration was recorded.
    pub(super) time: SystemTime,
}

impl Histogram {
    /// Counts a duration.
    pub(crate) fn observe(&self, duration: Duration) {
        let micros = duration.as_micros() as u64;
        self.buckets[bucket_index(micros)].add(1);
        self.sum_micros.add(micros);
    }

    /// Makes a duration the exemplar of its bucket. [`Histogram::observe`] counts it separately.
    pub(crate) fn set_exemplar(&self, duration: Duration, trace: TraceId) {
        let micros = duration.as_micros() as u64;
        let exemplar = Exemplar { trace, micros, time: SystemTime::now() };
        let mut exemplars = self.exemplars.lock();
        exemplars.get_or_insert_default()[bucket_index(micros)] = Some(exemplar);
    }

    /// Returns the newest exemplar of each bucket.
    pub(super) fn exemplars(&self) -> [Option<Exemplar>; BUCKETS] {
        self.exemplars.lock().as_deref().copied().unwrap_or_default()
    }

    /// Returns the number of durations.
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().map(Counter::get).sum()
    }

    /// Returns a quantile of the durations, in milliseconds. `quantile` is from 0 to 1. The result
    /// is interpolated within a bucket, as by Prometheus' `histogram_quantile`. The result is at
    /// most the last bound; `None` if there are no durations.
    pub(crate) fn quantile_ms(&self, quantile: f64) -> Option<f64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = quantile * count as f64;
        let mut count_below = 0u64;
        let mut lower_bound = 0.0;
        let bucket_counts = self.buckets.iter().map(Counter::get);
        for (bucket_count, upper_bound) in bucket_counts.zip(LATENCY_BOUNDS) {
            if bucket_count > 0 && (count_below + bucket_count) as f64 >= rank {
                let fraction = (rank - count_below as f64) / bucket_count as f64;
                return Some((lower_bound + (upper_bound - lower_bound) * fraction) * 1000.0);
            }
            count_below += bucket_count;
            lower_bound = upper_bound;
        }
        Some(lower_bound * 1000.0)
    }
}

/// Returns the index of the bucket for a duration. The bounds double from 100 µs, so the index is
/// the number of bits of `(micros - 1) / 100`.
fn bucket_index(micros: u64) -> usize {
    let bits = 64 - (micros.saturating_sub(1) / 100).leading_zeros();
    (bits as usize).min(LATENCY_BOUNDS.len())
}

impl Sum for Histogram {
    fn merge(&self, other: &Histogram) {
        self.buckets.iter().zip(&other.buckets).for_each(|(sum, other)| sum.merge(other));
        self.sum_micros.merge(&other.sum_micros);
        let Some(others) = other.exemplars.lock().as_deref().copied() else { return };
        let mut exemplars = self.exemplars.lock();
        for (exemplar, other) in exemplars.get_or_insert_default().iter_mut().zip(others) {
            *exemplar =
                [*exemplar, other].into_iter().flatten().max_by_key(|candidate| candidate.time);
        }
    }

    #[cfg(test)]
    fn fill(&self, seed: u64) {
        let micros = 150 * (100 + seed % 900);
        self.observe(Duration::from_micros(micros));
        self.observe(Duration::from_micros(40 * micros));
    }
}

/// An array with one instrument for each value of the label `L`.
pub(crate) struct PerLabel<L: Label, I = Counter>(L::Array<I>);

impl<L: Label, I> PerLabel<L, I> {
    /// Iterates over the values of the label and their instruments.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (L, &I)> {
        L::ALL.iter().copied().zip(self.0.as_ref())
    }
}

impl<L: Label> PerLabel<L, Counter> {
    /// Returns the sum over all values of the label.
    pub(crate) fn total(&self) -> u64 {
        self.iter().map(|(_, count)| count.get()).sum()
    }
}

impl<L: Label, I> Index<L> for PerLabel<L, I> {
    type Output = I;

    fn index(&self, value: L) -> &I {
        &self.0.as_ref()[value.index()]
    }
}

impl<L: Label, I: Default> Default for PerLabel<L, I> {
    fn default() -> PerLabel<L, I> {
        PerLabel(L::array(|_| I::default()))
    }
}

impl<L: Label, I: fmt::Debug> fmt::Debug for PerLabel<L, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.as_ref()).finish()
    }
}

impl<L: Label, I: Sum> Sum for PerLabel<L, I> {
    fn merge(&self, other: &PerLabel<L, I>) {
        self.0.as_ref().iter().zip(other.0.as_ref()).for_each(|(sum, other)| sum.merge(other));
    }

    #[cfg(test)]
    fn fill(&self, seed: u64) {
        self.iter()
            .for_each(|(label, instrument)| instrument.fill(seed + 1 + 7 * label.index() as u64));
    }
}

#[cfg(test)]
mod tests {
    //! Goal: every duration falls into the bucket whose bounds enclose it, and a quantile lies in
    //! the bucket of its durations.

    use super::*;

    #[test]
    fn durations_fall_into_their_buckets() {
        for (index, bound) in LATENCY_BOUNDS.iter().enumerate() {
            let histogram = Histogram::default();
            histogram.observe(Duration::from_secs_f64(*bound));
            assert_eq!(
                histogram.buckets[index].get(),
                1,
                "{bound} belongs to the bucket it bounds"
            );
            histogram.observe(Duration::from_secs_f64(*bound) + Duration::from_micros(1));
            assert_eq!(histogram.buckets[index + 1].get(), 1, "one microsecond above {bound}");
        }
        let histogram = Histogram::default();
        histogram.observe(Duration::ZERO);
        assert_eq!(histogram.buckets[0].get(), 1);
    }

    #[test]
    fn the_sum_of_threads_has_the_newest_exemplar_of_each_bucket() {
        let [sum, first, second] = [(); 3].map(|()| Histogram::default());
        first.set_exemplar(Duration::from_micros(150), TraceId(1));
        second.set_exemplar(Duration::from_micros(160), TraceId(2));
        first.set_exemplar(Duration::from_secs(60), TraceId(3));
        second.exemplars.lock().as_mut().unwrap()[1].as_mut().unwrap().time +=
            Duration::from_secs(1);
        sum.merge(&second);
        sum.merge(&first);
        let traces = sum.exemplars().map(|exemplar| exemplar.map(|exemplar| exemplar.trace.0));
        let known: Vec<_> =
            traces.iter().enumerate().filter_map(|(index, id)| Some((index, (*id)?))).collect();
        assert_eq!(known, [(1, 2), (LATENCY_BOUNDS.len(), 3)]);
    }

    #[test]
    fn quantiles_lie_in_the_bucket_of_their_duration() {
        let histogram = Histogram::default();
        assert_eq!(histogram.quantile_ms(0.5), None);
        for _ in 0..99 {
            histogram.observe(Duration::from_micros(300));
        }
        histogram.observe(Duration::from_millis(70));
        let quantile_ms = |share| histogram.quantile_ms(share).unwrap();
        assert!((0.2..=0.4).contains(&quantile_ms(0.5)), "p50 is {}", quantile_ms(0.5));
        assert!((0.2..=0.4).contains(&quantile_ms(0.99)), "p99 is {}", quantile_ms(0.99));
        assert!((51.2..=102.4).contains(&quantile_ms(0.999)), "p99.9 is {}", quantile_ms(0.999));
        histogram.observe(Duration::from_secs(60));
        assert_eq!(histogram.quantile_ms(1.0), Some(13107.2), "beyond the last bound");
    }
}
