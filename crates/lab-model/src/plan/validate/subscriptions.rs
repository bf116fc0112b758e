//! Reads the subscriptions of a plan.

use settings::Report;

use super::super::tables::{PlanFile, SubscriptionTable};
use super::super::values::SubscriptionKind;
use super::super::{Subscription, SubscriptionFigure, SubscriptionThreshold, Target};

/// Maximum number of subscriptions of a plan.
const SUBSCRIPTIONS_MAX: usize = 100;

/// Reads all subscriptions. `target` is the server under load.
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
            name,
            target: server,
            kind,
            connections: *table.connections,
            addresses,
            thresholds: thresholds(table),
        });
    }
    subscriptions
}

/// Returns the thresholds of a subscription.
fn thresholds(table: &SubscriptionTable) -> Vec<SubscriptionThreshold> {
    let delay_p99_max = table.delay_p99_max.map(|delay| delay.as_secs_f64() * 1e3);
    let maxima = [
        (SubscriptionFigure::Ended, table.ended_max.map(|max| max as f64)),
        (SubscriptionFigure::Missing, table.missing_max.map(|max| max as f64)),
        (SubscriptionFigure::Duplicates, table.duplicates_max.map(|max| max as f64)),
        (SubscriptionFigure::DelayP99, delay_p99_max),
    ];
    let threshold =
        |(figure, max): (_, Option<f64>)| Some(SubscriptionThreshold { figure, max: max? });
    maxima.into_iter().filter_map(threshold).collect()
}
