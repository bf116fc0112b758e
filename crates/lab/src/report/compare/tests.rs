//! Goal: every difference is on the page with its verdict, and bars have the right direction.
//! Method: an invented comparison, read by the reader of `page/tests.rs`.

use lab_model::results::Basis;
use lab_model::results::compare::{Metric, Mismatch, NormalRow, SCHEMA, VariantRow};

use super::*;
use crate::report::Report;
use crate::report::page::tests::read;

fn difference(
    variant: &str,
    metric: Metric,
    change: f64,
    verdict: ComparisonVerdict,
) -> Difference {
    Difference {
        variant: variant.into(),
        method: "eth_call".into(),
        metric,
        a: 10.0,
        b: 10.0 * (1.0 + change),
        a_count: 4,
        b_count: 4,
        change,
        interval: (verdict != ComparisonVerdict::CannotTell)
            .then_some((change - 0.04, change + 0.04)),
        p: Some(0.012),
        floor: 0.025,
        basis: Basis::Runs,
        verdict,
    }
}

/// Returns a comparison of two variants with several verdicts.
pub(in crate::report) fn compared() -> CompareResult {
    let variant = |name: &str| VariantRow {
        name: name.into(),
        tool: "weir".into(),
        runs: 4,
        left_out: vec!["run 3: the generator was the limit".into()],
        described: "geth 1.16.4 on bench-1, plan somnia".into(),
    };
    let normal = |variant: &str, cores: f64| NormalRow {
        variant: variant.into(),
        machine: "EPYC 9454P".into(),
        cores: Some(cores),
        goodput: Some(1200.0),
        goodput_per_core: Some(1200.0 / cores),
        p50_ms: Some(1.4),
        p99_ms: Some(23.0),
        cpu_ms_per_request: None,
    };
    CompareResult {
        schema: SCHEMA.into(),
        weir: "0.1.0".into(),
        variants: vec![variant("before"), variant("after")],
        mismatches: vec![Mismatch {
            what: "head".into(),
            a: "23,361,004".into(),
            b: "23,377,112".into(),
            variant: "after".into(),
            weight: Weight::Warn,
            why: "other blocks were asked for".into(),
        }],
        differences: vec![
            difference("after", Metric::LatencyP50, -0.31, ComparisonVerdict::Better),
            difference("after", Metric::LatencyP99, 0.62, ComparisonVerdict::Worse),
            difference("after", Metric::ServiceP50, 0.004, ComparisonVerdict::Same),
            difference("after", Metric::Goodput, 0.08, ComparisonVerdict::CannotTell),
            difference("after", Metric::FailedShare, 0.01, ComparisonVerdict::Worse),
            difference("after", Metric::LatencyMean, 11.0, ComparisonVerdict::Worse),
        ],
        normalised: vec![normal("before", 8.0), normal("after", 16.0)],
        conclusions: vec!["after is better in one metric and worse in three.".into()],
        warnings: vec![],
    }
}

#[test]
fn every_difference_is_on_the_page_with_its_verdict() {
    let result = compared();
    let page = Report::compare(&result).html();
    read(&page);
    for row in &result.differences {
        for cell in
            [difference::change(row), row.metric.as_str().into(), row.verdict.as_str().into()]
        {
            assert!(page.contains(&cell), "{cell}");
        }
    }
    assert_eq!(page.matches("class=\"forest\"").count(), result.differences.len() - 1, "no share");
    for fact in
        ["other blocks were asked for", "before, run 3: the generator", "better in one metric"]
    {
        assert!(page.contains(fact), "{fact}");
    }
}

#[test]
fn bars_have_the_right_direction_and_stay_within_their_width() {
    assert_eq!(bar_position(0.0), BAR_WIDTH / 2.0);
    assert!(bar_position(0.1) > BAR_WIDTH / 2.0 && bar_position(-0.1) < BAR_WIDTH / 2.0);
    assert!(
        (bar_position(1.0) + bar_position(-0.5) - BAR_WIDTH).abs() < 1e-9,
        "double and half are equally far"
    );
    assert_eq!((bar_position(100.0), bar_position(-1.0)), (BAR_WIDTH, 0.0));
}

#[test]
fn names_from_the_input_are_escaped() {
    let mut result = compared();
    result.variants[1].name = "<script>".into();
    result.differences.iter_mut().for_each(|row| row.variant = "<script>".into());
    result.differences[0].method = "</table>".into();
    assert!(!read(&Report::compare(&result).html()).elements.contains("script"));
}
