//! Goal: each planted doubt is found, and a healthy run has none. Method: made-up totals and
//! seconds.

use std::time::Duration;

use lab_engine::aggregate;
use lab_model::plan::Plan;
use lab_model::record::{Class, Iterations, Totals};
use lab_model::results::run::{Row, Second};
use lab_model::samples;

use super::{Doubt, Doubts, ValidityInput, find_doubts, find_few_calls};
use crate::wording::verdict::sentences;

fn iterations(scheduled: u64, started: u64) -> Iterations {
    Iterations {
        scheduled,
        started,
        ended: started,
        dropped: scheduled - started,
        ..Iterations::default()
    }
}

fn doubts_of(plan: &Plan, totals: &Totals, seconds: &[Second]) -> Doubts {
    find_doubts(ValidityInput {
        plan,
        all: totals,
        measured: totals,
        seconds,
        subscriptions: &[],
        end: plan.duration(),
    })
}

fn healthy() -> (Plan, Totals, Vec<Second>) {
    let plan = samples::open(100.0, 10, &["eth_call"]);
    let totals = samples::counted(&plan, &[(0, 0, Class::Ok, 1_000, 10)], iterations(1_000, 1_000));
    let seconds = (1..=10).map(|at| Second {
        generator_busy: 0.4,
        ..samples::second(at, 100, "eth_call", &[(Class::Ok, 100)])
    });
    let seconds = seconds.collect();
    (plan, totals, seconds)
}

#[test]
fn a_healthy_run_leaves_no_doubt() {
    let (plan, totals, seconds) = healthy();
    assert_eq!(doubts_of(&plan, &totals, &seconds), Doubts::default());
}

#[test]
fn a_run_without_calls_measured_nothing() {
    let (mut plan, totals, seconds) = healthy();
    let nothing = Totals::new(1);
    let doubts_found = find_doubts(ValidityInput {
        plan: &plan,
        all: &totals,
        measured: &nothing,
        seconds: &seconds,
        subscriptions: &[],
        end: plan.duration(),
    });
    assert_eq!(doubts_found.empty, Some(Doubt::NoCalls));
    plan.warmup = Duration::from_secs(20);
    let doubts_found = find_doubts(ValidityInput {
        plan: &plan,
        all: &totals,
        measured: &nothing,
        seconds: &[],
        subscriptions: &[],
        end: Duration::from_secs(10),
    });
    assert!(doubts_found.empty.unwrap().to_string().contains("within the warm-up of 20 s"));
}

#[test]
fn the_delivered_share_excludes_the_warm_up() {
    let (plan, _, seconds) = healthy();
    let with = |all: Iterations, measured: Iterations| {
        let totals =
            |iterations| samples::counted(&plan, &[(0, 0, Class::Ok, 1_000, 10)], iterations);
        let (all, measured) = (totals(all), totals(measured));
        let (seconds, end) = (&seconds, plan.duration());
        let doubts_found = find_doubts(ValidityInput {
            plan: &plan,
            all: &all,
            measured: &measured,
            seconds,
            subscriptions: &[],
            end,
        });
        let behind = doubts_found.undelivered.into_iter().map(|(doubt, _)| doubt);
        sentences(&doubts_found.workers.into_iter().chain(behind).collect::<Vec<_>>())
    };
    assert!(with(iterations(6_000, 5_800), iterations(5_000, 5_000)).is_empty(), "in the warm-up");
    let doubts_found = with(iterations(90_000, 89_250), iterations(30_000, 29_250));
    let [doubts_found] = doubts_found.as_slice() else { panic!("{doubts_found:?}") };
    assert!(
        doubts_found.contains("97.5 % of the planned iterations started (29250 of 30000)"),
        "{doubts_found}"
    );
    let late = Iterations { started_after_end: 100, ..iterations(1_000, 1_000) };
    assert_eq!(with(late, late).len(), 1, "what began after the end");
}

#[test]
fn busy_threads_are_found_if_they_stay_busy() {
    let (plan, totals, mut seconds) = healthy();
    seconds[3].generator_busy = 0.99;
    seconds[5].generator_busy = 0.99;
    seconds[6].generator_busy = 0.99;
    assert!(doubts_of(&plan, &totals, &seconds).overloaded.is_empty(), "bursts of two seconds");
    seconds[4].generator_busy = 0.93;
    let doubts_found = sentences(&doubts_of(&plan, &totals, &seconds).overloaded);
    let [doubts_found] = doubts_found.as_slice() else { panic!("{doubts_found:?}") };
    assert!(
        doubts_found
            .starts_with("the generator's threads were 98 % busy for 4 s in a row until 7.0 s"),
        "{doubts_found}"
    );
}

