//! Renders a document as one self-contained HTML page without scripts, for light and dark mode and
//! for print.
//!
//! `maud` escapes text from the input (method names, error texts, URLs, the plan) where it is
//! written. The glossary is read from `docs/measuring.md` (`words.rs`).

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::{Chart, Ink};
use super::document::{Block, Column, Document, Row, Section, Span, Table, Text};
use super::words;

#[cfg(test)]
pub(crate) mod tests;

const STYLE: &str = include_str!("page/style.css");

/// Renders the page of a document.
pub(super) fn render(document: &Document) -> String {
    let sections = document.page.iter().filter(|section| !section.blocks.is_empty());
    let nav_entries = sections.filter_map(|section| Some((section.id.as_str(), section.nav?)));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy"
                    content="default-src 'none'; style-src 'unsafe-inline'";
                title { (document.window) " · weir" }
                style { (PreEscaped(STYLE)) }
            }
            body { main {
                header {
                    div.kind { (document.command) }
                    h1 { (document.title) }
                    @for line in &document.intro { div.lead { (inline(line)) } }
                    nav {
                        @for (id, name) in nav_entries { a href={ "#" (id) } { (name) } }
                        @if document.glossary { a href="#words" { "Glossary" } }
                    }
                }
                @for section in &document.page { (self::section(section)) }
                @if document.glossary { (glossary()) }
            } }
        }
    };
    page.into_string()
}

/// Renders a section. The result is empty if the section has no block.
fn section(section: &Section) -> Markup {
    html! {
        @if !section.blocks.is_empty() {
            @if !section.title.is_empty() {
                h2 id=[Some(&section.id).filter(|id| !id.is_empty())] { (section.title) }
            }
            @for block in &section.blocks { (framed_block(block)) }
        }
    }
}

/// Renders a block of a section. A table, list, figure, fold, or block of facts or columns gets a
/// frame.
fn framed_block(block: &Block) -> Markup {
    use Block::{Columns, Facts, Figure, Fold, List, Table};
    match block {
        Table(_) | List(_) | Facts(_) | Columns(_) | Figure(..) | Fold { .. } => {
            html! { div.card { (self::block(block)) } }
        }
        other => self::block(other),
    }
}

/// Renders a block without a frame around it.
fn block(block: &Block) -> Markup {
    let render_all = |blocks: &[Block]| html! { @for block in blocks { (self::block(block)) } };
    match block {
        Block::Partial(sentence) => html! {
            div.partial {
                b { "Partial result. " }
                (sentence[..1].to_uppercase()) (sentence[1..])
                "; the numbers cover the time until then."
            }
        },
        Block::Verdict { class, word, summary, reasons, .. } => html! {
            div class={ "verdict " (class) } {
                span.word { (word) } " " span.sum { (summary) }
                @if !reasons.items.is_empty() {
                    ul { @for reason in &reasons.items { li { (inline(reason)) } } }
                }
            }
        },
        Block::Tiles(tiles) => html! {
            div.tiles { @for (class, value, description) in tiles {
                div class=(format!("tile {class}").trim()) {
                    b { (value) }
                    span { (inline(description)) }
                }
            } }
        },
        Block::Intro(text) => html! { p.lead { (inline(text)) } },
        Block::Note(text) => html! { p.note { (inline(text)) } },
        Block::Paragraph(text) => html! { p { (inline(text)) } },
        Block::List(list) => {
            html! { ul.plain { @for item in &list.items { li { (inline(item)) } } } }
        }
        Block::Table(table) => self::table(table),
        Block::Facts(facts) => html! {
            dl.facts {
                @for (name, value) in facts { dt { (inline(name)) } dd { (inline(value)) } }
            }
        },
        Block::Columns(blocks) => html! { div.two { (render_all(blocks)) } },
        Block::Card(blocks) => html! { div.card { (render_all(blocks)) } },
        Block::Figure(chart, legend) => figure(chart, legend),
        Block::Code(code) => html! { pre { (code) } },
        Block::Fold { summary, open, blocks } => {
            html! { details open[*open] { summary { (summary) } (render_all(blocks)) } }
        }
        Block::Subheading(text) => html! { h3 { (text) } },
    }
}

