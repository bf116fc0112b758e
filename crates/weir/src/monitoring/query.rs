//! Checks PromQL against the declared metrics, and adds label matchers to every metric in it.
//!
//! The parser knows only the parts of the language that this needs: names, matchers, lists of
//! labels, strings and ranges. Prometheus itself parses the queries in the tests.

use anyhow::{Result, bail, ensure};

use super::catalogue::{Catalogue, Metric};

/// Labels that Prometheus adds to every series, and the label of a histogram's buckets.
const LABELS_ADDED: [&str; 3] = ["instance", "job", "le"];

/// Keywords that precede a list of labels.
const LABEL_LISTS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];

/// A query with the metrics that it names.
#[derive(Debug)]
pub(super) struct Query<'c> {
    pub(super) text: String,
    /// In the order of the query, each once.
    pub(super) metrics: Vec<&'c Metric>,
}

/// A label matcher that is added to each metric with the label.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matcher {
    pub(super) label: &'static str,
    /// The whole matcher, such as `chain=~"$chain"`.
    pub(super) text: &'static str,
    /// True if every series has the label, because Prometheus or the user adds it.
    pub(super) everywhere: bool,
}

/// A part of a query.
#[derive(Clone, Copy, Debug)]
struct Token<'q> {
    kind: Kind,
    text: &'q str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
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
    /// Checks a query, and adds the matchers to each metric that has their labels.
    ///
    /// # Errors
    /// Fails if it names a metric or a label that is not declared.
    pub(super) fn complete(&self, query: &str, matchers: &[Matcher]) -> Result<Query<'_>> {
        let tokens = tokenize(query)?;
        let mut completed = Query { text: String::new(), metrics: Vec::new() };
        let mut listed = Vec::new();
        let mut tokens = tokens.into_iter().peekable();
        while let Some(Token { kind, text }) = tokens.next() {
            completed.text.push_str(text);
            if kind == Kind::LabelList {
                let list = text.split_once('(').map_or("", |(_, list)| list);
                let labels = list.trim_end_matches(')').split(',').map(str::trim);
                listed.extend(labels.filter(|label| !label.is_empty()));
            }
            if kind != Kind::Series {
                continue;
            }
            let own_matchers = tokens.next_if(|next| next.kind == Kind::Matchers);
            let own_matchers = own_matchers.map_or("", |token| token.text.trim_matches(['{', '}']));
            let metric = self.find_checked(text, own_matchers)?;
            completed.text.push_str(&merge_matchers(own_matchers, metric, matchers));
            if let Some(metric) = metric
                && !completed.metrics.iter().any(|known| known.name == metric.name)
            {
                completed.metrics.push(metric);
            }
        }
        let known = |label: &str| {
            LABELS_ADDED.contains(&label)
                || completed.metrics.iter().any(|metric| metric.labels.contains(&label))
        };
        if let Some(label) = listed.into_iter().find(|label| !known(label)) {
            bail!("no metric of {query:?} has the label {label}");
        }
        Ok(completed)
    }

    /// Finds the metric of a series and checks the labels of its matchers. `up` has none, because
    /// Prometheus itself stores it.
    fn find_checked(&self, name: &str, matchers: &str) -> Result<Option<&Metric>> {
        let metric = self.find(name);
        ensure!(metric.is_some() || name == "up", "no metric {name} is declared");
        for label in labels_of(matchers) {
            let known = metric.is_some_and(|metric| metric.labels.contains(&label));
            ensure!(known || LABELS_ADDED.contains(&label), "{name} has no label {label}");
        }
        Ok(metric)
    }
}

/// Returns the matchers of a series with those that are added.
fn merge_matchers(own: &str, metric: Option<&Metric>, added: &[Matcher]) -> String {
    let applies = |matcher: &&Matcher| {
        let has = metric.is_some_and(|metric| metric.labels.contains(&matcher.label));
        matcher.everywhere || has
    };
    let added = added.iter().filter(applies).map(|matcher| matcher.text);
    let all: Vec<&str> = Some(own).filter(|own| !own.is_empty()).into_iter().chain(added).collect();
    if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(", ")) }
}

/// Returns the labels of matchers, such as `a` and `b` of `a="1", b=~"2,3"`.
fn labels_of(matchers: &str) -> Vec<&str> {
    let mut labels = Vec::new();
    let mut rest = matchers;
    while let Some(end) = rest.find(['=', '!']) {
        labels.push(rest[..end].trim_matches([',', ' ']));
        let Some((_, after)) = rest.split_once('"') else { break };
        rest = after.split_once('"').map_or("", |(_, after)| after);
    }
    labels
}

/// Splits a query. The tokens joined again are the query.
fn tokenize(query: &str) -> Result<Vec<Token<'_>>> {
    let mut tokens = Vec::new();
    let mut rest = query;
    while let Some(first) = rest.chars().next() {
        let word = &rest[..word_end(rest)];
        let (length, kind) = match first {
            '"' => (find_end(rest, '"')?, Kind::Text),
            '{' => (find_end(rest, '}')?, Kind::Matchers),
            '[' => (find_end(rest, ']')?, Kind::Text),
            '0'..='9' => (word.len(), Kind::Text),
            _ if word.is_empty() => (first.len_utf8(), Kind::Text),
            _ if LABEL_LISTS.contains(&word)
                && rest[word.len()..].trim_start().starts_with('(') =>
            {
                (find_end(rest, ')')?, Kind::LabelList)
            }
            _ if word.starts_with("weir_") || word.contains(':') || word == "up" => {
                (word.len(), Kind::Series)
            }
            _ => (word.len(), Kind::Text),
        };
        tokens.push(Token { kind, text: &rest[..length] });
        rest = &rest[length..];
    }
    Ok(tokens)
}

/// Returns the length of the text up to and with the first closing character outside of a string.
fn find_end(text: &str, close: char) -> Result<usize> {
    let mut in_string = false;
    for (index, found) in text.char_indices().skip(1) {
        if found == close && !in_string {
            return Ok(index + 1);
        }
        if found == '"' {
            in_string = !in_string;
        }
    }
    bail!("{close} is missing in {text:?}")
}

fn word_end(text: &str) -> usize {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':');
    text.bytes().take_while(|byte| is_word(byte)).count()
}
