//! Collects the problems of one text while it is read and checked.
//!
//! A diagnostic prints its line with secrets masked. A string is printed only if its key is known
//! and is no secret. So the misspelt key `ulr` does not reveal the value of `url`. Numbers and
//! booleans are masked only if their key holds a secret. Comments are never printed, because they
//! often contain an old URL.

use std::ops::Range;

use crate::diagnostic::{Diagnostic, Diagnostics, Place, Severity};
use crate::syntax::{Item, Member, Span, Tree};
use crate::{MASK, expand};

/// Masks a string, or returns `None` if it may be printed as written.
type Mask = fn(&str) -> Option<String>;

/// Maximum number of characters of a value that a diagnostic prints.
const VALUE_CHARS_MAX: usize = 60;

/// Maximum number of characters of a line that a diagnostic prints.
const LINE_CHARS_MAX: usize = 200;

/// Maximum number of printed problems of one text. It bounds the memory for a file that is not a
/// configuration at all.
const PRINTED_MAX: usize = 50;

/// The name and the position of a key or table, for diagnostics. All values of this type compare as
/// equal, so that two configurations with the same values are equal.
#[derive(Clone, Debug, Default)]
pub struct At {
    /// The full name: `server.listen`, `chain.mainnet.family`.
    pub path: String,
    /// The byte range of the value, or of an unknown key; `None` if the key is not in the file.
    pub span: Option<Span>,
    /// The byte range of the table's heading, such as `[server]`; `None` if the table is not in the
    /// file.
    pub table: Option<Span>,
}

impl PartialEq for At {
    fn eq(&self, _: &At) -> bool {
        true
    }
}

/// The subject of a problem: a key, a table, or a position.
pub trait Located {
    /// Returns the name and the position.
    fn located(&self) -> &At;
}

impl Located for At {
    fn located(&self) -> &At {
        self
    }
}

impl At {
    /// Returns true if the file contains the key or table.
    pub fn is_written(&self) -> bool {
        self.span.is_some()
    }

    /// Returns the last part of its name: `listen` of `server.listen`.
    pub fn name(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or_default()
    }

    /// Returns the same name with the position of one part of the value, such as an element of a
    /// list.
    pub fn part(&self, span: Option<Span>) -> At {
        At { span: span.or_else(|| self.span.clone()), ..self.clone() }
    }
}

/// The printed form of one value.
#[derive(Clone, Debug, PartialEq)]
enum Shown {
    AsWritten,
    Instead(String),
}

/// Collects problems. `Debug` is not implemented, because the text holds secrets.
pub struct Report<'a> {
    file: Option<String>,
    text: &'a str,
    /// Every value that is neither a list nor a table, in the order of the text. `None` before the
    /// text is parsed; until then diagnostics print only keys.
    values: Option<Vec<(Span, Shown)>>,
    /// The headings of tables in the order of the text.
    headings: Vec<Span>,
    /// Tables with a key that is unknown or cannot be read.
    faulty: Vec<(String, Option<Span>)>,
    problems: Vec<(Problem, Severity)>,
    /// Problems of other files, which are listed last.
    others: Vec<Diagnostic>,
    /// Number of problems that are left out of the list because there are too many.
    more: usize,
}

struct Problem {
    span: Option<Span>,
    key: String,
    has_value: bool,
    message: String,
    allowed: Option<String>,
}

impl<'a> Report<'a> {
    /// Creates a report on a file's text.
    pub fn of_file(name: &str, text: &'a str) -> Report<'a> {
        Report { file: Some(name.to_owned()), text, ..Report::of_arguments() }
    }

    /// Creates a report on command-line arguments, which have no position in a file.
    pub fn of_arguments() -> Report<'static> {
        Report {
            file: None,
            text: "",
            values: None,
            headings: Vec::new(),
            faulty: Vec::new(),
            problems: Vec::new(),
            others: Vec::new(),
            more: 0,
        }
    }

    /// Adds an error with the allowed values. Its position is the value of the key, or the table if
    /// the key is not set.
    pub fn error(
        &mut self,
        at: &impl Located,
        message: impl Into<String>,
        allowed: impl Into<String>,
    ) {
        let has_value = at.located().span.as_ref().is_some_and(|span| !self.is_heading(span));
        self.push(at.located(), has_value, Severity::Error, message.into(), Some(allowed.into()));
    }

    /// Adds an error that does not print the value.
    pub fn missing(&mut self, at: &At, message: impl Into<String>, allowed: impl Into<String>) {
        self.push(at, false, Severity::Error, message.into(), Some(allowed.into()));
    }

    /// Adds a warning about a key or a table, with advice.
    pub fn warn(
        &mut self,
        at: &impl Located,
        message: impl Into<String>,
        advice: impl Into<String>,
    ) {
        self.push(at.located(), false, Severity::Warning, message.into(), Some(advice.into()));
    }

