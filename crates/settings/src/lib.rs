//! Configuration files in TOML: declared keys, typed values, diagnostics with carets.
//!
//! A table of a file is declared once with [`table!`]: its keys with their value types, defaults
//! and documentation. That declaration gives the struct that the program works with, the check for
//! unknown keys, the reference page ([`reference::markdown`]) and the JSON Schema
//! ([`schema::document`]). [`read`] reads a text along it and reports every problem at once.
//!
//! - `syntax.rs` turns a text into a tree of values with their places;
//! - `declare.rs` is the declaration, `table.rs` reads a tree along it;
//! - `value.rs` and `value/` are the value types;
//! - `url.rs` is the URL of a node, printed without its secrets;
//! - `diff.rs` says what differs between two files;
//! - `expand.rs` replaces `${VAR}` and `${file:PATH}`, `formula.rs` evaluates formulas;
//! - `report.rs` and `diagnostic.rs` collect and print problems, with secrets masked.
//!
//! Whether values fit each other is for the program: it adds to the same [`Report`].

mod declare;
mod diagnostic;
pub mod diff;
mod expand;
pub mod formula;
pub mod reference;
mod report;
pub mod schema;
mod syntax;
mod table;
pub mod url;
pub mod value;

pub use diagnostic::{Diagnostic, Diagnostics, Place, Severity};
pub use expand::{TEXT_BYTES_MAX, World};
pub use report::{At, Located, Report};
pub use syntax::{Item, Member, Span, Tree};
pub use table::{
    DefaultDoc, Key, KeyDoc, Origin, Reader, Table, TableDoc, absent, nearest, not_found,
};
pub use value::{Input, Scalar, ValueType};

/// Shown in place of a secret.
pub const MASK: &str = "***";

/// Reads a text along the declaration of `T`, the file's root table.
///
/// Returns `None` if the text is not TOML: what the rest of it means, and which part of it is a
/// secret, is then a guess. Otherwise a value that cannot be read is reported, and the returned
/// table has a placeholder in its place; do not use the table once [`Report::has_errors`] is true,
/// except to look for more problems.
pub fn read<'a, T: Table>(text: &'a str, file: &str, world: &World<'_>) -> (Option<T>, Report<'a>) {
    let mut report = Report::of_file(file, text);
    let Some(members) = syntax::parse(text, world.text_bytes_max, &mut report) else {
        return (None, report);
    };
    report.hide_values(&members);
    let table = Reader::new(&mut report, world, T::doc).table(&members, At::default());
    (Some(table), report)
}

#[cfg(test)]
mod tests;
