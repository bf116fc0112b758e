//! What is wrong with a plan, told like a compiler: place, line, caret, what is allowed.
//!
//! A [`Fault`] is complete and holds no secret: the line it shows was masked by `plan/mask.rs` when
//! it was made. [`Report`] collects them while a text is read, so that all are told at once;
//! [`Faults`] is what the user gets. Warnings are no faults: they are `plan/lint.rs`.

use std::fmt;
use std::ops::Range;

use super::mask::Masks;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file's name as it was given; `None` for options of a command line.
    pub file: Option<String>,
    /// Where it stands; `None` for options and for files that cannot be read.
    pub place: Option<Place>,
    /// The key by its full name, such as `target.timeout`, or the option, such as `--rate`; empty
    /// if it is about neither.
    pub key: String,
    /// The value as it was written, secrets masked; `None` where there is none.
    pub value: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub allowed: Option<String>,
}

/// A place in a file, with its line as it may be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Line, from 1.
    pub line: usize,
    /// Column of the first character meant, from 1, in the file as it is.
    pub column: usize,
    /// The line, secrets masked; empty where it is not shown.
    pub text: String,
    /// Characters of `text` that are meant, for the caret; may be empty at the end of a line.
    pub marked: Range<usize>,
}

/// All faults of one plan, in the order of their places. `Display` prints them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Faults {
    /// The faults; never empty when returned as an error.
    pub list: Vec<Fault>,
    /// How many more there were than are kept.
    pub more: usize,
}

/// Faults that are kept of one text: enough to repair a file by, and a bound on what a file full
/// of nonsense can make us hold.
const FAULTS_MAX: usize = 50;

/// Characters of a line that a fault shows.
const LINE_CHARS_MAX: usize = 160;

impl Faults {
    /// How many there were.
    pub fn count(&self) -> usize {
        self.list.len() + self.more
    }

    /// One fault that is about no place in a text.
    pub(super) fn one(
        key: impl Into<String>,
        value: Option<String>,
        message: impl Into<String>,
        allowed: impl Into<String>,
    ) -> Faults {
        let fault = Fault {
            file: None,
            place: None,
            key: key.into(),
            value,
            message: message.into(),
            allowed: Some(allowed.into()),
        };
        Faults { list: vec![fault], more: 0 }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.list.iter().enumerate() {
            if i > 0 {
                writeln!(formatter)?;
            }
            fault.print(formatter)?;
        }
        match self.more {
            0 => Ok(()),
            more => writeln!(formatter, "\nand {more} more"),
        }
    }
}

impl Fault {
    fn print(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, &self.place) {
            (Some(file), Some(place)) => {
                write!(formatter, "{file}:{}:{}: ", place.line, place.column)?;
            }
            (Some(file), None) => write!(formatter, "{file}: ")?,
            (None, _) => {}
        }
        match (self.key.as_str(), &self.value) {
            ("", _) => {}
            (key, Some(value)) => write!(formatter, "{key} = {value}: ")?,
            (key, None) => write!(formatter, "{key}: ")?,
        }
        writeln!(formatter, "{}", self.message)?;
        if let Some(place) = self.place.as_ref().filter(|place| !place.text.is_empty()) {
            let gutter = place.line.to_string().len().max(4);
            let carets = "^".repeat(place.marked.len().max(1));
            writeln!(formatter, "{:>gutter$} | {}", place.line, place.text)?;
            writeln!(formatter, "{:>gutter$} | {}{carets}", "", " ".repeat(place.marked.start))?;
        }
        match &self.allowed {
            Some(allowed) => writeln!(formatter, "     allowed: {allowed}"),
            None => Ok(()),
        }
    }
}

/// Which option of a command line wrote which bytes of a text.
pub(super) type Options = Vec<(Range<usize>, &'static str)>;

/// Collects faults while a text is read. Holds the text, secrets included: it is not printed.
pub(super) struct Report<'a> {
    file: Option<String>,
    text: &'a str,
    masks: Masks,
    options: Options,
    found: Vec<(usize, Fault)>,
    more: usize,
}

impl<'a> Report<'a> {
    pub(super) fn of_file(name: &str, text: &'a str) -> Report<'a> {
        Report {
            file: Some(name.to_owned()),
            text,
            masks: Masks::hide_all(),
            options: Vec::new(),
            found: Vec::new(),
            more: 0,
        }
    }

    /// A text that was put together from options: faults name the option instead of the place.
    pub(super) fn of_options(text: &'a str, options: Options) -> Report<'a> {
        let found = Vec::new();
        Report { file: None, text, masks: Masks::hide_all(), options, found, more: 0 }
    }

    /// The text that is read.
    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    /// From here on lines are shown, except for what these masks hide.
    pub(super) fn show(&mut self, masks: Masks) {
        self.masks = masks;
    }

    /// Adds a fault. `span` is the byte range in the text that is meant.
    pub(super) fn fault(
        &mut self,
        span: Option<&Range<usize>>,
        key: impl Into<String>,
        value: Option<String>,
        message: impl Into<String>,
        allowed: Option<String>,
    ) {
        if self.found.len() >= FAULTS_MAX {
            self.more += 1;
            return;
        }
        let option = span.and_then(|span| {
            self.options.iter().find(|(range, _)| range.contains(&span.start)).map(|(_, o)| *o)
        });
        let fault = Fault {
            file: self.file.clone(),
            place: span.filter(|_| self.file.is_some()).map(|span| self.place(span)),
            key: option.map_or_else(|| key.into(), str::to_owned),
            value,
            message: message.into(),
            allowed,
        };
        self.found.push((span.map_or(0, |span| span.start), fault));
    }

    /// Adds the faults of another file that this text named at `span`.
    pub(super) fn adopt(&mut self, span: Option<&Range<usize>>, faults: Faults) {
        let at = span.map_or(0, |span| span.start);
        for fault in faults.list {
            if self.found.len() < FAULTS_MAX {
                self.found.push((at, fault));
            } else {
                self.more += 1;
            }
        }
        self.more += faults.more;
    }

    /// Whether anything was found.
    pub(super) fn has_faults(&self) -> bool {
        !self.found.is_empty()
    }

    /// How many were found so far.
    pub(super) fn count(&self) -> usize {
        self.found.len() + self.more
    }

    /// Everything found, in the order of the text.
    pub(super) fn finish(mut self) -> Faults {
        self.found.sort_by_key(|(at, _)| *at);
        let list = self.found.into_iter().map(|(_, fault)| fault).collect();
        Faults { list, more: self.more }
    }

    fn place(&self, span: &Range<usize>) -> Place {
        let start = self.floor(span.start);
        let line_start = self.text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = self.text[start..].find('\n').map_or(self.text.len(), |at| start + at);
        let end = self.floor(span.end.clamp(start, line_end));
        let (mut text, mut marked) =
            self.masks.line(self.text, line_start..line_end, start..end.max(start));
        if text.chars().count() > LINE_CHARS_MAX {
            text = text.chars().take(LINE_CHARS_MAX).chain(['…']).collect();
            marked = marked.start.min(LINE_CHARS_MAX)..marked.end.min(LINE_CHARS_MAX);
        }
        Place {
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
