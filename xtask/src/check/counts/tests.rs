//! Lines as cargo prints them.

use std::process::{Command, Stdio};

use super::{Counts, run};

#[test]
fn results_are_summed_and_failure_is_told() {
    let script = "echo 'test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s'
                  echo 'running 4 tests'
                  echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured'; exit 101";
    let (success, counts) =
        run(Command::new("sh").args(["-c", script]).stdout(Stdio::piped())).unwrap();
    assert!(!success);
    assert_eq!(counts, Counts { passed: 5, failed: 1, skipped: 1 });
}

#[test]
fn other_lines_count_nothing() {
    assert_eq!(Counts::parse("test a::b ... ok"), None);
    assert_eq!(Counts::parse("test result: odd"), None);
}

#[test]
fn skips_were_counted_as_passed() {
    let mut counts = Counts { passed: 3, failed: 0, skipped: 1 };
    counts.move_to_skipped(2);
    assert_eq!(counts, Counts { passed: 1, failed: 0, skipped: 3 });
}
