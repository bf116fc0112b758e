//! Checks how far the generator's own delays can have changed the numbers. An engine thread is
//! delayed if its process is stopped, or if it has no core when a response arrives or a send is due.
//!
//! Each delayed call has two latencies: the measured one, and the least one without the delay
//! (`crates/lab-engine/src/engine/thread/lateness.rs`). So each percentile has a lower bound, and the
//! distance between both is what the generator may have caused.

use lab_model::plan::Plan;
use lab_model::results::Quantiles;
use lab_model::results::run::{Generator, Row};
use lab_model::results::subscription::SubscriptionRow;

use super::{Delay, Doubt, ValidityInput, late_share};

/// A percentile that the generator's own delays may have raised.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    /// The method, or `all`.
    pub method: String,
    /// Name of the percentile, such as `p95`.
    pub percentile: &'static str,
    /// The measured percentile, in milliseconds.
    pub measured_ms: f64,
    /// Its lower bound without the delays of the generator, in milliseconds.
    pub least_ms: f64,
    /// Number of calls.
    pub calls: u64,
}

/// A p95 of fewer calls has fewer than ten calls beyond it, so a few delayed calls decide it.
const P95_CALLS_MIN: u64 = 200;

impl Moved {
    /// Returns true for the percentiles that describe most calls. If they are not the target's, a
    /// run without thresholds has no valid numbers.
    pub fn is_of_most_calls(&self) -> bool {
        self.method == "all"
            && match self.percentile {
                "p50" => true,
                "p95" => self.calls >= P95_CALLS_MIN,
                _ => false,
            }
    }
}

/// Delays that the generator may cause. A percentile is moved only if both limits are exceeded.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    /// Share of the percentile, 0 to 1.
    pub share: f64,
    /// Time in milliseconds.
    pub delay_ms: f64,
}

impl Allowed {
    /// Returns the limits of a plan.
    pub fn of_plan(plan: &Plan) -> Allowed {
        let validity = plan.validity;
        let delay_ms = validity.scheduling_delay_p99_max.as_secs_f64() * 1e3;
        Allowed { share: validity.generator_share_max, delay_ms }
    }

    /// Returns the limits with which a run was judged.
    pub fn of_run(generator: &Generator) -> Allowed {
        Allowed { share: generator.share_max, delay_ms: generator.delay_max_ms }
    }
}

/// Returns true if the generator may have caused more of a percentile than is allowed.
pub fn is_moved(measured_ms: f64, least_ms: f64, allowed: Allowed) -> bool {
    let delay_ms = measured_ms - least_ms;
    delay_ms > allowed.share * measured_ms && delay_ms > allowed.delay_ms
}

/// Returns the percentiles of a row that the generator may have raised by more than is allowed.
pub fn find_moved(row: &Row, allowed: Allowed) -> Vec<Moved> {
    type Percentile = fn(&Quantiles) -> f64;
    const PERCENTILES: [(&str, Percentile); 4] = [
        ("p50", |times| times.p50_ms),
        ("p95", |times| times.p95_ms),
        ("p99", |times| times.p99_ms),
        ("p99.9", |times| times.p999_ms),
    ];
    let Some(least) = &row.latency_least else { return Vec::new() };
    let moved = |(percentile, value_of): (&'static str, Percentile)| {
        let (measured_ms, least_ms) = (value_of(&row.latency), value_of(least));
        let method = row.method.clone();
        is_moved(measured_ms, least_ms, allowed).then_some(Moved {
            method,
            percentile,
            measured_ms,
            least_ms,
            calls: row.calls,
        })
    };
    PERCENTILES.into_iter().filter_map(moved).collect()
}

/// Returns true if the generator may have caused more of a subscription's p99 delay than is allowed,
/// because it read notifications late.
pub fn is_read_late(row: &SubscriptionRow, allowed: Allowed) -> bool {
    row.generator_gap_ms > allowed.share * row.delay.p99_ms
        && row.generator_gap_ms > allowed.delay_ms
}

/// Returns a doubt for each subscription whose delays the generator may have caused.
pub(super) fn check_subscriptions(input: ValidityInput<'_>) -> Vec<Doubt> {
    let allowed = Allowed::of_plan(input.plan);
    let rows = input.subscriptions.iter().filter(|row| is_read_late(row, allowed));
    rows.map(|row| Doubt::SubscriptionReadLate {
        name: row.name.clone(),
        gap_ms: row.generator_gap_ms,
        p99_ms: row.delay.p99_ms,
    })
    .collect()
}

/// Returns a delay if threads of the generator did not run although they should have. In a gap,
/// iterations start late or are dropped, so their share is at least the gaps' share of the time.
pub(super) fn check_gaps(input: ValidityInput<'_>) -> Option<Delay> {
    let gaps = &input.measured.gaps;
    let of_subscriptions = input.subscriptions.iter().map(|row| row.generator_gap_ms);
    let longest_ms = of_subscriptions.fold(gaps.max() as f64 / 1e6, f64::max);
    if longest_ms <= 0.0 {
        return None;
    }
    let measured_seconds = input.end.saturating_sub(input.plan.warmup).as_secs_f64();
    let thread_seconds = measured_seconds * input.plan.threads.max(1) as f64;
    let total = input.measured.gap_time.as_secs_f64();
    let share = (total / thread_seconds.max(1e-9)).min(1.0);
    let doubt = Doubt::Stopped { longest_ms, total, share };
    Some(Delay { doubt, longest_ms, share: share.max(late_share(input)) })
}
