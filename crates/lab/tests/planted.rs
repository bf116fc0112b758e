//! Goal: the lab reports the true behaviour of a target. Method: each case has a small server with
//! a planted behaviour, such as a rate limit, and a real run loads it for some seconds. The case
//! checks the rate, the verdict and the findings. Every result must also be consistent
//! (`self_check.rs`).
//!
//! The cases share the machine with each other and with other programs. So times have wide margins,
//! and waits for a core are allowed except in a case about such waits.

#![allow(clippy::unwrap_used)]

#[path = "planted/server.rs"]
mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lab::compare::{Options, compare};
use lab::run::{Stop, run};
use lab::self_check;
use lab::variant::{Variant, run_of_result};
use lab_model::plan::{Plan, read};
use lab_model::results::compare::{CompareResult, Metric};
use lab_model::results::run::RunResult;
use lab_model::results::{ComparisonVerdict, Outcome};
use parking_lot::Mutex;

use server::{Behaviour, Call, Reply, Server, Slots, ok, wait};

/// Number of cases that run at the same time.
const CONCURRENT_CASES: usize = 4;

/// A target with a planted behaviour, the load on it, and a check of the result.
struct Case {
    name: &'static str,
    target: fn() -> Behaviour,
    /// Keys of the scenario.
    load: &'static str,
    /// Further tables of the plan.
    tables: &'static str,
    /// Timeout of a call.
    timeout: &'static str,
    /// Returns true if the result is right.
    is_right: fn(&RunResult) -> bool,
}

/// A mix of one method.
const ONE: &str = "[[mix.own.calls]]\nmethod = \"eth_call\"\nparams = '[{}, \"0x10\"]'\n";
/// A mix of two methods. One call in ten uses the second method.
const TWO: &str = "[[mix.own.calls]]\nmethod = \"eth_call\"\nparams = '[{}, \"0x10\"]'\nweight = 9\n\
                   [[mix.own.calls]]\nmethod = \"eth_getLogs\"\nparams = '[{}]'\nweight = 1\n";

const fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

/// Serves `count` calls at a time, for `time` each. Further calls wait.
fn slots(count: usize, time: Duration) -> Behaviour {
    let slots = Slots::new(count);
    Box::new(move |_: &Call| {
        slots.hold(time);
        ok()
    })
}

/// Replies after a service time.
fn after(time: Duration, reply: impl Fn(&Call) -> Reply + Send + Sync + 'static) -> Behaviour {
    Box::new(move |call: &Call| {
        wait(time);
        reply(call)
    })
}

fn has_outcome(result: &RunResult, outcome: Outcome) -> bool {
    result.verdict.outcome == outcome
}

/// Returns true if the goodput is between `from` and `to` results per second.
fn has_goodput(result: &RunResult, from: f64, to: f64) -> bool {
    (from..=to).contains(&result.overall.goodput)
}

/// Returns true if the run fails and its first reason contains the text `because`.
fn fails(result: &RunResult, because: &str) -> bool {
    has_outcome(result, Outcome::Fail) && result.verdict.reasons[0].contains(because)
}

/// Returns true if a finding contains the text.
fn finds(result: &RunResult, text: &str) -> bool {
    result.findings.iter().any(|finding| finding.contains(text))
}

/// Returns the number of calls of a class.
fn count_class(result: &RunResult, class: &str) -> u64 {
    let row = result.overall.classes.iter().find(|row| row.class.as_str() == class);
    row.map_or(0, |row| row.calls)
}

/// Returns the share of wrong responses among the compared ones, and their number.
fn wrong_responses(result: &RunResult) -> (f64, u64) {
    let compared = result.compared.as_ref().unwrap();
    (compared.wrong as f64 / compared.compared.max(1) as f64, compared.wrong)
}

const SHORT: &str = "800ms";
const OPEN: &str = "workers_max = 100\nstages = [{ duration = \"2s\", rate = 100 }]";
const LATENCY: &str = "[thresholds]\nlatency = \"p(95)<250\"";
const FAILED: &str = "[thresholds]\nfailed = \"rate<0.1\"";
const LIMITED: &str = "[thresholds]\nlimited = \"rate<0.01\"";
/// Limits of the scheduling delay that every send exceeds.
const LATE: &str = "\nscheduling_delay_p99_max = \"1us\"\nscheduling_delay_share_max = 0.000001\n";

