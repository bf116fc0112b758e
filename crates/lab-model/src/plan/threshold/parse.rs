//! Parses both parts of a threshold: the selector, such as `latency{method:eth_call}`, and the
//! expression, such as `p(99)<300`.
//!
//! The braces of a selector have tags, which refer to methods, stages and scenarios of the plan. A
//! stage is a part of a scenario.
//!
//! The parser supports k6's grammar and names
//! (<https://grafana.com/docs/k6/latest/using-k6/thresholds/>). It rejects an aggregation that the
//! metric does not have.

use settings::not_found_message;

use super::{Aggregation, Operator};
use crate::metrics::{Kind, Metric, Samples, Selector};

#[cfg(test)]
mod tests;

/// A text that is not a valid selector or expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ParseError {
    /// The problem.
    pub message: String,
    /// The allowed values.
    pub allowed: String,
    /// The tag whose value is an unknown name; `None` for all other problems.
    pub unknown: Option<Tag>,
}

/// A tag of a selector that refers to a part of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// A method.
    Method,
    /// A stage, or all stages of a scenario.
    Stage,
}

/// The names of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageName {
    /// Name of the stage's scenario.
    pub scenario: String,
    /// Name of the stage, such as `stairs-2` for a step of a staircase.
    pub stage: String,
    /// The name in the plan's file. There, a staircase is one stage with several steps of constant
    /// level. All steps of the staircase have this name.
    pub written: String,
}

/// The names that tags can use, in the order of their indexes in the plan.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// The plan's methods.
    pub methods: &'a [Box<str>],
    /// All stages.
    pub stages: &'a [StageName],
}

/// Returns an error that is not about an unknown name.
fn parse_error(message: impl Into<String>, allowed: impl Into<String>) -> ParseError {
    ParseError { message: message.into(), allowed: allowed.into(), unknown: None }
}

/// Returns the error of an unknown name, with the nearest known name. `noun` says in the message
/// what is unknown. `unknown` is the tag whose value is the name, or `None` for another part of the
/// selector.
fn unknown_name(unknown: Option<Tag>, noun: &str, name: &str, known: &[&str]) -> ParseError {
    let (message, allowed) = not_found_message(noun, name, known);
    ParseError { message, allowed, unknown }
}

/// Parses a selector: `METRIC` or `METRIC{TAG:VALUE,…}` with the tags `method`, `stage` and
/// `scenario`.
///
/// # Errors
/// Reports an unknown metric, tag or name, with the nearest known one.
pub fn parse_selector(text: &str, names: Names<'_>) -> Result<Selector, ParseError> {
    const FORM: &str = "METRIC, or METRIC{method:NAME,stage:NAME,scenario:NAME}";
    let (name, tags) = match text.trim().split_once('{') {
        Some((name, after_brace)) => {
            let tags =
                after_brace.strip_suffix('}').ok_or_else(|| parse_error("} is missing", FORM))?;
            (name.trim(), tags)
        }
        None => (text.trim(), ""),
    };
    let metric = Metric::of_name(name).ok_or_else(|| {
        let names = Metric::ALL.iter().flat_map(|metric| [Some(metric.as_str()), metric.k6()]);
        let mut known: Vec<_> = names.flatten().collect();
        known.dedup();
        unknown_name(None, "metric", name, &known)
    })?;
    if metric.is_of_transactions() && !tags.trim().is_empty() {
        let message = format!("{name} counts transactions, which have no tags");
        return Err(parse_error(message, name));
    }
    let mut selector = Selector { metric, method: None, stages: None };
    for tag in tags.split(',').map(str::trim).filter(|tag| !tag.is_empty()) {
        let (key, value) =
            tag.split_once(':').ok_or_else(|| parse_error("a tag is NAME:VALUE", FORM))?;
        let value = value.trim().trim_matches(['"', '\'']);
        match key.trim() {
            "method" => selector.method = Some(find_method(value, metric, names)?),
            "stage" => {
                let has_name = |stage: &StageName| stage.stage == value || stage.written == value;
                let stages = find_stages("stage", value, names, has_name, |stage| &stage.written)?;
                narrow_stages(&mut selector, stages);
            }
            "scenario" => {
                let has_name = |stage: &StageName| stage.scenario == value;
                let stages =
                    find_stages("scenario", value, names, has_name, |stage| &stage.scenario)?;
                narrow_stages(&mut selector, stages);
            }
            key => return Err(unknown_name(None, "tag", key, &["method", "stage", "scenario"])),
        }
    }
    if selector.stages.is_some() && !metric.per_stage() {
        let message = format!("{name} is recorded for the whole run, without stages and scenarios");
        return Err(parse_error(message, name));
    }
    if selector.stages.as_ref().is_some_and(Vec::is_empty) {
        return Err(parse_error("no stage is in that scenario and has that name", FORM));
    }
    Ok(selector)
}

/// Returns the index of a method.
fn find_method(name: &str, metric: Metric, names: Names<'_>) -> Result<usize, ParseError> {
    if !metric.per_method() {
        let message = format!("{} counts iterations, which have no method", metric.as_str());
        return Err(parse_error(message, "stage, scenario"));
    }
    names.methods.iter().position(|method| **method == *name).ok_or_else(|| {
        let known: Vec<_> = names.methods.iter().map(|name| &**name).collect();
        unknown_name(Some(Tag::Method), "method in this plan", name, &known)
    })
}

