//! Single values of a plan's text: from TOML's tree to ours, and each by its kind.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::{Member, Node, Tree, heading, number};
use crate::plan::fault::Report;
use crate::plan::field::{Field, VARIABLES};
use crate::plan::formula::{self, Variables};
use crate::plan::kind::{Kind, Value};
use crate::plan::mask::Shown;
use crate::plan::nearest::not_found;

/// Most variables of a plan.
const VARIABLES_MAX: usize = 100;

/// Longest value that a fault repeats.
const SHOWN_CHARS_MAX: usize = 60;

/// A table's members in the order of the text.
pub(super) fn members(table: &DeTable<'_>) -> Vec<Member> {
    let mut members: Vec<Member> = table
        .iter()
        .map(|(key, value)| {
            let mut node = node(value.get_ref(), value.span());
            let mut span = key.span();
            if matches!(node.tree, Tree::Table(_)) {
                span = heading(span, value);
                node.span = span.clone();
            }
            Member { key: key.get_ref().clone().into_owned(), span, node }
        })
        .collect();
    members.sort_by_key(|member| member.node.span.start);
    members
}

fn node(value: &DeValue<'_>, span: Range<usize>) -> Node {
    let tree = match value {
        DeValue::String(text) => Tree::Text(text.clone().into_owned()),
        DeValue::Integer(number) => Tree::Number(match number.radix() {
            10 => number.as_str().trim_start_matches('+').to_owned(),
            radix => u128::from_str_radix(number.as_str(), radix)
                .map_or_else(|_| String::new(), |number| number.to_string()),
        }),
        DeValue::Float(number) => {
            let text = number.as_str().trim_start_matches('+');
            let finite = text.parse::<f64>().is_ok_and(f64::is_finite);
            Tree::Number(if finite { text.to_owned() } else { String::new() })
        }
        DeValue::Boolean(on) => Tree::Bool(*on),
        DeValue::Datetime(_) => Tree::Moment,
        DeValue::Array(list) => {
            Tree::List(list.iter().map(|value| node(value.get_ref(), value.span())).collect())
        }
        DeValue::Table(table) => Tree::Table(members(table)),
    };
    Node { span, tree }
}

/// The variables of a plan, with those that were given in place of the written ones.
pub(super) fn variables(
    report: &mut Report<'_>,
    members: &[Member],
    given: &Variables,
) -> Vec<(String, f64)> {
    let mut variables: Vec<(String, f64)> = Vec::new();
    let table = members.iter().find(|member| member.key == VARIABLES.name);
    let written = match table.map(|member| (&member.node.tree, &member.span)) {
        Some((Tree::Table(members), _)) => members.as_slice(),
        Some((_, span)) => {
            let allowed = Some(VARIABLES.heading());
            report.fault(Some(span), VARIABLES.name, None, "not written as a table", allowed);
            &[]
        }
        None => &[],
    };
    for (at, member) in written.iter().enumerate() {
        let key = format!("variables.{}", member.key);
        let span = Some(&member.span);
        if at >= VARIABLES_MAX {
            let allowed = Some(format!("at most {VARIABLES_MAX}"));
            report.fault(span, key, None, "too many variables", allowed);
            break;
        }
        if !is_variable(&member.key) {
            let allowed = Some("letters, digits and _, beginning with a letter".to_owned());
            report.fault(span, key, None, "not a name for a variable", allowed);
            continue;
        }
        // A variable may follow from those above it.
        match number(&member.node, &variables) {
            Ok(value) => variables.push((member.key.clone(), value)),
            Err(message) => {
                let shown = shown(report.text(), None, &member.node.span);
                let allowed = Some("a number, or a formula of the variables above".to_owned());
                report.fault(Some(&member.node.span), key, Some(shown), message, allowed);
                // Known by name all the same, so that no formula is faulted for this one's fault.
                variables.push((member.key.clone(), 1.0));
            }
        }
        if let Some((_, value)) = given.iter().rev().find(|(name, _)| *name == member.key)
            && let Some(last) = variables.last_mut()
        {
            last.1 = *value;
        }
    }
    for (name, value) in given {
        let names: Vec<_> = variables.iter().map(|(name, _)| name.as_str()).collect();
        if !names.contains(&name.as_str()) {
            let (message, allowed) = not_found("variable", name, &names);
            let option = format!("--set {name}");
            report.fault(None, option, Some(value.to_string()), message, Some(allowed));
        } else if !value.is_finite() {
            let option = format!("--set {name}");
            report.fault(None, option, Some(value.to_string()), "not a finite number", None);
        }
    }
    variables
}

/// What the kept text holds in place of the variables that were given, so that it says what was run.
pub(super) fn given(members: &[Member], given: &Variables) -> Vec<(Range<usize>, String)> {
    let table = members.iter().find(|member| member.key == VARIABLES.name);
    let Some(Tree::Table(written)) = table.map(|member| &member.node.tree) else {
        return Vec::new();
    };
    let replaced = |member: &Member| {
        let (_, value) = given.iter().rev().find(|(name, _)| *name == member.key)?;
        // The form with an exponent keeps large numbers within TOML's.
        Some((member.node.span.clone(), format!("{value:?}")))
    };
    written.iter().filter_map(replaced).collect()
}

fn is_variable(name: &str) -> bool {
    const FUNCTIONS: [&str; 5] = ["floor", "ceil", "round", "min", "max"];
    name.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name.len() <= 64
        && !FUNCTIONS.contains(&name)
}

