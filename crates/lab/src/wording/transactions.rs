//! Writes the findings and warnings about signed transactions.

use lab_model::results::transactions::TransactionsRow;

use super::number::{count, plural, span};

/// Returns the findings: transactions that were not sent, were refused, or are in no block.
pub(crate) fn findings(row: &TransactionsRow) -> Vec<String> {
    let mut findings = Vec::new();
    if row.sent < row.total {
        findings.push(format!(
            "{} of {} were sent: the load ended before the file",
            count(row.sent),
            plural(row.total, "transaction")
        ));
    }
    // The messages are sorted by frequency.
    if let Some((message, message_count)) = row.refusals.first() {
        findings.push(format!(
            "{} of {} were refused, {} of them with \"{message}\"",
            count(row.refused),
            plural(row.sent, "sent transaction"),
            count(*message_count)
        ));
    }
    if let Some(inclusion) = row.inclusion.as_ref().filter(|inclusion| inclusion.pending > 0) {
        findings.push(format!(
            "{} of {} were in no block {} after the load",
            count(inclusion.pending),
            plural(row.sent, "sent transaction"),
            span(inclusion.waited)
        ));
    }
    findings
}

/// Returns the warning that the target's blocks could not be read.
pub(crate) fn unwatched(reason: &str) -> String {
    format!(
        "the inclusion of transactions was not measured, and all of them count as pending: \
         eth_getBlockByNumber: {reason}"
    )
}
