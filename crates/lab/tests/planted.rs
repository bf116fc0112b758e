//! Goal: what the lab says of a target is true, because the truth was planted. Method: a row for
//! each small server with a known answer, loaded for some seconds by a real run; expected are its
//! rate, its verdict and what is named. Every result must agree with itself (`self_check.rs`).
//!
//! The rows share their machine with each other and with whatever else runs, so that times have a
//! wide margin, and a wait for a core is allowed unless a row is about it.

#![allow(clippy::unwrap_used)]

#[path = "planted/server.rs"]
mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lab::compare::{Options, compare};
use lab::run::{Stop, run};
use lab::self_check;
use lab::variant::{Variant, of_result};
use lab_model::plan::{Plan, read};
use lab_model::results::compare::{CompareResult, Metric};
use lab_model::results::run::RunResult;
use lab_model::results::{ComparisonVerdict, Outcome};
use parking_lot::Mutex;

use server::{Behaviour, Call, Reply, Server, Slots, ok, wait};

/// Runs at the same time.
const LANES: usize = 4;

/// A planted truth.
struct Truth {
    name: &'static str,
    target: fn() -> Behaviour,
    /// Keys of the scenario.
    load: &'static str,
    /// Further tables of the plan.
    rest: &'static str,
    /// How long a call may take.
    timeout: &'static str,
    expected: fn(&RunResult) -> bool,
}

const ONE: &str = "[[mix.own.calls]]\nmethod = \"eth_call\"\nparams = '[{}, \"0x10\"]'\n";
const TWO: &str = "[[mix.own.calls]]\nmethod = \"eth_call\"\nparams = '[{}, \"0x10\"]'\nweight = 9\n\
                   [[mix.own.calls]]\nmethod = \"eth_getLogs\"\nparams = '[{}]'\nweight = 1\n";

const fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

/// Service in slots: so many at a time, so long each.
fn slots(count: usize, time: Duration) -> Behaviour {
    let slots = Slots::new(count);
    Box::new(move |_: &Call| {
        slots.hold(time);
        ok()
    })
}

fn after(time: Duration, reply: impl Fn(&Call) -> Reply + Send + Sync + 'static) -> Behaviour {
    Box::new(move |call: &Call| {
        wait(time);
        reply(call)
    })
}

fn is(result: &RunResult, outcome: Outcome) -> bool {
    result.verdict.outcome == outcome
}

fn goodput(result: &RunResult, from: f64, to: f64) -> bool {
    (from..=to).contains(&result.overall.goodput)
}

/// The verdict fails, and its first reason says this.
fn fails(result: &RunResult, because: &str) -> bool {
    is(result, Outcome::Fail) && result.verdict.reasons[0].contains(because)
}

fn finds(result: &RunResult, what: &str) -> bool {
    result.findings.iter().any(|finding| finding.contains(what))
}

fn class(result: &RunResult, class: &str) -> u64 {
    let row = result.overall.classes.iter().find(|row| row.class.as_str() == class);
    row.map_or(0, |row| row.calls)
}

fn wrong(result: &RunResult) -> (f64, u64) {
    let compared = result.compared.as_ref().unwrap();
    (compared.wrong as f64 / compared.compared.max(1) as f64, compared.wrong)
}

const SHORT: &str = "800ms";
const OPEN: &str = "workers_max = 100\nstages = [{ duration = \"2s\", rate = 100 }]";
const LATENCY: &str = "[thresholds]\nlatency = \"p(95)<250\"";
const FAILED: &str = "[thresholds]\nfailed = \"rate<0.1\"";
const LIMITED: &str = "[thresholds]\nlimited = \"rate<0.01\"";
/// Sends are called late whatever they are.
const LATE: &str = "\nscheduling_delay_p99_max = \"1us\"\nscheduling_delay_share_max = 0.000001\n";

