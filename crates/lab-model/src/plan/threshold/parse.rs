//! Parses thresholds: `latency{method:eth_call}` and `p(99)<300`.
//!
//! k6's grammar and names are supported
//! (<https://grafana.com/docs/k6/latest/using-k6/thresholds/>). An aggregation that the metric does
//! not have is rejected.

use settings::not_found;

use super::{Aggregation, Operator};
use crate::metrics::{Kind, Metric, Samples, Selector};

#[cfg(test)]
mod tests;

/// Why a text is not a threshold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
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
    /// Its scenario.
    pub scenario: String,
    /// Its own name.
    pub stage: String,
    /// The name in the plan, which several steps share.
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

fn refused(message: impl Into<String>, allowed: impl Into<String>) -> Refused {
    Refused { message: message.into(), allowed: allowed.into(), unknown: None }
}

fn unknown(tag: Tag, what: &str, name: &str, known: &[&str]) -> Refused {
    let (message, allowed) = not_found(what, name, known);
    Refused { message, allowed, unknown: Some(tag) }
}

/// Parses a selector: `METRIC` or `METRIC{TAG:VALUE,…}` with the tags `method`, `stage` and
/// `scenario`.
///
/// # Errors
/// Reports an unknown metric, tag or name, with the nearest known one.
pub fn selector(text: &str, names: Names<'_>) -> Result<Selector, Refused> {
    const FORM: &str = "METRIC, or METRIC{method:NAME,stage:NAME,scenario:NAME}";
    let (name, tags) = match text.trim().split_once('{') {
        Some((name, rest)) => {
            let tags = rest.strip_suffix('}').ok_or_else(|| refused("} is missing", FORM))?;
            (name.trim(), tags)
        }
        None => (text.trim(), ""),
    };
    let metric = Metric::of_name(name).ok_or_else(|| {
        let names = Metric::ALL.iter().flat_map(|one| [Some(one.as_str()), one.k6()]);
        let mut known: Vec<_> = names.flatten().collect();
        known.dedup();
        let (message, allowed) = not_found("metric", name, &known);
        refused(message, allowed)
    })?;
    let mut selector = Selector { metric, method: None, stages: None };
    for tag in tags.split(',').map(str::trim).filter(|tag| !tag.is_empty()) {
        let (key, value) =
            tag.split_once(':').ok_or_else(|| refused("a tag is NAME:VALUE", FORM))?;
        let value = value.trim().trim_matches(['"', '\'']);
        match key.trim() {
            "method" => selector.method = Some(method(value, metric, names)?),
            "stage" => narrow(&mut selector, stages(value, names)?),
            "scenario" => narrow(&mut selector, scenario(value, names)?),
            key => {
                let (message, allowed) = not_found("tag", key, &["method", "stage", "scenario"]);
                return Err(refused(message, allowed));
            }
        }
    }
    if selector.stages.as_ref().is_some_and(Vec::is_empty) {
        return Err(refused("no stage is in that scenario and has that name", FORM));
    }
    Ok(selector)
}

fn method(name: &str, metric: Metric, names: Names<'_>) -> Result<usize, Refused> {
    if !metric.per_method() {
        let message = format!("{} counts iterations, which have no method", metric.as_str());
        return Err(refused(message, "stage, scenario"));
    }
    names.methods.iter().position(|known| **known == *name).ok_or_else(|| {
        let known: Vec<_> = names.methods.iter().map(|name| &**name).collect();
        unknown(Tag::Method, "method in this plan", name, &known)
    })
}

fn stages(name: &str, names: Names<'_>) -> Result<Vec<usize>, Refused> {
    let is = |stage: &StageName| stage.stage == name || stage.written == name;
    let found = places(names, is);
    if found.is_empty() {
        let known: Vec<_> = names.stages.iter().map(|stage| stage.written.as_str()).collect();
        return Err(unknown(Tag::Stage, "stage", name, &distinct(known)));
    }
    Ok(found)
}

