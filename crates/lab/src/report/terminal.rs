//! Renders a document for a terminal.
//!
//! Long lists and tables are cut with a remark; sentences are wrapped and never cut. Control
//! characters from the input are removed.

use super::Colour;
use super::document::{Block, Document, Row, Span, TERMINAL, Table, Text};

/// Width of a line of prose, in characters.
const WIDTH: usize = 160;
/// Maximum width of a column, in characters.
const CELL_MAX: usize = 70;
/// Maximum length of a name, in characters.
const NAME_MAX: usize = 32;

/// Renders the terminal blocks of a document.
pub(super) fn render(document: &Document, colour: Colour) -> String {
    let mut lines: Vec<String> = Vec::new();
    for section in &document.sections {
        let own = section.blocks.iter().filter(|(on, _)| on.has(TERMINAL));
        let own: Vec<String> = own.flat_map(|(_, block)| self::lines(block, colour)).collect();
        if !own.is_empty() && !lines.is_empty() && !section.tight {
            lines.push(String::new());
        }
        lines.extend(own);
    }
    lines.join("\n") + "\n"
}

fn lines(block: &Block, colour: Colour) -> Vec<String> {
    let named = |name: &str| format!("{name:<12}");
    match block {
        Block::Banner(class, head, rest) => {
            vec![format!("{}  {}", painted(class, head, colour), plain(rest))]
        }
        Block::Line(name, text) => hanging(&named(name), &text.plain()),
        Block::Paragraph(text) => hanging("  ", &text.plain()),
        Block::Note(text) => vec![plain(&text.plain())],
        Block::List(list) => {
            let head = list.name.map_or_else(|| String::from("  "), named);
            let items = list.items.iter().take(list.max.0);
            let items =
                items.flat_map(|item| hanging(&head, &format!("{}{}", list.prefix, item.plain())));
            items.chain(more(list.items.len(), list.max)).collect()
        }
        Block::Table(table) => self::table(table, colour),
        _ => Vec::new(),
    }
}

/// Returns a remark on the items that are left out.
fn more(all: usize, (shown, noun): (usize, &str)) -> Option<String> {
    let rest = all.checked_sub(shown).filter(|rest| *rest > 0)?;
    let s = if rest == 1 { "" } else { "s" };
    Some(format!("  … and {rest} more {noun}{s}; --out DIR saves all of them"))
}

fn table(table: &Table, colour: Colour) -> Vec<String> {
    let shown = table.shown(TERMINAL);
    let heads: Vec<Text> = shown.iter().map(|at| table.columns[*at].head.clone()).collect();
    let rows: Vec<&Row> = table.rows(TERMINAL).take(table.max.0).collect();
    let cells_of = |row: &Row| {
        let mut cells: Vec<Text> = shown.iter().map(|at| short(&row.cells[*at])).collect();
        if let Some(first) = cells.first_mut().filter(|_| row.part) {
            first.0.insert(0, Span::Plain("  ".to_owned()));
        }
        cells
    };
    let mut widths: Vec<usize> = heads.iter().map(|head| length(&head.plain())).collect();
    for row in rows.iter().filter(|row| row.across.is_none()) {
        for (width, cell) in widths.iter_mut().zip(&cells_of(row)) {
            *width = (*width).max(length(&cell.plain()).min(CELL_MAX));
        }
    }
    let line = |cells: &[Text]| {
        let (mut line, mut rest) = (String::new(), Vec::new());
        for (place, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            let text = plain(&cell.plain());
            let pad = " ".repeat(width.saturating_sub(length(&text)));
            let painted = match cell.0.as_slice() {
                [Span::Tone(class, _)] => painted(class, &text, colour),
                _ => text.clone(),
            };
            line += if place == 0 { "" } else { "  " };
            let last = place > 0 && place + 1 == cells.len();
            match table.columns[shown[place]].left {
                // The last cell is wrapped below the line if it does not fit.
                true if last && length(&line) + length(&text) > WIDTH => {
                    rest = hanging(&" ".repeat(widths[0] + 2), &text);
                }
                true => line += &(painted + &pad),
                false => line += &(pad + &painted),
            }
        }
        [vec![line.trim_end().to_owned()], rest].concat()
    };
    let mut lines = line(&heads);
    for row in &rows {
        match row.across {
            Some(_) => lines.push(plain(&row.cells[0].plain())),
            None => lines.extend(line(&cells_of(row))),
        }
    }
    let all = table.all.unwrap_or_else(|| table.rows(TERMINAL).count());
    lines.extend(more(all, (rows.len(), table.max.1)));
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
fn hanging(head: &str, text: &str) -> Vec<String> {
    let indent = length(head);
    let mut lines: Vec<String> = Vec::new();
    for word in plain(text).split_whitespace() {
        match lines.last_mut() {
            Some(line) if length(line) + 1 + length(word) <= WIDTH => {
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
fn painted(class: &str, text: &str, colour: Colour) -> String {
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
