//! The rows of a benchmark's result, printed as a table and written as JSON. A row compares one of
//! our figures with that of a *peer*, the program that we measure against.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// One comparison of our figure with a peer's.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    /// Name of the measured case.
    pub(crate) case: String,
    /// The unit of `ours` and `theirs`.
    pub(crate) unit: String,
    /// Our median over the repetitions.
    pub(crate) ours: f64,
    /// Name of the peer; "ourselves …" if the figure is compared with our own.
    pub(crate) peer: String,
    /// The peer's median over the repetitions.
    pub(crate) theirs: f64,
    /// `ours / theirs`.
    pub(crate) ratio: f64,
    /// Number of interleaved repetitions behind each median.
    pub(crate) repetitions: usize,
    /// Smallest and largest ratio of any repetition.
    pub(crate) spread: [f64; 2],
    /// Largest ratio that meets the target; `None` if the figure is only reported.
    pub(crate) target: Option<f64>,
    /// True if every round was valid and the ratio meets the target.
    pub(crate) met: bool,
    /// The reasons why rounds are invalid. Each is printed and sets `met` to false.
    #[serde(skip)]
    pub(crate) problems: Vec<String>,
}

/// The description of a row, without its figures. [`Row`] explains the fields.
#[derive(Debug, Clone)]
pub(crate) struct RowSpec<'a> {
    pub(crate) case: &'a str,
    pub(crate) unit: &'a str,
    pub(crate) peer: &'a str,
    pub(crate) target: Option<f64>,
}

impl Row {
    /// Builds a row from figures that were measured in pairs: `ours[i]` and `theirs[i]` belong to
    /// the same repetition. Each of `problems` makes the row invalid.
    pub(crate) fn compare(
        spec: &RowSpec<'_>,
        ours: &[f64],
        theirs: &[f64],
        problems: Vec<String>,
    ) -> Self {
        let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
        let (our_median, their_median) = (median(ours), median(theirs));
        let ratio = our_median / their_median;
        let spread = [
            ratios.iter().copied().fold(f64::NAN, f64::min),
            ratios.iter().copied().fold(f64::NAN, f64::max),
        ];
        // NaN meets no target.
        let meets_target = spec.target.map_or(ratio.is_finite(), |target| ratio <= target);
        Self {
            case: spec.case.to_owned(),
            unit: spec.unit.to_owned(),
            ours: round(our_median),
            peer: spec.peer.to_owned(),
            theirs: round(their_median),
            ratio: round(ratio),
            repetitions: ratios.len(),
            spread: spread.map(round),
            target: spec.target,
            met: meets_target && problems.is_empty(),
            problems,
        }
    }
}

/// Returns the median, or NaN for an empty slice.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => f64::NAN,
        (length, half) if length % 2 == 1 => sorted[half],
        (_, half) => f64::midpoint(sorted[half - 1], sorted[half]),
    }
}

/// Rounds to three decimals, because the spread makes further digits meaningless.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Returns the table, followed by the problems of its rows.
pub(crate) fn format_table(rows: &[Row]) -> String {
    let head = ["case", "unit", "ours", "peer", "theirs", "ratio", "spread", "n", "target", "met"];
    let mut cells = vec![head.map(str::to_owned)];
    cells.extend(rows.iter().map(format_cells));
    let widths: Vec<usize> = (0..head.len())
        .map(|column| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in &cells {
        let padded: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    }
    for row in rows {
        for problem in &row.problems {
            text.push_str(&format!("invalid: {} against {}: {problem}\n", row.case, row.peer));
        }
    }
    text
}

fn format_cells(row: &Row) -> [String; 10] {
    [
        row.case.clone(),
        row.unit.clone(),
        format!("{:.2}", row.ours),
        row.peer.clone(),
        format!("{:.2}", row.theirs),
        format!("{:.3}", row.ratio),
        format!("{:.3}-{:.3}", row.spread[0], row.spread[1]),
        row.repetitions.to_string(),
        row.target.map_or_else(|| "none".to_owned(), |target| format!("{target:.2}")),
        if row.met { "yes" } else { "NO" }.to_owned(),
    ]
}

/// Writes the rows as a JSON list.
///
/// # Errors
/// Fails if the file cannot be written.
pub(crate) fn write_json(rows: &[Row], path: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(rows)?;
    std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests;
