//! The document of a comparison of two servers' responses.

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
const DIFFERENCES: usize = 40;

/// Builds the document.
pub(super) fn document(result: &EqualResult) -> Document {
    let title = format!("{} · {}", result.a.url, result.b.url);
    let sections = [
        Some(head(result)),
        Some(servers(result)),
        Some(methods(&result.methods)),
        differences(result, true),
        differences(result, false),
        parts::warnings(&result.warnings, usize::MAX, ALL),
    ];
    Document {
        command: "weir equal",
        title: title.clone(),
        window: "equal".to_owned(),
        heading: format!("{}: {title}", result.verdict.as_str()),
        lead: Vec::new(),
        sections: sections.into_iter().flatten().collect(),
        glossary: false,
    }
}

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
        .on(PAGE, Block::Verdict(class, word, conclusion.clone(), Vec::new()))
        .on(MARKDOWN, Block::Paragraph(conclusion.into()))
        .on(ALL, habits().map(|sentence| Block::Note(sentence.into())))
}

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

fn methods(methods: &[MethodRow]) -> Section {
    let broken = |number: u64| -> Text {
        if number == 0 { "0".into() } else { tone("broken", count(number)) }
    };
    let table = table!(methods, |row|
        Column::text("method") => code(&row.method),
        Column::number("calls") => count(row.calls),
        Column::number("equal") => count(row.equal),
        Column::number("allowed") => count(row.allowed),
        Column::number("different") => broken(row.different),
        Column::number("unanswered") => broken(row.unanswered),
    );
    Section::new("methods", "Methods").on(ALL, Block::Table(table.at_most(METHODS_MAX, "method")))
}

/// Returns the differences that count, or the allowed ones.
fn differences(result: &EqualResult, counts: bool) -> Option<Section> {
    let rows: Vec<&DifferenceRow> =
        result.differences.iter().filter(|row| row.counts == counts).collect();
    let (id, title) = match counts {
        true => ("differences", "Differences"),
        false => ("allowed", "Allowed differences"),
    };
    let more = (counts && result.differences_more > 0).then(|| {
        let more = count(result.differences_more);
        Block::Note(format!("{more} further kinds of differences are not listed.").into())
    });
    let section = Section::new(id, title)
        .on(TERMINAL, Block::Note(format!("{title}:").into()))
        .on(TERMINAL, Block::Table(on_terminal(&rows, counts)))
        .on(
            TERMINAL,
            counts.then(|| Block::List(List::of(rows.iter().take(DIFFERENCES).map(example)))),
        )
        .on(FILES, Block::Table(in_files(&rows)))
        .on(ALL, more);
    (!rows.is_empty()).then_some(section)
}

fn on_terminal(rows: &[&DifferenceRow], counts: bool) -> Table {
    let table = table!(rows, |row|
        Column::text("method") => code(&row.method),
        Column::text("class") => class(row, counts),
        Column::number("calls") => count(row.calls),
        Column::text("pointer") => pointer(&row.pointer),
        Column::text("known habit") => row.habit.clone().unwrap_or_default(),
    );
    table.at_most(DIFFERENCES, "difference")
}

fn in_files(rows: &[&DifferenceRow]) -> Table {
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

fn class(row: &DifferenceRow, counts: bool) -> Text {
    if counts { tone("broken", row.class.as_str()) } else { row.class.as_str().into() }
}

fn pointer(pointer: &str) -> &str {
    if pointer.is_empty() { "(whole response)" } else { pointer }
}

fn example(row: &&DifferenceRow) -> Text {
    let example = &row.example;
    let place = pointer(&example.pointer);
    text![
        code(&row.method),
        format!(" {place}: A = {}, B = {}; request {}", example.a, example.b, example.request)
    ]
}
