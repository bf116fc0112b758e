//! Collects the problems of one text while it is read and checked.
//!
//! A line is shown in a diagnostic with its secrets masked. The rule is to hide unless known to be
//! harmless: a value is shown only under a key that exists and that holds no secret, so that a key
//! misspelt as `ulr` does not reveal what was meant for `url`. Comments are never shown, since an
//! old URL is often kept in one.

use std::ops::Range;

use crate::diagnostic::{Diagnostic, Diagnostics, Place, Severity};
use crate::syntax::{Item, Member, Span, Tree};
use crate::{MASK, expand};

/// Longest value that a diagnostic repeats, in characters.
const VALUE_CHARS_MAX: usize = 60;

/// Where a key or table stands, for diagnostics. All places compare as equal, so that two
/// configurations with the same values are equal wherever the values stand.
#[derive(Clone, Debug, Default)]
pub struct At {
    /// The full name: `server.listen`, `chain.mainnet.family`.
    pub path: String,
    /// The bytes of the value, or of the table's heading; `None` if neither was written.
    pub span: Option<Span>,
}

impl PartialEq for At {
    fn eq(&self, _: &At) -> bool {
        true
    }
}

impl At {
    /// The place of another part of the file under the same name.
    pub fn part(&self, span: Option<Span>) -> At {
        At { path: self.path.clone(), span: span.or_else(|| self.span.clone()) }
    }
}

/// How the text of one value appears in a diagnostic.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shown {
    AsWritten,
    Instead(String),
}

/// Collects problems. Holds the text with its secrets: `Debug` is not implemented.
pub struct Report<'a> {
    file: Option<String>,
    text: &'a str,
    /// Every value that is neither list nor table, in the order of the text; `None` before the
    /// text is parsed, when nothing but keys is shown.
    values: Option<Vec<(Span, Shown)>>,
    found: Vec<(Found, Severity)>,
    /// Problems of other files, which come last.
    others: Vec<Diagnostic>,
}

struct Found {
    span: Option<Span>,
    key: String,
    has_value: bool,
    message: String,
    allowed: Option<String>,
}

impl<'a> Report<'a> {
    /// A report on a file's text.
    pub fn of_file(name: &str, text: &'a str) -> Report<'a> {
        let (found, others) = (Vec::new(), Vec::new());
        Report { file: Some(name.to_owned()), text, values: None, found, others }
    }

    /// A report on arguments, which have no place.
    pub fn of_arguments() -> Report<'static> {
        Report { file: None, text: "", values: None, found: Vec::new(), others: Vec::new() }
    }

    /// Adds an error about a key's value: what is wrong, and what is allowed.
    pub fn error(&mut self, at: &At, message: impl Into<String>, allowed: impl Into<String>) {
        self.push(at, at.span.is_some(), Severity::Error, message.into(), Some(allowed.into()));
    }

    /// Adds an error about a table or a key that is missing.
    pub fn missing(&mut self, at: &At, message: impl Into<String>, allowed: impl Into<String>) {
        self.push(at, false, Severity::Error, message.into(), Some(allowed.into()));
    }

    /// Adds a warning about a key or a table, with what to do about it.
    pub fn warn(&mut self, at: &At, message: impl Into<String>, advice: impl Into<String>) {
        self.push(at, false, Severity::Warning, message.into(), Some(advice.into()));
    }

    /// Adds the problems of another file that this one names.
    pub fn absorb(&mut self, others: Diagnostics) {
        for mut diagnostic in others.list {
            if let Some(place) = &mut diagnostic.place {
                place.file.clone_from(&others.file);
            }
            self.others.push(diagnostic);
        }
    }

    /// Returns true if anything was found that forbids the use of the configuration.
    pub fn has_errors(&self) -> bool {
        let own = self.found.iter().any(|(_, severity)| *severity == Severity::Error);
        own || self.others.iter().any(|other| other.severity == Severity::Error)
    }

    /// Everything found, in the order of the text.
    pub fn finish(mut self) -> Diagnostics {
        let mut found = std::mem::take(&mut self.found);
        found.sort_by_key(|(found, _)| found.span.as_ref().map_or(0, |span| span.start));
        let mut list: Vec<Diagnostic> = found
            .into_iter()
            .map(|(found, severity)| Diagnostic {
                severity,
                place: found.span.as_ref().map(|span| self.place(span)),
                value: found.span.filter(|_| found.has_value).map(|span| self.value(&span)),
                key: found.key,
                message: found.message,
                allowed: found.allowed,
            })
            .collect();
        list.append(&mut self.others);
        Diagnostics { file: self.file, list }
    }

    /// Adds an error about a place without a value.
    pub(crate) fn add(
        &mut self,
        span: Option<Span>,
        key: &str,
        message: String,
        allowed: Option<String>,
    ) {
        let at = At { path: key.to_owned(), span };
        self.push(&at, false, Severity::Error, message, allowed);
    }

