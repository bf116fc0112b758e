//! The errors of a JSON text, with their positions.

/// An error in a JSON text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{kind} at byte {offset}")]
pub struct SyntaxError {
    /// The offset of the invalid byte from the start of the text.
    pub offset: usize,
    /// The kind of error.
    pub kind: SyntaxErrorKind,
}

/// The kinds of errors in a JSON text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxErrorKind {
    /// The text is empty or whitespace.
    #[error("empty text where a json value is needed")]
    Empty,
    /// The text starts with the UTF-8 byte order mark, which RFC 8259 section 8.1 forbids.
    #[error("byte order mark, which json text must not have,")]
    ByteOrderMark,
    /// The grammar does not allow this byte here.
    #[error("unexpected byte 0x{0:02x}")]
    Unexpected(u8),
    /// The text ends inside a value.
    #[error("text ends too early")]
    End,
    /// Something other than whitespace follows the value.
    #[error("unexpected byte 0x{0:02x} after the json value")]
    Trailing(u8),
    /// A string holds bytes that are not UTF-8.
    #[error("invalid utf-8 in a string")]
    Utf8,
    /// A string holds a control character that must be escaped.
    #[error("unescaped control character 0x{0:02x} in a string")]
    Control(u8),
    /// An escape sequence that JSON does not have.
    #[error("invalid escape sequence in a string")]
    Escape,
    /// A number that JSON does not allow, such as `01`.
    #[error("invalid number")]
    Number,
    /// Arrays and objects are nested deeper than the limit.
    #[error("nesting deeper than {0} levels")]
    TooDeep(usize),
}