/// Rates: what ended while the load lasted, and nothing else.
fn rates() -> Vec<Truth> {
    let plain = |name, target, load, expected| Truth {
        name,
        target,
        load,
        rest: "",
        timeout: "20s",
        expected,
    };
    vec![
        plain(
            "ten a second, 50 workers",
            || slots(1, ms(100)),
            "model = \"closed\"\nstages = [{ duration = \"3s\", workers = 50 }]",
            |it| goodput(it, 8.0, 10.4) && it.overall.rate <= 10.4,
        ),
        plain(
            "48 a second, 200 workers",
            || slots(10, ms(205)),
            "model = \"closed\"\nstages = [{ duration = \"3s\", workers = 200 }]",
            |it| goodput(it, 38.0, 49.5),
        ),
        plain(
            "as fast as four workers and 20 ms are",
            || after(ms(20), |_| ok()),
            "model = \"closed\"\nstages = [{ duration = \"2s\", workers = 4 }]",
            |it| goodput(it, 120.0, 201.0),
        ),
        plain(
            "a rate that is kept",
            || after(ms(1), |_| ok()),
            OPEN,
            |it| goodput(it, 98.5, 100.5) && is(it, Outcome::Measured),
        ),
        plain(
            "three times the capacity",
            || slots(1, ms(33)),
            "workers_max = 300\nstages = [{ duration = \"2s\", rate = 90 }]",
            |it| goodput(it, 22.0, 31.5),
        ),
        plain(
            "an overloaded stage, and its queue in the next one",
            || slots(1, ms(20)),
            "workers_max = 300\nstages = [{ duration = \"2s\", rate = 100 }, \
             { duration = \"2s\", rate = 1 }]",
            |it| {
                it.stages.iter().all(|stage| stage.overall.goodput <= 51.5)
                    && goodput(it, 35.0, 51.5)
            },
        ),
        plain(
            "half of the calls fail",
            || after(ms(2), |call| if call.nth % 2 == 0 { ok() } else { Reply::Error(-32_000) }),
            OPEN,
            |it| goodput(it, 48.0, 52.0) && (98.0..101.0).contains(&it.overall.rate),
        ),
    ]
}

