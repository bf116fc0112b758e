//! Checks the lab against known results. Capacity searches run against nodes of known capacity. A/A
//! comparisons compare a node with itself, so almost none may report a difference.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Bench;
use super::row::{Row, RowSpec};
use super::server::{LOAD_CORE, PROBE, Server, pinned_command};

/// Largest allowed relative deviation of a measured capacity from the known one.
const CAPACITY_SHARE: f64 = 0.03;

/// A node whose capacity is known.
struct KnownCapacity {
    /// Arguments of `weir node`, the simulated node. `--capacity 4:10ms` serves 4 calls at once,
    /// each in 10 ms. `--rate` limits the calls of one method per second.
    node: [&'static str; 2],
    /// The known capacity in iterations per second. Each iteration calls two methods in turn. If
    /// methods were drawn at random, bursts would overflow a queue at its limit.
    rate: f64,
    /// The method that exceeds its threshold first; `None` if both methods fail alike.
    breaking_method: Option<&'static str>,
}

/// The nodes to search. `queue` and `hang` are what a node does with calls above its rate.
const KNOWN: [KnownCapacity; 5] = [
    KnownCapacity { node: ["--capacity", "1:5ms"], rate: 100.0, breaking_method: None },
    KnownCapacity { node: ["--capacity", "4:10ms"], rate: 200.0, breaking_method: None },
    KnownCapacity { node: ["--capacity", "8:4ms"], rate: 1_000.0, breaking_method: None },
    KnownCapacity {
        node: ["--rate", "eth_getLogs=150:queue"],
        rate: 150.0,
        breaking_method: Some("eth_getLogs"),
    },
    // The burst of 2 serves a call that arrives slightly early. Without the burst such a call would
    // hang, although the rate is within the limit.
    KnownCapacity {
        node: ["--rate", "eth_getLogs=60:hang:2"],
        rate: 60.0,
        breaking_method: Some("eth_getLogs"),
    },
];

/// Runs `weir capacity` against nodes of known capacity.
///
/// # Errors
/// Fails if a node or the search does not run.
pub(crate) fn search_known_capacities(bench: &Bench) -> Result<Vec<Row>> {
    KNOWN.iter().map(|known| run_capacity_search(bench, known)).collect()
}

fn run_capacity_search(bench: &Bench, known: &KnownCapacity) -> Result<Row> {
    let folder = create_result_folder(bench, "capacity")?;
    let node = Server::start_simulated(&bench.weir, &known.node, PROBE)?;
    let plan = folder.join("plan.toml");
    let text = include_str!("capacity.toml").replace("@TARGET@", &node.address.to_string());
    fs::write(&plan, text)?;
    let mut command = pinned_command(LOAD_CORE);
    command.arg(&bench.weir).args(["capacity", "--json", "--yes", "--quiet"]).arg(&plan);
    let output = command.stdin(Stdio::null()).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let json: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("no capacity of {:?}: {stderr}", known.node))?;
    fs::write(folder.join(format!("{}.json", known.rate)), &output.stdout)?;
    let figure = |name: &str| json["answer"][name].as_f64();
    let (highest_pass, lowest_fail) = (figure("highest_pass"), figure("lowest_fail"));
    let reported_method = json["binding"]["method"].as_str();
    let node_arguments = known.node.join(" ");
    eprintln!(
        "capacity: {node_arguments} passes at {highest_pass:?}, fails at {lowest_fail:?}, \
         {reported_method:?} breaks first, {} s: {}",
        json["duration"].as_f64().unwrap_or_default().round(),
        json["answer"]["sentence"].as_str().unwrap_or_default(),
    );
    let mut problems = Vec::new();
    let measured = highest_pass.unwrap_or(f64::NAN);
    let deviation = (measured / known.rate - 1.0).abs();
    // The deviation is NaN if the search found no passing rate.
    if deviation.is_nan() || deviation > CAPACITY_SHARE {
        problems.push(format!("more than {:.0} % off", CAPACITY_SHARE * 100.0));
    }
    if known.breaking_method.is_some() && reported_method != known.breaking_method {
        let expected = known.breaking_method;
        problems.push(format!("{reported_method:?} was reported, {expected:?} breaks first"));
    }
    let case = format!("capacity, {node_arguments}");
    let row_spec =
        RowSpec { case: &case, unit: "iterations/s", peer: "the known capacity", target: None };
    Ok(Row::compare(&row_spec, &[measured], &[known.rate], problems))
}

