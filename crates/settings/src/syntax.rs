//! The tree of values of a TOML text. Each value has its position: a range of bytes of the text.

use std::ops::Range;

/// A range of bytes of the text.
pub type Span = Range<usize>;

/// A value of the file with its position.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// The bytes of the value. For a table with a heading, the bytes of the heading. For an
    /// implicit table, such as `a` in `[a.b]`, the bytes of its name.
    pub span: Span,
    /// The value.
    pub tree: Tree,
}

/// A value of the file.
#[derive(Clone, Debug, PartialEq)]
pub enum Tree {
    /// A string.
    String(String),
    /// A whole number in decimal digits; it may be larger than any integer type.
    Integer(String),
    /// A number with a fraction or an exponent, as written but without `+` and `_`; or `inf` or
    /// `nan`.
    Float(String),
    /// `true` or `false`.
    Bool(bool),
    /// A date or time.
    DateTime(String),
    /// A list.
    List(Vec<Item>),
    /// A table, in the order of the text.
    Table(Vec<Member>),
    /// JSON `null`, which only a JSON text in a string can contain. TOML has no `null`.
    Null,
}

/// A key of a table with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// The key.
    pub key: String,
    /// The bytes of the key.
    pub span: Span,
    /// The value.
    pub item: Item,
}
