//! Evaluates the thresholds of subscriptions at the end of the run. A figure is the number that
//! such a threshold limits: ended connections, missing or duplicate notifications, or a delay.

use lab_model::metrics::Unit;
use lab_model::plan::{Plan, SubscriptionFigure, SubscriptionThreshold};
use lab_model::results::ThresholdOutcome;
use lab_model::results::subscription::SubscriptionRow;

use super::{Remark, ThresholdResult};

/// Returns the outcomes of all thresholds of subscriptions, in the order of the plan.
pub fn subscription_results(plan: &Plan, rows: &[SubscriptionRow]) -> Vec<ThresholdResult> {
    let subscriptions = plan.subscriptions.iter().zip(rows);
    let results = subscriptions.flat_map(|(subscription, row)| {
        subscription.thresholds.iter().map(move |threshold| threshold_result(threshold, row))
    });
    results.collect()
}

/// Returns the outcome of a threshold about the subscription of `row`.
fn threshold_result(threshold: &SubscriptionThreshold, row: &SubscriptionRow) -> ThresholdResult {
    let (figure, max) = (threshold.figure, threshold.max);
    let observed = observed_value(figure, row);
    let kept = observed.is_some_and(|observed| observed <= max);
    let is_time = figure == SubscriptionFigure::DelayP99;
    let outcome = ThresholdOutcome {
        text: threshold.text.clone(),
        unit: Some(if is_time { Unit::Milliseconds } else { Unit::Count }),
        kept,
        observed,
        ..ThresholdOutcome::default()
    };
    ThresholdResult {
        outcome,
        remark: observed.is_none().then_some(Remark::NoData { fails: true }),
        // A busy generator can lose connections and notifications, but only the server causes
        // duplicates.
        is_server_fault: !kept && observed.is_some() && figure == SubscriptionFigure::Duplicates,
        breaks_without_delays: false,
        excess: (!kept).then(|| observed.map_or(f64::INFINITY, |observed| observed - max)),
    }
}

/// Returns the observed value. `None` if it is unknown, for example because no notification
/// arrived. The number of ended connections is always known.
fn observed_value(figure: SubscriptionFigure, row: &SubscriptionRow) -> Option<f64> {
    let has_notifications = row.notifications > 0;
    match figure {
        SubscriptionFigure::Ended => {
            Some(row.ended.iter().map(|(_, connections)| *connections as f64).sum())
        }
        SubscriptionFigure::Missing => {
            row.missing.filter(|_| has_notifications).map(|missing| missing as f64)
        }
        SubscriptionFigure::Duplicates => has_notifications.then_some(row.duplicates as f64),
        SubscriptionFigure::DelayP99 => (row.delay.count > 0).then_some(row.delay.p99_ms),
    }
}
