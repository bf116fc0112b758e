//! Checks a plan that sends signed transactions. Each transaction is sent once, in the order of its
//! sender's nonces. Settings that would repeat or reorder transactions are errors.
//!
//! `report.error(key, message, allowed)` reports a problem of a key, with the values that would be
//! allowed. `report.error_without_value` does the same, but does not print the value of the key.

use settings::Report;
use wire::family::Family;

use super::super::Plan;
use super::super::tables::PlanFile;

/// Checks the scenarios that send transactions, and the keys that only such scenarios use.
pub(super) fn check(file: &PlanFile, plan: &Plan, report: &mut Report<'_>) {
    let sending: Vec<_> = plan
        .scenarios
        .iter()
        .zip(file.scenario.iter())
        .filter(|(scenario, _)| scenario.transactions.is_some())
        .collect();
    for (_, table) in sending.iter().skip(1) {
        let message = "a scenario before this one sends transactions already";
        let allowed = "one scenario with transactions, which may be of many senders";
        report.error(&table.mix, message, allowed);
    }
    for (_, table) in sending.iter().filter(|(_, table)| table.batch.is_some()) {
        let message = "a transaction is sent by itself, in order of its nonce";
        report.error_without_value(&table.batch.location, message, "no batch");
    }
    if !sending.is_empty() && plan.target.family == Some(Family::Bitcoin) {
        let message = "the transactions are Ethereum's";
        report.error(&file.target.family, message, "ethereum, harmony");
    }
    if sending.is_empty() && file.inclusion.is_set() && !file.scenario.is_empty() {
        let message = "no scenario sends transactions";
        report.error_without_value(
            &file.inclusion.location,
            message,
            "a scenario whose mix has transactions",
        );
    }
}