/// Cases about rates. They count only calls that ended while the load lasted.
fn rates() -> Vec<Case> {
    let plain = |name, target, load, is_right| Case {
        name,
        target,
        load,
        tables: "",
        timeout: "20s",
        is_right,
    };
    vec![
        plain(
            "ten a second, 50 workers",
            || slots(1, ms(100)),
            "model = \"closed\"\nstages = [{ duration = \"3s\", workers = 50 }]",
            |it| has_goodput(it, 8.0, 10.4) && it.overall.rate <= 10.4,
        ),
        plain(
            "48 a second, 200 workers",
            || slots(10, ms(205)),
            "model = \"closed\"\nstages = [{ duration = \"3s\", workers = 200 }]",
            |it| has_goodput(it, 38.0, 49.5),
        ),
        plain(
            "as fast as four workers and 20 ms are",
            || after(ms(20), |_| ok()),
            "model = \"closed\"\nstages = [{ duration = \"2s\", workers = 4 }]",
            |it| has_goodput(it, 120.0, 201.0),
        ),
        plain(
            "a rate that is kept",
            || after(ms(1), |_| ok()),
            OPEN,
            |it| has_goodput(it, 98.5, 100.5) && has_outcome(it, Outcome::Measured),
        ),
        plain(
            "three times the capacity",
            || slots(1, ms(33)),
            "workers_max = 300\nstages = [{ duration = \"2s\", rate = 90 }]",
            |it| has_goodput(it, 22.0, 31.5),
        ),
        plain(
            "an overloaded stage, and its queue in the next one",
            || slots(1, ms(20)),
            "workers_max = 300\nstages = [{ duration = \"2s\", rate = 100 }, \
             { duration = \"2s\", rate = 1 }]",
            |it| {
                it.stages.iter().all(|stage| stage.overall.goodput <= 51.5)
                    && has_goodput(it, 35.0, 51.5)
            },
        ),
        plain(
            "half of the calls fail",
            || after(ms(2), |call| if call.nth % 2 == 0 { ok() } else { Reply::Error(-32_000) }),
            OPEN,
            |it| has_goodput(it, 48.0, 52.0) && (98.0..101.0).contains(&it.overall.rate),
        ),
    ]
}

