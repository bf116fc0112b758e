//! Values of one sample, and the computation of rates from counters.

use std::time::Duration;

use lab_model::metrics::host::HostMetric;
use lab_model::results::run::HostSample;

/// Metric names with their values, of one host at one time.
#[derive(Debug, Default)]
pub(super) struct Values {
    list: Vec<(String, f64)>,
}

impl Values {
    /// Adds a value, if it is a finite number.
    pub(super) fn add(&mut self, metric: &HostMetric, value: impl Into<Option<f64>>) {
        self.add_of(metric, "", value);
    }

    /// Adds a value of one device, process or thread.
    pub(super) fn add_of(
        &mut self,
        metric: &HostMetric,
        owner: &str,
        value: impl Into<Option<f64>>,
    ) {
        if let Some(value) = value.into().filter(|value| value.is_finite()) {
            self.list.push((metric.of(owner).into_string(), value));
        }
    }

    /// Returns the sample, sorted by name. The first value of a name wins.
    pub(super) fn sample(mut self, at: f64, host: &str) -> HostSample {
        self.list.sort_by(|(a, _), (b, _)| a.cmp(b));
        self.list.dedup_by(|(later, _), (first, _)| later == first);
        HostSample { at, host: host.to_owned(), values: self.list }
    }
}

/// Returns the growth of a counter per second. A counter may decrease if it was reset, or if it
/// counts iowait. A decrease counts as no growth.
pub(super) fn rate(now: f64, previous: f64, time: Duration) -> f64 {
    (now - previous).max(0.0) / time.as_secs_f64().max(1e-9)
}

/// Returns `part / whole`, or `None` if the whole is 0.
pub(super) fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

/// Returns the larger of the present values.
pub(super) fn larger(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.into_iter().chain(b).reduce(f64::max)
}

/// Converts a counter to a float. It is exact up to 2^53, which a byte counter reaches after 9
/// petabytes.
#[expect(clippy::cast_precision_loss)]
pub(super) fn float(count: u64) -> f64 {
    count as f64
}
