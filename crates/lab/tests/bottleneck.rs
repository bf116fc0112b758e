//! Goal: a load run names the first bottleneck of its target. Method: each case plants a known
//! bottleneck and runs a load against it. The target is a real process: this program, started
//! again as a small server (`bottleneck/server.rs`), in some cases behind nginx. Cgroups limit the
//! process, and taskset assigns its cores. A wrong cause fails the test; one case may end with
//! "cannot tell".
//!
//! A case is skipped, with a message, if it cannot be planted: nginx is missing, or no cgroup can
//! be created. Other processes on the host disturb a run; such a case is tried again and then
//! skipped. In CI at least eight cases must be judged; elsewhere the test counts as skipped if
//! fewer are.

#![allow(clippy::unwrap_used)]

#[path = "bottleneck/limits.rs"]
mod limits;
#[path = "bottleneck/plans.rs"]
mod plans;
#[path = "bottleneck/server.rs"]
mod server;

use std::sync::Arc;
use std::time::Instant;

use lab::run::{Stop, run};
use lab_model::plan::Plan;
use lab_model::results::run::{ProcessRole, RunResult};
use lab_model::results::{Cause, Finding};

use test_support::programs;

use limits::{Cgroup, Nginx, Program};
use plans::{limited_below_5_percent, max_below_1_s, p95_below_100_ms, plan_closed, plan_open};

/// Number of tries of a case while other processes keep the host busy.
const TRIES: usize = 3;
/// Number of cases that must be judged in CI. The CI machine has nginx and cgroups, and is
/// otherwise idle.
const JUDGED_MIN: usize = 8;
/// Mean number of cores that other processes may use during a run. Above this, a wrong finding does
/// not count.
const OTHER_CORES_MAX: f64 = 0.35;

/// Plants a bottleneck and runs a load against it, or returns why it cannot be planted.
type Case = fn() -> Result<Attempt, String>;

/// The result of one run of a case.
struct Attempt {
    finding: Option<Finding>,
    /// Mean number of cores that processes outside the test used during the run.
    other_cores: f64,
    /// The measurements as text, printed if the finding is not the planted bottleneck.
    measurements: String,
}

impl Attempt {
    /// Creates an attempt from a run. `planted_cores` is the mean number of cores that a planted
    /// process other than the target used. It is 0 without such a process.
    fn new(result: &RunResult, planted_cores: f64) -> Attempt {
        let measurements = format!("{:#?}\n{}", result.verdict, format_measurements(result));
        let other_cores = count_other_cores(result) - planted_cores;
        Attempt { finding: result.bottleneck.clone(), other_cores, measurements }
    }
}

/// The outcome of a case after all its tries.
#[derive(Debug, PartialEq)]
enum Outcome {
    Right,
    CannotTell,
    Wrong,
    /// The case was not judged; the text is the reason.
    Skipped(String),
}

/// The process of a planted target: this program, started again to run only this test.
#[test]
#[ignore = "not a test: the process of a planted target"]
fn planted_target() {
    if let Ok(mode) = std::env::var(server::MODE) {
        server::serve(&mode);
    }
}

/// The process of a load generator without enough CPU; it prints its finding and ends.
#[test]
#[ignore = "not a test: the process of a starved generator"]
fn starved_generator() {
    if let Ok(port) = std::env::var(limits::PORT) {
        let plan = plan_open(port.parse().unwrap(), 2_000.0, p95_below_100_ms());
        let result = run_plan(plan);
        println!("\nfinding {}", serde_json::to_string(&result.bottleneck).unwrap());
    }
}

