//! The document of several results: one system, or a comparison of systems.
//!
//! A system is a target on its machine. The evidence is all results and their comparisons. The
//! assessment is what follows from the evidence. `analysis/assessment.rs` defines evidence and
//! assessment.
//!
//! This file defines the order of the sections. It also builds the sections that follow from the
//! assessment: findings, conclusions, caveats, recommendations, risks and next steps. The
//! submodules build the sections about the data.
//!
//! `section.on(PAGE, block)` adds a block that only the HTML page has; `FILES` stands for Markdown
//! and the page. `table!(&rows, |row| Column::text("name") => &row.name)` creates a table with one
//! row for each of `rows`. `text!["a ", code("b")]` joins texts.

mod comparison;
mod results;
mod setup;

#[cfg(test)]
mod tests;

use std::fmt::Display;

use super::document::{
    ALL, Block, Column, Document, FILES, List, MARKDOWN, PAGE, Section, Span, TERMINAL, Text, bold,
    table, text,
};
use crate::analysis::assessment::{Advice, Basis, Conclusion, Derived, Finding, FindingKind};
use crate::assessment::Assessed;
use crate::wording::assessment::AssessmentText;
use crate::wording::assessment::advice::NO_RECOMMENDATION;
use crate::wording::number::plural;

/// Maximum number of sentences in the summary at the top.
const SUMMARY_MAX: usize = 3;
/// Maximum number of items of a list on the terminal.
const LISTED_MAX: usize = 8;

/// Builds the document of several results.
pub(super) fn document(assessed: &Assessed) -> Document {
    let systems = assessed.evidence.systems.iter().map(|system| system.name.as_str());
    let studies = assessed.studies.iter().map(|study| study.result.name.as_str());
    let comparisons =
        assessed.evidence.comparisons.iter().map(|comparison| comparison.label.as_str());
    let mut names: Vec<&str> = systems.chain(studies).collect();
    if names.is_empty() {
        names.extend(comparisons);
    }
    let title = names.join(" · ");
    let sections = [
        Some(head(assessed)),
        Some(setup::scope(assessed)),
        setup::setup(assessed),
        Some(setup::method(assessed)),
        Some(results::results(assessed)),
        Some(results::bottlenecks(assessed)),
        Some(comparison::comparison(assessed)),
        Some(findings(assessed)),
        Some(conclusions(assessed)),
        Some(caveats(assessed)),
        Some(recommendations(assessed)),
        Some(risks(assessed)),
        Some(steps(assessed)),
        Some(version_note()),
    ];
    Document {
        command: "weir report",
        title: title.clone(),
        window: format!("report: {title}"),
        heading: format!("Report: {title}"),
        intro: vec![intro(assessed).into()],
        sections: sections.into_iter().flatten().collect(),
        glossary: true,
    }
}

/// Creates a section that links can lead to, on the page and in Markdown.
fn section(id: &'static str, title: &'static str) -> Section {
    let anchor = Block::Paragraph(Span::Anchor(id.to_owned()).into());
    Section::new(id, title).nav(title).on(MARKDOWN, anchor)
}

/// Returns a line with the numbers of systems, results and studies, and with the times of the first
/// and the last start.
fn intro(assessed: &Assessed) -> String {
    let results = setup::results(assessed);
    let mut started: Vec<&str> = results.iter().map(|result| result.started).collect();
    started.extend(assessed.studies.iter().map(|study| study.result.started.as_str()));
    started.retain(|start| !start.is_empty());
    started.sort_unstable();
    let count = |number: usize, noun| plural(number as u64, noun);
    let mut parts =
        vec![count(assessed.evidence.systems.len(), "system"), count(results.len(), "result")];
    if !assessed.studies.is_empty() {
        let studies = assessed.studies.len();
        let noun = if studies == 1 { "study" } else { "studies" };
        parts.push(format!("{studies} {noun}"));
    }
    match started.as_slice() {
        [] => {}
        [only] => parts.push(format!("started {only}")),
        [first, .., last] => parts.push(format!("started {first} to {last}")),
    }
    parts.join(" · ")
}

