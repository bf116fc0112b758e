//! The reference page, in Markdown, of a file that [`table!`](crate::table!) declares.

use std::fmt::Write;

use crate::table::{KeyDoc, Table, TableDoc};

/// A section of the page.
struct Section {
    heading: String,
    body: String,
}

/// Writes one section per table, the root first: heading, purpose, and a table of its keys. A root
/// that holds only tables has no section. Tables with the same keys share a section.
pub fn markdown<T: Table>() -> String {
    let (mut sections, root) = (Vec::new(), T::doc());
    if root.holds_tables_only() {
        write_nested_sections(&root, &mut sections);
    } else {
        write_section(&root, "the file itself", false, &mut sections);
    }
    let format = |section: &Section| format!("\n## {}\n\n{}", section.heading, section.body);
    sections.iter().map(format).collect()
}

/// Writes the section of a table, then the sections of its nested tables. `at_start_only` is true
/// if changes of the table take effect only at the next start.
fn write_section(
    table: &TableDoc,
    heading: &str,
    at_start_only: bool,
    sections: &mut Vec<Section>,
) {
    let keys: Vec<&KeyDoc> = table.keys.iter().filter(|key| key.table.is_none()).collect();
    let mut body = format!("{}{}\n", table.doc, restart_note(at_start_only));
    if !keys.is_empty() {
        body.push_str("\n| key | default | allowed | what it does |\n| --- | --- | --- | --- |\n");
    }
    for key in keys {
        let (allowed, doc) = (escape_cell(&key.allowed), escape_cell(key.doc));
        let quote = if key.default.is_value() { "`" } else { "" };
        let default = format!("{quote}{}{quote}", key.default_text);
        let restart = restart_note(key.at_start_only);
        let _ = writeln!(body, "| `{}` | {default} | {allowed} | {doc}{restart} |", key.name);
    }
    match sections.iter_mut().find(|section| section.body == body) {
        Some(section) => section.heading += &format!(" and {heading}"),
        None => sections.push(Section { heading: heading.to_owned(), body }),
    }
    write_nested_sections(table, sections);
}

fn write_nested_sections(table: &TableDoc, sections: &mut Vec<Section>) {
    for key in &table.keys {
        if let Some(nested) = &key.table {
            write_section(nested, &format!("`{}`", nested.heading), key.at_start_only, sections);
        }
    }
}

fn restart_note(at_start_only: bool) -> &'static str {
    if at_start_only { " A change takes effect at the next start." } else { "" }
}

/// Escapes a text for a cell of a table.
fn escape_cell(text: &str) -> String {
    text.replace('|', "\\|").replace('*', "\\*")
}
