//! The section about subscriptions: their connections and notifications.
//!
//! `report/document.rs` explains the functions and macros that build sections.

use lab_model::results::Quantiles;
use lab_model::results::run::RunResult;
use lab_model::results::subscription::SubscriptionRow;

use super::super::document::{Block, Column, Section, Table, table, tone};
use crate::wording::number::{bare_ms, count};

/// Returns the table of notifications, or `None` if the plan has no subscriptions.
pub(super) fn subscriptions(result: &RunResult) -> Option<Section> {
    let rows = &result.subscriptions;
    if rows.is_empty() {
        return None;
    }
    let section = Section::new("subscriptions", "Subscriptions")
        .nav("Subscriptions")
        .intro(
            "Notifications over WebSocket after the warm-up, in milliseconds. \
             [Delay](notification delay) counts from the first arrival on any connection of the \
             run. [Missing](missing notifications) notifications lie between two that arrived. \
             The time to subscribe is from the start of the connect to the confirmation.",
        )
        .add(Block::Table(table(rows)));
    Some(section)
}

/// Returns the tables of the connections, or `None` if the plan has no subscriptions.
pub(super) fn connections(result: &RunResult) -> Option<Section> {
    let rows = &result.subscriptions;
    let any_ended = rows.iter().any(|row| !row.ended.is_empty());
    let section = Section::default()
        .detail()
        .add(Block::Table(connection_table(rows)))
        .add(any_ended.then(|| Block::Table(ended(rows))));
    (!rows.is_empty()).then_some(section)
}

/// Formats `ms`, a quantile of `times` in milliseconds. Returns an empty text if there are no
/// times.
fn ms(times: &Quantiles, ms: f64) -> String {
    match times.count {
        0 => String::new(),
        // A bucket of the histogram may end above the longest measured time.
        _ => bare_ms(ms.min(times.max_ms)),
    }
}

/// Returns the table of notifications.
fn table(rows: &[SubscriptionRow]) -> Table {
    let bad = |number: u64| tone(if number > 0 { "bad" } else { "" }, count(number));
    table!(rows, |row|
        Column::text("subscription") => &row.name,
        Column::text("kind") => &row.kind,
        Column::number("open") => format!("{} / {}", count(row.open), count(row.connections)),
        Column::number("notifications") => count(row.notifications),
        Column::number("[missing](missing notifications)") => match row.missing {
            Some(missing) => bad(missing),
            None => tone("", "unknown"),
        },
        Column::number("duplicates") => bad(row.duplicates),
        Column::number("[delay p50](notification delay)") => ms(&row.delay, row.delay.p50_ms),
        Column::number("delay p99") => ms(&row.delay, row.delay.p99_ms),
        Column::number("delay max") => ms(&row.delay, row.delay.max_ms),
        Column::number("[age p50](block age)") => ms(&row.age, row.age.p50_ms),
    )
}

/// Returns the table of connections.
fn connection_table(rows: &[SubscriptionRow]) -> Table {
    table!(rows, |row|
        Column::text("subscription") => &row.name,
        Column::prose("url") => &row.url,
        Column::number("subscribed") => count(row.subscribed),
        Column::number("subscribe p50") => ms(&row.subscribe_time, row.subscribe_time.p50_ms),
        Column::number("subscribe max") => ms(&row.subscribe_time, row.subscribe_time.max_ms),
        Column::number("per connection") => per_connection(row),
        Column::number("out of order") => count(row.out_of_order),
        Column::number("reorged") => count(row.reorged),
        Column::number("unreadable") => count(row.unreadable),
    )
}

/// Formats the smallest and the largest number of notifications on one connection.
fn per_connection(row: &SubscriptionRow) -> String {
    match (row.notifications_min, row.notifications_max) {
        (fewest, most) if fewest == most => count(most),
        (fewest, most) => format!("{} to {}", count(fewest), count(most)),
    }
}

/// Returns the table of connections that failed or ended.
fn ended(rows: &[SubscriptionRow]) -> Table {
    let reasons: Vec<(&str, &str, u64)> = rows
        .iter()
        .flat_map(|row| {
            let reasons = row.ended.iter();
            reasons.map(|(reason, connections)| (row.name.as_str(), reason.as_str(), *connections))
        })
        .collect();
    table!(&reasons, |(name, reason, connections)|
        Column::text("subscription") => *name,
        Column::prose("failed or ended") => *reason,
        Column::number("connections") => count(*connections),
    )
}