#[test]
fn waiting_for_a_core_and_running_out_of_ports_are_found() {
    let (plan, mut totals, seconds) = healthy();
    totals.run_delay = Duration::from_millis(900);
    assert_eq!(doubts_of(&plan, &totals, &seconds).starved, None);
    totals.run_delay = Duration::from_millis(1_500);
    totals.traffic.ports_exhausted = 7;
    totals.scheduling_delay.saturating_record(5_000_000);
    let doubts_found = doubts_of(&plan, &totals, &seconds);
    let starved = doubts_found.starved.unwrap();
    let text = starved.doubt.to_string();
    assert!(text.contains("waited 1.5 s, 15 % of the time, for a core"), "{text}");
    assert!(!text.contains("-r"), "it has a rate: {text}");
    assert!((10.0..10.1).contains(&starved.longest_ms), "{starved:?}: sending and reading late");
    let ports = doubts_found.overloaded[0].to_string();
    assert!(ports.starts_with("7 connections failed because no local port"));
    let closed = samples::closed(10, 0, 10, &["eth_call"]);
    let starved = doubts_of(&closed, &totals, &seconds).starved.unwrap();
    let text = starved.doubt.to_string();
    assert!(text.contains("use -r (rate in a plan)"), "{text}");
    assert_eq!(starved.longest_ms, 1_500.0, "sends do not show how late answers were read");
}

#[test]
fn a_scheduling_delay_counts_only_above_both_limits() {
    let late = |delay_us: u64, median_ms| {
        let (plan, _, seconds) = healthy();
        let calls = [(0, 0, Class::Ok, 1_000, median_ms)];
        let mut totals = samples::counted(&plan, &calls, iterations(1_000, 1_000));
        (0..1_000).for_each(|_| totals.scheduling_delay.saturating_record(delay_us * 1_000));
        doubts_of(&plan, &totals, &seconds).late
    };
    assert_eq!(late(900, 10), None, "below 1 ms");
    assert_eq!(late(2_000, 100), None, "2 % of the median");
    let doubts_found = late(2_000, 10).unwrap();
    assert!(
        doubts_found.doubt.to_string().starts_with("the generator sent late by 2.00 ms (p99)"),
        "{doubts_found:?}"
    );
    assert!(
        (2.0..2.01).contains(&doubts_found.longest_ms) && doubts_found.share == 1.0,
        "{doubts_found:?}"
    );
}

/// The generator was stopped for 2 s of 10 s. 200 of the 1,000 calls waited up to that long for it.
#[test]
fn the_generators_own_delays_are_found() {
    let (plan, mut totals, seconds) = healthy();
    let slot = lab_model::record::Slot { stage: 0, method: 0, class: Class::Ok };
    let mut interval = lab_model::record::Interval::new(0, 1, 1);
    for call in 0..200 {
        let delay_ns = 10_000_000 * call;
        interval.record(slot, 1_000_000 + delay_ns, 1_000_000);
        interval.record_delayed(slot, 1_000_000 + delay_ns, 1_000_000);
    }
    interval.record_gap(Duration::from_secs(4), Duration::from_secs(6));
    totals.merge(&interval);
    let stopped = doubts_of(&plan, &totals, &seconds).stopped.unwrap();
    assert_eq!(
        stopped.doubt.to_string(),
        "the generator itself stood still for up to 2,001 ms, 2 s in all (20 % of its threads' time): its \
         process was stopped, or other processes had its cores"
    );
    assert!((2_000.0..2_010.0).contains(&stopped.longest_ms), "{stopped:?}");
    let (overall, _) = aggregate::compute_method_rows(&plan, &totals, 10.0);
    let moved = super::find_moved(&overall, super::Allowed { share: 0.1, delay_ms: 1.0 });
    let names: Vec<&str> = moved.iter().map(|moved| moved.percentile).collect();
    assert_eq!(names, ["p95", "p99", "p99.9"]);
    assert!(moved[1].measured_ms > 1_800.0 && moved[1].least_ms < 11.0, "{moved:?}");
    for allowed in [(1.0, 1.0), (0.1, 60_000.0)] {
        let allowed = super::Allowed { share: allowed.0, delay_ms: allowed.1 };
        assert!(super::find_moved(&overall, allowed).is_empty(), "the plan allows everything");
    }
}

#[test]
fn pauses_that_bound_the_rate_are_reported() {
    // 100 workers that pause for 100 ms reach at most 1000/s, whatever the server can do.
    let plan = samples::closed(100, 100, 10, &["eth_blockNumber"]);
    let pauses_at = |started| {
        let calls = [(0, 0, Class::Ok, 1_000, 2)];
        doubts_of(&plan, &samples::counted(&plan, &calls, iterations(started, started)), &[]).pauses
    };
    let doubts_found = sentences(&pauses_at(9_800));
    assert_eq!(
        doubts_found,
        [
            "load: the plan's own pacing allows at most 1000/s (100 workers, a pause of 100 ms after each \
          iteration), and it reached 980/s: the target was not the limit"
        ]
    );
    assert!(pauses_at(5_000).is_empty(), "here the target took as long as the pause");
    let unpaced = samples::closed(100, 0, 10, &["eth_blockNumber"]);
    let calls = [(0, 0, Class::Ok, 1_000, 2)];
    let totals = samples::counted(&unpaced, &calls, iterations(9_800, 9_800));
    assert!(doubts_of(&unpaced, &totals, &[]).pauses.is_empty());
}

