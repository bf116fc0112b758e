//! [`Report`] collects the problems of one text while the text is read and checked. It masks
//! secrets.
//!
//! A diagnostic prints its line of the text, and marks the problem with carets (`^`). A string is
//! printed only if its key is known and holds no secret. So the misspelt key `ulr` does not reveal
//! the value of `url`. Numbers and booleans are masked only if their key holds a secret. Comments
//! are never printed, because they often contain an old URL.

use std::ops::Range;

use crate::diagnostic::{Diagnostic, Diagnostics, Position, Severity};
use crate::syntax::{Item, Member, Span, Tree};
use crate::{MASK, expand};

/// Returns the masked form of a string, or `None` if the string may be printed as written.
type Mask = fn(&str) -> Option<String>;

/// Maximum number of characters of a value that a diagnostic prints.
const VALUE_CHARS_MAX: usize = 60;

/// Maximum number of characters of a line that a diagnostic prints.
const LINE_CHARS_MAX: usize = 200;

/// Maximum number of printed problems of one text. It limits the memory for a file that is not a
/// configuration at all.
const PRINTED_MAX: usize = 50;

/// The location of a key or table: its name and its position in the file, for diagnostics. All
/// locations compare as equal, so that two configurations with the same values are equal.
#[derive(Clone, Debug, Default)]
pub struct Location {
    /// The full name: `server.listen`, `chain.mainnet.family`.
    pub path: String,
    /// The byte range of the value, or of an unknown key; `None` if the key is not in the file.
    pub span: Option<Span>,
    /// The byte range of the table's heading, such as `[server]`; `None` if the table is not in the
    /// file.
    pub table: Option<Span>,
}

impl PartialEq for Location {
    fn eq(&self, _: &Location) -> bool {
        true
    }
}

/// The subject of a problem: a key, a table, or a position.
pub trait Located {
    /// Returns the name and the position.
    fn location(&self) -> &Location;
}

impl Located for Location {
    fn location(&self) -> &Location {
        self
    }
}

impl Location {
    /// Returns true if the file contains the key or table.
    pub fn is_written(&self) -> bool {
        self.span.is_some()
    }

    /// Returns the last part of the name, such as `listen` of `server.listen`.
    pub fn name(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or_default()
    }

    /// Returns the location of a member of this table.
    pub fn of_member(&self, member: &Member) -> Location {
        let path = format!("{}.{}", self.path, member.key);
        Location { path, span: Some(member.span.clone()), table: self.table.clone() }
    }

    /// Returns the location of a part of the value, such as an element of a list. The name does not
    /// change.
    pub fn with_span(&self, span: &Span) -> Location {
        Location { span: Some(span.clone()), ..self.clone() }
    }
}

/// A value of the text that is neither a list nor a table.
struct PrintedValue {
    span: Span,
    /// The text that is printed instead of the value, because the value may hold a secret. `None`
    /// prints the value as written.
    replacement: Option<String>,
}

/// A part of the text with masked secrets.
struct MaskedPart {
    text: String,
    /// The characters of `text` that carets mark.
    marked: Range<usize>,
}

/// Collects problems. `Debug` is not implemented, because the text holds secrets.
pub struct Report<'a> {
    file: Option<String>,
    text: &'a str,
    /// The values in the order of the text. `None` before the text is parsed; until then
    /// diagnostics print only keys.
    values: Option<Vec<PrintedValue>>,
    /// The headings of tables in the order of the text.
    headings: Vec<Span>,
    /// The name and heading of each table with a key that is unknown or cannot be read.
    faulty_tables: Vec<(String, Option<Span>)>,
    problems: Vec<Problem>,
    /// Problems of arguments and of other files. They are listed last.
    other_problems: Vec<Diagnostic>,
    /// Number of problems that are not listed, because they exceed the maximum.
    unlisted: usize,
}

