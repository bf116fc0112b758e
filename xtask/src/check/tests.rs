//! The table and the counts, without running a stage, and the page that lists the stages.

use std::time::Duration;

use anyhow::anyhow;

use super::test_report::{Counts, TestReport};
use super::{CheckReport, Outcome, StageReport, format_stages, format_table};
use crate::shell;

#[test]
fn stages_and_tests_add_up() {
    let mut report = CheckReport::default();
    let mut tests = TestReport::default();
    tests.record("", "test result: FAILED. 7 passed; 1 failed; 2 ignored");
    report.record("fmt", Ok(Outcome::Passed));
    let line = report.record("test", Ok(Outcome::Tested(tests)));
    assert_eq!(line, "7 tests passed, 1 failed, 2 ignored");
    report.record("packages", Ok(Outcome::Skipped("no net".to_owned())));
    let line = report.record("docs", Err(anyhow!("first\nsecond")));
    assert_eq!(line, "FAILED: first");
    assert_eq!(report.tests.counts, Counts { passed: 8, failed: 2, skipped: 3 });
    assert_eq!(report.tests.failures, ["stage docs: first"]);
}

#[test]
fn the_table_has_a_line_per_stage() {
    let line = StageReport {
        name: "fmt",
        outcome: "passed".to_owned(),
        duration: Duration::from_millis(1_250),
    };
    assert_eq!(
        format_table(&[line]),
        "stage       seconds  outcome\nfmt             1.2  passed\n"
    );
}

#[test]
fn the_page_lists_the_stages() {
    let page = std::fs::read_to_string(shell::root().join("docs/check.md")).unwrap();
    let table = format_stages();
    assert!(page.contains(&table), "docs/check.md does not contain:\n{table}");
}