/// Returns the summary: the first conclusions, and the numbers of findings, caveats and
/// recommendations.
fn head(assessed: &Assessed) -> Section {
    let assessment = &assessed.assessment;
    let has_failure = assessment.findings.iter().any(|finding| finding.kind.is_failure());
    let (class, word) = match (has_failure, assessment.conclusions.is_empty()) {
        (true, _) => ("fail", "FAILURES FOUND"),
        (false, true) => ("invalid", "NOTHING MAY BE CONCLUDED"),
        (false, false) => ("pass", "NO FAILURE FOUND"),
    };
    let assessment_text = AssessmentText::new(&assessed.evidence);
    let findings = &assessment.findings;
    let first_conclusions = assessment.conclusions.iter().take(SUMMARY_MAX);
    let sentences: Vec<String> = first_conclusions
        .map(|conclusion| assessment_text.conclusion(conclusion, findings))
        .collect();
    let count = |number: usize, noun| plural(number as u64, noun);
    let counts = [
        count(findings.len(), "finding"),
        count(assessment.caveats.len(), "caveat"),
        count(assessment.recommendations.len(), "recommendation"),
    ]
    .join(", ");
    let names: Vec<&str> =
        assessed.evidence.systems.iter().map(|system| system.name.as_str()).collect();
    let banner_text = match names.is_empty() {
        true => counts.clone(),
        false => format!("{}: {counts}", names.join(" · ")),
    };
    let summary = text![bold(word), format!(": {counts}.")];
    let list = Block::List(List::of(sentences.clone()));
    let verdict =
        Block::Verdict { class, word: word.to_owned(), summary: counts, reasons: sentences };
    Section::default()
        .on(TERMINAL, Block::Banner(class, word.to_owned(), banner_text))
        .on(PAGE, verdict)
        .on(MARKDOWN, Block::Paragraph(summary))
        .on(MARKDOWN, list)
}

/// Adds a list of sentences, with a heading that only the terminal prints. An empty list becomes
/// the sentence `if_empty`.
fn add_list(section: Section, heading: &'static str, items: Vec<Text>, if_empty: &str) -> Section {
    let section = section.on(TERMINAL, Block::Note(heading.into()));
    match items.is_empty() {
        true => section
            .on(FILES, Block::Paragraph(if_empty.into()))
            .on(TERMINAL, Block::Paragraph(if_empty.into())),
        false => {
            let list = List { terminal_max: LISTED_MAX, noun: "sentence", ..List::of(items) };
            section.on(ALL, Block::List(list))
        }
    }
}

/// Returns the anchor of a finding.
fn finding_id(index: usize) -> String {
    format!("finding-{}", index + 1)
}

/// Returns the anchor of a caveat.
fn caveat_id(index: usize) -> String {
    format!("caveat-{}", index + 1)
}

/// Returns a link to a finding.
fn link_to_finding(index: usize) -> Text {
    Span::Link(format!("F{}", index + 1), format!("#{}", finding_id(index))).into()
}

/// Returns a link to the finding or caveat on which a statement is based.
fn link_to_basis(basis: Basis) -> Text {
    match basis {
        Basis::Finding(index) => link_to_finding(index),
        Basis::Caveat(index) => {
            Span::Link(format!("C{}", index + 1), format!("#{}", caveat_id(index))).into()
        }
    }
}

/// Returns a link to the section that has the evidence of a finding.
fn evidence_of(finding: &Finding) -> Text {
    let (name, id) = match finding.kind {
        FindingKind::Bottleneck { .. } => ("Bottleneck", "bottleneck"),
        FindingKind::Differs { .. } | FindingKind::CapacityDiffers { .. } => {
            ("Comparison", "comparison")
        }
        _ => ("Results", "results"),
    };
    Span::Link(name.to_owned(), format!("#{id}")).into()
}

/// Returns a table of the findings with links to their evidence.
fn findings(assessed: &Assessed) -> Section {
    let findings = &assessed.assessment.findings;
    let section = section("findings", "Findings")
        .intro("What the valid results show. Invalid results give no finding.");
    if findings.is_empty() {
        return section.on(FILES, Block::Paragraph("The results show no finding.".into()));
    }
    let assessment_text = AssessmentText::new(&assessed.evidence);
    let table = table!(findings.iter().enumerate(), |(index, finding)|
        Column::text("") => text![Span::Anchor(finding_id(index)), bold(format!("F{}", index + 1))],
        Column::prose("finding") => assessment_text.finding(finding),
        Column::text("evidence") => evidence_of(finding),
    );
    section.on(FILES, Block::Table(table))
}