/// Verdicts about thresholds, with a generator that is late.
fn verdicts() -> Vec<Truth> {
    let with = |name, target, rest, expected| Truth {
        name,
        target,
        load: OPEN,
        rest,
        timeout: SHORT,
        expected,
    };
    vec![
        with("fast, a threshold", || after(ms(2), |_| ok()), LATENCY, |it| is(it, Outcome::Pass)),
        with("fast, no threshold", || after(ms(2), |_| ok()), "", |it| is(it, Outcome::Measured)),
        with("slow", || after(ms(600), |_| ok()), LATENCY, |it| fails(it, "p(95)<250")),
        with(
            "fast, with late sends",
            || after(ms(2), |_| ok()),
            "[validity]\nLATE\n[thresholds]\nlatency = \"p(95)<250\"",
            |it| is(it, Outcome::Pass) && it.warnings.iter().any(|one| one.contains("late by")),
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
        Truth {
            name: "a backlog of seconds beside a wait for a core",
            target: || slots(1, ms(50)),
            load: "workers_max = 300\nstages = [{ duration = \"3s\", rate = 100 }]\ngrace = \"3s\"",
            rest: "[validity]\nWAITED\n[thresholds]\nlatency = \"p(95)<50\"",
            timeout: SHORT,
            expected: |it| is(it, Outcome::Fail),
        },
        Truth {
            name: "pauses that bound the rate",
            target: || after(ms(1), |_| ok()),
            load: "model = \"closed\"\npause = \"100ms\"\nstages = [{ duration = \"2s\", workers = 5 }]",
            rest: "",
            timeout: SHORT,
            expected: |it| is(it, Outcome::ClientLimited),
        },
        Truth {
            name: "too few workers for the rate",
            target: || after(ms(50), |_| ok()),
            load: "workers_max = 2\ndelayed = \"drop\"\nstages = [{ duration = \"2s\", rate = 100 }]",
            rest: "",
            timeout: SHORT,
            expected: |it| is(it, Outcome::ClientLimited),
        },
        with(
            "twenty calls are weak",
            || after(ms(1), |_| ok()),
            "",
            |it| it.warnings.iter().any(|one| one.contains("eth_call (200 calls)")),
        ),
    ]
}

/// Outcomes of calls.
fn outcomes() -> Vec<Truth> {
    let with = |name, target, rest, expected| Truth {
        name,
        target,
        load: OPEN,
        rest,
        timeout: SHORT,
        expected,
    };
    vec![
        with(
            "every call an error",
            || after(ms(1), |_| Reply::Error(-32_601)),
            "",
            |it| is(it, Outcome::Fail) && class(it, "rpc_error") == it.overall.calls,
        ),
        with(
            "no JSON",
            || after(ms(1), |_| Reply::Text(200, "<html>")),
            "",
            |it| is(it, Outcome::Fail) && class(it, "malformed") == it.overall.calls,
        ),
        with(
            "HTTP 503",
            || after(ms(1), |_| Reply::Text(503, "busy")),
            "",
            |it| is(it, Outcome::Fail) && class(it, "http_5xx") == it.overall.calls,
        ),
        with(
            "a result under HTTP 503",
            || after(ms(1), |_| Reply::ResultUnder(503)),
            "",
            |it| is(it, Outcome::Fail) && class(it, "http_5xx") == it.overall.calls,
        ),
        with(
            "answers to other calls",
            || after(ms(1), |_| Reply::OtherId),
            "",
            |it| is(it, Outcome::Fail) && class(it, "wrong_id") == it.overall.calls,
        ),
        with(
            "closed connections",
            || after(ms(1), |_| Reply::Closed),
            "",
            |it| is(it, Outcome::Fail) && class(it, "reset") > 100,
        ),
        with(
            "silence",
            || after(ms(1), |_| Reply::Nothing),
            "",
            |it| is(it, Outcome::Fail) && class(it, "timeout") > 50,
        ),
        with(
            "always null",
            || after(ms(1), |_| Reply::Result("null".to_owned())),
            FAILED,
            |it| is(it, Outcome::Pass) && finds(it, "every result of eth_call was null"),
        ),
        with(
            "5 % of the calls fail",
            || after(ms(1), |call| if call.nth % 20 == 7 { Reply::Error(3) } else { ok() }),
            FAILED,
            |it| is(it, Outcome::Pass) && finds(it, "5.0 % of the calls of eth_call failed"),
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
            |it| is(it, Outcome::Fail) && class(it, "http_5xx") > 50,
        ),
    ]
}

/// Two methods, of which one call in ten is of the second.
fn methods() -> Vec<Truth> {
    fn second(reply: fn(&Call) -> Reply) -> Behaviour {
        after(ms(1), move |call| if call.method == "eth_call" { ok() } else { reply(call) })
    }
    let with = |name, target, rest, expected| Truth {
        name,
        target,
        load: "workers_max = 100\nstages = [{ duration = \"2s\", rate = 200 }]",
        rest,
        timeout: SHORT,
        expected,
    };
    vec![
        with("two: all well", || second(|_| ok()), FAILED, |it| is(it, Outcome::Pass)),
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
            |it| is(it, Outcome::Pass) && finds(it, "of eth_getLogs failed"),
        ),
        with(
            "two: the second is empty",
            || second(|_| Reply::Result("null".to_owned())),
            FAILED,
            |it| is(it, Outcome::Pass) && finds(it, "every result of eth_getLogs was null"),
        ),
        with(
            "two: the second hangs",
            || second(|_| Reply::Nothing),
            "",
            |it| fails(it, "eth_getLogs"),
        ),
    ]
}

