//! The values of one sample of a host, and functions that compute rates and shares.

use std::time::Duration;

use lab_model::metrics::host::HostMetric;
use lab_model::results::run::HostSample;

/// The values of one host at one time.
#[derive(Debug, Default)]
pub(super) struct Values {
    /// Names of metrics with their values, in the order of their addition.
    list: Vec<(String, f64)>,
}

impl Values {
    /// Adds a value of the whole host. Ignores `None`, and a value that is not finite.
    pub(super) fn add(&mut self, metric: &HostMetric, value: impl Into<Option<f64>>) {
        self.add_of(metric, "", value);
    }

    /// Adds a value of the device, process or thread with the name `owner`. Ignores `None`, and a
    /// value that is not finite.
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

    /// Returns the values as a sample, sorted by name. If a name was added twice, the first value
    /// wins. `at` is in seconds since the start of the run, and `host` is the name of the host:
    /// `generator` or `target`.
    pub(super) fn sample(mut self, at: f64, host: &str) -> HostSample {
        self.list.sort_by(|(a, _), (b, _)| a.cmp(b));
        self.list.dedup_by(|(later, _), (first, _)| later == first);
        HostSample { at, host: host.to_owned(), values: self.list }
    }
}

/// Returns the growth of a counter per second. A decrease counts as growth of 0. A counter
/// decreases when it is reset, and the kernel's iowait counter may decrease at any time.
pub(super) fn rate(now: f64, previous: f64, elapsed: Duration) -> f64 {
    // The minimum avoids a division by zero.
    (now - previous).max(0.0) / elapsed.as_secs_f64().max(1e-9)
}

/// Returns `part / whole`, or `None` if the whole is 0.
pub(super) fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

/// Returns the larger of two values, or the only one that is present.
pub(super) fn larger(first: Option<f64>, second: Option<f64>) -> Option<f64> {
    first.into_iter().chain(second).reduce(f64::max)
}

/// Converts a counter to a float. The conversion is exact up to 2^53, which a byte counter reaches
/// after 9 petabytes.
#[expect(clippy::cast_precision_loss)]
pub(super) fn float(count: u64) -> f64 {
    count as f64
}
