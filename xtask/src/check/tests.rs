//! The table and the counts, without running a stage.

use std::time::Duration;

use anyhow::anyhow;

use super::counts::Counts;
use super::{Outcome, StageReport, format_table, has_failed, record_result};

#[test]
fn stages_and_tests_add_up() {
    let mut total = Counts::default();
    let tests = Counts { passed: 7, failed: 1, skipped: 2 };
    assert!(!has_failed(&Ok(Outcome::Passed)) && has_failed(&Err(anyhow!("x"))));
    assert!(has_failed(&Ok(Outcome::Counted(tests))));
    record_result(Ok(Outcome::Passed), &mut total);
    record_result(Ok(Outcome::Counted(tests)), &mut total);
    record_result(Ok(Outcome::Skipped("no net".to_owned())), &mut total);
    let line = record_result(Err(anyhow!("first\nsecond")), &mut total);
    assert_eq!(line, "FAILED: first");
    assert_eq!(total, Counts { passed: 8, failed: 2, skipped: 3 });
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