    /// Adds an error about a command-line argument. `value` is its value with secrets masked.
    pub fn argument(
        &mut self,
        key: impl Into<String>,
        value: Option<String>,
        message: impl Into<String>,
        allowed: impl Into<String>,
    ) {
        self.others.push(Diagnostic {
            severity: Severity::Error,
            file: None,
            place: None,
            key: key.into(),
            value,
            message: message.into(),
            allowed: Some(allowed.into()),
        });
    }

    /// Adds the problems of another file that this file names.
    pub fn absorb(&mut self, others: Diagnostics) {
        for mut diagnostic in others.list {
            diagnostic.file = diagnostic.file.or_else(|| others.file.clone());
            self.others.push(diagnostic);
        }
        self.more += others.more;
    }

    /// Returns true if there is an error, so the configuration must not be used.
    pub fn has_errors(&self) -> bool {
        let own = self.problems.iter().any(|(_, severity)| *severity == Severity::Error);
        own || self.others.iter().any(|other| other.severity == Severity::Error)
    }

    /// Returns true if a key of the table is unknown or cannot be read. In that case
    /// a missing key may only be misspelt.
    pub fn is_faulty(&self, table: &At) -> bool {
        self.faulty.iter().any(|(path, span)| *path == table.path && *span == table.table)
    }

    /// Returns the position of every scalar value in the order of the text, and the text to print
    /// in its place if it is a secret.
    pub fn values(&self) -> impl Iterator<Item = (&Span, Option<&str>)> {
        self.values.iter().flatten().map(|(span, shown)| match shown {
            Shown::AsWritten => (span, None),
            Shown::Instead(text) => (span, Some(text.as_str())),
        })
    }

    /// Returns all problems in the order of the text.
    pub fn finish(mut self) -> Diagnostics {
        let mut problems = std::mem::take(&mut self.problems);
        problems.sort_by_key(|(problem, _)| problem.span.as_ref().map_or(0, |span| span.start));
        self.more += problems.len().saturating_sub(PRINTED_MAX);
        problems.truncate(PRINTED_MAX);
        let mut list: Vec<Diagnostic> = problems
            .into_iter()
            .map(|(problem, severity)| Diagnostic {
                severity,
                file: None,
                place: problem.span.as_ref().map(|span| self.place(span)),
                value: problem.span.filter(|_| problem.has_value).map(|span| self.value(&span)),
                key: problem.key,
                message: problem.message,
                allowed: problem.allowed,
            })
            .collect();
        list.append(&mut self.others);
        Diagnostics { file: self.file, list, more: self.more }
    }

    /// Adds an error about a position in the text that has no value.
    pub(crate) fn add(
        &mut self,
        span: Option<Span>,
        key: &str,
        message: String,
        allowed: Option<String>,
    ) {
        let at = At { path: key.to_owned(), span, table: None };
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
        let (key, span) = (at.path.clone(), at.span.clone().or_else(|| at.table.clone()));
        self.problems.push((Problem { span, key, has_value, message, allowed }, severity));
    }

    /// Returns the number of problems of this text so far.
    pub fn count(&self) -> usize {
        self.problems.len()
    }

    pub(crate) fn mark_faulty(&mut self, table: &At) {
        self.faulty.push((table.path.clone(), table.table.clone()));
    }

    /// Registers every string as a secret. [`Report::show_values`] reverts that.
    pub(crate) fn hide_values(&mut self, members: &[Member]) {
        let mut values = Vec::new();
        for member in members {
            self.collect(&member.item, &mut values);
        }
        values.sort_by_key(|(span, _)| span.start);
        self.headings.sort_by_key(|span| span.start);
        self.values = Some(values);
    }

    fn collect(&mut self, item: &Item, values: &mut Vec<(Span, Shown)>) {
        let shown = match &item.tree {
            Tree::List(list) => return list.iter().for_each(|item| self.collect(item, values)),
            Tree::Table(members) => {
                if !self.text[item.span.clone()].starts_with('{') {
                    self.headings.push(item.span.clone());
                }
                return members.iter().for_each(|member| self.collect(&member.item, values));
            }
            Tree::Integer(_) | Tree::Float(_) | Tree::Bool(_) => Shown::AsWritten,
            Tree::Text(_) | Tree::Time(_) | Tree::Null => Shown::Instead(MASK.to_owned()),
        };
        values.push((item.span.clone(), shown));
    }

    /// Allows diagnostics to print a value, and each value in it, masked by `mask`. A string that
    /// only refers to a variable or a file, such as `${NAME}`, is no secret.
    pub(crate) fn show_values(&mut self, item: &Item, mask: Mask) {
        match &item.tree {
            Tree::List(list) => list.iter().for_each(|item| self.show_values(item, mask)),
            Tree::Table(members) => {
                members.iter().for_each(|member| self.show_values(&member.item, mask));
            }
            Tree::Text(text) if expand::is_reference(text) => self.show(&item.span, None),
            Tree::Text(text) => self.show(&item.span, mask(text)),
            _ => self.show(&item.span, mask("").map(|_| MASK.to_owned())),
        }
    }

