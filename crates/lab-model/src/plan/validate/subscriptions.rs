//! Reads the subscriptions of a plan: WebSocket connections that receive notifications during the
//! run.
//!
//! `report.error(key, message, allowed)` reports a problem of a key, with the values that would be
//! allowed.

use settings::Report;

use super::super::tables::{PlanFile, SubscriptionTable};
use super::super::values::SubscriptionKind;
use super::super::{Subscription, SubscriptionFigure, SubscriptionThreshold, Target};

/// Maximum number of subscriptions of a plan.
const SUBSCRIPTIONS_MAX: usize = 100;

/// Reads all subscriptions. `target` is the server under load, to which a subscription without a
/// URL connects.
pub(super) fn check(
    file: &PlanFile,
    target: &Target,
    report: &mut Report<'_>,
) -> Vec<Subscription> {
    let tables = &file.subscription;
    let mut subscriptions: Vec<Subscription> = Vec::new();
    if tables.len() > SUBSCRIPTIONS_MAX {
        report.error(tables, "too many subscriptions", format!("at most {SUBSCRIPTIONS_MAX}"));
        return subscriptions;
    }
    for (index, table) in tables.iter().enumerate() {
        let name = (*table.name).clone().unwrap_or_else(|| format!("subscription-{}", index + 1));
        if subscriptions.iter().any(|subscription| subscription.name == name) {
            let message = format!("two subscriptions are called {name}");
            report.error(&table.name, message, "another name");
        }
        let (kind, addresses) = (*table.kind, table.addresses.to_vec());
        if kind == SubscriptionKind::Heads && !addresses.is_empty() {
            let message = "only logs have addresses";
            report.error(&table.addresses, message, "kind = \"logs\"");
        }
        let mut server = target.clone();
        match &*table.url {
            Some(url) => server.replace_url(url.clone()),
            None => server.url = target.url.to_websocket(),
        }
        subscriptions.push(Subscription {
            thresholds: read_thresholds(table, &name),
            name,
            target: server,
            kind,
            connections: *table.connections,
            addresses,
        });
    }
    subscriptions
}

/// Returns the thresholds of the subscription with this name.
fn read_thresholds(table: &SubscriptionTable, name: &str) -> Vec<SubscriptionThreshold> {
    use SubscriptionFigure::{DelayP99, Duplicates, Ended, Missing};
    let count = |max: Option<u64>| max.map(|max| max as f64);
    let delay_p99_max = table.delay_p99_max.map(|delay| delay.as_secs_f64() * 1e3);
    // An entry has the figure, the metric and the aggregation for the threshold's text, and the
    // maximum.
    let limits = [
        (Ended, "subscription_ended", "count", count(*table.ended_max)),
        (Missing, "notifications_missing", "count", count(*table.missing_max)),
        (Duplicates, "notifications_duplicate", "count", count(*table.duplicates_max)),
        (DelayP99, "notification_delay", "p(99)", delay_p99_max),
    ];
    let mut thresholds = Vec::new();
    for (figure, metric, aggregation, max) in limits {
        if let Some(max) = max {
            let text = format!("{metric}{{subscription:{name}}} {aggregation}<={max}");
            thresholds.push(SubscriptionThreshold { figure, max, text });
        }
    }
    thresholds
}
