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
//! `report/document.rs` explains the functions and macros that build sections.

mod comparison;
mod results;
mod setup;

#[cfg(test)]
mod tests;

use std::fmt::Display;

use super::document::{
    Block, Column, Document, List, Section, Span, Start, Text, bold, table, text,
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
    let (summary_head, page_head) = heads(assessed);
    let about = || [Some(setup::scope(assessed)), setup::setup(assessed)].into_iter().flatten();
    let statements = || {
        [
            results::bottlenecks(assessed),
            comparison::comparison(assessed),
            findings(assessed),
            conclusions(assessed),
            caveats(assessed),
            setup::warnings(assessed),
            recommendations(assessed),
            risks(assessed),
            steps(assessed),
            version_note(),
        ]
    };
    let summary = summary_head
        .into_iter()
        .chain(about())
        .chain([setup::method(assessed), results::results(assessed)])
        .chain(statements())
        .map(with_anchor);
    let method = setup::method(assessed).add(setup::plan_texts(assessed));
    let page = std::iter::once(page_head)
        .chain(about())
        .chain([method, results::page_results(assessed)])
        .chain(statements());
    Document {
        command: "weir report",
        title: title.clone(),
        window: format!("report: {title}"),
        heading: format!("Report: {title}"),
        intro: vec![intro(assessed).into()],
        summary: summary.collect(),
        page: page.collect(),
        glossary: true,
    }
}

/// Creates a section with the data of the report, which the terminal leaves out.
fn section(id: &'static str, title: &'static str) -> Section {
    Section::new(id, title).nav(title).detail()
}

/// Adds an anchor to a section, because Markdown has no other target for links.
fn with_anchor(mut section: Section) -> Section {
    if !section.id.is_empty() {
        section.blocks.insert(0, Block::Paragraph(Span::Anchor(section.id.clone()).into()));
    }
    section
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

/// Returns the first sections of the summary, and that of the page: the first conclusions, and the
/// numbers of findings, caveats and recommendations.
fn heads(assessed: &Assessed) -> ([Section; 2], Section) {
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
    let list = Section::default().detail().add(Block::List(List::of(&sentences)));
    let verdict = |summary, reasons| {
        let (word, subject) = (word.to_owned(), names.join(" · "));
        Section::default().add(Block::Verdict { class, word, subject, summary, reasons })
    };
    let summary = [verdict(counts.clone(), List::default()), list];
    (summary, verdict(counts, List::of(sentences)))
}

/// Adds a list of sentences to a section that the terminal shows. An empty list becomes the sentence
/// `if_empty`.
fn add_list(section: Section, items: Vec<Text>, if_empty: &str) -> Section {
    let list = List { terminal_max: LISTED_MAX, noun: "sentence", ..List::of(items) };
    section.start(Start::Title).add(match list.items.is_empty() {
        true => Block::Paragraph(if_empty.into()),
        false => Block::List(list),
    })
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
        return section.add(Block::Paragraph("The results show no finding.".into()));
    }
    let assessment_text = AssessmentText::new(&assessed.evidence);
    let table = table!(findings.iter().enumerate(), |(index, finding)|
        Column::text("") => text![Span::Anchor(finding_id(index)), bold(format!("F{}", index + 1))],
        Column::prose("finding") => assessment_text.finding(finding),
        Column::text("evidence") => evidence_of(finding),
    );
    section.add(Block::Table(table))
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
    add_list(section, items, "Nothing: no valid result supports a conclusion.")
}

/// Returns the reasons why some conclusions may not be drawn.
fn caveats(assessed: &Assessed) -> Section {
    let assessment = &assessed.assessment;
    let assessment_text = AssessmentText::new(&assessed.evidence);
    let item = |(index, caveat)| {
        let sentence = assessment_text.caveat(caveat);
        text![Span::Anchor(caveat_id(index)), bold(format!("C{}. ", index + 1)), sentence]
    };
    let items = assessment.caveats.iter().enumerate().map(item).collect();
    let section = section("caveats", "What may not be concluded");
    add_list(section, items, "The results have no caveat.")
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
    add_list(section, items.collect(), NO_RECOMMENDATION)
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
    add_list(section("risks", "Risks"), items, "No finding and no caveat names a risk.")
}

fn steps(assessed: &Assessed) -> Section {
    let items = derived(&assessed.assessment.steps);
    let if_empty = "No finding and no caveat asks for another measurement.";
    add_list(section("steps", "Next steps"), items, if_empty)
}

fn version_note() -> Section {
    let version = env!("CARGO_PKG_VERSION");
    let note = format!("Written by weir {version}. Terms: docs/measuring.md.");
    Section::default().detail().add(Block::Note(note.into()))
}
