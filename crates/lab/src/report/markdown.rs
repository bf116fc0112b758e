//! Renders a document as short Markdown for an issue.
//!
//! Text from the input is in code spans or escaped, so a method name cannot become a heading, a
//! link or a mention.

use super::document::{Block, Document, List, Span, Table, Text};
use super::terminal::replace_controls;

/// Renders the summary of a document.
pub(super) fn render(document: &Document) -> String {
    let mut parts = vec![format!("## {}", escape(&document.heading))];
    for section in &document.summary {
        let blocks: Vec<String> = section.blocks.iter().filter_map(render_block).collect();
        if !blocks.is_empty() && !section.title.is_empty() {
            parts.push(format!("### {}", escape(&section.title)));
        }
        parts.extend(blocks);
    }
    parts.join("\n\n") + "\n"
}

/// Renders a block. Returns `None` for an empty block, and for a block of the page.
fn render_block(block: &Block) -> Option<String> {
    let text = match block {
        Block::Partial(sentence) => {
            format!("> **Partial result**: {sentence}. The numbers cover the time until then.")
        }
        Block::Verdict { word, subject, summary, reasons, .. } => {
            let word =
                if word.is_empty() { String::new() } else { format!("**{}**", escape(word)) };
            let texts = [word, escape(subject), escape(summary)];
            let texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
            let parts = [texts.join(": "), render_list(reasons)];
            let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            parts.join("\n\n")
        }
        Block::Note(text) | Block::Paragraph(text) => inline(text),
        Block::Facts(facts) => {
            let item =
                |(name, value): &(Text, Text)| format!("- **{}**: {}", inline(name), inline(value));
            facts.iter().map(item).collect::<Vec<_>>().join("\n")
        }
        Block::List(list) => render_list(list),
        Block::Columns(blocks) | Block::Card(blocks) => render_blocks(blocks),
        Block::Table(table) => render_table(table),
        Block::Fold { summary, blocks, .. } => {
            let blocks = render_blocks(blocks);
            format!("<details><summary>{summary}</summary>\n\n{blocks}\n\n</details>")
        }
        Block::Subheading(text) => format!("#### {}", escape(text)),
        Block::Intro(_) | Block::Tiles(_) | Block::Figure(..) | Block::Code(_) => String::new(),
    };
    (!text.is_empty()).then_some(text)
}

fn render_blocks(blocks: &[Block]) -> String {
    blocks.iter().filter_map(render_block).collect::<Vec<_>>().join("\n\n")
}

fn render_list(list: &List) -> String {
    let items = list.items.iter().map(|item| format!("- {}", inline(item)));
    items.collect::<Vec<_>>().join("\n")
}

fn render_table(table: &Table) -> String {
    let format_row = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
    let columns = table.columns.iter();
    let header = columns.clone().map(|column| inline(&column.head)).collect();
    let align = |left| if left { "---" } else { "--:" }.to_owned();
    let alignment = columns.map(|column| align(column.align_left)).collect();
    let rows = table.rows().map(|row| {
        let mut cells = vec![String::new(); row.across.unwrap_or_default()];
        cells.extend(row.cells.iter().map(inline));
        cells.resize(table.columns.len(), String::new());
        cells
    });
    [header, alignment].into_iter().chain(rows).map(format_row).collect::<Vec<_>>().join("\n")
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
pub(crate) fn escape(text: &str) -> String {
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