/// Runs the cases one after the other, because concurrent runs would disturb each other.
#[test]
fn planted_bottlenecks_are_named() {
    let cases: [(&str, Cause, Case); 11] = [
        ("four slots of 10 ms", Cause::Software, slots),
        ("one lock for all", Cause::Software, lock),
        ("one thread does all work", Cause::Thread, thread),
        ("a CPU quota of 0.3 cores", Cause::CpuQuota, quota),
        ("one core for many threads", Cause::Cpu, one_core),
        ("a disk limit of the cgroup", Cause::Disk, disk),
        ("429 from 200 calls a second on", Cause::RateLimit, rate_limit),
        ("five connections are accepted", Cause::Connection, connections),
        ("a slow server behind nginx", Cause::Upstream, upstream),
        ("a generator without a core", Cause::Generator, starved),
        ("a neighbour on the target's core", Cause::Cpu, neighbour),
    ];
    let outcomes: Vec<(&str, Outcome)> =
        cases.into_iter().map(|(name, cause, case)| (name, judge(name, cause, case))).collect();
    let count = |matches: fn(&Outcome) -> bool| {
        outcomes.iter().filter(|(_, outcome)| matches(outcome)).count()
    };
    for (name, outcome) in &outcomes {
        eprintln!("{name}: {outcome:?}");
    }
    let wrong = count(|outcome| *outcome == Outcome::Wrong);
    let unsure = count(|outcome| *outcome == Outcome::CannotTell);
    assert_eq!(wrong, 0, "{outcomes:?}");
    assert!(unsure <= 1, "{outcomes:?}");
    let judged = count(|outcome| !matches!(outcome, Outcome::Skipped(_)));
    if judged < JUDGED_MIN {
        let reason = format!("{judged} of {} cases could be judged: {outcomes:?}", outcomes.len());
        assert!(std::env::var("CI").map_or(true, |ci| ci == "false"), "{reason}");
        programs::skip(&reason);
    }
}

/// Runs a case until a try can be judged, and compares its finding with the planted cause.
fn judge(name: &str, planted_cause: Cause, case: Case) -> Outcome {
    let mut skip_reason = String::new();
    for _ in 0..TRIES {
        let Attempt { finding, other_cores, measurements } = match case() {
            Ok(attempt) => attempt,
            Err(reason) => return skip(name, reason),
        };
        if finding.as_ref().is_some_and(|finding| finding.cause == planted_cause) {
            return Outcome::Right;
        }
        eprintln!("{name}: {finding:#?}\nother processes used {other_cores:.2} cores");
        eprintln!("{measurements}");
        match finding {
            _ if other_cores > OTHER_CORES_MAX => {
                skip_reason = format!("other processes used {other_cores:.2} cores");
            }
            Some(Finding { cause: Cause::Unknown, .. }) => return Outcome::CannotTell,
            // A run without a finding is wrong, too, because the case has planted a bottleneck.
            _ => return Outcome::Wrong,
        }
    }
    skip(name, skip_reason)
}

fn skip(name: &str, reason: String) -> Outcome {
    eprintln!("CASE SKIPPED: {name}: {reason}");
    Outcome::Skipped(reason)
}

fn run_plan(plan: Plan) -> RunResult {
    run(&Arc::new(plan), &Stop::new(), &mut |_| {}).unwrap().result
}

fn run_attempt(plan: Plan) -> Attempt {
    Attempt::new(&run_plan(plan), 0.0)
}

/// Formats the calls of each second and the samples of the target's processes, in order of time.
fn format_measurements(result: &RunResult) -> String {
    let is_printed = |name: &str| {
        let hidden_prefixes = ["process.generator.", "net.", "disk.", "memory", "tcp", "swap"];
        let hidden_parts =
            ["threads", "memory", "faults", "switches", "files", "bytes", "cgroup.generator"];
        name.contains('.')
            && !hidden_prefixes.iter().any(|prefix| name.starts_with(prefix))
            && !hidden_parts.iter().any(|part| name.contains(part))
    };
    let format_sample = |sample: &lab_model::results::run::HostSample| {
        let values = sample.values.iter().filter(|(name, _)| is_printed(name));
        let values: Vec<String> =
            values.map(|(name, value)| format!("{name} {value:.2}")).collect();
        format!("{:.2}: {}\n", sample.at, values.join(", "))
    };
    let watched = format!("{:?}\n", result.watched);
    let seconds = result.series.iter().map(|second| {
        format!("{}: {} in flight, {:?}\n", second.at, second.in_flight, second.methods)
    });
    let samples = result.host.iter().map(format_sample);
    watched + &seconds.collect::<String>() + &samples.collect::<String>()
}