/// Cases about verdicts, some of them with a generator that sends late.
fn verdicts() -> Vec<Case> {
    let with = |name, target, tables, is_right| Case {
        name,
        target,
        load: OPEN,
        tables,
        timeout: SHORT,
        is_right,
    };
    vec![
        with(
            "fast, a threshold",
            || after(ms(2), |_| ok()),
            LATENCY,
            |it| has_outcome(it, Outcome::Pass),
        ),
        with(
            "fast, no threshold",
            || after(ms(2), |_| ok()),
            "",
            |it| has_outcome(it, Outcome::Measured),
        ),
        with("slow", || after(ms(600), |_| ok()), LATENCY, |it| fails(it, "p(95)<250")),
        with(
            "fast, with late sends",
            || after(ms(2), |_| ok()),
            "[validity]\nLATE\n[thresholds]\nlatency = \"p(95)<250\"",
            |it| {
                has_outcome(it, Outcome::Pass)
                    && it.warnings.iter().any(|warning| warning.contains("late by"))
            },
        ),
        with(
            "slow, with late sends",
            || after(ms(700), |_| ok()),
            "[validity]\nLATE\n[thresholds]\nlatency = \"p(95)<250\"",
            |it| fails(it, "p(95)<250"),
        ),
        with(
            "429 for nearly all, with late sends",
            || {
                after(
                    ms(1),
                    |call| if call.nth == 0 { ok() } else { Reply::Text(429, "slow down") },
                )
            },
            "[validity]\nscheduling_delay_p99_max = \"100us\"\n[thresholds]\nlimited = \"rate<0.01\"",
            |it| fails(it, "limited rate<0.01"),
        ),
        with(
            "timeouts, with late sends",
            || after(ms(1), |call| if call.nth % 3 == 0 { Reply::Nothing } else { ok() }),
            "[validity]\nLATE\n[thresholds]\nfailed = \"rate<0.1\"",
            |it| fails(it, "failed rate<0.1"),
        ),
        Case {
            name: "a backlog of seconds beside a wait for a core",
            target: || slots(1, ms(50)),
            load: "workers_max = 300\nstages = [{ duration = \"3s\", rate = 100 }]\ngrace = \"3s\"",
            tables: "[validity]\nWAITED\n[thresholds]\nlatency = \"p(95)<50\"",
            timeout: SHORT,
            is_right: |it| has_outcome(it, Outcome::Fail),
        },
        Case {
            name: "a wait of seconds in the generator beside a timeout of 800 ms",
            target: || slots(4, ms(20)),
            load: "workers_max = 40\nstages = [{ duration = \"5s\", rate = 600 }]\ngrace = \"30s\"",
            tables: "",
            timeout: SHORT,
            is_right: |it| {
                let seconds = it.series.iter().map(|second| second.at).fold(0.0, f64::max);
                has_outcome(it, Outcome::Fail)
                    && finds(it, "the rest is the wait in the generator")
                    && !finds(it, "the target changed during the run")
                    && it.overall.latency.p50_ms > 800.0
                    && seconds <= 6.5
                    && it.generator.iterations.dropped > 1_000
            },
        },
        Case {
            name: "pauses that bound the rate",
            target: || after(ms(1), |_| ok()),
            load: "model = \"closed\"\npause = \"100ms\"\nstages = [{ duration = \"2s\", workers = 5 }]",
            tables: "",
            timeout: SHORT,
            is_right: |it| has_outcome(it, Outcome::ClientLimited),
        },
        Case {
            name: "too few workers for the rate",
            target: || after(ms(50), |_| ok()),
            load: "workers_max = 2\ndelayed = \"drop\"\nstages = [{ duration = \"2s\", rate = 100 }]",
            tables: "",
            timeout: SHORT,
            is_right: |it| has_outcome(it, Outcome::ClientLimited),
        },
        with(
            "twenty calls are weak",
            || after(ms(1), |_| ok()),
            "",
            |it| it.warnings.iter().any(|warning| warning.contains("eth_call (200 calls)")),
        ),
    ]
}

/// Cases about the outcomes of calls.
fn outcomes() -> Vec<Case> {
    let with = |name, target, tables, is_right| Case {
        name,
        target,
        load: OPEN,
        tables,
        timeout: SHORT,
        is_right,
    };
    vec![
        with(
            "every call an error",
            || after(ms(1), |_| Reply::Error(-32_601)),
            "",
            |it| has_outcome(it, Outcome::Fail) && count_class(it, "rpc_error") == it.overall.calls,
        ),
        with(
            "no JSON",
            || after(ms(1), |_| Reply::Text(200, "<html>")),
            "",
            |it| has_outcome(it, Outcome::Fail) && count_class(it, "malformed") == it.overall.calls,
        ),
        with(
            "HTTP 503",
            || after(ms(1), |_| Reply::Text(503, "busy")),
            "",
            |it| has_outcome(it, Outcome::Fail) && count_class(it, "http_5xx") == it.overall.calls,
        ),
        with(
            "a result under HTTP 503",
            || after(ms(1), |_| Reply::ResultUnder(503)),
            "",
            |it| has_outcome(it, Outcome::Fail) && count_class(it, "http_5xx") == it.overall.calls,
        ),
        with(
            "answers to other calls",
            || after(ms(1), |_| Reply::OtherId),
            "",
            |it| has_outcome(it, Outcome::Fail) && count_class(it, "wrong_id") == it.overall.calls,
        ),
        with(
            "closed connections",
            || after(ms(1), |_| Reply::Closed),
            "",
            |it| has_outcome(it, Outcome::Fail) && count_class(it, "reset") > 100,
        ),
        with(
            "silence",
            || after(ms(1), |_| Reply::Nothing),
            "",
            |it| has_outcome(it, Outcome::Fail) && count_class(it, "timeout") > 50,
        ),
        with(
            "always null",
            || after(ms(1), |_| Reply::Result("null".to_owned())),
            FAILED,
            |it| has_outcome(it, Outcome::Pass) && finds(it, "every result of eth_call was null"),
        ),
        with(
            "5 % of the calls fail",
            || after(ms(1), |call| if call.nth % 20 == 7 { Reply::Error(3) } else { ok() }),
            FAILED,
            |it| {
                has_outcome(it, Outcome::Pass) && finds(it, "5.0 % of the calls of eth_call failed")
            },
        ),
        with(
            "30 % of the calls fail",
            || after(ms(1), |call| if call.nth % 10 < 3 { Reply::Error(3) } else { ok() }),
            "[thresholds]\nfailed = \"rate<0.5\"",
            |it| fails(it, "% of the calls of eth_call failed"),
        ),
        with(
            "a quota of 100 calls",
            || after(ms(1), |call| if call.nth < 100 { ok() } else { Reply::Text(429, "quota") }),
            LIMITED,
            |it| fails(it, "limited rate<0.01") && (0.45..0.55).contains(&it.overall.limited_share),
        ),
        with(
            "an outage that lasts to the end",
            || after(ms(1), |call| if call.at < ms(1_000) { ok() } else { Reply::Text(502, "") }),
            "",
            |it| has_outcome(it, Outcome::Fail) && count_class(it, "http_5xx") > 50,
        ),
    ]
}

