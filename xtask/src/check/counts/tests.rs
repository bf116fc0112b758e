//! Output of cargo is counted correctly.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Counts, SLOWEST, Slowest, list_children, run};

#[test]
fn results_are_summed_and_failures_are_reported() {
    let script = "echo 'test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s'
                  echo 'running 4 tests'
                  echo 'test a::b ... ok <2.500s>'
                  echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured'; exit 101";
    let mut command = Command::new("sh");
    let mut slowest = Slowest::default();
    let (success, counts) = run(
        command.args(["-c", script]).stdout(Stdio::piped()),
        Duration::from_secs(60),
        &mut slowest,
    )
    .unwrap();
    assert_eq!(slowest.format_table(), "slowest     seconds  test\n                2.5  a::b\n");
    assert!(!success);
    assert_eq!(counts, Counts { passed: 5, failed: 1, skipped: 1 });
}

#[test]
fn a_hanging_command_is_ended_and_reported() {
    let script = "echo 'test result: ok. 3 passed; 0 failed'; sleep 600 & wait";
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdout(Stdio::piped());
    let started = Instant::now();
    let error =
        run(&mut command, Duration::from_secs(1), &mut Slowest::default()).unwrap_err().to_string();
    assert!(error.contains("printed nothing for 1s and was killed"), "{error}");
    assert!(error.contains("passed: 3"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(300));
}

#[test]
fn the_slowest_tests_are_listed_in_order() {
    let mut slowest = Slowest::default();
    for seconds in 0..10 {
        slowest.record(&format!("test number_{seconds} ... ok <{seconds}.000s>"));
    }
    slowest.record("test slow_and_wrong ... FAILED <12.345s>");
    for line in ["test left_out ... ignored", "test a ... ok", "test result: ok. 1 passed", "9.9s"]
    {
        slowest.record(line);
    }
    assert_eq!(slowest.0.len(), SLOWEST);
    let names: Vec<&str> = slowest.0.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names, ["slow_and_wrong", "number_9", "number_8", "number_7", "number_6"]);
    assert!(Slowest::default().format_table().is_empty());
}

#[test]
fn other_lines_count_nothing() {
    assert_eq!(Counts::parse("test a::b ... ok"), None);
    assert_eq!(Counts::parse("test result: odd"), None);
}

#[test]
fn tests_that_skipped_themselves_move_from_passed_to_skipped() {
    let mut counts = Counts { passed: 3, failed: 0, skipped: 1 };
    counts.move_to_skipped(2);
    assert_eq!(counts, Counts { passed: 1, failed: 0, skipped: 3 });
}

#[test]
fn children_of_all_threads_are_listed() {
    let thread = std::thread::spawn(|| {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let children = list_children(std::process::id());
        child.kill().unwrap();
        child.wait().unwrap();
        (child.id(), children)
    });
    let (child, children) = thread.join().unwrap();
    assert!(children.contains(&child), "{child}: {children:?}");
}