/// Mean number of cores that were used by processes other than the generator and those watched.
fn count_other_cores(result: &RunResult) -> f64 {
    let samples: Vec<_> =
        result.host.iter().filter(|sample| sample.host == "generator" && sample.at > 0.0).collect();
    let is_ours = |name: &str| {
        result.watched.processes.iter().any(|process| {
            process.role <= ProcessRole::Watched && name == format!("process.{}.cpu", process.name)
        })
    };
    let other_cores = samples.iter().map(|sample| {
        let busy = sample.values.iter().find(|(name, _)| *name == "cpu_busy");
        let busy_share = busy.map_or(0.0, |(_, value)| *value);
        let our_cores = sample.values.iter().filter(|(name, _)| is_ours(name));
        let our_cores = our_cores.map(|(_, value)| value).sum::<f64>();
        busy_share * result.watched.cores - our_cores
    });
    other_cores.sum::<f64>() / samples.len().max(1) as f64
}

// Each case names the limit of its target in the form `KIND:NUMBERS` (`bottleneck/server.rs`). For
// example, `slots:4:10` allows four concurrent calls of 10 ms each.

fn slots() -> Result<Attempt, String> {
    let target = Program::target("slots:4:10");
    Ok(run_attempt(plan_open(target.port, 800.0, p95_below_100_ms())))
}

fn lock() -> Result<Attempt, String> {
    let target = Program::target("lock:5");
    Ok(run_attempt(plan_open(target.port, 500.0, p95_below_100_ms())))
}

fn thread() -> Result<Attempt, String> {
    let target = Program::target("thread:2");
    Ok(run_attempt(plan_open(target.port, 1_000.0, p95_below_100_ms())))
}

fn quota() -> Result<Attempt, String> {
    let cgroup = Cgroup::cpu(0.3)?;
    let target = Program::target("work:2");
    cgroup.add(target.pid())?;
    Ok(run_attempt(plan_open(target.port, 400.0, p95_below_100_ms())))
}

fn one_core() -> Result<Attempt, String> {
    let target = Program::target_on_core("work:2", 1)?;
    Ok(run_attempt(plan_open(target.port, 1_000.0, p95_below_100_ms())))
}

fn disk() -> Result<Attempt, String> {
    let cgroup = Cgroup::disk(2 << 20)?;
    let target = Program::target("disk:64");
    cgroup.add(target.pid())?;
    Ok(run_attempt(plan_open(target.port, 100.0, p95_below_100_ms())))
}

fn rate_limit() -> Result<Attempt, String> {
    let backend = Program::target("slots:64:1");
    let proxy = Nginx::start(backend.port, "limit_req zone=all burst=5 nodelay;")?;
    Ok(run_attempt(plan_open(proxy.port, 600.0, limited_below_5_percent())))
}

fn connections() -> Result<Attempt, String> {
    let target = Program::target("accept:5");
    Ok(run_attempt(plan_closed(target.port, 40, max_below_1_s())))
}

fn upstream() -> Result<Attempt, String> {
    let backend = Program::target("slots:4:10");
    let proxy = Nginx::start(backend.port, "")?;
    Ok(run_attempt(plan_open(proxy.port, 800.0, p95_below_100_ms())))
}

/// The target could serve twice the offered rate if it were alone on its core.
fn neighbour() -> Result<Attempt, String> {
    let target = Program::target_on_core("work:2", 1)?;
    // The scheduler shares the core equally among threads. The target's share next to 24 busy
    // threads is less than it needs.
    let neighbour = Program::target_on_core("burn:24", 1)?;
    let (cpu_before, start) = (neighbour.cpu_seconds(), Instant::now());
    let result = run_plan(plan_open(target.port, 400.0, p95_below_100_ms()));
    let neighbour_cores = (neighbour.cpu_seconds() - cpu_before) / start.elapsed().as_secs_f64();
    Ok(Attempt::new(&result, neighbour_cores))
}

/// The generator cannot tell the planted CPU hogs from other processes, so the CPU use of other
/// processes is measured before and after its run.
fn starved() -> Result<Attempt, String> {
    let target = Program::target("slots:64:1");
    let cores_before = limits::measure_other_cores();
    let finding = limits::run_starved_generator(target.port)?;
    let other_cores = cores_before.max(limits::measure_other_cores());
    Ok(Attempt { finding, other_cores, measurements: String::new() })
}
