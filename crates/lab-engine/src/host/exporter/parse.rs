//! A parser of the Prometheus text format 0.0.4, as far as node-exporter uses it:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>. It ignores comments, types and
//! timestamps.

/// One sample of a page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ParsedSample<'a> {
    pub(super) name: &'a str,
    labels: &'a str,
    pub(super) value: f64,
}

impl<'a> ParsedSample<'a> {
    /// Returns the value of a label without unescaping, because the used labels have no escapes.
    pub(super) fn label(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        loop {
            let (label, after) = rest.split_once("=\"")?;
            let end = closing_quote(after)?;
            if label.trim_start_matches([',', ' ']) == name {
                return after.get(..end);
            }
            rest = after.get(end + 1..)?;
        }
    }
}

/// Returns the samples of a page in order. Invalid samples are ignored.
pub(super) fn samples(page: &str) -> impl Iterator<Item = ParsedSample<'_>> {
    page.lines().filter_map(parse_line)
}

fn parse_line(text: &str) -> Option<ParsedSample<'_>> {
    if text.starts_with('#') {
        return None;
    }
    let name_end = text.find(['{', ' '])?;
    let (name, rest) = text.split_at(name_end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => rest.split_at(labels_end(rest)?),
        None => ("", rest),
    };
    let rest = rest.strip_prefix('}').unwrap_or(rest);
    // "+Inf" and "NaN" parse as numbers. `Values` drops them.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(ParsedSample { name, labels, value })
}

/// Returns the position of the closing brace outside of quotes.
fn labels_end(text: &str) -> Option<usize> {
    let mut offset = 0;
    loop {
        let rest = text.get(offset..)?;
        let next = rest.find(['"', '}'])?;
        if rest.as_bytes()[next] == b'}' {
            return Some(offset + next);
        }
        let value_start = offset + next + 1;
        offset = value_start + closing_quote(text.get(value_start..)?)? + 1;
    }
}

/// Returns the position of the closing quote: the first one that is not escaped.
fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })
}

#[cfg(test)]
mod tests;
