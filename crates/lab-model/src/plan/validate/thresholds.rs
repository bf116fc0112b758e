//! Reads the thresholds of a plan. In `"latency{method:eth_call}" = "p(99)<300"`, the first text is
//! a selector, which chooses samples, and the second text is an expression. Checks that the names
//! in selectors exist and that expressions are valid.
//!
//! `report.error(key, message, allowed)` reports a problem of a key, with the values that would be
//! allowed. `report.error_without_value` does the same, but does not print the value of the key.

use settings::{Location, Report};

use super::super::requests::Methods;
use super::super::tables::PlanFile;
use super::super::threshold_table::{NoData, WrittenThreshold};
use super::scenarios::StageNames;
use crate::metrics::Selector;
use crate::plan::threshold::Threshold;
use crate::plan::threshold::parse::{
    Expression, Names, ParseError, Tag, parse_expression, parse_selector,
};

/// Maximum number of thresholds of a plan. A run evaluates each threshold every second.
const THRESHOLDS_MAX: usize = 1000;

/// Reads all thresholds. `sends_transactions` is true if a scenario sends transactions, so that
/// metrics of transactions have data.
pub(super) fn check(
    file: &PlanFile,
    methods: &Methods,
    stages: &StageNames,
    sends_transactions: bool,
    report: &mut Report<'_>,
) -> Vec<Threshold> {
    let names = Names { methods: &methods.names, stages: &stages.list };
    let mut thresholds = Vec::new();
    for selector_thresholds in file.thresholds.iter() {
        let selector_text = &selector_thresholds.selector;
        let selector_location = &selector_thresholds.location;
        match parse_selector(selector_text, names) {
            Ok(selector) => {
                if selector.metric.is_of_transactions() && !sends_transactions {
                    let message = format!(
                        "no scenario sends transactions, so {} has no data",
                        selector.metric.as_str()
                    );
                    let allowed = "a scenario whose mix has transactions";
                    report.error_without_value(selector_location, message, allowed);
                }
                let build = |(written, location): &(WrittenThreshold, Location)| {
                    build_threshold(selector_text, &selector, written, location, report)
                };
                thresholds.extend(selector_thresholds.list.iter().filter_map(build));
            }
            Err(ParseError { message, allowed, unknown }) => {
                // The name may be defined in a part of the plan that could not be read. Then the
                // plan already has an error.
                let may_exist = match unknown {
                    Some(Tag::Method) => methods.is_incomplete,
                    Some(Tag::Stage) => stages.is_incomplete,
                    None => false,
                };
                if !may_exist {
                    report.error_without_value(selector_location, message, allowed);
                }
            }
        }
    }
    if thresholds.len() > THRESHOLDS_MAX {
        let allowed = format!("at most {THRESHOLDS_MAX}");
        report.error_without_value(&file.thresholds.location, "too many thresholds", allowed);
    }
    thresholds
}

/// Builds a threshold. `location` is the position of its expression. If the expression is invalid,
/// reports the problem and returns `None`.
fn build_threshold(
    selector_text: &str,
    selector: &Selector,
    written: &WrittenThreshold,
    location: &Location,
    report: &mut Report<'_>,
) -> Option<Threshold> {
    let text = written.threshold.trim();
    match parse_expression(text, selector.metric) {
        Ok(Expression { aggregation, operator, limit }) => Some(Threshold {
            selector: selector.clone(),
            aggregation,
            operator,
            limit,
            window: written.window,
            // A breach counts only if it lasts at least this long.
            sustained: written.sustained,
            abort: written.abort,
            abort_delay: written.abort_delay,
            no_data_fails: written.no_data == NoData::Fail,
            text: format!("{} {text}", selector_text.trim()),
        }),
        Err(ParseError { message, allowed, .. }) => {
            report.error(location, message, allowed);
            None
        }
    }
}