#[test]
fn a_target_that_falls_behind_is_distinguished_from_a_plan_with_too_few_workers() {
    let mut plan = samples::open(1_000.0, 10, &["eth_call"]);
    plan.scenarios[0].workers_max = 5;
    // The best time is 10 ms, so five workers reach 500/s.
    let calls = [(0, 0, Class::Ok, 1_000, 10)];
    let totals = samples::counted(&plan, &calls, iterations(10_000, 5_000));
    let doubts_found = doubts_of(&plan, &totals, &[]);
    assert!(doubts_found.undelivered.is_empty(), "{doubts_found:?}");
    let sentence = doubts_found.workers[0].to_string();
    assert!(sentence.contains("50.0 % of the planned iterations started (5000 of 10000)"));
    assert!(sentence.contains("its 5 workers can start at most 5"), "{sentence}");

    // The best time is 1 ms and the mean is 200 ms, so the target slowed down.
    plan.scenarios[0].workers_max = 100;
    let calls = [(0, 0, Class::Ok, 10, 1), (0, 0, Class::Ok, 4_990, 200)];
    let totals = samples::counted(&plan, &calls, iterations(10_000, 5_000));
    let doubts_found = doubts_of(&plan, &totals, &[]);
    assert!(doubts_found.workers.is_empty(), "{doubts_found:?}");
    assert!(
        doubts_found.undelivered[0].0.to_string().contains("the target did not keep up"),
        "{doubts_found:?}"
    );
}

/// The best time of a success is 10 ms, so five workers reach 500/s, however fast the target
/// rejects other calls.
#[test]
fn fast_rejections_do_not_count_as_the_best_time() {
    let mut plan = samples::open(1_000.0, 10, &["eth_call"]);
    plan.scenarios[0].workers_max = 5;
    let calls = [(0, 0, Class::Ok, 900, 10), (0, 0, Class::Limited, 100, 1)];
    let totals = samples::counted(&plan, &calls, iterations(10_000, 5_000));
    let doubts_found = doubts_of(&plan, &totals, &[]);
    assert!(doubts_found.undelivered.is_empty(), "{doubts_found:?}");
    assert_eq!(doubts_found.workers.len(), 1, "{doubts_found:?}");
}

#[test]
fn weak_percentiles_are_named() {
    let plan = samples::open(100.0, 10, &["eth_call", "eth_getLogs"]);
    let calls = [(0, 0, Class::Ok, 1_000, 2), (0, 1, Class::Ok, 50, 2)];
    let totals = samples::counted(&plan, &calls, iterations(1_050, 1_050));
    let (_, rows): (Row, Vec<Row>) = aggregate::compute_method_rows(&plan, &totals, 10.0);
    let doubts_found = find_few_calls(&rows).unwrap().to_string();
    assert!(
        doubts_found.contains("eth_getLogs (50 calls)") && !doubts_found.contains("eth_call"),
        "{doubts_found}"
    );
    assert_eq!(find_few_calls(&rows[..1]), None);
}

/// Responses of 320 MB/s on two threads are reported only if the generator has another problem.
#[test]
fn large_responses_are_named_if_the_generator_is_overloaded() {
    let (mut plan, mut totals, mut seconds) = healthy();
    plan.threads = 2;
    totals.response_bytes = vec![3_200_000_000];
    assert_eq!(doubts_of(&plan, &totals, &seconds), Doubts::default(), "it is all read in time");
    seconds[4..8].iter_mut().for_each(|second| second.generator_busy = 0.97);
    let doubts_found = sentences(&doubts_of(&plan, &totals, &seconds).overloaded);
    let [_, doubts_found] = doubts_found.as_slice() else { panic!("{doubts_found:?}") };
    let begins = "the generator read 320 MB/s of responses, 100 % of them to eth_call, 3.2 MB each";
    assert!(doubts_found.starts_with(begins), "{doubts_found}");
    // Late sends alone would only make the run invalid. The large responses explain them.
    let (plan, mut totals, seconds) = healthy();
    totals.scheduling_delay.record_n(20_000_000, 1_000).unwrap();
    assert!(doubts_of(&plan, &totals, &seconds).overloaded.is_empty());
    totals.response_bytes = vec![3_200_000_000];
    let doubts_found = doubts_of(&plan, &totals, &seconds);
    assert_eq!((doubts_found.late.is_some(), doubts_found.overloaded.len()), (true, 1));
    totals.response_bytes = vec![30_000_000];
    assert!(doubts_of(&plan, &totals, &seconds).overloaded.is_empty());
}
