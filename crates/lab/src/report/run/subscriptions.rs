//! The section about subscriptions: their connections and notifications.

use lab_model::results::run::RunResult;
use lab_model::results::subscription::SubscriptionRow;

use super::super::document::{ALL, Block, Column, FILES, Section, Table, table, tone};
use crate::wording::number::{bare_ms, count};

/// Returns the tables of the subscriptions; none if the plan has none.
pub(super) fn subscriptions(result: &RunResult) -> Option<Section> {
    let rows = &result.subscriptions;
    if rows.is_empty() {
        return None;
    }
    let any_ended = rows.iter().any(|row| !row.ended.is_empty());
    let section = Section::new("subscriptions", "Subscriptions")
        .nav("Subscriptions")
        .lead(
            "Notifications over WebSocket after the warm-up, in milliseconds. \
             [Delay](notification delay) counts from the first arrival on any connection of the \
             run. [Missing](missing notifications) notifications lie between two that arrived.",
        )
        .on(ALL, Block::Table(table(rows)))
        .on(FILES, Block::Table(connections(rows)))
        .on(FILES, any_ended.then(|| Block::Table(ended(rows))));
    Some(section)
}

/// Returns the table of notifications.
fn table(rows: &[SubscriptionRow]) -> Table {
    let bad = |number: u64| tone(if number > 0 { "bad" } else { "" }, count(number));
    let ms = |samples: u64, ms: f64| if samples == 0 { String::new() } else { bare_ms(ms) };
    table!(rows, |row|
        Column::text("subscription") => &row.name,
        Column::text("kind") => &row.kind,
        Column::number("open") => format!("{} / {}", count(row.open), count(row.connections)),
        Column::number("notifications") => count(row.notifications),
        Column::number("missing").page_head("[missing](missing notifications)") => match row.missing {
            Some(missing) => bad(missing),
            None => tone("", "unknown"),
        },
        Column::number("duplicates") => bad(row.duplicates),
        Column::number("delay p50").page_head("[delay p50](notification delay)")
            => ms(row.delay.count, row.delay.p50_ms),
        Column::number("delay p99") => ms(row.delay.count, row.delay.p99_ms),
        Column::number("delay max") => ms(row.delay.count, row.delay.max_ms),
        Column::number("age p50").page_head("[age p50](block age)").only(FILES)
            => ms(row.age.count, row.age.p50_ms),
    )
}

/// Returns the table of connections.
fn connections(rows: &[SubscriptionRow]) -> Table {
    table!(rows, |row|
        Column::text("subscription") => &row.name,
        Column::prose("url") => &row.url,
        Column::number("subscribed") => count(row.subscribed),
        Column::number("subscribe p50 ms") => bare_ms(row.subscribe_time.p50_ms),
        Column::number("subscribe max ms") => bare_ms(row.subscribe_time.max_ms),
        Column::number("fewest notifications") => count(row.notifications_min),
        Column::number("most notifications") => count(row.notifications_max),
        Column::number("out of order") => count(row.out_of_order),
        Column::number("reorged") => count(row.reorged),
        Column::number("unreadable") => count(row.unreadable),
    )
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