/// Reads a value that is neither table nor headers.
pub(super) fn scalar(
    kind: Kind,
    node: &Node,
    variables: &Variables,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Value, String> {
    match (kind, &node.tree) {
        (Kind::Texts, Tree::List(list)) => texts(list).map(Value::Texts),
        (Kind::Counts { max }, Tree::List(list)) => {
            let one = Kind::Count { min: 0, max };
            let count = |node: &Node| Ok(one.of_number(number(node, variables)?)?.count());
            list.iter().map(count).collect::<Result<_, String>>().map(Value::Counts)
        }
        (Kind::Span { max }, Tree::List(list)) => {
            let [low, high] = list.as_slice() else { return Err("not two numbers".to_owned()) };
            let one = Kind::Count { min: 0, max };
            let count =
                |node: &Node| Ok::<u64, String>(one.of_number(number(node, variables)?)?.count());
            let (low, high) = (count(low)?, count(high)?);
            if low > high {
                return Err("the first is above the second".to_owned());
            }
            Ok(Value::Span(low, high))
        }
        (Kind::Texts, _) => Err(format!("not {}", kind.noun())),
        (Kind::Span { .. }, Tree::Text(_)) => kind.of_number(number(node, variables)?),
        (kind, Tree::Text(_)) if kind.is_number() => kind.of_number(number(node, variables)?),
        (Kind::Url, Tree::Text(text)) => kind.of_text(&expanded(text, environment)?),
        (Kind::Name | Kind::Method | Kind::File, Tree::Text(text)) => kind.of_text(text),
        (kind, Tree::Text(text)) => kind.of_text(&formula::replaced(text, variables)?),
        (kind, Tree::Number(_)) => kind.of_number(number(node, variables)?),
        (Kind::Switch, Tree::Bool(on)) => Ok(Value::Switch(*on)),
        (kind, _) => Err(format!("not {}", kind.noun())),
    }
}

fn texts(list: &[Node]) -> Result<Vec<String>, String> {
    let text = |node: &Node| match &node.tree {
        Tree::Text(text) => match Kind::Texts.of_text(text)? {
            Value::Text(text) => Ok(text),
            _ => Err("not a text".to_owned()),
        },
        _ => Err("not a list of texts".to_owned()),
    };
    list.iter().map(text).collect()
}

/// A text with `${env:NAME}` and `${env:NAME:-default}` replaced. What was put in is not looked at
/// again, and never shown: faults print the value as it was written.
pub(super) fn expanded(
    text: &str,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<String, String> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${env:") {
        expanded.push_str(&rest[..at]);
        let Some(end) = rest[at..].find('}') else {
            return Err("${ is not closed by }".to_owned());
        };
        let inside = &rest[at + "${env:".len()..at + end];
        let (name, default) = match inside.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err("what stands in ${env:…} is not the name of a variable".to_owned());
        }
        // As in a shell, `:-` also replaces a variable that is set to nothing.
        match (environment(name).filter(|value| !value.is_empty()), default) {
            (Some(value), _) => expanded.push_str(&value),
            (None, Some(default)) => expanded.push_str(default),
            (None, None) => return Err(format!("the environment has no variable {name}")),
        }
        rest = &rest[at + end + 1..];
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// A value as a fault may show it.
pub(super) fn shown(text: &str, field: Option<&Field>, span: &Range<usize>) -> String {
    let written = &text[span.clone()];
    match super::secrets::shown(field, written) {
        Shown::Itself => shortened(written),
        Shown::Instead(text) => text,
    }
}

fn shortened(written: &str) -> String {
    let line = written.lines().next().unwrap_or_default();
    if line.chars().count() <= SHOWN_CHARS_MAX && line.len() == written.len() {
        return line.to_owned();
    }
    let start: String = line.chars().take(SHOWN_CHARS_MAX).collect();
    format!("{start}…")
}

/// What a value of the table's kind holds. Asking for another kind than the table states is a slip
/// in `plan/checked.rs`, which the test over all defaults meets.
impl Value {
    pub(in crate::plan) fn switch(self) -> bool {
        match self {
            Value::Switch(on) => on,
            other => unreachable!("{other:?} is not a switch"),
        }
    }

    pub(in crate::plan) fn count(self) -> u64 {
        match self {
            Value::Count(count) => count,
            other => unreachable!("{other:?} is not a count"),
        }
    }

    pub(in crate::plan) fn size(self) -> usize {
        usize::try_from(self.count()).unwrap_or(usize::MAX)
    }

    pub(in crate::plan) fn number(self) -> f64 {
        match self {
            Value::Number(number) => number,
            other => unreachable!("{other:?} is not a number"),
        }
    }

    pub(in crate::plan) fn duration(self) -> std::time::Duration {
        match self {
            Value::Duration(duration) => duration,
            other => unreachable!("{other:?} is not a duration"),
        }
    }

    pub(in crate::plan) fn choice(self) -> &'static str {
        match self {
            Value::Choice(word) => word,
            other => unreachable!("{other:?} is not a choice"),
        }
    }

    pub(in crate::plan) fn text(self) -> String {
        match self {
            Value::Text(text) => text,
            other => unreachable!("{other:?} is not a text"),
        }
    }

    pub(in crate::plan) fn texts(self) -> Vec<String> {
        match self {
            Value::Texts(texts) => texts,
            other => unreachable!("{other:?} is not a list of texts"),
        }
    }

    pub(in crate::plan) fn entries(self) -> Vec<super::Entry> {
        match self {
            Value::Entries(entries) => entries,
            other => unreachable!("{other:?} is not a list of tables"),
        }
    }
}