/// Cases with two methods. One call in ten uses the second method.
fn methods() -> Vec<Case> {
    /// Replies to calls of the second method; other calls succeed.
    fn second(reply: fn(&Call) -> Reply) -> Behaviour {
        after(ms(1), move |call| if call.method == "eth_call" { ok() } else { reply(call) })
    }
    let with = |name, target, tables, is_right| Case {
        name,
        target,
        load: "workers_max = 100\nstages = [{ duration = \"2s\", rate = 200 }]",
        tables,
        timeout: SHORT,
        is_right,
    };
    vec![
        with("two: all well", || second(|_| ok()), FAILED, |it| has_outcome(it, Outcome::Pass)),
        with(
            "two: the second is always refused",
            || second(|_| Reply::Error(-32_601)),
            "",
            |it| fails(it, "every call of eth_getLogs"),
        ),
        with(
            "two: a good part of the second fails",
            || second(|call| if call.nth % 5 < 2 { Reply::Error(-32_000) } else { ok() }),
            "[thresholds]\nfailed = \"rate<0.2\"",
            |it| fails(it, "of eth_getLogs failed"),
        ),
        with(
            "two: a good part of the second may fail",
            || second(|call| if call.nth % 5 < 2 { Reply::Error(-32_000) } else { ok() }),
            "[thresholds]\n\"failed{method:eth_getLogs}\" = \"rate<0.9\"",
            |it| has_outcome(it, Outcome::Pass) && finds(it, "of eth_getLogs failed"),
        ),
        with(
            "two: the second is empty",
            || second(|_| Reply::Result("null".to_owned())),
            FAILED,
            |it| {
                has_outcome(it, Outcome::Pass) && finds(it, "every result of eth_getLogs was null")
            },
        ),
        with(
            "two: the second hangs",
            || second(|_| Reply::Nothing),
            "",
            |it| fails(it, "eth_getLogs"),
        ),
    ]
}

