//! Parses both parts of a threshold: the selector, such as `latency{method:eth_call}`, and the
//! expression, such as `p(99)<300`.
//!
//! k6's grammar and names are supported
//! (<https://grafana.com/docs/k6/latest/using-k6/thresholds/>). An aggregation that the metric does
//! not have is rejected.

use settings::not_found;

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
    /// The tag with an unknown name, if that is the problem.
    pub unknown: Option<Tag>,
}

/// A tag that refers to a part of the plan.
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
    /// Name of its scenario.
    pub scenario: String,
    /// Name of the stage, such as `stairs-2` for a step of a staircase.
    pub stage: String,
    /// The name in the plan's file. All steps of a staircase share it.
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

fn parse_error(message: impl Into<String>, allowed: impl Into<String>) -> ParseError {
    ParseError { message: message.into(), allowed: allowed.into(), unknown: None }
}

fn unknown_name(tag: Tag, noun: &str, name: &str, known: &[&str]) -> ParseError {
    let (message, allowed) = not_found(noun, name, known);
    ParseError { message, allowed, unknown: Some(tag) }
}

/// Parses a selector: `METRIC` or `METRIC{TAG:VALUE,…}` with the tags `method`, `stage` and
/// `scenario`.
///
/// # Errors
/// Reports an unknown metric, tag or name, with the nearest known one.
pub fn selector(text: &str, names: Names<'_>) -> Result<Selector, ParseError> {
    const FORM: &str = "METRIC, or METRIC{method:NAME,stage:NAME,scenario:NAME}";
    let (name, tags) = match text.trim().split_once('{') {
        Some((name, rest)) => {
            let tags = rest.strip_suffix('}').ok_or_else(|| parse_error("} is missing", FORM))?;
            (name.trim(), tags)
        }
        None => (text.trim(), ""),
    };
    let metric = Metric::of_name(name).ok_or_else(|| {
        let names = Metric::ALL.iter().flat_map(|metric| [Some(metric.as_str()), metric.k6()]);
        let mut known: Vec<_> = names.flatten().collect();
        known.dedup();
        let (message, allowed) = not_found("metric", name, &known);
        parse_error(message, allowed)
    })?;
    let mut selector = Selector { metric, method: None, stages: None };
    for tag in tags.split(',').map(str::trim).filter(|tag| !tag.is_empty()) {
        let (key, value) =
            tag.split_once(':').ok_or_else(|| parse_error("a tag is NAME:VALUE", FORM))?;
        let value = value.trim().trim_matches(['"', '\'']);
        match key.trim() {
            "method" => selector.method = Some(method(value, metric, names)?),
            "stage" => narrow(&mut selector, stages(value, names)?),
            "scenario" => narrow(&mut selector, scenario(value, names)?),
            key => {
                let (message, allowed) = not_found("tag", key, &["method", "stage", "scenario"]);
                return Err(parse_error(message, allowed));
            }
        }
    }
    if selector.stages.as_ref().is_some_and(Vec::is_empty) {
        return Err(parse_error("no stage is in that scenario and has that name", FORM));
    }
    Ok(selector)
}

fn method(name: &str, metric: Metric, names: Names<'_>) -> Result<usize, ParseError> {
    if !metric.per_method() {
        let message = format!("{} counts iterations, which have no method", metric.as_str());
        return Err(parse_error(message, "stage, scenario"));
    }
    names.methods.iter().position(|known| **known == *name).ok_or_else(|| {
        let known: Vec<_> = names.methods.iter().map(|name| &**name).collect();
        unknown_name(Tag::Method, "method in this plan", name, &known)
    })
}

fn stages(name: &str, names: Names<'_>) -> Result<Vec<usize>, ParseError> {
    let has_name = |stage: &StageName| stage.stage == name || stage.written == name;
    let indexes = stage_indexes(names, has_name);
    if indexes.is_empty() {
        let known: Vec<_> = names.stages.iter().map(|stage| stage.written.as_str()).collect();
        return Err(unknown_name(Tag::Stage, "stage", name, &distinct(known)));
    }
    Ok(indexes)
}

fn scenario(name: &str, names: Names<'_>) -> Result<Vec<usize>, ParseError> {
    let indexes = stage_indexes(names, |stage| stage.scenario == name);
    if indexes.is_empty() {
        let known: Vec<_> = names.stages.iter().map(|stage| stage.scenario.as_str()).collect();
        return Err(unknown_name(Tag::Stage, "scenario", name, &distinct(known)));
    }
    Ok(indexes)
}

