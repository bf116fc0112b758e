//! wrk's summary and scripts, without wrk.

use std::time::Duration;

use super::{
    COUNTER_FIRST, COUNTER_MAX, COUNTER_STEP, Load, Round, Summary, transaction_count_call,
};

#[test]
fn the_summary_is_found_among_other_lines() {
    let summary = Summary::parse("Running 4s test\nSUMMARY 100 9000 4000000 0 1 0 2 3\n").unwrap();
    assert_eq!((summary.requests, summary.bytes), (100, 9000));
    assert_eq!((summary.duration, summary.errors), (Duration::from_secs(4), [0, 1, 0, 2, 3]));
    assert!(Summary::parse("Running").is_err());
    assert!(Summary::parse("SUMMARY 1 2 3 4").is_err());
}

#[test]
fn cost_is_cpu_over_requests_and_errors_are_a_problem() {
    let round = |text: &str| Round {
        cpu: Duration::from_millis(1),
        disturbance: 0.0,
        summary: Summary::parse(text).unwrap(),
    };
    let good = round("SUMMARY 100 9000 2000 0 0 0 0 0");
    assert_eq!(
        (good.cpu_us_per_request(), good.requests_per_second(), good.core_share()),
        (10.0, 50_000.0, 0.5)
    );
    assert_eq!(good.find_problems(), None);
    let disturbed = Round { disturbance: 0.2, ..good };
    assert!(disturbed.is_disturbed() && disturbed.find_problems().is_some());
    assert_eq!(
        round("SUMMARY 9 9 9 0 1 0 2 0").find_problems().as_deref(),
        Some("1 read errors, 2 timeouts")
    );
    assert!(round("SUMMARY 0 0 9 0 0 0 0 0").find_problems().is_some());
}

#[test]
fn scripts_have_no_placeholder_left_and_the_right_length() {
    let counter = Load::Counter { first: COUNTER_FIRST, count: 1000 }.build_script();
    let constant = Load::Constant("{}".to_owned()).build_script();
    assert!(!counter.contains('@') && !constant.contains('@'), "{counter}");
    assert!(
        counter
            .contains(&format!("Content-Length: {}", transaction_count_call(COUNTER_FIRST).len()))
    );
    assert_eq!(
        transaction_count_call(COUNTER_FIRST).len(),
        transaction_count_call(COUNTER_FIRST + COUNTER_MAX - 1).len()
    );
}

#[test]
fn steps_of_the_counter_visit_every_number() {
    for count in [1_000, 1_000_000, COUNTER_MAX] {
        assert_ne!(count % COUNTER_STEP, 0, "{count}");
    }
}