/// What happens in the course of a run.
fn courses() -> Vec<Truth> {
    const CLOSED: &str = "model = \"closed\"\nstages = [{ duration = \"8s\", workers = 10 }]";
    /// Nobody is answered in the last half second of each four.
    fn stalls() -> Behaviour {
        after(ms(5), |call| {
            let within = call.at.as_millis() as u64 % 4_000;
            if within > 3_500 {
                wait(ms(4_000 - within));
            }
            ok()
        })
    }
    vec![
        Truth {
            name: "stalls under workers",
            target: stalls,
            load: CLOSED,
            rest: "",
            timeout: SHORT,
            expected: |it| is(it, Outcome::Measured) && finds(it, "the target stalled"),
        },
        Truth {
            name: "stalls under workers, and a threshold",
            target: stalls,
            load: CLOSED,
            rest: "[thresholds]\nlatency = \"p(97)<200\"",
            timeout: SHORT,
            expected: |it| fails(it, "kept only because workers wait"),
        },
        Truth {
            name: "stalls under a rate",
            target: stalls,
            load: "workers_max = 200\nstages = [{ duration = \"8s\", rate = 100 }]",
            rest: "[thresholds]\nlatency = \"p(97)<200\"",
            timeout: SHORT,
            expected: |it| fails(it, "p(97)<200"),
        },
        Truth {
            name: "a tenfold drift",
            target: || {
                Box::new(|call: &Call| {
                    wait(ms(10 + 11 * call.at.as_millis() as u64 / 1_000));
                    ok()
                })
            },
            load: "workers_max = 100\nstages = [{ duration = \"8s\", rate = 50 }]",
            rest: "[thresholds]\nlatency = \"p(95)<900\"",
            timeout: SHORT,
            expected: |it| is(it, Outcome::Pass) && finds(it, "the median of eth_call rose"),
        },
        Truth {
            name: "no drift, no stall",
            target: || after(ms(30), |_| ok()),
            load: CLOSED,
            rest: LATENCY,
            timeout: SHORT,
            expected: |it| {
                is(it, Outcome::Pass) && !finds(it, "the median") && !finds(it, "stalled")
            },
        },
    ]
}

fn references() -> Vec<Truth> {
    fn every(nth: u64) -> Behaviour {
        let wrong = || Reply::Result("\"0x2\"".to_owned());
        after(ms(1), move |call| if call.nth % nth == 0 { wrong() } else { ok() })
    }
    let with = |name, target, expected| Truth {
        name,
        target,
        load: "workers_max = 50\nstages = [{ duration = \"3s\", rate = 60 }]",
        rest: "[reference]\nurl = \"REFERENCE\"\nshare = 1\n",
        timeout: SHORT,
        expected,
    };
    vec![
        with(
            "a reference that agrees",
            || after(ms(1), |_| ok()),
            |it| {
                is(it, Outcome::Measured)
                    && wrong(it).1 == 0
                    && it.compared.as_ref().unwrap().compared > 50
            },
        ),
        with(
            "one answer in two is wrong",
            || every(2),
            |it| fails(it, "differ from those of") && (0.35..=0.65).contains(&wrong(it).0),
        ),
        with(
            "one answer in twenty is wrong",
            || every(20),
            |it| fails(it, "differ from those of") && (1..20).contains(&wrong(it).1),
        ),
        with("every answer is wrong", || every(1), |it| wrong(it).0 == 1.0),
    ]
}

/// The plan of a row. The words LATE and WAITED stand for keys of `[validity]`.
fn plan(truth: &Truth, port: u16, reference: u16) -> Plan {
    let calls = if truth.name.starts_with("two: ") { TWO } else { ONE };
    let validity = match truth.rest.contains("[validity]") {
        true => "",
        false => "[validity]\nwaited_share_max = 1\n",
    };
    let rest = truth.rest.replace("LATE", &format!("{LATE}waited_share_max = 1"));
    let rest = rest.replace("WAITED", "waited_share_max = 0");
    let rest = rest.replace("REFERENCE", &format!("http://127.0.0.1:{reference}/"));
    let text = format!(
        "[target]\nurl = \"http://127.0.0.1:{port}/\"\nfamily = \"ethereum\"\ntimeout = \"{}\"\n\
         [run]\nthreads = 1\n{validity}{rest}\n[[scenario]]\nname = \"load\"\nmix = \"own\"\n{}\n{calls}",
        truth.timeout, truth.load
    );
    read(&text, truth.name, &[]).unwrap_or_else(|faults| panic!("{}: {faults}", truth.name))
}

