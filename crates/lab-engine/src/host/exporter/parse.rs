//! A parser of the Prometheus text format 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>). The parser supports what the
//! node-exporter writes, and ignores comments, types and timestamps.

/// One sample of a page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ParsedSample<'a> {
    pub(super) name: &'a str,
    /// The text between the braces; empty without labels.
    labels: &'a str,
    pub(super) value: f64,
}

impl<'a> ParsedSample<'a> {
    /// Returns the value of a label, or `None` if the sample has no such label. Does not resolve
    /// escapes, because the labels that are read have none.
    pub(super) fn label(&self, name: &str) -> Option<&'a str> {
        let mut unparsed = self.labels;
        loop {
            let (label, after_quote) = unparsed.split_once("=\"")?;
            let value_end = find_closing_quote(after_quote)?;
            if label.trim_start_matches([',', ' ']) == name {
                return after_quote.get(..value_end);
            }
            unparsed = after_quote.get(value_end + 1..)?;
        }
    }
}

/// Returns the samples of a page in order. Ignores invalid samples.
pub(super) fn samples(page: &str) -> impl Iterator<Item = ParsedSample<'_>> {
    page.lines().filter_map(parse_line)
}

/// Parses a line: `name{labels} value timestamp`. Labels and timestamp are optional. Returns `None`
/// for a comment and for an invalid line.
fn parse_line(line: &str) -> Option<ParsedSample<'_>> {
    if line.starts_with('#') {
        return None;
    }
    let name_end = line.find(['{', ' ']).filter(|end| *end > 0)?;
    let (name, after_name) = line.split_at(name_end);
    let (labels, after_labels) = match after_name.strip_prefix('{') {
        Some(after_brace) => after_brace.split_at(find_labels_end(after_brace)?),
        None => ("", after_name),
    };
    let value_text = after_labels.strip_prefix('}').unwrap_or(after_labels);
    // "+Inf" and "NaN" parse as numbers. `Values` drops them.
    let value = value_text.split_whitespace().next()?.parse().ok()?;
    Some(ParsedSample { name, labels, value })
}

/// Returns the position of the closing brace outside of quotes, or `None` if there is none.
fn find_labels_end(text: &str) -> Option<usize> {
    let mut offset = 0;
    loop {
        let unparsed = text.get(offset..)?;
        let next = unparsed.find(['"', '}'])?;
        if unparsed.as_bytes()[next] == b'}' {
            return Some(offset + next);
        }
        let value_start = offset + next + 1;
        offset = value_start + find_closing_quote(text.get(value_start..)?)? + 1;
    }
}

/// Returns the position of the closing quote, which is the first quote that is not escaped. Returns
/// `None` if there is none.
fn find_closing_quote(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.bytes().position(|byte| {
        let is_closing = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_closing
    })
}

#[cfg(test)]
mod tests;
