//! Measures the effect on clients when one or two of three nodes fail. The figures are failed
//! calls, p99.9 of the latency, and the slowest call. The peers are nginx and HAProxy in front of
//! the same nodes.
//!
//! The gateway under test runs on core 0. Three constant nodes (`backend.rs`) and `weir load` run
//! on core 1. Each node has 3 ms of latency and its own process. Each round starts all processes.
//! The load is open loop. The fault begins one second after the start of the load and ends one
//! second before the end of the load.

use std::path::Path;
use std::process::Child;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::cost::count_served;
use super::row::{Row, RowSpec};
use super::search::create_result_folder;
use super::server::{
    Contender, LOAD_CORE, PROBE, Server, create_scratch_folder, find_free_ports, pinned_command,
};
use super::weir_load::{self, CallFigures};
use super::{Bench, Cache, http};
use crate::backend::{CALLED_METHOD, Fault};
use crate::shell;

const NODES: usize = 3;
const NODE_LATENCY_MS: u64 = 3;
/// Calls per second.
const RATES: [u64; 2] = [500, 2_000];
/// Largest allowed p99.9 of the latency.
const P999_MAX_MS: f64 = 300.0;
/// Largest allowed latency.
const SLOWEST_MAX_MS: f64 = 1_000.0;
/// Seconds of load without the fault: one second before it and one second after it.
const CALM_SECONDS: u64 = 2;

/// Ways in which a node fails.
#[derive(Clone, Copy)]
enum FailureMode {
    /// SIGKILL: connections are reset and refused.
    Kill,
    /// SIGSTOP: the kernel accepts connections and bytes, but no response comes.
    Stop,
    /// The node's process continues and misbehaves.
    Fault(Fault),
}

const FAILURE_MODES: [(&str, FailureMode); 7] = [
    ("kill", FailureMode::Kill),
    ("stop", FailureMode::Stop),
    ("hang", FailureMode::Fault(Fault::Hang)),
    ("half-open", FailureMode::Fault(Fault::HalfOpen)),
    ("drip", FailureMode::Fault(Fault::Drip)),
    ("endless", FailureMode::Fault(Fault::Endless)),
    ("limited", FailureMode::Fault(Fault::Limited)),
];

/// The gateways under test.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gateway {
    Weir,
    Nginx,
    Haproxy,
}

impl Gateway {
    const ALL: [Gateway; 3] = [Gateway::Weir, Gateway::Nginx, Gateway::Haproxy];
}

/// Measures all failure modes, or the selected one, on one and on two of three nodes.
///
/// # Errors
/// Fails if the failure mode is unknown, or a process fails.
pub(crate) fn measure_stalls(bench: &Bench) -> Result<Vec<Row>> {
    let only = bench.stall_case.as_deref();
    let selected: Vec<_> =
        FAILURE_MODES.iter().filter(|(name, _)| only.is_none_or(|only| only == *name)).collect();
    if selected.is_empty() {
        let names = FAILURE_MODES.map(|(name, _)| name).join(", ");
        bail!("case is {:?}, one of {names} is allowed", only.unwrap_or(""));
    }
    let mut rows = Vec::new();
    for (name, failure) in selected {
        for count in [1, 2] {
            for rate in RATES {
                rows.extend(compare(bench, name, *failure, count, rate)?);
            }
        }
    }
    Ok(rows)
}

/// Measures one failure mode at one rate with all three gateways. `count` is the number of nodes
/// that fail, and `rate` is in calls per second.
fn compare(
    bench: &Bench,
    name: &str,
    failure: FailureMode,
    count: usize,
    rate: u64,
) -> Result<Vec<Row>> {
    let case = format!("{name}, {count} of {NODES}, {rate}/s");
    // The p99.9 of each gateway, by repetition.
    let mut p999: [Vec<f64>; 3] = Default::default();
    // The slowest call of each repetition with Weir, and the problems of Weir's rounds.
    let (mut slowest, mut problems) = (Vec::new(), Vec::new());
    for repetition in 1..=bench.repetitions {
        for (gateway, p999) in Gateway::ALL.into_iter().zip(&mut p999) {
            let (label, result) = measure_round(bench, gateway, failure, count, rate)?;
            let failed = result.failed_share * result.calls;
            let failed = format!("{failed:.0} of {:.0} calls failed", result.calls);
            eprintln!(
                "{case} {repetition}/{}: {label}: {failed}, p99.9 {:.0} ms, slowest {:.0} ms",
                bench.repetitions, result.p999_ms, result.slowest_ms,
            );
            if gateway == Gateway::Weir {
                slowest.push(result.slowest_ms);
                if result.failed_share > 0.0 {
                    problems.push(failed);
                }
            }
            p999.push(result.p999_ms);
        }
    }
    let [ours, nginx, haproxy] = p999;
    let limit = |value: f64| vec![value; ours.len()];
    // `target` is the largest allowed ratio of `ours` to `theirs`.
    let row = |figure: &str, peer, target, ours: &[f64], theirs: &[f64]| {
        let case = format!("{case}: {figure}");
        Row::compare(
            &RowSpec { case: &case, unit: "ms", peer, target },
            ours,
            theirs,
            problems.clone(),
        )
    };
    Ok(vec![
        row("p99.9", "the limit", Some(1.0), &ours, &limit(P999_MAX_MS)),
        row("slowest", "the limit", Some(1.0), &slowest, &limit(SLOWEST_MAX_MS)),
        row("p99.9", "haproxy", None, &ours, &haproxy),
        row("p99.9", "nginx", None, &ours, &nginx),
    ])
}