    fn show(&mut self, span: &Span, instead: Option<String>) {
        let Some(values) = &mut self.values else { return };
        if let Ok(at) = values.binary_search_by_key(&span.start, |(span, _)| span.start) {
            values[at].1 = instead.map_or(Shown::AsWritten, Shown::Instead);
        }
    }

    /// Returns the value at a position of the text, with secrets masked. The value of a table with
    /// a heading is not printed.
    pub(crate) fn value(&self, span: &Span) -> String {
        if self.is_heading(span) {
            return MASK.to_owned();
        }
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
        let (text, marked) = shortened(self.masked(line_start..line_end, start..end));
        let (line, before) = (&self.text[..line_start], &self.text[line_start..start]);
        Place {
            line: line.matches('\n').count() + 1,
            column: before.chars().count() + 1,
            text,
            marked,
        }
    }

    fn is_heading(&self, span: &Span) -> bool {
        self.headings.binary_search_by_key(&span.start, |heading| heading.start).is_ok()
    }

    /// Returns a part of the text with masked secrets and without comments, and the position of the
    /// marked bytes in the result, in characters.
    fn masked(&self, part: Span, marked: Span) -> (String, Range<usize>) {
        let Some(values) = &self.values else {
            return keys_only(&self.text[part.clone()], marked.start - part.start);
        };
        let mut line = MaskedText { text: String::new(), chars: 0, marked: None, wanted: marked };
        let mut at = part.start;
        let first = values.partition_point(|(span, _)| span.end <= part.start);
        for (span, shown) in values[first..].iter().take_while(|(span, _)| span.start < part.end) {
            let (start, end) = (span.start.max(part.start), span.end.min(part.end));
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

    /// Returns the nearest character boundary at or before a byte. The parser's spans may end
    /// inside a character.
    fn floor(&self, at: usize) -> usize {
        let at = at.min(self.text.len());
        (0..=at).rev().find(|at| self.text.is_char_boundary(*at)).unwrap_or(0)
    }
}

/// Shortens a long line to the characters around the marked ones.
fn shortened((line, marked): (String, Range<usize>)) -> (String, Range<usize>) {
    let chars = line.chars().count();
    if chars <= LINE_CHARS_MAX {
        return (line, marked);
    }
    let from = marked.start.saturating_sub(LINE_CHARS_MAX / 2).min(chars - LINE_CHARS_MAX);
    let part: String = line.chars().skip(from).take(LINE_CHARS_MAX).collect();
    let before = if from > 0 { "…" } else { "" };
    let after = if from + LINE_CHARS_MAX < chars { "…" } else { "" };
    let shift = |at: usize| (at - from).min(LINE_CHARS_MAX) + before.chars().count();
    (format!("{before}{part}{after}"), shift(marked.start)..shift(marked.end))
}

/// Builds the masked form of a part of the text.
struct MaskedText {
    text: String,
    /// The number of characters of `text`.
    chars: usize,
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
        let before = self.chars;
        let (from, to) = (self.wanted.start.max(range.start), self.wanted.end.min(range.end));
        if from <= to && from < range.end {
            let start = before + text[range.start..from].chars().count();
            self.mark(start..start + text[from..to].chars().count());
        }
        self.append(&text[range]);
    }

    fn append(&mut self, text: &str) {
        self.text.push_str(text);
        self.chars += text.chars().count();
    }

    fn replace(&mut self, instead: &str, range: Span) {
        let before = self.chars;
        if self.wanted.start < range.end && self.wanted.end > range.start {
            self.mark(before..before + instead.chars().count());
        }
        self.append(instead);
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

/// Masks a line of a text that could not be parsed: keeps only the key, or the table's heading.
fn keys_only(line: &str, marked: usize) -> (String, Range<usize>) {
    let code = line.split('#').next().unwrap_or_default();
    let heading = code.trim().strip_prefix('[').map(|name| name.trim_matches(['[', ']']));
    let shown = match line.split_once('=') {
        Some((key, _)) if is_key(key) => format!("{key}= {MASK}"),
        None if heading.is_some_and(is_key) => code.to_owned(),
        _ => MASK.to_owned(),
    };
    let shown = shown.trim_end().to_owned();
    let column = line.get(..marked).map_or(0, |before| before.chars().count());
    let at = column.min(shown.chars().count());
    (shown, at..at)
}

/// Returns true if a text looks like the name of a key: at most 32 lower-case letters, `_` and `.`.
/// Such a text is not treated as a secret.
fn is_key(text: &str) -> bool {
    const KEY_BYTES_MAX: usize = 32;
    let key = text.trim();
    key.len() <= KEY_BYTES_MAX
        && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte == b'.')
}