/// Number of comparisons of a node with itself.
const COMPARISONS: usize = 40;
/// Number of runs of each of the two variants in a comparison.
const RUNS: usize = 6;
/// Each comparison begins this many runs after the comparison before it. Successive comparisons
/// share runs, because separate runs would take hours.
const STEP: usize = 2;
/// Largest share of comparisons that may report a difference.
const DIFFERENT_SHARE: f64 = 0.05;

/// Runs `weir compare` on runs against one node, where every reported difference is false.
///
/// # Errors
/// Fails if the node, a run or a comparison does not run.
pub(crate) fn compare_same_node(bench: &Bench) -> Result<Vec<Row>> {
    let folder = create_result_folder(bench, "same")?;
    let node = Server::start_simulated(&bench.weir, &["--latency", "1ms..5ms"], PROBE)?;
    let url = format!("http://{}", node.address);
    let count = 2 * RUNS + STEP * (COMPARISONS - 1);
    eprintln!("same: {count} runs of 1 s");
    let runs: Vec<PathBuf> = (0..count)
        .map(|run| {
            let out = folder.join(run.to_string());
            let mut command = pinned_command(LOAD_CORE);
            command.arg(&bench.weir).args(["load", &url, "--quiet", "-r", "400", "-d", "1s"]);
            let output = command.arg("--out").arg(&out).stdin(Stdio::null()).output()?;
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(out.join("result.json").exists(), "no result: {stderr}");
            Ok(out)
        })
        .collect::<Result<_>>()?;
    // Number of comparisons that report a difference, and number of metrics in all comparisons.
    let (mut different, mut metrics) = (0, 0);
    for first in (0..COMPARISONS).map(|comparison| comparison * STEP) {
        let pool = &runs[first..first + 2 * RUNS];
        let (compared, differing) = compare(bench, pool)?;
        metrics += compared;
        different += usize::from(differing > 0);
    }
    eprintln!(
        "same: {different} of {COMPARISONS} comparisons report a difference, of {metrics} metrics"
    );
    let row_spec = RowSpec {
        case: &format!("A/A, {COMPARISONS} comparisons"),
        unit: "differences",
        peer: "the allowed number",
        target: Some(1.0),
    };
    let allowed = COMPARISONS as f64 * DIFFERENT_SHARE;
    Ok(vec![Row::compare(&row_spec, &[different as f64], &[allowed], Vec::new())])
}

/// Compares the variants A and B. The runs belong to the variants in the order A B B A, repeated.
/// Returns the number of compared metrics and the number of metrics that differ.
fn compare(bench: &Bench, runs: &[PathBuf]) -> Result<(usize, usize)> {
    let variant = |name: &str, is_a: bool| {
        let runs = runs.iter().enumerate();
        let selected = runs.filter(|(index, _)| matches!(index % 4, 0 | 3) == is_a);
        let paths: Vec<String> = selected.map(|(_, run)| run.display().to_string()).collect();
        format!("{name}={}", paths.join(","))
    };
    let mut command = Command::new(&bench.weir);
    command.args(["compare", "--json", "--anyway", &variant("a", true), &variant("b", false)]);
    let output = command.stdin(Stdio::null()).output()?;
    let json: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    let differences = json["differences"].as_array().context("no differences")?;
    ensure!(!differences.is_empty(), "nothing was compared");
    let differs = |row: &&Value| matches!(row["verdict"].as_str(), Some("better" | "worse"));
    Ok((differences.len(), differences.iter().filter(differs).count()))
}

/// Creates an empty folder of this name among the results.
pub(super) fn create_result_folder(bench: &Bench, name: &str) -> Result<PathBuf> {
    let folder = bench.folder.join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    Ok(folder)
}
