//! Diagnostics: problems of a configuration file, printed like compiler errors with position, line,
//! carets and allowed values. [`crate::Report`] creates them and masks all secrets.

use std::fmt;
use std::ops::Range;

/// A problem of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The severity.
    pub severity: Severity,
    /// The file, if it differs from [`Diagnostics::file`].
    pub file: Option<String>,
    /// The position of the problem. `None` for arguments, for files that cannot be read, and for
    /// problems of a whole file.
    pub position: Option<Position>,
    /// The full name of the key, such as `server.listen`; empty if the problem concerns no key.
    pub key: String,
    /// The value as written, with secrets masked. `None` if the key has no value, or if its value
    /// is not printed.
    pub value: Option<String>,
    /// A description of the problem.
    pub message: String,
    /// The allowed values; for a warning, advice.
    pub allowed: Option<String>,
}

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The configuration must not be used.
    Error,
    /// The configuration may be used.
    Warning,
}

/// A position in a file, with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Line, counted from 1.
    pub line: usize,
    /// Column of the first marked character, counted from 1.
    pub column: usize,
    /// The line with secrets masked; empty if it is not printed.
    pub text: String,
    /// The range of characters in `text` that carets mark. It is empty at the end of a line.
    pub marked: Range<usize>,
}

/// The problems of one configuration, in the order of their positions. `Display` prints them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics {
    /// The file name as the user wrote it; `None` for arguments.
    pub file: Option<String>,
    /// The problems.
    pub list: Vec<Diagnostic>,
    /// The number of problems that are not listed.
    pub unlisted: usize,
}

impl std::error::Error for Diagnostics {}

impl Diagnostics {
    /// Returns true if there is no problem.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the number of all problems, listed or not.
    pub fn count(&self) -> usize {
        self.list.len() + self.unlisted
    }

    /// Creates the diagnostics of a file that cannot be read.
    pub fn unreadable(file: &str, error: &std::io::Error) -> Diagnostics {
        let message = format!("cannot read the file: {error}");
        let diagnostic = Diagnostic::error("", message, "a readable file in utf-8");
        Diagnostics { file: Some(file.to_owned()), list: vec![diagnostic], unlisted: 0 }
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.list.iter().enumerate() {
            if index > 0 {
                writeln!(formatter)?;
            }
            diagnostic.write_to(self.file.as_deref(), formatter)?;
        }
        if self.unlisted > 0 {
            writeln!(formatter, "\nand {} more", self.unlisted)?;
        }
        Ok(())
    }
}

impl Diagnostic {
    /// Creates an error without a position and a value. `key` is empty if the error concerns no
    /// key.
    pub fn error(
        key: impl Into<String>,
        message: impl Into<String>,
        allowed: impl Into<String>,
    ) -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            file: None,
            position: None,
            key: key.into(),
            value: None,
            message: message.into(),
            allowed: Some(allowed.into()),
        }
    }

    /// Prints the diagnostic. `file` is the name to print if the diagnostic has no file of its own.
    fn write_to(&self, file: Option<&str>, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.file.as_deref().or(file), &self.position) {
            (Some(file), Some(position)) => {
                write!(formatter, "{file}:{}:{}: ", position.line, position.column)?;
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
        if let Some(position) = self.position.as_ref().filter(|position| !position.text.is_empty())
        {
            let gutter = position.line.to_string().len().max(4);
            let carets = "^".repeat(position.marked.len().max(1));
            writeln!(formatter, "{:>gutter$} | {}", position.line, position.text)?;
            writeln!(formatter, "{:>gutter$} | {}{carets}", "", " ".repeat(position.marked.start))?;
        }
        match (&self.allowed, self.severity) {
            (Some(allowed), Severity::Error) => writeln!(formatter, "     allowed: {allowed}"),
            (Some(advice), Severity::Warning) => writeln!(formatter, "     advice: {advice}"),
            (None, _) => Ok(()),
        }
    }
}