/// Cases about changes of the target during a run.
fn changes() -> Vec<Case> {
    const CLOSED: &str = "model = \"closed\"\nstages = [{ duration = \"8s\", workers = 10 }]";
    /// Sends no response in the last half second of every four seconds.
    fn stalls() -> Behaviour {
        after(ms(5), |call| {
            let period_ms = call.at.as_millis() as u64 % 4_000;
            if period_ms > 3_500 {
                wait(ms(4_000 - period_ms));
            }
            ok()
        })
    }
    vec![
        Case {
            name: "stalls under workers",
            target: stalls,
            load: CLOSED,
            tables: "",
            timeout: SHORT,
            is_right: |it| has_outcome(it, Outcome::Measured) && finds(it, "the target stalled"),
        },
        Case {
            name: "stalls under workers, and a threshold",
            target: stalls,
            load: CLOSED,
            tables: "[thresholds]\nlatency = \"p(97)<200\"",
            timeout: SHORT,
            is_right: |it| fails(it, "kept only because workers wait"),
        },
        Case {
            name: "stalls under a rate",
            target: stalls,
            load: "workers_max = 200\nstages = [{ duration = \"8s\", rate = 100 }]",
            tables: "[thresholds]\nlatency = \"p(97)<200\"",
            timeout: SHORT,
            is_right: |it| fails(it, "p(97)<200"),
        },
        Case {
            name: "a tenfold drift",
            target: || {
                Box::new(|call: &Call| {
                    wait(ms(10 + 11 * call.at.as_millis() as u64 / 1_000));
                    ok()
                })
            },
            load: "workers_max = 100\nstages = [{ duration = \"8s\", rate = 50 }]",
            tables: "[thresholds]\nlatency = \"p(95)<900\"",
            timeout: SHORT,
            is_right: |it| {
                has_outcome(it, Outcome::Pass) && finds(it, "the median of eth_call rose")
            },
        },
        Case {
            name: "no drift, no stall",
            target: || after(ms(30), |_| ok()),
            load: CLOSED,
            tables: LATENCY,
            timeout: SHORT,
            is_right: |it| {
                has_outcome(it, Outcome::Pass) && !finds(it, "the median") && !finds(it, "stalled")
            },
        },
    ]
}

/// Cases about wrong responses, which a reference node reveals.
fn references() -> Vec<Case> {
    /// Responds to every `interval`-th call with a wrong result.
    fn wrong_at_every(interval: u64) -> Behaviour {
        let wrong = || Reply::Result("\"0x2\"".to_owned());
        after(ms(1), move |call| if call.nth % interval == 0 { wrong() } else { ok() })
    }
    let with = |name, target, is_right| Case {
        name,
        target,
        load: "workers_max = 50\nstages = [{ duration = \"3s\", rate = 60 }]",
        tables: "[reference]\nurl = \"REFERENCE\"\nshare = 1\n",
        timeout: SHORT,
        is_right,
    };
    vec![
        with(
            "a reference that agrees",
            || after(ms(1), |_| ok()),
            |it| {
                has_outcome(it, Outcome::Measured)
                    && wrong_responses(it).1 == 0
                    && it.compared.as_ref().unwrap().compared > 50
            },
        ),
        with(
            "one answer in two is wrong",
            || wrong_at_every(2),
            |it| {
                fails(it, "differ from those of") && (0.35..=0.65).contains(&wrong_responses(it).0)
            },
        ),
        with(
            "one answer in twenty is wrong",
            || wrong_at_every(20),
            |it| fails(it, "differ from those of") && (1..20).contains(&wrong_responses(it).1),
        ),
        with("every answer is wrong", || wrong_at_every(1), |it| wrong_responses(it).0 == 1.0),
    ]
}

/// Returns the plan of a case. The words LATE and WAITED stand for keys of `[validity]`, and
/// REFERENCE for the URL of the reference. `reference` is its port.
fn plan(case: &Case, port: u16, reference: u16) -> Plan {
    let calls = if case.name.starts_with("two: ") { TWO } else { ONE };
    let validity = match case.tables.contains("[validity]") {
        true => "",
        false => "[validity]\nwaited_share_max = 1\ngenerator_share_max = 1\n",
    };
    let tables = case
        .tables
        .replace("LATE", &format!("{LATE}waited_share_max = 1\ngenerator_share_max = 1"));
    let tables = tables.replace("WAITED", "waited_share_max = 0");
    let tables = tables.replace("REFERENCE", &format!("http://127.0.0.1:{reference}/"));
    let text = format!(
        "[target]\nurl = \"http://127.0.0.1:{port}/\"\nfamily = \"ethereum\"\ntimeout = \"{}\"\n\
         [run]\nthreads = 1\n{validity}{tables}\n[[scenario]]\nname = \"load\"\nmix = \"own\"\n{}\n{calls}",
        case.timeout, case.load
    );
    read(&text, case.name, &[]).unwrap_or_else(|faults| panic!("{}: {faults}", case.name))
}

/// Makes the run of a case.
fn run_case(case: &Case) -> RunResult {
    let target = Server::start((case.target)());
    let reference = Server::start(Box::new(|_| ok()));
    let plan = plan(case, target.port, reference.port);
    run(&Arc::new(plan), &Stop::new(), &mut |_| {}).unwrap().result
}