fn stage_indexes(names: Names<'_>, is_selected: impl Fn(&StageName) -> bool) -> Vec<usize> {
    let stages = names.stages.iter().enumerate();
    stages.filter(|(_, stage)| is_selected(stage)).map(|(index, _)| index).collect()
}

fn distinct(mut names: Vec<&str>) -> Vec<&str> {
    names.sort_unstable();
    names.dedup();
    names
}

/// Restricts the selector to stages that are in both lists.
fn narrow(selector: &mut Selector, stages: Vec<usize>) {
    selector.stages = Some(match selector.stages.take() {
        Some(selected) => selected.into_iter().filter(|stage| stages.contains(stage)).collect(),
        None => stages,
    });
}

/// Parses an expression, `p(95)<300`, for a metric.
///
/// # Errors
/// Reports an invalid part, an aggregation that the metric does not have, a percentile outside 0 to
/// 100, or a limit that is not finite.
pub fn expression(text: &str, metric: Metric) -> Result<(Aggregation, Operator, f64), ParseError> {
    const FORM: &str = "AGGREGATION OPERATOR NUMBER, such as p(99)<300 or rate<0.01";
    let operator_start = text
        .find(['<', '>', '=', '!'])
        .ok_or_else(|| parse_error("there is no operator (<, <=, >, >=, ==, !=)", FORM))?;
    let (aggregation, rest) = text.split_at(operator_start);
    let operator_length = rest.bytes().take_while(|byte| b"<>=!".contains(byte)).count();
    let (operator, limit) = rest.split_at(operator_length);
    let operator = match operator {
        "<" => Operator::Less,
        "<=" => Operator::LessOrEqual,
        ">" => Operator::Greater,
        ">=" => Operator::GreaterOrEqual,
        "==" | "===" => Operator::Equal,
        "!=" => Operator::NotEqual,
        other => {
            return Err(parse_error(format!("{other} is not an operator"), "<, <=, >, >=, ==, !="));
        }
    };
    let limit = limit.trim();
    let number = limit.parse::<f64>().ok().filter(|number| number.is_finite());
    let number = number.ok_or_else(|| parse_error(format!("{limit:?} is not a number"), FORM))?;
    let aggregation = parse_aggregation(aggregation.trim(), metric)?;
    Ok((aggregation, operator, number))
}

fn parse_aggregation(text: &str, metric: Metric) -> Result<Aggregation, ParseError> {
    let kind = metric.kind();
    let allowed = match kind {
        Kind::Times => "avg, min, max, med, p(0) to p(100)",
        other => other.aggregations(),
    };
    let aggregation = match text {
        "avg" => Aggregation::Avg,
        "min" => Aggregation::Min,
        "max" => Aggregation::Max,
        "med" => Aggregation::Med,
        "rate" => Aggregation::Rate,
        "count" => Aggregation::Count,
        // The metric `delivered` also accepts `value`, which means the same as `rate`.
        "value" if matches!(metric.samples(), Samples::IterationShare(_)) => Aggregation::Rate,
        "value" => Aggregation::Value,
        _ => percentile(text, allowed)?,
    };
    let is_allowed = match aggregation {
        Aggregation::Rate => kind != Kind::Times,
        Aggregation::Count => kind == Kind::Counter,
        Aggregation::Value => false,
        _ => kind == Kind::Times,
    };
    if is_allowed {
        Ok(aggregation)
    } else {
        Err(parse_error(format!("{} has no {text}", metric.as_str()), allowed))
    }
}

fn percentile(text: &str, allowed: &str) -> Result<Aggregation, ParseError> {
    let inside = text.strip_prefix("p(").and_then(|rest| rest.strip_suffix(')'));
    let Some(inside) = inside else {
        return Err(parse_error(format!("{text:?} is not an aggregation"), allowed));
    };
    match inside.trim().parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(Aggregation::Percentile(percent)),
        Ok(percent) => {
            Err(parse_error(format!("the percentile {percent} is not in 0 to 100"), allowed))
        }
        Err(_) => Err(parse_error(format!("{inside:?} is not a number"), allowed)),
    }
}