/// Sends load to one gateway. Meanwhile `count` nodes fail, and recover unless they were killed.
/// Returns the gateway's label and the result.
fn measure_round(
    bench: &Bench,
    gateway: Gateway,
    failure: FailureMode,
    count: usize,
    rate: u64,
) -> Result<(&'static str, CallFigures)> {
    let nodes: Vec<Server> = (0..NODES).map(|_| start_node()).collect::<Result<_>>()?;
    let addresses = nodes.iter().map(|node| node.address).collect();
    let contender = match gateway {
        Gateway::Weir => bench.weir_contender("weir", addresses, Cache::Off),
        Gateway::Nginx => Contender::NginxBalancer { nodes: addresses },
        Gateway::Haproxy => Contender::HaproxyBalancer { nodes: addresses },
    };
    let server = Server::start(&contender, PROBE)?;
    let folder = create_result_folder(bench, "stalls")?;
    let before = count_served(&nodes[0])?;
    let load = start_load(bench, &folder, &server, rate)?;
    // Waits until the first node has served its share of the first second of load.
    while count_served(&nodes[0])? < before + rate / NODES as u64 {
        shell::pause(Duration::from_millis(50));
    }
    for node in &nodes[..count] {
        match failure {
            FailureMode::Kill => node.send_signal("-KILL"),
            FailureMode::Stop => node.send_signal("-STOP"),
            FailureMode::Fault(fault) => set_fault(node, fault)?,
        }
    }
    shell::pause(Duration::from_secs(bench.seconds));
    for node in &nodes[..count] {
        match failure {
            // A killed node does not recover.
            FailureMode::Kill => {}
            FailureMode::Stop => node.send_signal("-CONT"),
            FailureMode::Fault(_) => set_fault(node, Fault::None)?,
        }
    }
    Ok((contender.name(), weir_load::finish(load)?))
}

fn start_node() -> Result<Server> {
    let address = find_free_ports(1)?[0];
    let mut command = pinned_command(LOAD_CORE);
    command.arg(shell::root().join("target/release/xtask")).arg("backend");
    command.args(["--listen", &address.to_string()]);
    command.args(["--latency-ms", &NODE_LATENCY_MS.to_string()]);
    Server::spawn(
        "the constant node",
        command,
        address.port(),
        create_scratch_folder("backend")?,
        PROBE,
    )
}

fn set_fault(node: &Server, fault: Fault) -> Result<()> {
    let reply = http::post(node.address, &fault.call())?;
    ensure!(reply.status == 200, "the constant node responds with status {}", reply.status);
    Ok(())
}

fn start_load(bench: &Bench, folder: &Path, gateway: &Server, rate: u64) -> Result<Child> {
    let (address, seconds) = (gateway.address, bench.seconds + CALM_SECONDS);
    let text = format!(
        "[target]\nurl = \"http://{address}\"\ntimeout = \"10s\"\n\
         [validity]\nwaited_share_max = 1\n\
         [[scenario]]\nname = \"calls\"\nmix = \"own\"\nworkers_max = 4000\n\
         stages = [{{ name = \"s\", duration = \"{seconds}s\", rate = {rate} }}]\n\
         [[mix.own.calls]]\nmethod = \"{CALLED_METHOD}\"\n\
         params = [{{ draw = \"block\", behind = [0, 1000000] }}]\n"
    );
    weir_load::start(bench, &folder.join("plan.toml"), &text)
}