/// Runs all cases, some at a time. A case that fails is tried once more, because other programs may
/// disturb it.
#[test]
fn planted_truths_are_found() {
    let cases: Vec<Case> = [rates(), verdicts(), outcomes(), methods(), changes(), references()]
        .into_iter()
        .flatten()
        .collect();
    assert!(cases.len() >= 40, "{}", cases.len());
    let (next_index, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..CONCURRENT_CASES {
            scope.spawn(|| {
                while let Some(case) = cases.get(next_index.fetch_add(1, Ordering::Relaxed)) {
                    // Returns a description of the failure, if the case fails.
                    let try_case = || {
                        let result = run_case(case);
                        let faults = self_check::check_run(&result);
                        let is_right = (case.is_right)(&result) && faults.is_empty();
                        (!is_right).then(|| describe(case, &result, &faults))
                    };
                    if try_case().is_some()
                        && let Some(failure) = try_case()
                    {
                        failures.lock().push(failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner();
    assert!(
        failures.is_empty(),
        "{} of {} rows are wrong:\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n")
    );
}

/// Describes the result of a case that failed.
fn describe(case: &Case, result: &RunResult, faults: &[String]) -> String {
    format!(
        "{}: {:?}\n  findings {:?}\n  warnings {:?}\n  {:.1} results/s, {:.1} calls/s, classes {:?}\n  \
         compared {:?}\n  faults {faults:?}\n  seconds {:?}",
        case.name,
        result.verdict,
        result.findings,
        result.warnings,
        result.overall.goodput,
        result.overall.rate,
        result.overall.classes.iter().map(|row| (row.class, row.calls)).collect::<Vec<_>>(),
        result.compared.as_ref().map(|compared| (
            compared.compared,
            compared.wrong,
            compared.moved
        )),
        result.series.iter().map(|second| (second.at, second.requests)).collect::<Vec<_>>(),
    )
}

/// Compares single runs of two cases.
fn compare_cases(a: &Case, b: &Case) -> CompareResult {
    let variant = |case: &Case, name: &str| {
        let runs = vec![run_of_result(name, &run_case(case))];
        Variant { name: name.to_owned(), runs, left_out: Vec::new(), notes: Vec::new() }
    };
    let variants = vec![variant(a, "a"), variant(b, "b")];
    compare(variants, &Options { despite_mismatches: true, ..Options::default() }, &mut || 4)
}

/// Single runs of some seconds show clear differences, and equal targets show none.
#[test]
fn plain_differences_of_single_runs_are_reported() {
    let case_of = |target| Case {
        name: "compared",
        target,
        load: "workers_max = 100\nstages = [{ duration = \"3s\", rate = 60 }]",
        tables: "",
        timeout: SHORT,
        is_right: |_| true,
    };
    let fast = case_of(|| after(ms(2), |_| ok()));
    let verdict_of = |result: &CompareResult, metric| {
        assert_eq!(self_check::check_comparison(result), Vec::<String>::new());
        let difference = result.differences.iter().find(|difference| difference.metric == metric);
        difference.unwrap().verdict
    };
    let failing = case_of(|| {
        after(ms(2), |call| if call.nth % 4 == 0 { ok() } else { Reply::Error(-32_000) })
    });
    let result = compare_cases(&fast, &failing);
    assert_eq!(
        verdict_of(&result, Metric::FailedShare),
        ComparisonVerdict::Worse,
        "{:?}",
        result.conclusions
    );
    let slow = case_of(|| after(ms(400), |_| ok()));
    let result = compare_cases(&fast, &slow);
    assert_eq!(
        verdict_of(&result, Metric::LatencyP50),
        ComparisonVerdict::Worse,
        "{:?}",
        result.conclusions
    );
    let result = compare_cases(&fast, &fast);
    assert_ne!(
        verdict_of(&result, Metric::Goodput),
        ComparisonVerdict::Worse,
        "{:?}",
        result.conclusions
    );
    assert_ne!(
        verdict_of(&result, Metric::FailedShare),
        ComparisonVerdict::Worse,
        "{:?}",
        result.conclusions
    );
}
