//! What is wrong with what a node said, where, and what it should have been.

use std::fmt;

/// The most characters of a node's text that a fault repeats: enough for a hash or a number of 256
/// bits with its quotes, and little enough for a log line.
const SAID_MAX: usize = 80;

/// The first thing in a node's answer that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {kind}", if field.is_empty() { "the answer" } else { field.as_str() })]
pub struct Fault {
    /// The path of the field, such as `transactions[3].value`, `receipts[7].logs[2].topics[1]` or
    /// `hash`; empty for the answer as a whole.
    pub field: String,
    /// What is wrong with it.
    pub kind: FaultKind,
}

/// How a field can be wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultKind {
    /// It cannot be read, or may not stand there.
    Form {
        /// What stands there, shortened.
        said: String,
        /// What may stand there.
        allowed: &'static str,
    },
    /// It is not there, or null.
    Missing {
        /// What must stand there.
        allowed: &'static str,
    },
    /// Its name stands twice in one object, so that readers differ about which one counts.
    Duplicate,
    /// It contradicts the rest of the answer: a lie or a defect of the node.
    Mismatch {
        /// What stands there, shortened.
        said: String,
        /// What would be right, shortened.
        computed: String,
        /// What the right value follows from.
        from: &'static str,
    },
    /// A transaction of a type whose encoding is not known here, so that neither its hash nor the
    /// block's root can be computed. No proof of a lie.
    UnknownTransactionType {
        /// The type as it stands there, shortened.
        said: String,
    },
}

impl Fault {
    /// Whether the answer may be true all the same: it is of a kind that cannot be verified.
    #[must_use]
    pub fn is_unverifiable(&self) -> bool {
        matches!(self.kind, FaultKind::UnknownTransactionType { .. })
    }

    pub(super) fn form(said: &[u8], allowed: &'static str) -> Self {
        FaultKind::Form { said: shorten(said), allowed }.into()
    }

    pub(super) fn missing(allowed: &'static str) -> Self {
        FaultKind::Missing { allowed }.into()
    }

    pub(super) fn mismatch(said: &str, computed: &str, from: &'static str) -> Self {
        let (said, computed) = (shorten(said.as_bytes()), shorten(computed.as_bytes()));
        FaultKind::Mismatch { said, computed, from }.into()
    }

    pub(super) fn unknown_type(said: &[u8]) -> Self {
        FaultKind::UnknownTransactionType { said: shorten(said) }.into()
    }

    /// The same fault, seen from the object that holds this member.
    pub(super) fn of(mut self, name: &str) -> Self {
        let point = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        self.field = format!("{name}{point}{}", self.field);
        self
    }

    /// The same fault, seen from the array that holds this element.
    pub(super) fn at(self, index: usize) -> Self {
        self.of(&format!("[{index}]"))
    }
}

impl From<FaultKind> for Fault {
    fn from(kind: FaultKind) -> Self {
        Self { field: String::new(), kind }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form { said, allowed } => write!(f, "found {said}, allowed is {allowed}"),
            Self::Missing { allowed } => write!(f, "missing, needed is {allowed}"),
            Self::Duplicate => write!(f, "stands twice in one object"),
            Self::Mismatch { said, computed, from } => {
                write!(f, "said {said}, right is {computed} by {from}")
            }
            Self::UnknownTransactionType { said } => {
                write!(f, "cannot be verified: type {said}, known are 0x0 to 0x4")
            }
        }
    }
}

fn shorten(said: &[u8]) -> String {
    if said.is_empty() {
        return "nothing".to_owned();
    }
    let text = String::from_utf8_lossy(&said[..said.len().min(4 * SAID_MAX)]);
    let mut short: String = text.chars().take(SAID_MAX).collect();
    if short.len() < said.len() {
        short.push('…');
    }
    short
}
