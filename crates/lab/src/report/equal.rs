//! The document of a comparison of two servers' responses (`weir equal`).
//!
//! A habit is a known way in which correct clients differ (`analysis/habits.rs`). A difference that
//! a habit explains is allowed. A difference counts if it makes the servers different.
//!
//! `report/document.rs` explains the functions and macros that build sections.

use lab_model::results::equal::{DifferenceRow, EqualResult, EqualVerdict, MethodRow};

use super::document::{
    Block, Column, Document, List, Section, Start, Table, Text, code, table, text, tone,
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
    let warnings = || parts::warnings(&result.warnings, usize::MAX);
    let first = || [head(result), servers(result), methods(&result.methods)].into_iter().map(Some);
    let summary = first().chain([
        differences(result, true, summary_table),
        examples(result, true, Start::NextLine),
        differences(result, false, summary_table),
        examples(result, false, Start::Omitted),
        warnings(),
    ]);
    let page = first().chain([
        differences(result, true, page_table),
        differences(result, false, page_table),
        warnings(),
    ]);
    Document {
        command: "weir equal",
        title: title.clone(),
        window: "equal".to_owned(),
        heading: format!("{}: {title}", result.verdict.as_str()),
        intro: Vec::new(),
        summary: summary.flatten().collect(),
        page: page.flatten().collect(),
        glossary: false,
    }
}

/// Returns the verdict with the conclusion, and a sentence on the habits.
fn head(result: &EqualResult) -> Section {
    let class = match result.verdict {
        EqualVerdict::Equal => "pass",
        EqualVerdict::Different | EqualVerdict::Unsteady => "fail",
        EqualVerdict::CannotTell => "invalid",
    };
    let verdict = Block::Verdict {
        class,
        word: result.verdict.as_str().to_owned(),
        subject: String::new(),
        summary: wording::conclusion(result),
        reasons: List::default(),
    };
    let habits = wording::habits(result).map(|sentence| Block::Note(sentence.into()));
    Section::default().add(verdict).add(habits)
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
    Section::new("servers", "Servers").add(Block::Table(table)).add(block)
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
        Column::number("unsteady") => red_unless_zero(row.unsteady),
        Column::number("unanswered") => red_unless_zero(row.unanswered),
    );
    Section::new("methods", "Methods").add(Block::Table(table.at_most(METHODS_MAX, "method")))
}

/// Returns the differences that count, or the allowed ones if `counts` is false.
fn rows(result: &EqualResult, counts: bool) -> Vec<&DifferenceRow> {
    result.differences.iter().filter(|row| row.counts == counts).collect()
}

/// Returns the section of the differences that count, or of the allowed ones if `counts` is false.
/// `None` if there are no such differences.
fn differences(
    result: &EqualResult,
    counts: bool,
    table_of: fn(&[&DifferenceRow]) -> Table,
) -> Option<Section> {
    let rows = rows(result, counts);
    let (id, title) = match counts {
        true => ("differences", "Differences"),
        false => ("allowed", "Allowed differences"),
    };
    let omission_note = (counts && result.differences_more > 0).then(|| {
        let omitted = count(result.differences_more);
        Block::Note(format!("{omitted} further kinds of differences are not listed.").into())
    });
    let section = Section::new(id, title).start(Start::Title);
    (!rows.is_empty()).then(|| section.add(Block::Table(table_of(&rows))).add(omission_note))
}

/// Returns the table of the summary. Its examples follow in a list.
fn summary_table(rows: &[&DifferenceRow]) -> Table {
    let table = table!(rows, |row|
        Column::text("method") => code(&row.method),
        Column::text("class") => class(row),
        Column::number("calls") => count(row.calls),
        Column::text("pointer") => code(pointer(&row.pointer)),
        Column::text("known habit") => row.habit.clone().unwrap_or_default(),
    );
    table.at_most(DIFFERENCES_MAX, "difference")
}

/// Returns the table of the page. Each row has an example.
fn page_table(rows: &[&DifferenceRow]) -> Table {
    table!(rows, |row|
        Column::text("method") => code(&row.method),
        Column::text("class") => class(row),
        Column::number("calls") => count(row.calls),
        Column::prose("example") => code(&row.example.pointer),
        Column::prose("A") => code(&row.example.a),
        Column::prose("B") => code(&row.example.b),
        Column::prose("request") => code(&row.example.request),
        Column::text("known habit") => row.habit.clone().unwrap_or_default(),
    )
}

/// Returns an example of each difference as a sentence.
fn examples(result: &EqualResult, counts: bool, start: Start) -> Option<Section> {
    let items = rows(result, counts).into_iter().map(|row| {
        let example = &row.example;
        let location = pointer(&example.pointer);
        let (a, b, request) = (code(&example.a), code(&example.b), code(&example.request));
        text![
            code(&row.method),
            format!(" {location}: A = "),
            a,
            ", B = ",
            b,
            "; request ",
            request
        ]
    });
    let list = List { terminal_max: DIFFERENCES_MAX, noun: "example", ..List::of(items) };
    let section = Section::default().start(start);
    (!list.items.is_empty()).then(|| section.add(Block::List(list)))
}

/// Returns the name of a difference's class, in red if the difference counts. `broken` is the red of
/// the style sheet.
fn class(row: &DifferenceRow) -> Text {
    let unsteady = if row.unsteady { ", unsteady" } else { "" };
    let name = format!("{}{unsteady}", row.class.as_str());
    if row.counts { tone("broken", name) } else { name.into() }
}

/// Formats a JSON pointer. An empty pointer refers to the whole response.
fn pointer(pointer: &str) -> &str {
    if pointer.is_empty() { "(whole response)" } else { pointer }
}
