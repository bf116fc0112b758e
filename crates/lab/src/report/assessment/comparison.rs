//! The section that compares systems and variants, with the tables of `weir compare`.
//!
//! `report/document.rs` explains the functions and macros that build sections.

use super::super::compare;
use super::super::document::{Block, Column, List, Section, table, tone};
use super::super::parts::or_dash;
use super::section;
use crate::analysis::assessment::{Caveat, Labelled};
use crate::assessment::Assessed;
use crate::wording::assessment::AssessmentText;
use crate::wording::number::rate;

/// Returns the comparisons of capacities and runs, or a sentence if nothing is compared.
pub(super) fn comparison(assessed: &Assessed) -> Section {
    let mut section = section("comparison", "Comparison");
    let assessment_text = AssessmentText::new(&assessed.evidence);
    let not_comparable: Vec<String> = assessed
        .assessment
        .caveats
        .iter()
        .filter(|caveat| matches!(caveat, Caveat::UnlikePlans(_) | Caveat::UnlikeSystems(_)))
        .map(|caveat| assessment_text.caveat(caveat))
        .collect();
    let has_no_comparison =
        assessed.evidence.comparisons.is_empty() && assessed.evidence.capacities.is_empty();
    if has_no_comparison && not_comparable.is_empty() {
        let reason =
            "Nothing is compared: the results belong to one system, or have no valid numbers.";
        return section.add(Block::Paragraph(reason.into()));
    }
    let list = (!not_comparable.is_empty()).then(|| Block::List(List::of(not_comparable)));
    section = section.add(list);
    section = add_capacities(assessed, section, assessment_text);
    for Labelled { label, result } in &assessed.evidence.comparisons {
        section = section
            .add(Block::Subheading(format!("Plan {label}")))
            .add(Block::List(List::of(&result.conclusions)));
        for data in compare::data(result) {
            section = section.add_section(data.title.clone(), data);
        }
    }
    section
}

/// Adds the table of compared capacities, if there are any.
fn add_capacities(
    assessed: &Assessed,
    section: Section,
    assessment_text: AssessmentText<'_>,
) -> Section {
    if assessed.evidence.capacities.is_empty() {
        return section;
    }
    let system = |index: usize| assessed.evidence.systems[index].name.as_str();
    let table = table!(&assessed.evidence.capacities, |pair|
        Column::text("A") => system(pair.a),
        Column::text("B") => system(pair.b),
        Column::number("A, highest pass") => or_dash(pair.difference.as_ref(), |found| rate(found.a)),
        Column::number("B, highest pass") => or_dash(pair.difference.as_ref(), |found| rate(found.b)),
        Column::prose("change, 95 % interval") => assessment_text.capacities(pair),
        Column::text("verdict") => pair.difference.as_ref().map_or_else(
            || tone("weak", "cannot tell"),
            |found| tone(compare::tone_class(found.verdict), found.verdict.as_str()),
        ),
    );
    section.add(Block::Subheading("Capacity by system".to_owned())).add(Block::Table(table))
}
