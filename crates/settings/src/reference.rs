//! The reference page of a declared file, in Markdown.

use std::fmt::Write;

use crate::table::{DefaultDoc, KeyDoc, Table, TableDoc};

/// A section of the page: its heading and its body.
type Section = (String, String);

/// Writes one section per table, the root first: heading, purpose, and a table of its keys. A root
/// that holds only tables has no section. Tables with the same keys share a section.
pub fn markdown<T: Table>() -> String {
    let (mut sections, root) = (Vec::new(), T::doc());
    if root.holds_tables_only() {
        write_nested_sections(&root, &mut sections);
    } else {
        write_section(&root, "the file itself", false, &mut sections);
    }
    sections.iter().map(|(heading, body)| format!("\n## {heading}\n\n{body}")).collect()
}

fn write_section(
    table: &TableDoc,
    heading: &str,
    at_start_only: bool,
    sections: &mut Vec<Section>,
) {
    let keys: Vec<&KeyDoc> = table.keys.iter().filter(|key| key.table.is_none()).collect();
    let mut text = format!("{}{}\n", table.doc, restart_note(at_start_only));
    if !keys.is_empty() {
        text.push_str("\n| key | default | allowed | what it does |\n| --- | --- | --- | --- |\n");
    }
    for key in keys {
        let (allowed, doc, default) =
            (escape_cell(&key.allowed), escape_cell(key.doc), default_cell(key));
        let restart = restart_note(key.at_start_only);
        let _ = writeln!(text, "| `{}` | {default} | {allowed} | {doc}{restart} |", key.name);
    }
    match sections.iter_mut().find(|(_, body)| *body == text) {
        Some((headings, _)) => *headings = format!("{headings} and {heading}"),
        None => sections.push((heading.to_owned(), text)),
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

fn default_cell(key: &KeyDoc) -> String {
    match key.default {
        DefaultDoc::Is(_) | DefaultDoc::Empty => format!("`{}`", key.default_text),
        DefaultDoc::Described(_) | DefaultDoc::Required => key.default_text.clone(),
    }
}

/// Escapes a text for a cell of a table.
fn escape_cell(text: &str) -> String {
    text.replace('|', "\\|").replace('*', "\\*")
}
