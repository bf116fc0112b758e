//! What is wrong with a configuration, told like a compiler: place, line, caret, what is allowed.
//!
//! A [`Fault`] is complete and holds no secret: the line it shows was masked by `config/mask.rs`
//! when it was made. [`Report`] collects them while a text is read, so that all are told at once;
//! [`Faults`] is what the operator gets.

use std::fmt;
use std::ops::Range;

use super::mask::Masks;

/// One thing that is wrong or looks wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Whether it keeps the gateway from starting.
    pub severity: Severity,
    /// Where it stands; `None` for arguments and for files that cannot be read.
    pub place: Option<Place>,
    /// The key by its full name, such as `front.body_bytes_max`; empty if it is about no key.
    pub key: String,
    /// The value as it was written, secrets masked; `None` where there is none.
    pub value: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub allowed: Option<String>,
}

/// Whether a fault keeps the gateway from starting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// It does.
    Fault,
    /// It does not.
    Warning,
}

/// A place in a file, with its line as it may be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, where it is another one than that of all faults together.
    pub file: Option<String>,
    /// Line, from 1.
    pub line: usize,
    /// Column of the first character meant, from 1, in the file as it is.
    pub column: usize,
    /// The line, secrets masked.
    pub text: String,
    /// Characters of `text` that are meant, for the caret; may be empty at the end of a line.
    pub marked: Range<usize>,
}

/// All faults of one configuration, in the order of their places. `Display` prints them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Faults {
    /// The file's name as it was given; `None` for arguments.
    pub file: Option<String>,
    /// The faults; never empty when returned as an error.
    pub list: Vec<Fault>,
}

impl Faults {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The one fault of a file that cannot be read at all.
    pub(super) fn unreadable(name: &str, error: &std::io::Error) -> Faults {
        let fault = Fault {
            severity: Severity::Fault,
            place: None,
            key: String::new(),
            value: None,
            message: format!("cannot read the file: {error}"),
            allowed: Some("a readable file in utf-8".to_owned()),
        };
        Faults { file: Some(name.to_owned()), list: vec![fault] }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.list.iter().enumerate() {
            if i > 0 {
                writeln!(formatter)?;
            }
            fault.print(self.file.as_deref(), formatter)?;
        }
        Ok(())
    }
}

impl Fault {
    fn print(&self, file: Option<&str>, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (file, &self.place) {
            (Some(file), Some(place)) => {
                let file = place.file.as_deref().unwrap_or(file);
                write!(formatter, "{file}:{}:{}: ", place.line, place.column)?;
            }
            (Some(file), None) => write!(formatter, "{file}: ")?,
            (None, _) => {}
        }
        if self.severity == Severity::Warning {
            formatter.write_str("warning: ")?;
        }
        match (self.key.as_str(), &self.value) {
            ("", _) => {}
            (key, Some(value)) => write!(formatter, "{key} = {value}: ")?,
            (key, None) => write!(formatter, "{key}: ")?,
        }
        writeln!(formatter, "{}", self.message)?;
        if let Some(place) = &self.place {
            let gutter = place.line.to_string().len().max(4);
            let carets = "^".repeat(place.marked.len().max(1));
            writeln!(formatter, "{:>gutter$} | {}", place.line, place.text)?;
            writeln!(formatter, "{:>gutter$} | {}{carets}", "", " ".repeat(place.marked.start))?;
        }
        match (&self.allowed, self.severity) {
            (Some(allowed), Severity::Fault) => writeln!(formatter, "     allowed: {allowed}"),
            (Some(advice), Severity::Warning) => writeln!(formatter, "     advice: {advice}"),
            (None, _) => Ok(()),
        }
    }
}

/// Collects faults while a text is read. Holds the text, secrets included: it is not printed.
pub(super) struct Report<'a> {
    file: Option<String>,
    text: &'a str,
    masks: Masks,
    found: Vec<(usize, Fault)>,
}

impl<'a> Report<'a> {
    pub(super) fn of_file(name: &str, text: &'a str) -> Report<'a> {
        Report { file: Some(name.to_owned()), text, masks: Masks::hide_all(), found: Vec::new() }
    }

    pub(super) fn of_arguments() -> Report<'static> {
        Report { file: None, text: "", masks: Masks::hide_all(), found: Vec::new() }
    }

    /// From here on lines are shown, except for what these masks hide.
    pub(super) fn show(&mut self, masks: Masks) {
        self.masks = masks;
    }

    /// Adds a fault. `span` is the byte range in the text that is meant, `None` for arguments.
    pub(super) fn fault(
        &mut self,
        span: Option<&Range<usize>>,
        key: impl Into<String>,
        value: Option<String>,
        message: impl Into<String>,
        allowed: Option<String>,
    ) {
        let fault = Fault {
            severity: Severity::Fault,
            place: span.map(|span| self.place(span)),
            key: key.into(),
            value,
            message: message.into(),
            allowed,
        };
        self.found.push((span.map_or(0, |span| span.start), fault));
    }

    /// Adds a warning, which says what to do about it.
    pub(super) fn warn(
        &mut self,
        span: Option<&Range<usize>>,
        key: impl Into<String>,
        message: impl Into<String>,
        advice: &str,
    ) {
        self.fault(span, key, None, message, Some(advice.to_owned()));
        if let Some((_, fault)) = self.found.last_mut() {
            fault.severity = Severity::Warning;
        }
    }

    /// Adds what was found in another file that this one names.
    pub(super) fn absorb(&mut self, others: Faults) {
        for mut fault in others.list {
            if let Some(place) = &mut fault.place {
                place.file.clone_from(&others.file);
            }
            // Behind all that stands in this file.
            self.found.push((usize::MAX, fault));
        }
    }

    /// Whether anything found keeps the gateway from starting.
    pub(super) fn has_faults(&self) -> bool {
        self.found.iter().any(|(_, fault)| fault.severity == Severity::Fault)
    }

    /// Everything found, in the order of the text.
    pub(super) fn finish(mut self) -> Faults {
        self.found.sort_by_key(|(at, _)| *at);
        let list = self.found.into_iter().map(|(_, fault)| fault).collect();
        Faults { file: self.file, list }
    }

    fn place(&self, span: &Range<usize>) -> Place {
        let start = self.floor(span.start);
        let line_start = self.text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = self.text[start..].find('\n').map_or(self.text.len(), |at| start + at);
        let end = self.floor(span.end.clamp(start, line_end));
        let (text, marked) = self.masks.line(self.text, line_start..line_end, start..end);
        Place {
            file: None,
            line: self.text[..line_start].matches('\n').count() + 1,
            column: self.text[line_start..start].chars().count() + 1,
            text,
            marked,
        }
    }

    /// The nearest character boundary at or before a byte; the parser's spans end on bytes.
    fn floor(&self, at: usize) -> usize {
        let at = at.min(self.text.len());
        (0..=at).rev().find(|at| self.text.is_char_boundary(*at)).unwrap_or(0)
    }
}
