//! Reads the thresholds of a plan. Checks that the names in selectors exist and that expressions
//! are valid.
//!
//! `report.error(key, message, allowed)` reports a problem of a key, with the values that would be
//! allowed.

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
    for selected in file.thresholds.iter() {
        match parse_selector(&selected.selector, names) {
            Ok(selector) => {
                if selector.metric.is_of_transactions() && !sends_transactions {
                    let message = format!(
                        "no scenario sends transactions, so {} has no data",
                        selector.metric.as_str()
                    );
                    let allowed = "a scenario whose mix has transactions";
                    report.error_without_value(&selected.location, message, allowed);
                }
                let build = |(written, location): &(WrittenThreshold, Location)| {
                    build_threshold(&selected.selector, &selector, written, location, report)
                };
                thresholds.extend(selected.list.iter().filter_map(build));
            }
            Err(ParseError { message, allowed, unknown }) => {
                // A part of the plan that could not be read may define the name.
                let may_exist = match unknown {
                    Some(Tag::Method) => methods.is_incomplete,
                    Some(Tag::Stage) => stages.is_incomplete,
                    None => false,
                };
                if !may_exist {
                    report.error_without_value(&selected.location, message, allowed);
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

/// Builds a threshold. Reports an invalid expression and returns `None`.
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
