//! Goal: the period of planted failures is found, and no period is found without one. Method:
//! made-up seconds.

use lab_model::record::Class;
use lab_model::results::run::Second;
use lab_model::samples;

use super::find;

const METHOD: &str = "eth_getLogs";

/// Returns seconds 1 to 60 with a rate that grows by 10/s. `classes` returns the calls that end in
/// each second.
fn series(classes: impl Fn(u64) -> Vec<(Class, u64)>) -> Vec<Second> {
    (1..=60).map(|at| samples::second(at, 10 * at, METHOD, &classes(at))).collect()
}

#[test]
fn timeouts_count_in_the_second_of_their_schedule() {
    // Calls that are scheduled from second 20 on hang. Their timeouts of 15 s end from second 35
    // on.
    let seconds = series(|at| match at {
        1..=20 => vec![(Class::Ok, 3)],
        21..=35 => vec![],
        _ => vec![(Class::Timeout, 3)],
    });
    let period = find(&seconds, METHOD, 15.0).unwrap();
    assert_eq!((period.from, period.until, period.class), (20.0, None, Class::Timeout));
    assert_eq!((period.failed, period.calls, period.succeeded_before), (75, 75, 60));
    assert_eq!(period.rate, 210.0, "the rate of the second in which the first one was due");
}

#[test]
fn a_few_earlier_failures_do_not_move_the_start() {
    let seconds = series(|at| match at {
        5 => vec![(Class::RpcError, 2), (Class::Ok, 8)],
        1..=29 => vec![(Class::Ok, 10)],
        _ => vec![(Class::Http5xx, 10)],
    });
    let period = find(&seconds, METHOD, 1.0).unwrap();
    assert_eq!((period.from, period.until, period.class), (29.0, None, Class::Http5xx));
}

#[test]
fn the_rate_above_which_calls_hang_is_found() {
    // One call in ten iterations, so second `at` has `at` calls. The server answers at most 20
    // calls per second. From second 21 on, the other calls hang.
    let seconds = series(|at| match at {
        1..=20 => vec![(Class::Ok, at)],
        _ => vec![(Class::Ok, 20), (Class::Timeout, at - 20)],
    });
    let period = find(&seconds, METHOD, 0.0).unwrap();
    assert!((20.0..=23.0).contains(&period.from), "{period:?}");
    assert!((200.0..=240.0).contains(&period.rate), "{period:?}");
    assert_eq!(period.until, None);
}

#[test]
fn an_outage_has_a_start_and_an_end() {
    let seconds = series(|at| match at {
        11..=15 => vec![(Class::Reset, 40)],
        _ => vec![(Class::Ok, 40)],
    });
    let period = find(&seconds, METHOD, 1.0).unwrap();
    assert_eq!((period.from, period.until, period.failed), (10.0, Some(15.0), 200));
}

#[test]
fn failures_spread_over_the_run_are_no_period() {
    assert_eq!(find(&series(|_| vec![(Class::Ok, 95), (Class::RpcError, 5)]), METHOD, 1.0), None);
    assert_eq!(find(&series(|_| vec![(Class::Ok, 5)]), METHOD, 1.0), None);
    assert_eq!(find(&series(|_| vec![(Class::Timeout, 5)]), "eth_call", 1.0), None);
    assert_eq!(find(&[], METHOD, 1.0), None);
}

#[test]
fn fewer_than_ten_failures_are_chance() {
    let failing = |count| {
        series(move |at| if at == 60 { vec![(Class::Reset, count)] } else { vec![(Class::Ok, 9)] })
    };
    assert_eq!(find(&failing(9), METHOD, 1.0), None);
    assert!(find(&failing(10), METHOD, 1.0).is_some());
}

#[test]
fn a_429_is_a_response() {
    assert_eq!(find(&series(|_| vec![(Class::Limited, 50)]), METHOD, 1.0), None);
}
