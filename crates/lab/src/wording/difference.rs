//! Text of a difference between two arms.

use lab_model::results::compare::{Difference, Metric};

use super::number::short;

/// A difference inside a sentence: `eth_call latency p99 (+12.3 %, 8.1 to 16.9 %)`.
pub(crate) fn sentence(one: &Difference) -> String {
    let name = one.metric.as_str().split(',').next().unwrap_or_default();
    let interval = interval(one).map(|it| format!(", {it}")).unwrap_or_default();
    format!("{} {name} ({}{interval})", one.method, change(one))
}

pub(crate) fn is_share(one: &Difference) -> bool {
    one.metric == Metric::FailedShare
}

pub(crate) fn value(one: &Difference, value: f64) -> String {
    short(if is_share(one) { value * 100.0 } else { value })
}

pub(crate) fn change(one: &Difference) -> String {
    match many_times(one) {
        true => times(one.change),
        false => format!("{:+.1} {}", one.change * 100.0, unit(one)),
    }
}

pub(crate) fn interval(one: &Difference) -> Option<String> {
    one.interval.map(|(low, high)| match many_times(one) {
        true => format!("{} to {}", times(low), times(high)),
        false => format!("{:+.1} to {:+.1} {}", low * 100.0, high * 100.0, unit(one)),
    })
}

fn unit(one: &Difference) -> &'static str {
    if is_share(one) { "points" } else { "%" }
}

/// Factor from which a change is written as a factor, because percentages end at −100 %.
const TIMES: f64 = 3.0;

fn many_times(one: &Difference) -> bool {
    !is_share(one) && !(1.0 / TIMES..=TIMES).contains(&(one.change + 1.0))
}

/// A relative change as a factor: `×12.0`, or `÷12.0` for a twelfth.
fn times(change: f64) -> String {
    let factor = (change + 1.0).max(1e-9);
    if factor >= 1.0 {
        format!("×{}", short(factor))
    } else {
        format!("÷{}", short(1.0 / factor))
    }
}