fn scenario(name: &str, names: Names<'_>) -> Result<Vec<usize>, Refused> {
    let found = places(names, |stage| stage.scenario == name);
    if found.is_empty() {
        let known: Vec<_> = names.stages.iter().map(|stage| stage.scenario.as_str()).collect();
        return Err(unknown(Tag::Stage, "scenario", name, &distinct(known)));
    }
    Ok(found)
}

fn places(names: Names<'_>, wanted: impl Fn(&StageName) -> bool) -> Vec<usize> {
    let all = names.stages.iter().enumerate();
    all.filter(|(_, stage)| wanted(stage)).map(|(at, _)| at).collect()
}

fn distinct(mut names: Vec<&str>) -> Vec<&str> {
    names.sort_unstable();
    names.dedup();
    names
}

/// Restricts the selector to stages that are in both lists.
fn narrow(selector: &mut Selector, stages: Vec<usize>) {
    selector.stages = Some(match selector.stages.take() {
        Some(before) => before.into_iter().filter(|stage| stages.contains(stage)).collect(),
        None => stages,
    });
}

/// Parses an expression, `p(95)<300`, for a metric.
///
/// # Errors
/// Reports an invalid part, an aggregation that the metric does not have, a percentile outside 0 to
/// 100, or a limit that is not finite.
pub fn expression(text: &str, metric: Metric) -> Result<(Aggregation, Operator, f64), Refused> {
    const FORM: &str = "AGGREGATION OPERATOR NUMBER, such as p(99)<300 or rate<0.01";
    let at = text
        .find(['<', '>', '=', '!'])
        .ok_or_else(|| refused("there is no operator (<, <=, >, >=, ==, !=)", FORM))?;
    let (aggregation, rest) = text.split_at(at);
    let end = rest.bytes().take_while(|byte| b"<>=!".contains(byte)).count();
    let (operator, limit) = rest.split_at(end);
    let operator = match operator {
        "<" => Operator::Less,
        "<=" => Operator::LessOrEqual,
        ">" => Operator::Greater,
        ">=" => Operator::GreaterOrEqual,
        "==" | "===" => Operator::Equal,
        "!=" => Operator::NotEqual,
        other => return Err(refused(format!("{other} is no operator"), "<, <=, >, >=, ==, !=")),
    };
    let limit = limit.trim();
    let number = limit.parse::<f64>().ok().filter(|number| number.is_finite());
    let number = number.ok_or_else(|| refused(format!("{limit:?} is not a number"), FORM))?;
    let aggregation = aggregation_of(aggregation.trim(), metric)?;
    Ok((aggregation, operator, number))
}

fn aggregation_of(text: &str, metric: Metric) -> Result<Aggregation, Refused> {
    let kind = metric.kind();
    let allowed = match kind {
        Kind::Times => "avg, min, max, med, p(0) to p(100)",
        other => other.aggregations(),
    };
    let read = match text {
        "avg" => Aggregation::Avg,
        "min" => Aggregation::Min,
        "max" => Aggregation::Max,
        "med" => Aggregation::Med,
        "rate" => Aggregation::Rate,
        "count" => Aggregation::Count,
        // For shares, `rate` and `value` mean the same number.
        "value" if matches!(metric.samples(), Samples::IterationShare(_)) => Aggregation::Rate,
        "value" => Aggregation::Value,
        _ => percentile(text, allowed)?,
    };
    let fits = match read {
        Aggregation::Rate => kind != Kind::Times,
        Aggregation::Count => kind == Kind::Counter,
        Aggregation::Value => false,
        _ => kind == Kind::Times,
    };
    if fits {
        Ok(read)
    } else {
        Err(refused(format!("{} has no {text}", metric.as_str()), allowed))
    }
}

fn percentile(text: &str, allowed: &str) -> Result<Aggregation, Refused> {
    let inside = text.strip_prefix("p(").and_then(|rest| rest.strip_suffix(')'));
    let Some(inside) = inside else {
        return Err(refused(format!("{text:?} is no aggregation"), allowed));
    };
    match inside.trim().parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(Aggregation::Percentile(percent)),
        Ok(percent) => {
            Err(refused(format!("the percentile {percent} is not in 0 to 100"), allowed))
        }
        Err(_) => Err(refused(format!("{inside:?} is not a number"), allowed)),
    }
}
