//! Output of test programs is counted correctly.

use super::{Counts, SLOWEST, TestReport};

#[test]
fn results_are_summed_and_failures_are_listed() {
    let mut report = TestReport::default();
    for line in [
        "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        "running 4 tests",
        "test a::b ... ok <2.500s>",
        "test a::c ... FAILED <0.500s>",
        "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured",
    ] {
        report.record("cargo test -p a --lib", line);
    }
    assert_eq!(report.counts, Counts { passed: 5, failed: 1, skipped: 1 });
    report.fail("the program was killed".to_owned());
    assert_eq!(report.counts.failed, 2);
    assert_eq!(
        report.format(),
        "slowest     seconds  test\n                2.5  a::b\n                0.5  a::c\n\
         failed: cargo test -p a --lib a::c\nfailed: the program was killed\n"
    );
}

#[test]
fn the_slowest_tests_of_all_programs_are_listed_in_order() {
    let mut reports = [TestReport::default(), TestReport::default()];
    for seconds in 0..=SLOWEST {
        let line = format!("test number_{seconds} ... ok <{seconds}.000s>");
        reports[seconds % 2].record("", &line);
    }
    let [mut report, other] = reports;
    report.record("", "test slow_and_wrong ... FAILED <12.345s>");
    for line in ["test left_out ... ignored", "test a ... ok", "test result: ok. 1 passed", "9.9s"]
    {
        report.record("", line);
    }
    report.merge(other);
    let names: Vec<&str> = report.slowest.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names.len(), SLOWEST);
    assert_eq!(names[..4], ["slow_and_wrong", "number_10", "number_9", "number_8"]);
    assert!(TestReport::default().format().is_empty());
}

#[test]
fn other_lines_count_nothing() {
    assert_eq!(Counts::parse("test a::b ... ok"), None);
    assert_eq!(Counts::parse("test result: odd"), None);
}

#[test]
fn tests_that_skipped_themselves_move_from_passed_to_skipped() {
    let counts = Counts { passed: 3, failed: 0, skipped: 1 };
    let mut report = TestReport { counts, ..TestReport::default() };
    report.move_to_skipped(2);
    assert_eq!(report.counts, Counts { passed: 1, failed: 0, skipped: 3 });
}