    fn push(
        &mut self,
        at: &At,
        has_value: bool,
        severity: Severity,
        message: String,
        allowed: Option<String>,
    ) {
        let (key, span) = (at.path.clone(), at.span.clone());
        self.found.push((Found { span, key, has_value, message, allowed }, severity));
    }

    /// Registers every value of the text as a secret, until [`Report::show`] says otherwise.
    pub(crate) fn hide_values(&mut self, members: &[Member]) {
        let mut values = Vec::new();
        for member in members {
            collect(&member.item, &mut values);
        }
        values.sort_by_key(|(span, _)| span.start);
        self.values = Some(values);
    }

    /// Shows the value at a place; one that only names a variable or a file shows no secret.
    pub(crate) fn show(&mut self, span: &Span, shown: Shown) {
        let Some(values) = &mut self.values else { return };
        let Ok(at) = values.binary_search_by_key(&span.start, |(span, _)| span.start) else {
            return;
        };
        let reference = expand::is_reference(self.text[span.clone()].trim_matches(['"', '\'']));
        values[at].1 = if reference { Shown::AsWritten } else { shown };
    }

    fn value(&self, span: &Span) -> String {
        let (text, _) = self.masked(span.clone(), span.clone());
        let line = text.lines().next().unwrap_or_default();
        if line.len() == text.len() && line.chars().count() <= VALUE_CHARS_MAX {
            return text;
        }
        format!("{}…", line.chars().take(VALUE_CHARS_MAX).collect::<String>())
    }

    fn place(&self, span: &Span) -> Place {
        let start = self.floor(span.start);
        let line_start = self.text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = self.text[start..].find('\n').map_or(self.text.len(), |at| start + at);
        let end = self.floor(span.end.clamp(start, line_end));
        let (text, marked) = self.masked(line_start..line_end, start..end);
        let (line, before) = (&self.text[..line_start], &self.text[line_start..start]);
        Place {
            file: None,
            line: line.matches('\n').count() + 1,
            column: before.chars().count() + 1,
            text,
            marked,
        }
    }

    /// A part of the text with its secrets masked and without its comments, and where in it (in
    /// characters) the marked bytes stand.
    fn masked(&self, part: Span, marked: Span) -> (String, Range<usize>) {
        let Some(values) = &self.values else {
            return keys_only(&self.text[part.clone()], marked.start - part.start);
        };
        let mut line = MaskedText { text: String::new(), marked: None, wanted: marked };
        let mut at = part.start;
        for (span, shown) in values {
            let (start, end) = (span.start.max(part.start), span.end.min(part.end));
            if start >= end || start < at {
                continue;
            }
            if !line.between_values(self.text, at..start) {
                return line.finish();
            }
            match shown {
                Shown::AsWritten => line.push(self.text, start..end),
                Shown::Instead(instead) => line.replace(instead, start..end),
            }
            at = end;
        }
        line.between_values(self.text, at..part.end);
        line.finish()
    }

    /// The nearest character boundary at or before a byte; the parser's spans end on bytes.
    fn floor(&self, at: usize) -> usize {
        let at = at.min(self.text.len());
        (0..=at).rev().find(|at| self.text.is_char_boundary(*at)).unwrap_or(0)
    }
}

fn collect(item: &Item, values: &mut Vec<(Span, Shown)>) {
    match &item.tree {
        Tree::List(list) => list.iter().for_each(|item| collect(item, values)),
        Tree::Table(members) => members.iter().for_each(|member| collect(&member.item, values)),
        _ => values.push((item.span.clone(), Shown::Instead(MASK.to_owned()))),
    }
}

/// A part of the text while its masked form is built.
struct MaskedText {
    text: String,
    marked: Option<Range<usize>>,
    wanted: Span,
}

impl MaskedText {
    /// Appends keys, brackets and commas. Returns false if a comment ends the line.
    fn between_values(&mut self, text: &str, range: Span) -> bool {
        let comment = text[range.clone()].find('#');
        let end = comment.map_or(range.end, |at| range.start + at);
        self.push(text, range.start..end);
        comment.is_none()
    }

    fn push(&mut self, text: &str, range: Span) {
        let before = self.text.chars().count();
        let (from, to) = (self.wanted.start.max(range.start), self.wanted.end.min(range.end));
        if from <= to && from < range.end {
            let start = before + text[range.start..from].chars().count();
            self.mark(start..start + text[from..to].chars().count());
        }
        self.text.push_str(&text[range]);
    }

    fn replace(&mut self, instead: &str, range: Span) {
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

/// Returns true if a text can only be the name of a key, which is no secret: short, of lower-case
/// letters.
fn is_key(text: &str) -> bool {
    const KEY_BYTES_MAX: usize = 32;
    let key = text.trim();
    key.len() <= KEY_BYTES_MAX
        && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte == b'.')
}