/// A problem of the text.
struct Problem {
    span: Option<Span>,
    severity: Severity,
    key: String,
    /// True if the diagnostic prints the value.
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
            faulty_tables: Vec::new(),
            problems: Vec::new(),
            other_problems: Vec::new(),
            unlisted: 0,
        }
    }

    /// Adds an error. `allowed` describes the allowed values. The position is the value of the key,
    /// or the heading of the table if the key is not set.
    pub fn error(
        &mut self,
        subject: &impl Located,
        message: impl Into<String>,
        allowed: impl Into<String>,
    ) {
        let location = subject.location();
        let has_value = location.span.as_ref().is_some_and(|span| !self.is_heading(span));
        self.push(location, Severity::Error, has_value, message.into(), Some(allowed.into()));
    }

    /// Adds an error that does not print the value, such as an error about a missing key.
    pub fn error_without_value(
        &mut self,
        location: &Location,
        message: impl Into<String>,
        allowed: impl Into<String>,
    ) {
        self.push(location, Severity::Error, false, message.into(), Some(allowed.into()));
    }

    /// Adds a warning about a key or a table, with advice.
    pub fn warn(
        &mut self,
        subject: &impl Located,
        message: impl Into<String>,
        advice: impl Into<String>,
    ) {
        let location = subject.location();
        self.push(location, Severity::Warning, false, message.into(), Some(advice.into()));
    }

    /// Adds an error about a command-line argument. `value` is its value with secrets masked.
    pub fn argument_error(
        &mut self,
        key: impl Into<String>,
        value: Option<String>,
        message: impl Into<String>,
        allowed: impl Into<String>,
    ) {
        self.other_problems.push(Diagnostic { value, ..Diagnostic::error(key, message, allowed) });
    }

    /// Adds the problems of another file that this file names.
    pub fn absorb(&mut self, other_problems: Diagnostics) {
        for mut diagnostic in other_problems.list {
            diagnostic.file = diagnostic.file.or_else(|| other_problems.file.clone());
            self.other_problems.push(diagnostic);
        }
        self.unlisted += other_problems.unlisted;
    }

    /// Returns true if there is an error, so the configuration must not be used.
    pub fn has_errors(&self) -> bool {
        let text_severities = self.problems.iter().map(|problem| problem.severity);
        let other_severities = self.other_problems.iter().map(|problem| problem.severity);
        text_severities.chain(other_severities).any(|severity| severity == Severity::Error)
    }

    /// Returns true if a key of the table is unknown or cannot be read. In that case a missing key
    /// may only be misspelt.
    pub fn is_faulty(&self, table: &Location) -> bool {
        self.faulty_tables.iter().any(|(path, span)| *path == table.path && *span == table.table)
    }

    /// Returns the position of every scalar value in the order of the text. The second part is the
    /// text to print instead of the value, if the value is a secret.
    pub fn values(&self) -> impl Iterator<Item = (&Span, Option<&str>)> {
        let values = self.values.iter().flatten();
        values.map(|value| (&value.span, value.replacement.as_deref()))
    }

    /// Returns all problems in the order of the text.
    pub fn finish(mut self) -> Diagnostics {
        let mut problems = std::mem::take(&mut self.problems);
        problems.sort_by_key(|problem| problem.span.as_ref().map_or(0, |span| span.start));
        self.unlisted += problems.len().saturating_sub(PRINTED_MAX);
        problems.truncate(PRINTED_MAX);
        let mut list: Vec<Diagnostic> = problems
            .into_iter()
            .map(|problem| Diagnostic {
                severity: problem.severity,
                file: None,
                position: problem.span.as_ref().map(|span| self.find_position(span)),
                value: problem
                    .span
                    .filter(|_| problem.has_value)
                    .map(|span| self.mask_value(&span)),
                key: problem.key,
                message: problem.message,
                allowed: problem.allowed,
            })
            .collect();
        list.append(&mut self.other_problems);
        Diagnostics { file: self.file, list, unlisted: self.unlisted }
    }

    /// Adds a problem of this text. `has_value` is true if the diagnostic prints the value.
    pub(crate) fn push(
        &mut self,
        location: &Location,
        severity: Severity,
        has_value: bool,
        message: String,
        allowed: Option<String>,
    ) {
        let key = location.path.clone();
        let span = location.span.clone().or_else(|| location.table.clone());
        self.problems.push(Problem { span, severity, key, has_value, message, allowed });
    }

    /// Returns the number of problems of this text so far.
    pub fn count(&self) -> usize {
        self.problems.len()
    }

    /// Records that a key of the table is unknown or cannot be read.
    pub(crate) fn mark_faulty(&mut self, table: &Location) {
        self.faulty_tables.push((table.path.clone(), table.table.clone()));
    }

    /// Registers every string as a secret. [`Report::show_values`] later allows to print a string.
    pub(crate) fn hide_values(&mut self, members: &[Member]) {
        let mut values = Vec::new();
        for member in members {
            self.collect_values(&member.item, &mut values);
        }
        values.sort_by_key(|value| value.span.start);
        self.headings.sort_by_key(|span| span.start);
        self.values = Some(values);
    }

    /// Adds the scalar values in an item to `values`, and collects the headings of tables.
    fn collect_values(&mut self, item: &Item, values: &mut Vec<PrintedValue>) {
        let replacement = match &item.tree {
            Tree::List(list) => {
                return list.iter().for_each(|item| self.collect_values(item, values));
            }
            Tree::Table(members) => {
                if !self.text[item.span.clone()].starts_with('{') {
                    self.headings.push(item.span.clone());
                }
                return members.iter().for_each(|member| self.collect_values(&member.item, values));
            }
            Tree::Integer(_) | Tree::Float(_) | Tree::Bool(_) => None,
            Tree::String(_) | Tree::DateTime(_) | Tree::Null => Some(MASK.to_owned()),
        };
        values.push(PrintedValue { span: item.span.clone(), replacement });
    }

    /// Lets diagnostics print a value and the values in it. `mask` masks the secrets. A string that
    /// only refers to a variable or a file, such as `${NAME}`, is no secret.
    pub(crate) fn show_values(&mut self, item: &Item, mask: Mask) {
        match &item.tree {
            Tree::List(list) => list.iter().for_each(|item| self.show_values(item, mask)),
            Tree::Table(members) => {
                members.iter().for_each(|member| self.show_values(&member.item, mask));
            }
            Tree::String(text) if expand::is_reference(text) => {
                self.set_replacement(&item.span, None)
            }
            Tree::String(text) => self.set_replacement(&item.span, mask(text)),
            // A mask that masks even the empty string belongs to a key that holds a secret.
            _ => self.set_replacement(&item.span, mask("").map(|_| MASK.to_owned())),
        }
    }

    /// Sets the text that diagnostics print instead of the value at a position.
    fn set_replacement(&mut self, span: &Span, replacement: Option<String>) {
        let Some(values) = &mut self.values else { return };
        if let Ok(index) = values.binary_search_by_key(&span.start, |value| value.span.start) {
            values[index].replacement = replacement;
        }
    }

    /// Returns the value at a position of the text, with secrets masked. The value of a table with
    /// a heading is not printed.
    pub(crate) fn mask_value(&self, span: &Span) -> String {
        if self.is_heading(span) {
            return MASK.to_owned();
        }
        let text = self.mask_range(span.clone(), span.clone()).text;
        let line = text.lines().next().unwrap_or_default();
        if line.len() == text.len() && line.chars().count() <= VALUE_CHARS_MAX {
            return text;
        }
        format!("{}…", line.chars().take(VALUE_CHARS_MAX).collect::<String>())
    }

    /// Returns the position of a range of bytes. The range may end inside a character.
    fn find_position(&self, span: &Span) -> Position {
        let start = self.text.floor_char_boundary(span.start);
        let line_start = self.text[..start].rfind('\n').map_or(0, |offset| offset + 1);
        let line_end =
            self.text[start..].find('\n').map_or(self.text.len(), |offset| start + offset);
        let end = self.text.floor_char_boundary(span.end.clamp(start, line_end));
        let MaskedPart { text, marked } =
            shorten_line(self.mask_range(line_start..line_end, start..end));
        let (earlier_lines, text_before) =
            (&self.text[..line_start], &self.text[line_start..start]);
        Position {
            line: earlier_lines.matches('\n').count() + 1,
            column: text_before.chars().count() + 1,
            text,
            marked,
        }
    }

    /// Returns true if a heading is at this position. A heading is not printed as a value.
    fn is_heading(&self, span: &Span) -> bool {
        self.headings.binary_search_by_key(&span.start, |heading| heading.start).is_ok()
    }

    /// Returns the part `range` of the text with masked secrets and without comments. Carets mark
    /// the bytes `marked`. Both ranges count bytes from the start of the whole text.
    fn mask_range(&self, range: Span, marked: Span) -> MaskedPart {
        let Some(values) = &self.values else {
            return mask_unparsed_line(&self.text[range.clone()], marked.start - range.start);
        };
        let mut masked_part = MaskedPartBuilder {
            text: String::new(),
            char_count: 0,
            marked: None,
            marked_bytes: marked,
        };
        let mut position = range.start;
        let first_value = values.partition_point(|value| value.span.end <= range.start);
        let values = values[first_value..].iter();
        for value in values.take_while(|value| value.span.start < range.end) {
            let (start, end) = (value.span.start.max(range.start), value.span.end.min(range.end));
            if !masked_part.push_between_values(self.text, position..start) {
                return masked_part.finish();
            }
            match &value.replacement {
                None => masked_part.push(self.text, start..end),
                Some(replacement) => masked_part.replace(replacement, start..end),
            }
            position = end;
        }
        masked_part.push_between_values(self.text, position..range.end);
        masked_part.finish()
    }
}

