//! Renders a document as short Markdown for an issue.
//!
//! Text from the input is in code spans or escaped, so a method name cannot become a heading, a
//! link or a mention.

use super::document::{Block, Document, MARKDOWN, Span, Table, Text};
use super::terminal::replace_controls;

/// Renders the Markdown blocks of a document.
pub(super) fn render(document: &Document) -> String {
    let mut parts = vec![format!("## {}", escape(&document.heading))];
    for section in &document.sections {
        let blocks = section.blocks.iter().filter(|(formats, _)| formats.has(MARKDOWN));
        let blocks: Vec<String> = blocks.filter_map(|(_, block)| render_block(block)).collect();
        if !blocks.is_empty() && !section.title.is_empty() {
            parts.push(format!("### {}", escape(&section.title)));
        }
        parts.extend(blocks);
    }
    parts.join("\n\n") + "\n"
}

/// Renders a block. Returns `None` for an empty block, and for a block of other formats.
fn render_block(block: &Block) -> Option<String> {
    let text = match block {
        Block::Partial(sentence) => {
            format!("> **Partial result**: {sentence}. The numbers cover the time until then.")
        }
        Block::Intro(text) | Block::Note(text) | Block::Paragraph(text) => inline(text),
        Block::List(list) => {
            let items = list.items.iter().map(|item| format!("- {}", inline(item)));
            items.collect::<Vec<_>>().join("\n")
        }
        Block::Table(table) => render_table(table),
        Block::Fold { summary, blocks, .. } => {
            let inner_blocks: Vec<String> = blocks.iter().filter_map(render_block).collect();
            let inner_blocks = inner_blocks.join("\n\n");
            format!("<details><summary>{summary}</summary>\n\n{inner_blocks}\n\n</details>")
        }
        Block::Subheading(text) => format!("#### {}", escape(text)),
        _ => String::new(),
    };
    (!text.is_empty()).then_some(text)
}

fn render_table(table: &Table) -> String {
    let columns = table.column_indexes(MARKDOWN);
    let format_row = |cell_of: &dyn Fn(usize) -> String| {
        let cells: Vec<String> = columns.iter().map(|column| cell_of(*column)).collect();
        format!("| {} |", cells.join(" | "))
    };
    let align =
        |column: usize| if table.columns[column].align_left { "---" } else { "--:" }.to_owned();
    let header_row =
        format_row(&|column| inline(&table.columns[column].head)).replace("|  |", "| |");
    let rows = table.rows(MARKDOWN).filter(|row| row.across.is_none());
    let rows = rows.map(|row| format_row(&|column| inline(&row.cells[column])));
    [header_row, format_row(&align)].into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

/// Renders formatted text.
fn inline(text: &Text) -> String {
    let render_span = |span: &Span| match span {
        Span::Plain(text) | Span::Small(text) => escape(text),
        Span::Bold(text) | Span::Tone("broken", text) => format!("**{}**", escape(text)),
        Span::Link(text, to) if to.starts_with('#') => format!("[{}]({to})", escape(text)),
        Span::Term(text, _) | Span::Link(text, _) | Span::Tone(_, text) => escape(text),
        Span::Anchor(id) => format!("<a id=\"{id}\"></a>"),
        // A backtick would end the code span, and a bar would end the table's cell.
        Span::Code(text) | Span::Name(text) => {
            format!("`{}`", replace_controls(text).replace('`', "'").replace('|', "\\|"))
        }
        Span::Weak => "~".to_owned(),
        Span::Bar(_) | Span::Drawing(_) => String::new(),
    };
    text.0.iter().map(render_span).collect()
}

/// Escapes all markup.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in replace_controls(text).chars() {
        match character {
            '<' => escaped.push_str("&lt;"),
            '&' => escaped.push_str("&amp;"),
            // A zero-width space prevents a mention.
            '@' => escaped.push_str("@\u{200b}"),
            '\\' | '`' | '*' | '[' | ']' | '|' | '#' | '~' | '>' => {
                escaped.extend(['\\', character]);
            }
            other => escaped.push(other),
        }
    }
    escaped
}
