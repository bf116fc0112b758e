//! A parser of the Prometheus text format 0.0.4, as far as node-exporter uses it:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>. It ignores comments, types and
//! timestamps.

/// One sample of a page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Line<'a> {
    pub(super) name: &'a str,
    labels: &'a str,
    pub(super) value: f64,
}

impl<'a> Line<'a> {
    /// Returns the value of a label without unescaping, as the labels in use need none.
    pub(super) fn label(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        loop {
            let (label, after) = rest.split_once("=\"")?;
            let end = quote(after)?;
            if label.trim_start_matches([',', ' ']) == name {
                return after.get(..end);
            }
            rest = after.get(end + 1..)?;
        }
    }
}

/// Returns the samples of a page in order. Invalid lines are ignored.
pub(super) fn lines(page: &str) -> impl Iterator<Item = Line<'_>> {
    page.lines().filter_map(line)
}

fn line(text: &str) -> Option<Line<'_>> {
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
    Some(Line { name, labels, value })
}

/// Returns the position of the closing brace outside of quotes.
fn labels_end(text: &str) -> Option<usize> {
    let mut place = 0;
    loop {
        let rest = text.get(place..)?;
        let next = rest.find(['"', '}'])?;
        if rest.as_bytes()[next] == b'}' {
            return Some(place + next);
        }
        let opened = place + next + 1;
        place = opened + quote(text.get(opened..)?)? + 1;
    }
}

/// Returns the position of the closing quote: the first one that is not escaped.
fn quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })
}

#[cfg(test)]
mod tests;
