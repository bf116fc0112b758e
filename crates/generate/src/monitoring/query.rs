//! Checks PromQL against the declared metrics, and adds the label matchers of a dashboard.
//!
//! The tokenizer knows only a part of PromQL: names, matchers, lists of labels, strings and ranges.
//! In the tests, Prometheus itself parses the completed queries.

use anyhow::{Result, bail, ensure};
use serde::Deserialize;

use super::catalogue::{Catalogue, Metric};

/// Labels that Prometheus adds to every series, and the label of a histogram's buckets.
const LABELS_ADDED: [&str; 3] = ["instance", "job", "le"];

/// Keywords that precede a list of labels.
const LABEL_LISTS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];

/// A completed query with the metrics that it names.
#[derive(Debug)]
pub(super) struct Query<'c> {
    pub(super) text: String,
    /// In the order of the query, without duplicates.
    pub(super) metrics: Vec<&'c Metric>,
}

/// A label matcher, such as `chain=~"$chain"`, that a dashboard adds to the series in its queries.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Matcher {
    pub(super) label: String,
    /// The whole matcher, such as `chain=~"$chain"`.
    pub(super) text: String,
    /// True if the matcher applies to every series, because Prometheus or the user adds the label.
    /// False if it applies only to metrics that are declared with the label.
    pub(super) on_every_series: bool,
}

/// A part of a query.
#[derive(Clone, Copy, Debug)]
struct Token<'q> {
    kind: TokenKind,
    text: &'q str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenKind {
    /// Anything that needs no check.
    Text,
    /// The name of a series.
    Series,
    /// Label matchers in braces.
    Matchers,
    /// A keyword and labels in parentheses.
    LabelList,
}

impl Catalogue {
    /// Checks a query, and adds each matcher to the series to which the matcher applies.
    ///
    /// # Errors
    /// Fails if the query names a metric or a label that is not declared.
    pub(super) fn complete(&self, query: &str, matchers: &[Matcher]) -> Result<Query<'_>> {
        let tokens = tokenize(query)?;
        let mut completed = Query { text: String::new(), metrics: Vec::new() };
        let mut listed_labels = Vec::new();
        let mut tokens = tokens.into_iter().peekable();
        while let Some(Token { kind, text }) = tokens.next() {
            completed.text.push_str(text);
            if kind == TokenKind::LabelList {
                let list = text.split_once('(').map_or("", |(_, list)| list);
                let labels = list.trim_end_matches(')').split(',').map(str::trim);
                listed_labels.extend(labels.filter(|label| !label.is_empty()));
            }
            if kind != TokenKind::Series {
                continue;
            }
            let existing_matchers = tokens.next_if(|next| next.kind == TokenKind::Matchers);
            let existing_matchers =
                existing_matchers.map_or("", |token| token.text.trim_matches(['{', '}']));
            let metric = self.find_and_check(text, existing_matchers)?;
            completed.text.push_str(&merge_matchers(existing_matchers, metric, matchers));
            if let Some(metric) = metric
                && !completed.metrics.iter().any(|added| added.name == metric.name)
            {
                completed.metrics.push(metric);
            }
        }
        let is_declared = |label: &str| {
            LABELS_ADDED.contains(&label)
                || completed.metrics.iter().any(|metric| metric.labels.contains(&label))
        };
        if let Some(label) = listed_labels.into_iter().find(|label| !is_declared(label)) {
            bail!("no metric of {query:?} has the label {label}");
        }
        Ok(completed)
    }

    /// Finds the metric of a series and checks the labels of its matchers. Returns `None` for `up`,
    /// a series of Prometheus itself.
    fn find_and_check(&self, name: &str, matchers: &str) -> Result<Option<&Metric>> {
        let metric = self.find(name);
        ensure!(metric.is_some() || name == "up", "no metric {name} is declared");
        for label in labels_of(matchers) {
            let is_declared = metric.is_some_and(|metric| metric.labels.contains(&label));
            ensure!(is_declared || LABELS_ADDED.contains(&label), "{name} has no label {label}");
        }
        Ok(metric)
    }
}

/// Returns the existing matchers of a series and the applicable new ones, in braces. Returns an
/// empty text if there are no matchers.
fn merge_matchers(existing: &str, metric: Option<&Metric>, new: &[Matcher]) -> String {
    let applies = |matcher: &&Matcher| {
        let has_label = metric.is_some_and(|metric| metric.labels.contains(&&*matcher.label));
        matcher.on_every_series || has_label
    };
    let mut merged = Vec::new();
    if !existing.is_empty() {
        merged.push(existing);
    }
    merged.extend(new.iter().filter(applies).map(|matcher| &*matcher.text));
    if merged.is_empty() { String::new() } else { format!("{{{}}}", merged.join(", ")) }
}

/// Returns the labels of matchers, such as `a` and `b` of `a="1", b=~"2,3"`.
fn labels_of(matchers: &str) -> Vec<&str> {
    let mut labels = Vec::new();
    let mut remaining = matchers;
    while let Some(label_end) = remaining.find(['=', '!']) {
        labels.push(remaining[..label_end].trim_matches([',', ' ']));
        let Some((_, value_on)) = remaining.split_once('"') else { break };
        remaining = value_on.split_once('"').map_or("", |(_, next_matcher)| next_matcher);
    }
    labels
}

/// Splits a query into tokens. Their concatenation is the query.
fn tokenize(query: &str) -> Result<Vec<Token<'_>>> {
    let mut tokens = Vec::new();
    let mut remaining = query;
    while let Some(first) = remaining.chars().next() {
        let word = &remaining[..word_length(remaining)];
        let (length, kind) = match first {
            '"' => (find_end(remaining, '"')?, TokenKind::Text),
            '{' => (find_end(remaining, '}')?, TokenKind::Matchers),
            '[' => (find_end(remaining, ']')?, TokenKind::Text),
            '0'..='9' => (word.len(), TokenKind::Text),
            _ if word.is_empty() => (first.len_utf8(), TokenKind::Text),
            _ if LABEL_LISTS.contains(&word)
                && remaining[word.len()..].trim_start().starts_with('(') =>
            {
                (find_end(remaining, ')')?, TokenKind::LabelList)
            }
            _ if word.starts_with("weir_") || word.contains(':') || word == "up" => {
                (word.len(), TokenKind::Series)
            }
            _ => (word.len(), TokenKind::Text),
        };
        tokens.push(Token { kind, text: &remaining[..length] });
        remaining = &remaining[length..];
    }
    Ok(tokens)
}

/// Returns the length of the text up to and including the first closing character outside of a
/// string.
fn find_end(text: &str, close: char) -> Result<usize> {
    let mut in_string = false;
    for (index, character) in text.char_indices().skip(1) {
        if character == close && !in_string {
            return Ok(index + 1);
        }
        if character == '"' {
            in_string = !in_string;
        }
    }
    bail!("{close} is missing in {text:?}")
}

fn word_length(text: &str) -> usize {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':');
    text.bytes().take_while(|byte| is_word(byte)).count()
}