/// Shortens a long line to the characters around the marked ones.
fn shorten_line(line: MaskedPart) -> MaskedPart {
    let char_count = line.text.chars().count();
    if char_count <= LINE_CHARS_MAX {
        return line;
    }
    let MaskedPart { text, marked } = line;
    let start = marked.start.saturating_sub(LINE_CHARS_MAX / 2).min(char_count - LINE_CHARS_MAX);
    let visible: String = text.chars().skip(start).take(LINE_CHARS_MAX).collect();
    let prefix = if start > 0 { "…" } else { "" };
    let suffix = if start + LINE_CHARS_MAX < char_count { "…" } else { "" };
    let shift = |position: usize| (position - start).min(LINE_CHARS_MAX) + prefix.chars().count();
    let text = format!("{prefix}{visible}{suffix}");
    MaskedPart { text, marked: shift(marked.start)..shift(marked.end) }
}

/// Builds a [`MaskedPart`].
struct MaskedPartBuilder {
    text: String,
    /// The number of characters of `text`.
    char_count: usize,
    /// The marked characters of `text`.
    marked: Option<Range<usize>>,
    /// The bytes that carets mark, as a range of the whole text.
    marked_bytes: Span,
}

impl MaskedPartBuilder {
    /// Appends a range between two values: keys, brackets and commas. Returns false if a comment
    /// begins in the range, because the rest of the line is then a comment.
    fn push_between_values(&mut self, text: &str, range: Span) -> bool {
        let comment = text[range.clone()].find('#');
        let end = comment.map_or(range.end, |offset| range.start + offset);
        self.push(text, range.start..end);
        comment.is_none()
    }

