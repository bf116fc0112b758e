//! The judge of the demo and the wording of the result, without running anything.

use std::time::Duration;

use anyhow::anyhow;
use serde_json::json;

use super::counts::Counts;
use super::{Ended, Line, failed, judge_demo, note, table};

#[test]
fn a_demo_with_a_fault_is_refused() {
    let good = json!({"requests": 10, "client_errors": 0, "wrong_answers": 0, "hit_ratio": 0.5});
    judge_demo(&good).unwrap();
    for (key, bad) in
        [("client_errors", 1), ("wrong_answers", 2), ("requests", 0), ("hit_ratio", 0)]
    {
        let mut report = good.clone();
        report[key] = json!(bad);
        assert!(judge_demo(&report).is_err(), "{key}");
        report.as_object_mut().unwrap().remove(key);
        assert!(judge_demo(&report).is_err(), "{key} missing");
    }
}

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
