//! The wording of the result, without running anything.

use std::time::Duration;

use anyhow::anyhow;

use super::counts::Counts;
use super::{Ended, Line, failed, note, table};

#[test]
fn stages_and_tests_add_up() {
    let mut total = Counts::default();
    let tests = Counts { passed: 7, failed: 1, skipped: 2 };
    assert!(!failed(&Ok(Ended::Passed)) && failed(&Err(anyhow!("x"))));
    assert!(failed(&Ok(Ended::Counted(tests))));
    note(Ok(Ended::Passed), &mut total);
    note(Ok(Ended::Counted(tests)), &mut total);
    note(Ok(Ended::Skipped("no net".to_owned())), &mut total);
    let line = note(Err(anyhow!("first\nsecond")), &mut total);
    assert_eq!(line, "FAILED: first");
    assert_eq!(total, Counts { passed: 8, failed: 2, skipped: 3 });
}

#[test]
fn the_table_has_a_line_per_stage() {
    let line =
        Line { name: "fmt", outcome: "passed".to_owned(), took: Duration::from_millis(1_250) };
    assert_eq!(table(&[line]), "stage       seconds  outcome\nfmt             1.2  passed\n");
}