fn measured(truth: &Truth) -> RunResult {
    let target = Server::start((truth.target)());
    let reference = Server::start(Box::new(|_| ok()));
    let plan = plan(truth, target.port, reference.port);
    run(&Arc::new(plan), &Stop::new(), &mut |_| {}).unwrap().result
}

/// All rows, some at a time. A row that is wrong on a machine that others use is tried once more.
#[test]
fn planted_truths_are_found() {
    let rows: Vec<Truth> = [rates(), verdicts(), outcomes(), methods(), courses(), references()]
        .into_iter()
        .flatten()
        .collect();
    assert!(rows.len() >= 40, "{}", rows.len());
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                while let Some(truth) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let right = || {
                        let result = measured(truth);
                        let faults = self_check::check_run(&result);
                        let right = (truth.expected)(&result) && faults.is_empty();
                        (!right).then(|| told(truth, &result, &faults))
                    };
                    if right().is_some()
                        && let Some(told) = right()
                    {
                        wrong.lock().push(told);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner();
    assert!(
        wrong.is_empty(),
        "{} of {} rows are wrong:\n{}",
        wrong.len(),
        rows.len(),
        wrong.join("\n")
    );
}

fn told(truth: &Truth, result: &RunResult, faults: &[String]) -> String {
    format!(
        "{}: {:?}\n  findings {:?}\n  warnings {:?}\n  {:.1} results/s, {:.1} calls/s, classes {:?}\n  \
         compared {:?}\n  faults {faults:?}\n  seconds {:?}",
        truth.name,
        result.verdict,
        result.findings,
        result.warnings,
        result.overall.goodput,
        result.overall.rate,
        result.overall.classes.iter().map(|row| (row.class, row.calls)).collect::<Vec<_>>(),
        result.compared.as_ref().map(|one| (one.compared, one.wrong, one.moved)),
        result.series.iter().map(|one| (one.at, one.requests)).collect::<Vec<_>>(),
    )
}

fn compared(a: &Truth, b: &Truth) -> CompareResult {
    let variant = |truth: &Truth, name: &str| {
        let runs = vec![of_result(name, &measured(truth))];
        Variant { name: name.to_owned(), runs, left_out: Vec::new(), notes: Vec::new() }
    };
    let variants = vec![variant(a, "a"), variant(b, "b")];
    compare(variants, &Options { anyway: true, ..Options::default() }, &mut || 4)
}

/// Single runs of some seconds: what is plain is named, and nothing else.
#[test]
fn plain_differences_of_single_runs_are_reported() {
    let truth = |target| Truth {
        name: "compared",
        target,
        load: "workers_max = 100\nstages = [{ duration = \"3s\", rate = 60 }]",
        rest: "",
        timeout: SHORT,
        expected: |_| true,
    };
    let fast = truth(|| after(ms(2), |_| ok()));
    let word = |result: &CompareResult, metric| {
        assert_eq!(self_check::check_comparison(result), Vec::<String>::new());
        let one = result.differences.iter().find(|one| one.metric == metric);
        one.unwrap().verdict
    };
    let failing =
        truth(|| after(ms(2), |call| if call.nth % 4 == 0 { ok() } else { Reply::Error(-32_000) }));
    let result = compared(&fast, &failing);
    assert_eq!(
        word(&result, Metric::FailedShare),
        ComparisonVerdict::Worse,
        "{:?}",
        result.conclusions
    );
    let slow = truth(|| after(ms(400), |_| ok()));
    let result = compared(&fast, &slow);
    assert_eq!(
        word(&result, Metric::LatencyP50),
        ComparisonVerdict::Worse,
        "{:?}",
        result.conclusions
    );
    let result = compared(&fast, &fast);
    assert_ne!(
        word(&result, Metric::Goodput),
        ComparisonVerdict::Worse,
        "{:?}",
        result.conclusions
    );
    assert_ne!(
        word(&result, Metric::FailedShare),
        ComparisonVerdict::Worse,
        "{:?}",
        result.conclusions
    );
}
