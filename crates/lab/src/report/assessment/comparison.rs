//! The section that compares systems and variants, with the tables of `weir compare`.
//!
//! `section.on(PAGE, block)` adds a block that only the HTML page has; `FILES` stands for Markdown
//! and the page. `table!(&rows, |row| Column::text("name") => &row.name)` creates a table with one
//! row for each of `rows`.

use lab_model::results::compare::CompareResult;

use super::super::compare;
use super::super::document::{Block, Column, FILES, List, Section, table, tone};
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
        return section.on(FILES, Block::Paragraph(reason.into()));
    }
    let list = (!not_comparable.is_empty()).then(|| Block::List(List::of(not_comparable)));
    section = section.on(FILES, list);
    section = add_capacities(assessed, section, assessment_text);
    for comparison in &assessed.evidence.comparisons {
        section = add_comparison(section, comparison);
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
    section
        .on(FILES, Block::Subheading("Capacity by system".to_owned()))
        .on(FILES, Block::Table(table))
}

/// Adds one comparison: its conclusions, the mismatches that make it doubtful, the differences, and
/// the values per core.
fn add_comparison(section: Section, comparison: &Labelled<CompareResult>) -> Section {
    let result: &CompareResult = &comparison.result;
    let mut section = section
        .on(FILES, Block::Subheading(format!("Plan {}", comparison.label)))
        .on(FILES, Block::List(List::of(&result.conclusions)));
    let differences = result.variants.iter().skip(1);
    let differences = differences.map(|variant| compare::differences(result, &variant.name));
    let subsections = std::iter::once(compare::mismatches(result))
        .chain(differences)
        .chain([compare::normalised_section(result)]);
    for subsection in subsections.flatten() {
        section = section.on(FILES, Block::Subheading(subsection.title.clone()));
        section.blocks.extend(subsection.only(FILES).blocks);
    }
    section
}
