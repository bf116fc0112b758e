//! Renders a document for a terminal.
//!
//! Details are left out. Long lists and tables are shortened, with a note on the omitted items.
//! Sentences are wrapped and never shortened. Spaces replace control characters from the input.

use super::Colour;
use super::document::{Block, Document, List, Row, Span, Start, Table, Text, omission_note};

/// Width of a line of prose, in characters.
const LINE_CHARS: usize = 160;
/// Maximum width of a column, in characters. A longer cell is not shortened, but its row is not
/// aligned.
const CELL_MAX: usize = 70;
/// Maximum length of a name in a table, in characters.
const NAME_MAX: usize = 32;

/// Renders the summary of a document.
pub(super) fn render(document: &Document, colour: Colour) -> String {
    let mut lines: Vec<String> = Vec::new();
    for section in &document.summary {
        let blocks = section.blocks.iter();
        let section_lines: Vec<String> =
            blocks.flat_map(|block| block_lines(block, colour)).collect();
        if section_lines.is_empty() || section.start == Start::Omitted {
            continue;
        }
        if !lines.is_empty() && section.start != Start::NextLine {
            lines.push(String::new());
        }
        if section.start == Start::Title {
            lines.push(replace_controls(&format!("{}:", section.title)));
        }
        lines.extend(section_lines);
    }
    lines.join("\n") + "\n"
}

/// Returns the lines of a block. Blocks of details and of the page have no lines.
fn block_lines(block: &Block, colour: Colour) -> Vec<String> {
    match block {
        Block::Verdict { class, word, subject, summary, reasons } => {
            let texts = [subject, summary].map(String::as_str);
            let texts: Vec<&str> = texts.into_iter().filter(|text| !text.is_empty()).collect();
            let text = replace_controls(&texts.join(": "));
            let head = format!("{}  {text}", paint(class, word, colour));
            let head = (!word.is_empty()).then_some(head);
            head.into_iter().chain(list_lines(reasons)).collect()
        }
        Block::Partial(sentence) => vec![format!("PARTIAL: {sentence}")],
        Block::Facts(facts) => {
            let lines = |(name, value): &(Text, Text)| {
                wrap_with_indent(&pad_name(&name.plain()), &value.plain())
            };
            facts.iter().flat_map(lines).collect()
        }
        Block::Paragraph(text) => wrap_with_indent("  ", &text.plain()),
        Block::Note(text) => vec![replace_controls(&text.plain())],
        Block::List(list) => list_lines(list),
        Block::Table(table) => table_lines(table, colour),
        Block::Fold { .. }
        | Block::Subheading(_)
        | Block::Intro(_)
        | Block::Tiles(_)
        | Block::Columns(_)
        | Block::Card(_)
        | Block::Figure(..)
        | Block::Code(_) => Vec::new(),
    }
}

/// Returns a name with the width of the left column.
fn pad_name(name: &str) -> String {
    format!("{name:<12}")
}

/// Returns the lines of a list.
fn list_lines(list: &List) -> Vec<String> {
    let head = list.name.map_or_else(|| String::from("  "), pad_name);
    let items = list.items.iter().take(list.terminal_max);
    let lines =
        items.flat_map(|item| wrap_with_indent(&head, &format!("{}{}", list.prefix, item.plain())));
    lines.chain(omission_note(list.items.len(), list.terminal_max, list.noun)).collect()
}

/// Returns the lines of a table, with columns aligned.
fn table_lines(table: &Table, colour: Colour) -> Vec<String> {
    let heads: Vec<Text> = table.columns.iter().map(|column| column.head.clone()).collect();
    let mut rows: Vec<&Row> = table.rows().collect();
    if let Some((indexes, _)) = &table.excerpt {
        rows = indexes.iter().map(|index| rows[*index]).collect();
    }
    let cells_of = |row: &Row| {
        let mut cells: Vec<Text> = row.cells.iter().map(shorten_name).collect();
        if let Some(first_cell) = cells.first_mut().filter(|_| row.is_sub_row) {
            first_cell.0.insert(0, Span::Plain("  ".to_owned()));
        }
        cells
    };
    let mut widths: Vec<usize> = heads.iter().map(|head| char_count(&head.plain())).collect();
    for row in rows.iter().filter(|row| row.across.is_none()) {
        for (width, cell) in widths.iter_mut().zip(&cells_of(row)) {
            *width = (*width).max(char_count(&cell.plain()).min(CELL_MAX));
        }
    }
    let format_line = |cells: &[Text]| {
        let (mut line, mut wrapped_lines) = (String::new(), Vec::new());
        for (position, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            let text = replace_controls(&cell.plain());
            let padding = " ".repeat(width.saturating_sub(char_count(&text)));
            let painted = match cell.0.as_slice() {
                [Span::Tone(class, _)] => paint(class, &text, colour),
                _ => text.clone(),
            };
            line += if position == 0 { "" } else { "  " };
            let is_last = position > 0 && position + 1 == cells.len();
            let fits = char_count(&line) + char_count(&text) <= LINE_CHARS;
            match table.columns[position].align_left {
                // A last cell that does not fit moves to the lines below, and begins at the second
                // column.
                true if is_last && !fits => {
                    let indent = " ".repeat(widths[0] + 2);
                    wrapped_lines = wrap_with_indent(&indent, &text);
                }
                true => line += &(painted + &padding),
                false => line += &(padding + &painted),
            }
        }
        [vec![line.trim_end().to_owned()], wrapped_lines].concat()
    };
    let mut lines = format_line(&heads);
    for row in &rows {
        match row.across {
            Some(_) => lines.push(replace_controls(&row.cells[0].plain())),
            None => lines.extend(format_line(&cells_of(row))),
        }
    }
    lines.extend(table.excerpt.as_ref().and_then(|(_, note)| note.clone()));
    lines
}

fn char_count(text: &str) -> usize {
    text.chars().count()
}

/// Replaces control characters by spaces, so text from the input cannot control the terminal.
pub(super) fn replace_controls(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Wraps text between words. The first line begins with `head`, and the other lines are indented by
/// the width of the head.
fn wrap_with_indent(head: &str, text: &str) -> Vec<String> {
    let indent = char_count(head);
    let mut lines: Vec<String> = Vec::new();
    for word in replace_controls(text).split_whitespace() {
        match lines.last_mut() {
            Some(line) if char_count(line) + 1 + char_count(word) <= LINE_CHARS => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) => lines.push(format!("{:indent$}{word}", "")),
            None => lines.push(format!("{head}{word}")),
        }
    }
    lines
}

/// Shortens a name that is longer than [`NAME_MAX`]. Other text is not changed.
fn shorten_name(cell: &Text) -> Text {
    match cell.0.as_slice() {
        [Span::Name(name)] if char_count(name) > NAME_MAX => {
            Text::from(name.chars().take(NAME_MAX - 1).chain(['…']).collect::<String>())
        }
        _ => cell.clone(),
    }
}

/// Adds the ANSI colour that corresponds to a class of the page's style sheet.
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
