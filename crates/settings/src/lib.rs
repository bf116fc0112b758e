//! Configuration files in TOML: declared keys, typed values, diagnostics with carets.
//!
//! A table of a file is declared once with [`table!`]: its keys with their value types, defaults
//! and documentation. The declaration generates the program's struct, the check for unknown keys,
//! the reference page ([`reference::markdown`]) and the JSON Schema ([`schema::document`]).
//! [`read`] parses a text according to the declaration and reports all problems together.
//!
//! | module | what |
//! |---|---|
//! | `syntax`, `parse` | the tree of values with their positions; parses a text into a tree |
//! | `declare`, `table` | the declaration of a table; reads a tree by the declaration |
//! | `table/value` | value types: the values that a key accepts, and how they are read |
//! | `url` | parses the URL of a node, and prints it without its secrets |
//! | `expand`, `formula` | replaces `${VAR}` and `${file:PATH}`; evaluates formulas |
//! | `report`, `diagnostic` | collects and prints problems, with masked secrets |
//! | `reference`, `schema` | the reference page; the JSON Schema |
//! | `table/diff` | lists the differences between two files |
//!
//! The program checks whether the values of several keys fit together, and adds its errors to the
//! same [`Report`].

mod declare;
mod diagnostic;
mod expand;
pub mod formula;
mod names;
mod parse;
pub mod reference;
mod report;
pub mod schema;
mod syntax;
mod table;
pub mod url;

pub use diagnostic::{Diagnostic, Diagnostics, Position, Severity};
pub use expand::{ReadContext, TEXT_BYTES_MAX, read_text_file};
pub use names::{find_nearest_name, not_found_message};
pub use report::{Located, Location, Report};
pub use syntax::{Item, Member, Span, Tree};
pub use table::{DefaultDoc, Key, KeyDoc, Origin, Reader, Table, TableDoc, diff, unset_key, value};
pub use value::{Input, Scalar, ValueType};

/// Replaces a secret in all output.
pub const MASK: &str = "***";

/// Reads a text by the declaration of `T`, the file's root table.
///
/// Returns `None` if the text is not TOML, because the keys and secrets of such a text are unknown.
/// Reports a value that cannot be read, and puts a placeholder in its place. Once
/// [`Report::has_errors`] returns true, use the table only to look for more problems.
pub fn read<'a, T: Table>(
    text: &'a str,
    file: &str,
    context: &ReadContext<'_>,
) -> (Option<T>, Report<'a>) {
    let mut report = Report::of_file(file, text);
    let Some(members) = parse::parse(text, context.text_bytes_max, &mut report) else {
        return (None, report);
    };
    report.hide_values(&members);
    let table = Reader::new(&mut report, context, T::doc).read_table(&members, Location::default());
    (Some(table), report)
}

#[cfg(test)]
mod tests;