/// Renders a table.
fn table(table: &Table) -> Markup {
    let group_class = table.group_class.map(|class| format!("group {class}"));
    html! {
        div.scroll { table {
            thead { tr { @for column in &table.columns {
                th class=[column.align_left.then_some("l")] { (inline(&column.head)) }
            } } }
            @if let Some(group_class) = group_class {
                @for rows in &table.groups {
                    tbody class=(group_class.trim()) { (self::rows(table, rows)) }
                }
            } @else {
                tbody { @for rows in &table.groups { (self::rows(table, rows)) } }
            }
        } }
    }
}

/// Renders rows.
fn rows(table: &Table, rows: &[Row]) -> Markup {
    let class_of = |column: &Column| match (column.align_left, column.wraps) {
        (true, true) => Some("l wrap"),
        (true, false) => Some("l"),
        _ => None,
    };
    html! {
        @for row in rows {
            tr class=[row.is_sub_row.then_some("part")] {
                @if let Some(skip) = row.across {
                    @for _ in 0..skip { td {} }
                    td.l.wrap colspan=(table.columns.len() - skip) { (inline(&row.cells[0])) }
                } @else {
                    @for (column, cell) in table.columns.iter().zip(&row.cells) {
                        td class=[class_of(column)] { (inline(cell)) }
                    }
                }
            }
        }
    }
}

/// Renders formatted text.
fn inline(text: &Text) -> Markup {
    let render_span = |span: &Span| match span {
        Span::Plain(text) | Span::Name(text) => html! { (text) },
        Span::Code(text) => html! { code { (text) } },
        Span::Bold(text) => html! { b { (text) } },
        Span::Small(text) => html! { small { (text) } },
        Span::Term(text, entry) => term(text, entry),
        Span::Tone(class, text) => html! { span class=(class) { (text) } },
        Span::Link(text, to) => html! { a href=(to) { (text) } },
        Span::Anchor(id) => html! { span id=(id) {} },
        Span::Weak => html! { span.weak { "~" } },
        Span::Bar(share) => {
            let width = format!("width:{:.1}px", (share * 60.0).clamp(0.0, 60.0));
            html! { span.bar style=(width) {} }
        }
        Span::Drawing(svg) => html! { (PreEscaped(svg)) },
    };
    html! { @for span in &text.0 { (render_span(span)) } }
}

/// Renders a term with a link to the glossary entry of this name. Without such an entry, the term
/// is plain text.
fn term(text: &str, entry_name: &str) -> Markup {
    let Some(entry) = words::find_entry(entry_name) else { return html! { (text) } };
    html! { a.term href={ "#word-" (entry.id()) } title=(entry.summary()) { (text) } }
}

/// Renders a chart with its caption and legend.
fn figure(chart: &Chart, legend: &[(Ink, String)]) -> Markup {
    let shape = |ink| match ink {
        Ink::Bad | Ink::Limited | Ink::Shade => "box",
        _ => "line",
    };
    html! {
        figure {
            figcaption {
                b { (chart.title) }
                @for (ink, text) in legend {
                    span.key { i class={ (shape(*ink)) " k-" (ink.class()) } {} (text) }
                }
            }
            // Safe: the chart escapes its texts.
            (PreEscaped(chart.to_svg()))
        }
    }
}

/// Renders the glossary.
fn glossary() -> Markup {
    html! {
        h2 id="words" { "Glossary" }
        details {
        summary { "What each number is, how it is measured, and when it is uncertain" }
        dl.words { @for entry in words::entries() {
            dt id={ "word-" (entry.id()) } { (entry.name) }
            @for paragraph in entry.paragraphs() {
                // Every second part is between backticks.
                dd { @for (index, part) in paragraph.split('`').enumerate() {
                    @if index % 2 == 1 { code { (part) } } @else { (part) }
                } }
            }
        } }
        }
    }
}
