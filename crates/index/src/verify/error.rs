//! Verification errors. An error names the wrong member of a response, and the correct value if it
//! is known.

use std::fmt;

/// Maximum number of characters of a response that an error contains. A hash or a number of 256
/// bits fits with its quotes. The whole message still fits in a line of a log.
const EXCERPT_CHARS: usize = 80;

/// The first error in a node's response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {kind}", if field.is_empty() { "the response" } else { field.as_str() })]
pub struct Error {
    /// The path of the member, such as `transactions[3].value`, `receipts[7].logs[2].topics[1]` or
    /// `hash`; empty for the response as a whole.
    pub field: String,
    /// The kind of error, with the values.
    pub kind: ErrorKind,
}

/// The kind of a verification error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ErrorKind {
    /// The value is malformed, or the member is not allowed.
    Form {
        /// The value, shortened.
        found: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The member is missing or null.
    Missing {
        /// The allowed values.
        allowed: &'static str,
    },
    /// The name occurs twice in one object. Parsers differ in which of the two members they use.
    Duplicate,
    /// The value contradicts other members, because the node lies or has a bug.
    Mismatch {
        /// The value, shortened.
        found: String,
        /// The correct value, shortened.
        computed: String,
        /// The source of the correct value.
        from: &'static str,
    },
    /// The encoding of this transaction type is unknown. The transaction's hash and the block's
    /// root cannot be computed, so the response may be right or wrong.
    UnknownTransactionType {
        /// The type, shortened.
        found: String,
    },
    /// The transaction has no signature. The chain's own software has added it, as the state syncs
    /// of Polygon (`bor`). No root of the block covers it.
    Unsigned,
}

impl Error {
    /// Returns true if the response cannot be verified because it has a transaction of an unknown
    /// type or without a signature. It may be right.
    #[must_use]
    pub fn is_unverifiable(&self) -> bool {
        matches!(self.kind, ErrorKind::UnknownTransactionType { .. } | ErrorKind::Unsigned)
    }

    // The errors of these functions have an empty path. Callers add the path with `in_member` and
    // `in_element`.

    pub(super) fn malformed(found: &[u8], allowed: &'static str) -> Self {
        ErrorKind::Form { found: shorten(found), allowed }.into()
    }

    pub(super) fn missing(allowed: &'static str) -> Self {
        ErrorKind::Missing { allowed }.into()
    }

    pub(super) fn mismatch(found: &str, computed: &str, from: &'static str) -> Self {
        let (found, computed) = (shorten(found.as_bytes()), shorten(computed.as_bytes()));
        ErrorKind::Mismatch { found, computed, from }.into()
    }

    pub(super) fn unknown_type(found: &[u8]) -> Self {
        ErrorKind::UnknownTransactionType { found: shorten(found) }.into()
    }

    /// Returns the same error with this member's name before its path.
    pub(super) fn in_member(mut self, name: &str) -> Self {
        let separator = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        self.field = format!("{name}{separator}{}", self.field);
        self
    }

    /// Returns the same error with this element's index before its path.
    pub(super) fn in_element(self, index: usize) -> Self {
        self.in_member(&format!("[{index}]"))
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self { field: String::new(), kind }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form { found, allowed } => write!(f, "found {found}, expected {allowed}"),
            Self::Missing { allowed } => write!(f, "missing, expected {allowed}"),
            Self::Duplicate => write!(f, "occurs twice in one object"),
            Self::Mismatch { found, computed, from } => {
                write!(f, "found {found}, expected {computed} by {from}")
            }
            Self::UnknownTransactionType { found } => {
                write!(f, "cannot be verified: type {found}, known are 0x0 to 0x4")
            }
            Self::Unsigned => write!(f, "cannot be verified: the transaction has no signature"),
        }
    }
}

/// Returns the beginning of a raw value, with an ellipsis if the value is longer.
fn shorten(found: &[u8]) -> String {
    if found.is_empty() {
        return "nothing".to_owned();
    }
    let text = String::from_utf8_lossy(&found[..found.len().min(4 * EXCERPT_CHARS)]);
    let mut excerpt: String = text.chars().take(EXCERPT_CHARS).collect();
    if excerpt.len() < found.len() {
        excerpt.push('…');
    }
    excerpt
}
