//! Which parts of a plan's text may be shown, in a fault and in the text that a result keeps.
//!
//! Faults hide unless known to be harmless: values are shown only under keys that exist and hold no
//! secret, so that a key misspelt as `ulr` does not spill what was meant for `url`; comments are not
//! shown, since an old URL is often kept in one. The kept text must stay a plan, so it hides only
//! what can be a secret ([`kept`]).

use std::ops::Range;

use super::url::{self, MASK};

#[cfg(test)]
mod tests;

/// The byte ranges of a text that stand for values, with what is shown instead; `None` hides
/// everything but the keys, for a text whose structure is not known.
pub(super) struct Masks {
    ranges: Option<Vec<(Range<usize>, Shown)>>,
}

/// What is shown in place of one value.
#[derive(Clone, Debug)]
pub(super) enum Shown {
    /// The value as it stands.
    Itself,
    /// This text; `***` where nothing of the value may be seen.
    Instead(String),
}

impl Masks {
    /// Shows keys only.
    pub(super) fn hide_all() -> Masks {
        Masks { ranges: None }
    }

    /// Shows what each value's own entry allows. The ranges do not overlap.
    pub(super) fn of_values(mut ranges: Vec<(Range<usize>, Shown)>) -> Masks {
        ranges.sort_by_key(|(range, _)| range.start);
        Masks { ranges: Some(ranges) }
    }

    /// One line as it may be shown, and where in it (in characters) the marked bytes come to lie.
    pub(super) fn line(
        &self,
        text: &str,
        line: Range<usize>,
        marked: Range<usize>,
    ) -> (String, Range<usize>) {
        let Some(ranges) = &self.ranges else {
            return keys_only(&text[line.clone()], marked.start - line.start);
        };
        let mut shown = Shownline { text: String::new(), marked: None, wanted: marked };
        let mut at = line.start;
        let first = ranges.partition_point(|(range, _)| range.end <= line.start);
        for (range, value) in &ranges[first..] {
            let (start, end) = (range.start.max(line.start), range.end.min(line.end));
            if start >= line.end {
                break;
            }
            if start >= end || start < at {
                continue;
            }
            if !shown.bare(text, at..start) {
                return shown.finish();
            }
            match value {
                Shown::Itself => shown.piece(text, start..end),
                Shown::Instead(instead) => shown.instead(instead, start..end),
            }
            at = end;
        }
        shown.bare(text, at..line.end);
        shown.finish()
    }
}

/// A plan's text as a result keeps it: `instead` stands for values that are secret or were replaced,
/// and every URL in a comment is masked. What was not secret can be read again.
pub(super) fn kept(
    text: &str,
    instead: &[(Range<usize>, String)],
    values: &[Range<usize>],
) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut at = 0;
    let mut instead = instead.iter().peekable();
    for value in values {
        if value.start < at {
            continue;
        }
        kept.push_str(&without_urls(&text[at..value.start]));
        // Two for one value would keep the rest from being replaced.
        while instead.next_if(|(range, _)| range.start < value.start).is_some() {}
        match instead.next_if(|(range, _)| range == value) {
            Some((_, text)) => kept.push_str(text),
            None => kept.push_str(&text[value.clone()]),
        }
        at = value.end;
    }
    kept.push_str(&without_urls(&text[at..]));
    kept
}

/// Text between values, every URL in it masked.
fn without_urls(text: &str) -> String {
    if !text.contains("://") {
        return text.to_owned();
    }
    let word = |piece: &str| {
        let end = piece.trim_end_matches(|letter: char| letter.is_whitespace());
        let (word, space) = piece.split_at(end.len());
        let Some(at) = word.find("://") else { return piece.to_owned() };
        let is_scheme = |letter: char| letter.is_ascii_alphanumeric();
        let start = word[..at].trim_end_matches(is_scheme).len();
        let url = word[start..].trim_end_matches(|letter: char| ")]}>,.;:\"'`".contains(letter));
        let rest = &word[start + url.len()..];
        format!("{}{}{rest}{space}", &word[..start], url::masked(url))
    };
    text.split_inclusive(char::is_whitespace).map(word).collect()
}

/// A line while it is put together.
struct Shownline {
    text: String,
    marked: Option<Range<usize>>,
    wanted: Range<usize>,
}

impl Shownline {
    /// Text between values: keys, brackets, commas. Returns false where a comment ends the line.
    fn bare(&mut self, text: &str, range: Range<usize>) -> bool {
        let comment = text[range.clone()].find('#');
        let end = comment.map_or(range.end, |at| range.start + at);
        self.piece(text, range.start..end);
        comment.is_none()
    }

    fn piece(&mut self, text: &str, range: Range<usize>) {
        let before = self.text.chars().count();
        let (from, to) = (self.wanted.start.max(range.start), self.wanted.end.min(range.end));
        if from <= to && from < range.end {
            let start = before + text[range.start..from].chars().count();
            self.mark(start..start + text[from..to].chars().count());
        }
        self.text.push_str(&text[range]);
    }

    fn instead(&mut self, instead: &str, range: Range<usize>) {
        let before = self.text.chars().count();
        if self.wanted.start < range.end && self.wanted.end > range.start {
            self.mark(before..before + instead.chars().count());
        }
        self.text.push_str(instead);
    }

    fn mark(&mut self, range: Range<usize>) {
        self.marked = Some(match self.marked.take() {
            Some(marked) => marked.start..range.end,
            None => range,
        });
    }

    fn finish(self) -> (String, Range<usize>) {
        let trimmed = self.text.trim_end().to_owned();
        let end = trimmed.chars().count();
        let marked = self.marked.unwrap_or(end..end);
        (trimmed, marked)
    }
}

/// A line of a text that could not be parsed: the key, and nothing after it.
fn keys_only(line: &str, marked: usize) -> (String, Range<usize>) {
    let is_table = line.trim_start().starts_with('[') && !line.contains(['"', '\'', '=']);
    let shown = match line.split_once('=') {
        Some((key, _)) if is_key(key) => format!("{key}= {MASK}"),
        None if is_table => line.split('#').next().unwrap_or_default().to_owned(),
        _ => MASK.to_owned(),
    };
    let shown = shown.trim_end().to_owned();
    let column = line.get(..marked).map_or(0, |before| before.chars().count());
    let at = column.min(shown.chars().count());
    (shown, at..at)
}

/// Whether a text can only be a key that is known to be harmless: short, of plain letters.
fn is_key(text: &str) -> bool {
    const KEY_BYTES_MAX: usize = 32;
    let key = text.trim();
    key.len() <= KEY_BYTES_MAX
        && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte == b'.')
}
