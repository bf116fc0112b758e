//! Renders a document for a terminal.
//!
//! Long lists and tables are cut with a remark; sentences are wrapped and never cut. Control
//! characters from the input are removed.

use super::Colour;
use super::document::{Block, Document, Row, Span, TERMINAL, Table, Text};

/// Width of a line of prose, in characters.
const LINE_CHARS: usize = 160;
/// Maximum width of a column, in characters.
const CELL_MAX: usize = 70;
/// Maximum length of a name, in characters.
const NAME_MAX: usize = 32;

/// Renders the terminal blocks of a document.
pub(super) fn render(document: &Document, colour: Colour) -> String {
    let mut lines: Vec<String> = Vec::new();
    for section in &document.sections {
        let section_lines = section.blocks.iter().filter(|(on, _)| on.has(TERMINAL));
        let section_lines: Vec<String> =
            section_lines.flat_map(|(_, block)| self::lines(block, colour)).collect();
        if !section_lines.is_empty() && !lines.is_empty() && !section.tight {
            lines.push(String::new());
        }
        lines.extend(section_lines);
    }
    lines.join("\n") + "\n"
}

fn lines(block: &Block, colour: Colour) -> Vec<String> {
    let padded_name = |name: &str| format!("{name:<12}");
    match block {
        Block::Banner(class, head, rest) => {
            vec![format!("{}  {}", paint(class, head, colour), plain(rest))]
        }
        Block::Line(name, text) => wrap_with_indent(&padded_name(name), &text.plain()),
        Block::Paragraph(text) => wrap_with_indent("  ", &text.plain()),
        Block::Note(text) => vec![plain(&text.plain())],
        Block::List(list) => {
            let head = list.name.map_or_else(|| String::from("  "), padded_name);
            let items = list.items.iter().take(list.max.0);
            let items = items.flat_map(|item| {
                wrap_with_indent(&head, &format!("{}{}", list.prefix, item.plain()))
            });
            items.chain(more(list.items.len(), list.max)).collect()
        }
        Block::Table(table) => self::table(table, colour),
        _ => Vec::new(),
    }
}

/// Returns a remark on the items that are left out.
fn more(total: usize, (shown, noun): (usize, &str)) -> Option<String> {
    let remaining = total.checked_sub(shown).filter(|remaining| *remaining > 0)?;
    let s = if remaining == 1 { "" } else { "s" };
    Some(format!("  … and {remaining} more {noun}{s}; --out DIR saves all of them"))
}

fn table(table: &Table, colour: Colour) -> Vec<String> {
    let shown = table.shown(TERMINAL);
    let heads: Vec<Text> = shown.iter().map(|column| table.columns[*column].head.clone()).collect();
    let rows: Vec<&Row> = table.rows(TERMINAL).take(table.max.0).collect();
    let cells_of = |row: &Row| {
        let mut cells: Vec<Text> = shown.iter().map(|column| short(&row.cells[*column])).collect();
        if let Some(first_cell) = cells.first_mut().filter(|_| row.is_sub_row) {
            first_cell.0.insert(0, Span::Plain("  ".to_owned()));
        }
        cells
    };
    let mut widths: Vec<usize> = heads.iter().map(|head| length(&head.plain())).collect();
    for row in rows.iter().filter(|row| row.across.is_none()) {
        for (width, cell) in widths.iter_mut().zip(&cells_of(row)) {
            *width = (*width).max(length(&cell.plain()).min(CELL_MAX));
        }
    }
    let format_line = |cells: &[Text]| {
        let (mut line, mut wrapped) = (String::new(), Vec::new());
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            let text = plain(&cell.plain());
            let pad = " ".repeat(width.saturating_sub(length(&text)));
            let painted = match cell.0.as_slice() {
                [Span::Tone(class, _)] => paint(class, &text, colour),
                _ => text.clone(),
            };
            line += if column == 0 { "" } else { "  " };
            let is_last = column > 0 && column + 1 == cells.len();
            match table.columns[shown[column]].align_left {
                // The last cell is wrapped below the line if it does not fit.
                true if is_last && length(&line) + length(&text) > LINE_CHARS => {
                    wrapped = wrap_with_indent(&" ".repeat(widths[0] + 2), &text);
                }
                true => line += &(painted + &pad),
                false => line += &(pad + &painted),
            }
        }
        [vec![line.trim_end().to_owned()], wrapped].concat()
    };
    let mut lines = format_line(&heads);
    for row in &rows {
        match row.across {
            Some(_) => lines.push(plain(&row.cells[0].plain())),
            None => lines.extend(format_line(&cells_of(row))),
        }
    }
    let total = table.total_rows.unwrap_or_else(|| table.rows(TERMINAL).count());
    lines.extend(more(total, (rows.len(), table.max.1)));
    lines
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Replaces control characters, which would control the terminal.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Wraps text between words after `head`; further lines are indented by the width of the head.
fn wrap_with_indent(head: &str, text: &str) -> Vec<String> {
    let indent = length(head);
    let mut lines: Vec<String> = Vec::new();
    for word in plain(text).split_whitespace() {
        match lines.last_mut() {
            Some(line) if length(line) + 1 + length(word) <= LINE_CHARS => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) => lines.push(format!("{:indent$}{word}", "")),
            None => lines.push(format!("{head}{word}")),
        }
    }
    lines
}

/// Cuts long names.
fn short(cell: &Text) -> Text {
    match cell.0.as_slice() {
        [Span::Name(name)] if length(name) > NAME_MAX => {
            Text::from(name.chars().take(NAME_MAX - 1).chain(['…']).collect::<String>())
        }
        _ => cell.clone(),
    }
}

/// Adds the ANSI colour of a class of the page's style sheet.
fn paint(class: &str, text: &str, colour: Colour) -> String {
    let code = match class {
        "pass" | "kept" => "32",
        "fail" | "broken" | "bad" => "31",
        "invalid" | "client" | "limited" => "33",
        _ => return text.to_owned(),
    };
    match colour {
        Colour::Plain => text.to_owned(),
        Colour::Ansi => format!("\u{1b}[1;{code}m{text}\u{1b}[0m"),
    }
}