/// Returns the indexes of the stages that `has_name` selects. In an error, `noun` says what is
/// unknown, `name` is the unknown name, and `name_of` returns a known name for a stage.
///
/// # Errors
/// Fails if there is no such stage. The error has the known names.
fn find_stages(
    noun: &str,
    name: &str,
    names: Names<'_>,
    has_name: impl Fn(&StageName) -> bool,
    name_of: fn(&StageName) -> &str,
) -> Result<Vec<usize>, ParseError> {
    let stages = names.stages.iter().enumerate().filter(|(_, stage)| has_name(stage));
    let indexes: Vec<usize> = stages.map(|(index, _)| index).collect();
    if indexes.is_empty() {
        let mut known: Vec<_> = names.stages.iter().map(name_of).collect();
        known.sort_unstable();
        known.dedup();
        return Err(unknown_name(Some(Tag::Stage), noun, name, &known));
    }
    Ok(indexes)
}

/// Restricts the selector to these stages.
fn narrow_stages(selector: &mut Selector, stages: Vec<usize>) {
    selector.stages = Some(match selector.stages.take() {
        Some(selected) => selected.into_iter().filter(|stage| stages.contains(stage)).collect(),
        None => stages,
    });
}

/// A parsed expression, such as `p(95)<300`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expression {
    /// Aggregation of the samples.
    pub aggregation: Aggregation,
    /// Comparison with the limit.
    pub operator: Operator,
    /// The limit.
    pub limit: f64,
}

/// Parses an expression for a metric.
///
/// # Errors
/// Reports an invalid part, or an aggregation that the metric does not have. Also reports a
/// percentile outside 0 to 100, and a limit that is not finite.
pub fn parse_expression(text: &str, metric: Metric) -> Result<Expression, ParseError> {
    const FORM: &str = "AGGREGATION OPERATOR NUMBER, such as p(99)<300 or rate<0.01";
    const OPERATORS: &str = "<, <=, >, >=, ==, !=";
    let operator_start = text
        .find(['<', '>', '=', '!'])
        .ok_or_else(|| parse_error(format!("there is no operator ({OPERATORS})"), FORM))?;
    let (aggregation, comparison) = text.split_at(operator_start);
    let operator_length = comparison.bytes().take_while(|byte| b"<>=!".contains(byte)).count();
    let (operator, limit_text) = comparison.split_at(operator_length);
    let operator = match operator {
        "<" => Operator::Less,
        "<=" => Operator::LessOrEqual,
        ">" => Operator::Greater,
        ">=" => Operator::GreaterOrEqual,
        "==" | "===" => Operator::Equal,
        "!=" => Operator::NotEqual,
        other => return Err(parse_error(format!("{other} is not an operator"), OPERATORS)),
    };
    let limit_text = limit_text.trim();
    let limit = limit_text.parse::<f64>().ok().filter(|limit| limit.is_finite());
    let limit =
        limit.ok_or_else(|| parse_error(format!("{limit_text:?} is not a number"), FORM))?;
    let aggregation = parse_aggregation(aggregation.trim(), metric)?;
    Ok(Expression { aggregation, operator, limit })
}

/// Parses an aggregation that the metric must support.
fn parse_aggregation(text: &str, metric: Metric) -> Result<Aggregation, ParseError> {
    let kind = metric.kind();
    let allowed = match kind {
        Kind::Times => "avg, min, max, med, p(0) to p(100)",
        other => other.aggregations(),
    };
    let aggregation = match text {
        "avg" => Some(Aggregation::Avg),
        "min" => Some(Aggregation::Min),
        "max" => Some(Aggregation::Max),
        "med" => Some(Aggregation::Med),
        "rate" => Some(Aggregation::Rate),
        "count" => Some(Aggregation::Count),
        // Only the metric `delivered` accepts `value`, the aggregation of k6's gauges. It means the
        // same as `rate`.
        "value" if matches!(metric.samples(), Samples::IterationShare(_)) => {
            Some(Aggregation::Rate)
        }
        "value" => None,
        _ => Some(parse_percentile(text, allowed)?),
    };
    let is_allowed = |aggregation: &Aggregation| match aggregation {
        Aggregation::Rate => kind != Kind::Times,
        Aggregation::Count => kind == Kind::Counter,
        _ => kind == Kind::Times,
    };
    aggregation
        .filter(is_allowed)
        .ok_or_else(|| parse_error(format!("{} has no {text}", metric.as_str()), allowed))
}

/// Parses a percentile such as `p(99)`. `allowed` lists the allowed aggregations for an error.
fn parse_percentile(text: &str, allowed: &str) -> Result<Aggregation, ParseError> {
    let number = text.strip_prefix("p(").and_then(|inner| inner.strip_suffix(')'));
    let Some(number) = number else {
        return Err(parse_error(format!("{text:?} is not an aggregation"), allowed));
    };
    match number.trim().parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(Aggregation::Percentile(percent)),
        Ok(percent) => {
            Err(parse_error(format!("the percentile {percent} is not in 0 to 100"), allowed))
        }
        Err(_) => Err(parse_error(format!("{number:?} is not a number"), allowed)),
    }
}
