//! The section about signed transactions: sent, refused, and included in blocks.
//!
//! `report/document.rs` explains the functions and macros that build sections.

use lab_model::results::run::RunResult;
use lab_model::results::transactions::{InclusionRow, TransactionsRow};

use super::super::document::{Block, Column, Section, Table, table, tone};
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
        .add(Block::Table(table(row)))
        .add(included.map(|included| Block::Table(inclusion(included))));
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
        Column::number("[inclusion p50](inclusion time)") => time(row.time.p50_ms),
        Column::number("p95") => time(row.time.p95_ms),
        Column::number("p99") => time(row.time.p99_ms),
        Column::number("max") => time(row.time.max_ms),
        Column::number("polled every") => span(row.interval),
        Column::number("waited") => span(row.waited),
        Column::number("blocks") => count(row.blocks),
        Column::number("failed polls") => count(row.polls_failed),
    )
}

/// Returns the table of the messages of refused transactions, or `None` if none was refused.
pub(super) fn refusals(result: &RunResult) -> Option<Section> {
    let row = result.transactions.as_ref().filter(|row| !row.refusals.is_empty())?;
    let table = table!(&row.refusals, |(message, transactions)|
        Column::prose("refused with") => message.as_str(),
        Column::number("transactions") => count(*transactions),
    );
    Some(Section::default().detail().add(Block::Table(table)))
}
