//! Lines as cargo prints them.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Counts, run};

#[test]
fn results_are_summed_and_failure_is_told() {
    let script = "echo 'test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s'
                  echo 'running 4 tests'
                  echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured'; exit 101";
    let mut command = Command::new("sh");
    let (success, counts) =
        run(command.args(["-c", script]).stdout(Stdio::piped()), Duration::from_secs(60)).unwrap();
    assert!(!success);
    assert_eq!(counts, Counts { passed: 5, failed: 1, skipped: 1 });
}

#[test]
fn what_hangs_is_ended_and_told() {
    let script = "echo 'test result: ok. 3 passed; 0 failed'; sleep 600 & wait";
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdout(Stdio::piped());
    let begun = Instant::now();
    let fault = run(&mut command, Duration::from_secs(1)).unwrap_err().to_string();
    assert!(fault.contains("printed nothing for 1s and was ended"), "{fault}");
    assert!(fault.contains("passed: 3"), "{fault}");
    assert!(begun.elapsed() < Duration::from_secs(300));
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