/// Returns the conclusions with links to the data that support them.
fn conclusions(assessed: &Assessed) -> Section {
    let assessment = &assessed.assessment;
    let assessment_text = AssessmentText::new(&assessed.evidence);
    let item = |conclusion: &Conclusion| {
        let sentence = assessment_text.conclusion(conclusion, &assessment.findings);
        let link = match conclusion {
            Conclusion::Finding(index) => link_to_finding(*index),
            Conclusion::Same { .. } => Span::Link("Comparison".into(), "#comparison".into()).into(),
            Conclusion::Kept { .. } | Conclusion::Measured { .. } => {
                Span::Link("Results".into(), "#results".into()).into()
            }
        };
        text![sentence, " ", link]
    };
    let items = assessment.conclusions.iter().map(item).collect();
    let section = section("conclusions", "What may be concluded");
    add_list(
        section,
        "It may be concluded:",
        items,
        "Nothing: no valid result supports a conclusion.",
    )
}

/// Returns the caveats, and the warnings of the results.
fn caveats(assessed: &Assessed) -> Section {
    let assessment = &assessed.assessment;
    let assessment_text = AssessmentText::new(&assessed.evidence);
    let item = |(index, caveat)| {
        let sentence = assessment_text.caveat(caveat);
        text![Span::Anchor(caveat_id(index)), bold(format!("C{}. ", index + 1)), sentence]
    };
    let items = assessment.caveats.iter().enumerate().map(item).collect();
    let section = section("caveats", "What may not be concluded");
    let section =
        add_list(section, "It may not be concluded:", items, "The results have no caveat.");
    let warnings = setup::warnings(assessed);
    let has_warnings = !warnings.is_empty();
    section
        .on(FILES, has_warnings.then(|| Block::Subheading("Warnings of the results".to_owned())))
        .on(FILES, has_warnings.then(|| Block::List(List::of(warnings))))
}

/// Returns the recommendations with links to their findings.
fn recommendations(assessed: &Assessed) -> Section {
    let assessment = &assessed.assessment;
    // Advice that contains a rate applies to one system. If there are several systems, the advice
    // begins with the system's name.
    let system_prefix = |recommendation: &Derived<Advice>| {
        let has_rate = matches!(
            recommendation.statement,
            Advice::KeepBelow { .. } | Advice::LimitAdmission { .. }
        );
        let Basis::Finding(finding) = recommendation.basis else { return None };
        let finding = assessment.findings.get(finding).filter(|_| has_rate)?;
        let system =
            finding.sources.first()?.system().filter(|_| assessed.evidence.systems.len() > 1)?;
        Some(format!("{}: ", assessed.evidence.systems.get(system)?.name))
    };
    let items = assessment.recommendations.iter().map(|recommendation| {
        let prefix = system_prefix(recommendation).unwrap_or_default();
        let advice = format!("{prefix}{}", recommendation.statement);
        text![advice, " Because of ", link_to_basis(recommendation.basis), "."]
    });
    let section = section("recommendations", "Recommendations")
        .intro("Each recommendation rests on the finding that it links to.");
    add_list(section, "Recommendations:", items.collect(), NO_RECOMMENDATION)
}

/// Formats statements, each with a link to the finding or caveat on which it is based.
fn derived<T: Display>(statements: &[Derived<T>]) -> Vec<Text> {
    let item = |derived: &Derived<T>| {
        text![derived.statement.to_string(), " Because of ", link_to_basis(derived.basis), "."]
    };
    statements.iter().map(item).collect()
}

fn risks(assessed: &Assessed) -> Section {
    let items = derived(&assessed.assessment.risks);
    add_list(section("risks", "Risks"), "Risks:", items, "No finding and no caveat names a risk.")
}

fn steps(assessed: &Assessed) -> Section {
    let items = derived(&assessed.assessment.steps);
    let if_empty = "No finding and no caveat asks for another measurement.";
    add_list(section("steps", "Next steps"), "Next steps:", items, if_empty)
}

fn version_note() -> Section {
    let version = env!("CARGO_PKG_VERSION");
    let note = format!("Written by weir {version}. Terms: docs/measuring.md.");
    Section::default().on(FILES, Block::Note(note.into()))
}
