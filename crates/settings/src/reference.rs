//! The reference page of a declared file, in Markdown.

use std::fmt::Write;

use crate::table::{DefaultDoc, KeyDoc, Table, TableDoc};

/// One section per table, the root first: heading, purpose, and a table of its keys.
pub fn markdown<T: Table>() -> String {
    let mut text = String::new();
    section(&T::doc(), "the file itself", &mut text);
    text
}

fn section(table: &TableDoc, heading: &str, text: &mut String) {
    let keys: Vec<&KeyDoc> = table.keys.iter().filter(|key| key.table.is_none()).collect();
    let _ = write!(text, "\n## {heading}\n\n{}\n", table.doc);
    if !keys.is_empty() {
        text.push_str("\n| key | default | allowed | what it does |\n| --- | --- | --- | --- |\n");
    }
    for key in keys {
        let (allowed, doc) = (escaped(&key.allowed), escaped(key.doc));
        let default = escaped(&default(key.default));
        let _ = writeln!(text, "| `{}` | {default} | {allowed} | {doc} |", key.name);
    }
    for nested in table.keys.iter().filter_map(|key| key.table.as_ref()) {
        section(nested, &format!("`{}`", nested.heading), text);
    }
}

fn default(default: DefaultDoc) -> String {
    match default {
        DefaultDoc::Is(text) => format!("`{text}`"),
        DefaultDoc::Empty => "none".to_owned(),
        DefaultDoc::Follows(words) => words.to_owned(),
        DefaultDoc::Required => "must be set".to_owned(),
    }
}

/// A text for a table's cell.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('*', "\\*")
}
