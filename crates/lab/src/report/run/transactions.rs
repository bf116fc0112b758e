//! The section about signed transactions: sent, refused, and included in blocks.
//!
//! `table!(&rows, |row| Column::text("name") => &row.name)` creates a table with one row for each
//! of `rows`. In a heading, intro or note, `[inclusion](inclusion time)` is a text that links to
//! the glossary entry "inclusion time". `tone("bad", text)` colours a text by a class of the style
//! sheet; an empty class is the normal colour.

use lab_model::results::run::RunResult;
use lab_model::results::transactions::{InclusionRow, TransactionsRow};

use super::super::document::{ALL, Block, Column, FILES, Section, Table, table, tone};
use crate::wording::number::{bare_ms, count, span};

/// Returns the tables of the transactions, or `None` if the plan sends no transactions.
pub(super) fn transactions(result: &RunResult) -> Option<Section> {
    let row = result.transactions.as_ref()?;
    let included = row.inclusion.as_ref();
    let section = Section::new("transactions", "Transactions")
        .nav("Transactions")
        .intro(
            "Signed transactions, each of which is sent once; those of a sender go in order of \
             their nonces. [Inclusion](inclusion time) times are in milliseconds, from the \
             scheduled send until a poll saw the transaction in a block.",
        )
        .on(ALL, Block::Table(table(row)))
        .on(ALL, included.map(|included| Block::Table(inclusion(included))))
        .on(FILES, (!row.refusals.is_empty()).then(|| Block::Table(refusals(row))));
    Some(section)
}

/// Returns the table of sent transactions.
fn table(row: &TransactionsRow) -> Table {
    let bad = |number: u64| tone(if number > 0 { "bad" } else { "" }, count(number));
    let sent = || {
        let text = format!("{} of {}", count(row.sent), count(row.total));
        tone(if row.sent < row.total { "bad" } else { "" }, text)
    };
    table!([row], |row|
        Column::number("sent") => sent(),
        Column::number("senders") => count(row.senders),
        Column::number("accepted") => count(row.accepted),
        Column::number("refused") => bad(row.refused),
        Column::number("no response") => bad(row.unanswered),
    )
}

/// Returns the table about the inclusion of the transactions in blocks.
fn inclusion(included: &InclusionRow) -> Table {
    let time = |ms: f64| match included.time.count {
        0 => String::new(),
        // A bucket of the histogram may end above the longest measured time.
        _ => bare_ms(ms.min(included.time.max_ms)),
    };
    let pending = || tone(if included.pending > 0 { "bad" } else { "" }, count(included.pending));
    table!([included], |row|
        Column::number("included") => count(row.included),
        Column::number("pending") => pending(),
        Column::number("inclusion p50").page_head("[inclusion p50](inclusion time)")
            => time(row.time.p50_ms),
        Column::number("p95") => time(row.time.p95_ms),
        Column::number("p99") => time(row.time.p99_ms),
        Column::number("max") => time(row.time.max_ms),
        Column::number("polled every").only(FILES) => span(row.interval),
        Column::number("waited").only(FILES) => span(row.waited),
        Column::number("blocks").only(FILES) => count(row.blocks),
        Column::number("failed polls").only(FILES) => count(row.polls_failed),
    )
}

/// Returns the table of the messages of refused transactions.
fn refusals(row: &TransactionsRow) -> Table {
    table!(&row.refusals, |(message, transactions)|
        Column::prose("refused with") => message.as_str(),
        Column::number("transactions") => count(*transactions),
    )
}