    /// Appends a range of the text as written.
    fn push(&mut self, text: &str, range: Span) {
        let chars_before = self.char_count;
        let (marked_start, marked_end) =
            (self.marked_bytes.start.max(range.start), self.marked_bytes.end.min(range.end));
        if marked_start <= marked_end && marked_start < range.end {
            let start = chars_before + text[range.start..marked_start].chars().count();
            self.mark(start..start + text[marked_start..marked_end].chars().count());
        }
        self.append(&text[range]);
    }

    fn append(&mut self, text: &str) {
        self.text.push_str(text);
        self.char_count += text.chars().count();
    }

    /// Appends a replacement for a range of the text.
    fn replace(&mut self, replacement: &str, range: Span) {
        let chars_before = self.char_count;
        if self.marked_bytes.start < range.end && self.marked_bytes.end > range.start {
            self.mark(chars_before..chars_before + replacement.chars().count());
        }
        self.append(replacement);
    }

    /// Extends the marked characters to the end of a range. If none are marked yet, marks the
    /// range.
    fn mark(&mut self, range: Range<usize>) {
        self.marked = Some(match self.marked.take() {
            Some(marked) => marked.start..range.end,
            None => range,
        });
    }

    fn finish(self) -> MaskedPart {
        let text = self.text.trim_end().to_owned();
        let end = text.chars().count();
        MaskedPart { text, marked: self.marked.unwrap_or(end..end) }
    }
}

/// Masks a line of a text that could not be parsed, except the key or the table's heading.
/// `marked_byte` is the byte of the line that a caret marks.
fn mask_unparsed_line(line: &str, marked_byte: usize) -> MaskedPart {
    let code = line.split('#').next().unwrap_or_default();
    let heading = code.trim().strip_prefix('[').map(|name| name.trim_matches(['[', ']']));
    let masked = match line.split_once('=') {
        Some((key, _)) if is_key(key) => format!("{key}= {MASK}"),
        None if heading.is_some_and(is_key) => code.to_owned(),
        _ => MASK.to_owned(),
    };
    let text = masked.trim_end().to_owned();
    let column = line.get(..marked_byte).map_or(0, |text_before| text_before.chars().count());
    let column = column.min(text.chars().count());
    MaskedPart { text, marked: column..column }
}

/// Returns true if a text looks like the name of a key: at most 32 lower-case letters, `_` and `.`.
/// Such a text is not treated as a secret.
fn is_key(text: &str) -> bool {
    const KEY_BYTES_MAX: usize = 32;
    let key = text.trim();
    key.len() <= KEY_BYTES_MAX
        && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte == b'.')
}
