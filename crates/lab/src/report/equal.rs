//! The document of a comparison of two servers' responses (`weir equal`).
//!
//! A habit is a known way in which correct clients differ (`analysis/habits.rs`). A difference that
//! a habit explains is allowed. A difference counts if it makes the servers different.
//!
//! `section.on(PAGE, block)` adds a block that only the HTML page has; `FILES` stands for Markdown
//! and the page. `table!(&rows, |row| Column::text("name") => &row.name)` creates a table with one
//! row for each of `rows`. `text!["a ", code("b")]` joins texts.

use lab_model::results::equal::{DifferenceRow, EqualResult, EqualVerdict, MethodRow};

use super::document::{
    ALL, Block, Column, Document, FILES, List, MARKDOWN, PAGE, Section, TERMINAL, Table, Text,
    code, table, text, tone,
};
use super::parts;
use crate::wording::equal as wording;
use crate::wording::number::count;

#[cfg(test)]
pub(in crate::report) mod tests;

/// Maximum number of methods on the terminal.
const METHODS_MAX: usize = 60;
/// Maximum number of differences on the terminal.
const DIFFERENCES_MAX: usize = 40;

/// Builds the document of a comparison of responses.
pub(super) fn document(result: &EqualResult) -> Document {
    let title = format!("{} · {}", result.a.url, result.b.url);
    let (counting, allowed) = (differences(result, true), differences(result, false));
    let sections = [
        Some(head(result)),
        Some(servers(result)),
        Some(methods(&result.methods)),
        counting,
        allowed,
        parts::warnings(&result.warnings, usize::MAX, ALL),
    ];
    Document {
        command: "weir equal",
        title: title.clone(),
        window: "equal".to_owned(),
        heading: format!("{}: {title}", result.verdict.as_str()),
        intro: Vec::new(),
        sections: sections.into_iter().flatten().collect(),
        glossary: false,
    }
}

/// Returns the verdict with the conclusion, and a sentence on the habits. The class of the style
/// sheet sets the verdict's colour.
fn head(result: &EqualResult) -> Section {
    let (word, conclusion) = (result.verdict.as_str().to_owned(), wording::conclusion(result));
    let class = match result.verdict {
        EqualVerdict::Equal => "pass",
        EqualVerdict::Different => "fail",
        EqualVerdict::CannotTell => "invalid",
    };
    let habits = || wording::habits(result);
    Section::default()
        .on(TERMINAL, Block::Banner(class, word.clone(), conclusion.clone()))
        .on(PAGE, Block::Verdict { class, word, summary: conclusion.clone(), reasons: Vec::new() })
        .on(MARKDOWN, Block::Paragraph(conclusion.into()))
        .on(ALL, habits().map(|sentence| Block::Note(sentence.into())))
}

/// Returns the two servers with their clients and their heads (the numbers of their newest blocks).
fn servers(result: &EqualResult) -> Section {
    let unknown = || "unknown".to_owned();
    let table = table!([("A", &result.a), ("B", &result.b)], |(letter, server)|
        Column::text("") => letter,
        Column::text("server") => &server.url,
        Column::number("head") => server.head.map_or_else(unknown, count),
        Column::prose("client") => server.client.clone().unwrap_or_else(unknown),
    );
    let block = result.block.map(|block| {
        let family = &result.family;
        Block::Note(format!("Family {family}; newest block of the calls: {}.", count(block)).into())
    });
    Section::new("servers", "Servers").on(ALL, Block::Table(table)).on(ALL, block)
}

/// Returns the counts of compared calls by method.
fn methods(methods: &[MethodRow]) -> Section {
    let red_unless_zero = |number: u64| -> Text {
        if number == 0 { "0".into() } else { tone("broken", count(number)) }
    };
    let table = table!(methods, |row|
        Column::text("method") => code(&row.method),
        Column::number("calls") => count(row.calls),
        Column::number("equal") => count(row.equal),
        Column::number("allowed") => count(row.allowed),
        Column::number("different") => red_unless_zero(row.different),
        Column::number("unanswered") => red_unless_zero(row.unanswered),
    );
    Section::new("methods", "Methods").on(ALL, Block::Table(table.at_most(METHODS_MAX, "method")))
}

/// Returns the section of the differences that count, or of the allowed ones if `counts` is false.
/// `None` if there are no such differences.
fn differences(result: &EqualResult, counts: bool) -> Option<Section> {
    let rows: Vec<&DifferenceRow> =
        result.differences.iter().filter(|row| row.counts == counts).collect();
    let (id, title) = match counts {
        true => ("differences", "Differences"),
        false => ("allowed", "Allowed differences"),
    };
    let omission_note = (counts && result.differences_more > 0).then(|| {
        let omitted = count(result.differences_more);
        Block::Note(format!("{omitted} further kinds of differences are not listed.").into())
    });
    let section = Section::new(id, title)
        .on(TERMINAL, Block::Note(format!("{title}:").into()))
        .on(TERMINAL, Block::Table(terminal_table(&rows, counts)))
        .on(
            TERMINAL,
            counts.then(|| Block::List(List::of(rows.iter().take(DIFFERENCES_MAX).map(example)))),
        )
        .on(FILES, Block::Table(file_table(&rows)))
        .on(ALL, omission_note);
    (!rows.is_empty()).then_some(section)
}

/// Returns the table for the terminal. Its examples follow in a list.
fn terminal_table(rows: &[&DifferenceRow], counts: bool) -> Table {
    let table = table!(rows, |row|
        Column::text("method") => code(&row.method),
        Column::text("class") => class(row, counts),
        Column::number("calls") => count(row.calls),
        Column::text("pointer") => pointer(&row.pointer),
        Column::text("known habit") => row.habit.clone().unwrap_or_default(),
    );
    table.at_most(DIFFERENCES_MAX, "difference")
}

/// Returns the table for Markdown and the page. Each row has an example.
fn file_table(rows: &[&DifferenceRow]) -> Table {
    table!(rows, |row|
        Column::text("method") => code(&row.method),
        Column::text("class") => class(row, row.counts),
        Column::number("calls") => count(row.calls),
        Column::prose("example") => code(&row.example.pointer),
        Column::prose("A") => code(&row.example.a),
        Column::prose("B") => code(&row.example.b),
        Column::prose("request") => code(&row.example.request),
        Column::text("known habit") => row.habit.clone().unwrap_or_default(),
    )
}

/// Returns the name of a difference's class, in red if `counts` is true. `broken` is the red of the
/// style sheet.
fn class(row: &DifferenceRow, counts: bool) -> Text {
    if counts { tone("broken", row.class.as_str()) } else { row.class.as_str().into() }
}

/// Formats a JSON pointer. An empty pointer refers to the whole response.
fn pointer(pointer: &str) -> &str {
    if pointer.is_empty() { "(whole response)" } else { pointer }
}

/// Formats the example of a difference as a sentence.
fn example(row: &&DifferenceRow) -> Text {
    let example = &row.example;
    let location = pointer(&example.pointer);
    text![
        code(&row.method),
        format!(" {location}: A = {}, B = {}; request {}", example.a, example.b, example.request)
    ]
}
