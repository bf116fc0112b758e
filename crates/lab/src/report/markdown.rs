//! Renders a document as short Markdown for an issue.
//!
//! Text from the input is in code spans or escaped, so a method name cannot become a heading, a
//! link or a mention.

use super::document::{Block, Document, MARKDOWN, Span, Table, Text};
use super::terminal::plain;

/// Renders the Markdown blocks of a document.
pub(super) fn render(document: &Document) -> String {
    let mut parts = vec![format!("## {}", escaped(&document.heading))];
    for section in &document.sections {
        let own = section.blocks.iter().filter(|(on, _)| on.has(MARKDOWN));
        let own: Vec<String> = own.filter_map(|(_, block)| part(block)).collect();
        if !own.is_empty() && !section.title.is_empty() {
            parts.push(format!("### {}", escaped(&section.title)));
        }
        parts.extend(own);
    }
    parts.join("\n\n") + "\n"
}

fn part(block: &Block) -> Option<String> {
    let text = match block {
        Block::Partial(sentence) => {
            format!("> **Partial result**: {sentence}. The numbers cover the time until then.")
        }
        Block::Lead(text) | Block::Note(text) | Block::Paragraph(text) => inline(text),
        Block::List(list) => {
            let items = list.items.iter().map(|item| format!("- {}", inline(item)));
            items.collect::<Vec<_>>().join("\n")
        }
        Block::Table(table) => self::table(table),
        Block::Fold(summary, _, blocks) => {
            let inside: Vec<String> = blocks.iter().filter_map(part).collect();
            let inside = inside.join("\n\n");
            format!("<details><summary>{summary}</summary>\n\n{inside}\n\n</details>")
        }
        _ => String::new(),
    };
    (!text.is_empty()).then_some(text)
}

fn table(table: &Table) -> String {
    let shown = table.shown(MARKDOWN);
    let line = |of: &dyn Fn(usize) -> String| {
        let cells: Vec<String> = shown.iter().map(|at| of(*at)).collect();
        format!("| {} |", cells.join(" | "))
    };
    let align = |at: usize| if table.columns[at].left { "---" } else { "--:" }.to_owned();
    let head = line(&|at| inline(&table.columns[at].head)).replace("|  |", "| |");
    let rows = table.rows(MARKDOWN).filter(|row| row.across.is_none());
    let rows = rows.map(|row| line(&|at| inline(&row.cells[at])));
    [head, line(&align)].into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

fn inline(text: &Text) -> String {
    let one = |span: &Span| match span {
        Span::Plain(text) | Span::Small(text) => escaped(text),
        Span::Bold(text) | Span::Tone("broken", text) => format!("**{}**", escaped(text)),
        Span::Term(text, _) | Span::Link(text, _) | Span::Tone(_, text) => escaped(text),
        // Nothing in the text can end the span.
        Span::Code(text) | Span::Name(text) => {
            format!("`{}`", plain(text).replace('`', "'").replace('|', "\\|"))
        }
        Span::Weak => "~".to_owned(),
        Span::Bar(_) | Span::Drawing(_) => String::new(),
    };
    text.0.iter().map(one).collect()
}

/// Escapes all markup.
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in plain(text).chars() {
        match character {
            '<' => safe.push_str("&lt;"),
            '&' => safe.push_str("&amp;"),
            '@' => safe.push_str("@\u{200b}"),
            '\\' | '`' | '*' | '[' | ']' | '|' | '#' | '~' | '>' => safe.extend(['\\', character]),
            other => safe.push(other),
        }
    }
    safe
}
