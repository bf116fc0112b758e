//! `cargo xtask bench`: compares the CPU cost of the gateway and of the lab's load generator with
//! that of their peers, and checks the generator's timing and its results.
//!
//! A *case* measures one or more comparisons in *rounds*. A round is one run of load on one server.
//! A *repetition* has one round of each compared server. A *peer* is the server or program with
//! which we compare ours. A *row* of the results is one comparison with a peer. Its *target* is the
//! largest allowed ratio of our figure to the peer's. The *constant node* (`backend.rs`) is a node
//! with constant responses.
//!
//! A gateway under test runs alone on core 0. wrk and the constant node run on core 1. The
//! gateway's cost is the CPU time of its processes per response. A generator under test runs alone
//! on core 1, and its server runs on core 0.
//!
//! Comparisons that need no judge besides `weir load` are studies: `studies/bench/*.toml` compare
//! TLS, tracing and added latency, and `weir study load` runs them.
//!
//! Progress goes to standard error, results to standard output.
//!
//! This file lists the cases in order. The other files by purpose:
//! - servers: `bench/cost.rs`, `bench/limit.rs`, `bench/memory.rs`, `bench/tracing.rs`
//! - generators: `bench/lab.rs`; the lab's conclusions: `bench/search.rs`
//! - overloaded nodes: `bench/overload.rs`; failing nodes: `bench/stalls.rs`
//! - source files on a call's path: `bench/files.rs`; instructions: `bench/instructions.rs`
//! - processes: `bench/server.rs`, `bench/generator.rs`, `bench/load.rs` (wrk)
//! - kernel figures: `bench/machine.rs`; the printed table: `bench/row.rs`

mod change;
mod cost;
mod files;
mod generator;
mod geth;
mod http;
mod index;
mod instructions;
mod lab;
mod limit;
mod load;
mod machine;
mod memory;
mod overload;
mod row;
mod search;
mod server;
mod stalls;
mod subscribers;
mod tracing;
mod weir_load;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};

use crate::check::programs;
use crate::shell;
use row::Row;
use server::{Cache, Contender};

/// Number of client connections in every case that does not vary it.
const CONNECTIONS: usize = 60;

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub(crate) enum Benchmark {
    /// Compare the gateway with its peers; writes target/bench/gateway.json.
    Gateway {
        /// Run one case: hit, miss, multiplexed, geth, limit, tracing, flat-connections,
        /// flat-nodes, flat-entries, subscribers, memory-idle or memory-flow.
        #[arg(long)]
        case: Option<String>,
        #[command(flatten)]
        options: RunOptions,
    },
    /// Compare the lab with its peers, the clock, a known stall and known capacities; writes
    /// target/bench/load.json.
    Load {
        /// Run one case: cost, punctual, truth, same, capacity or memory.
        #[arg(long)]
        case: Option<String>,
        /// Duration of the memory case in minutes.
        #[arg(long, default_value_t = 10)]
        minutes: u64,
        #[command(flatten)]
        options: RunOptions,
    },
    /// Measure the gateway at three times the capacity of its nodes; writes
    /// target/bench/overload.json.
    Overload {
        #[command(flatten)]
        options: RunOptions,
    },
    /// Compare the gateway, nginx and HAProxy while nodes fail; writes target/bench/stalls.json.
    Stalls {
        /// Run one case: kill, stop, hang, half-open, drip, endless or limited.
        #[arg(long)]
        case: Option<String>,
        #[command(flatten)]
        options: RunOptions,
    },
    /// Measure the index: sync speed, file size and latency of log queries; writes
    /// target/bench/index.json.
    Index {
        /// Run one case: sync or query.
        #[arg(long)]
        case: Option<String>,
        /// Sync into a database too, postgres://USER@HOST:PORT/DATABASE; its schemas weir_bench_1
        /// and so on are created and not removed.
        #[arg(long, value_name = "URL")]
        postgres: Option<String>,
        #[command(flatten)]
        options: RunOptions,
    },
    /// List the gateway's source files that a cached call and a miss execute, by Valgrind's count
    /// of instructions.
    Files {
        /// Use this build with debug information [default: make the debug build]
        #[arg(long)]
        weir: Option<PathBuf>,
    },
    /// Save the current build for `after`.
    Before {
        #[command(flatten)]
        options: RunOptions,
    },
    /// Compare the current build with the build that `before` saved.
    After {
        #[command(flatten)]
        options: RunOptions,
    },
}

/// Duration and number of rounds, and the build to measure.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunOptions {
    /// Repeat every round this often, interleaved (7 lets `after` detect small changes).
    #[arg(long, default_value_t = 5)]
    repetitions: usize,
    /// Load each round for this many seconds; the flow of distinct calls lasts 75 times as long.
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Measure this build of the gateway [default: make the release build]
    #[arg(long)]
    weir: Option<PathBuf>,
}

/// Settings shared by all cases.
#[derive(Debug, Clone)]
pub(crate) struct Bench {
    /// Path of the build of `weir` to measure.
    weir: PathBuf,
    /// Folder of results and saved builds.
    folder: PathBuf,
    /// Number of rounds of each compared server.
    repetitions: usize,
    /// Seconds of load in a round.
    seconds: u64,
    /// Duration, in minutes, of the case that samples a load generator's memory; 0 for other
    /// benchmarks.
    minutes: u64,
    /// URL of a database to sync the index into, besides a file; `None` for only the file.
    postgres: Option<String>,
    /// The only failure mode of nodes to test; `None` tests all failure modes.
    stall_case: Option<String>,
}

impl Bench {
    fn prepare(options: &RunOptions) -> Result<Self> {
        ensure!(options.repetitions > 0, "repetitions is 0, at least 1 is needed");
        ensure!(options.seconds > 0, "seconds is 0, at least 1 is needed");
        let cores = std::thread::available_parallelism()?.get();
        ensure!(cores >= 2, "{cores} core, 2 are needed: one for the server, one for the load");
        for program in ["taskset", "prlimit", "wrk", "nginx", "haproxy"] {
            ensure!(shell::find(program).is_some(), "{program} is missing: run cargo xtask check");
        }
        machine::raise_open_files()?;
        let folder = shell::root().join("target/bench");
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let weir = match &options.weir {
            Some(path) => path.canonicalize().with_context(|| format!("no {}", path.display()))?,
            None => {
                shell::run_cargo(&["build", "--profile", "dist", "--package", "weir"])?;
                shell::root().join("target/dist/weir")
            }
        };
        // This program contains the constant node. An unoptimised node would saturate the load's
        // core. The server under test would then wait and wake up more often, which costs CPU time.
        shell::run_cargo(&["build", "--release", "--package", "xtask"])?;
        let (repetitions, seconds) = (options.repetitions, options.seconds);
        Ok(Self {
            weir,
            folder,
            repetitions,
            seconds,
            minutes: 0,
            postgres: None,
            stall_case: None,
        })
    }

    /// Returns the gateway under test as a contender, which is a server in a comparison.
    fn weir_contender(
        &self,
        label: &'static str,
        nodes: Vec<SocketAddr>,
        cache: Cache,
    ) -> Contender {
        Contender::Weir { label, program: self.weir.clone(), nodes, cache }
    }
}

/// A case of a benchmark: one or more comparisons with the same setup.
struct Case {
    name: &'static str,
    measure: fn(&Bench) -> Result<Vec<Row>>,
}

/// The cases of `bench gateway`, in running order.
const CASES: &[Case] = &[
    Case { name: "hit", measure: cost::measure_hits },
    Case { name: "miss", measure: cost::measure_misses },
    Case { name: "multiplexed", measure: cost::measure_multiplexed_misses },
    Case { name: "geth", measure: geth::measure_transports },
    Case { name: "limit", measure: limit::measure_request_limit },
    Case { name: "tracing", measure: tracing::count_traced_instructions },
    Case { name: "flat-connections", measure: cost::measure_flat_connections },
    Case { name: "flat-nodes", measure: cost::measure_flat_nodes },
    Case { name: "flat-entries", measure: cost::measure_flat_entries },
    Case { name: "subscribers", measure: subscribers::measure_fan_out },
    Case { name: "memory-idle", measure: memory::measure_idle_connections },
    Case { name: "memory-flow", measure: memory::measure_distinct_calls },
];

/// The cases of `bench load`, in running order; the longest is last.
const LOAD_CASES: &[Case] = &[
    Case { name: "cost", measure: lab::measure_cost },
    Case { name: "punctual", measure: lab::measure_punctuality },
    Case { name: "truth", measure: lab::compare_with_truth },
    Case { name: "same", measure: search::compare_same_node },
    Case { name: "capacity", measure: search::search_known_capacities },
    Case { name: "memory", measure: lab::measure_memory },
];

const OVERLOAD_CASES: &[Case] = &[Case { name: "overload", measure: overload::measure_overload }];

const STALLS_CASES: &[Case] = &[Case { name: "stalls", measure: stalls::measure_stalls }];

const INDEX_CASES: &[Case] = &[
    Case { name: "sync", measure: index::measure_sync },
    Case { name: "query", measure: index::measure_queries },
];

/// Runs a benchmark.
///
/// # Errors
/// Fails if a program cannot run, a round is invalid or a target is not met.
pub(crate) fn run(benchmark: &Benchmark) -> Result<()> {
    match benchmark {
        Benchmark::Gateway { case, options } => {
            run_cases(&Bench::prepare(options)?, "gateway", CASES, case.as_deref())
        }
        Benchmark::Load { case, minutes, options } => {
            ensure!(*minutes >= 2, "minutes is {minutes}, at least 2 are needed");
            let fetched = programs::fetch_generators()?;
            let bench = Bench { minutes: *minutes, ..Bench::prepare(options)? };
            eprintln!("{fetched}");
            run_cases(&bench, "load", LOAD_CASES, case.as_deref())
        }
        Benchmark::Overload { options } => {
            run_cases(&Bench::prepare(options)?, "overload", OVERLOAD_CASES, None)
        }
        Benchmark::Stalls { case, options } => {
            let bench = Bench { stall_case: case.clone(), ..Bench::prepare(options)? };
            run_cases(&bench, "stalls", STALLS_CASES, None)
        }
        Benchmark::Index { case, postgres, options } => {
            let bench = Bench { postgres: postgres.clone(), ..Bench::prepare(options)? };
            run_cases(&bench, "index", INDEX_CASES, case.as_deref())
        }
        Benchmark::Files { weir } => files::run(weir.as_deref()),
        Benchmark::Before { options } => change::save_build(&Bench::prepare(options)?),
        Benchmark::After { options } => change::compare_builds(&Bench::prepare(options)?),
    }
}

/// Runs the cases of one benchmark, prints their table and writes it as JSON. `only` is the name of
/// the only case to run; `None` runs all.
fn run_cases(bench: &Bench, name: &str, cases: &[Case], only: Option<&str>) -> Result<()> {
    let selected: Vec<&Case> =
        cases.iter().filter(|case| only.is_none_or(|only| only == case.name)).collect();
    if selected.is_empty() {
        let names: Vec<&str> = cases.iter().map(|case| case.name).collect();
        bail!("case is {:?}, one of {} is allowed", only.unwrap_or(""), names.join(", "));
    }
    let machine = machine::describe();
    eprintln!("{machine}");
    let json = bench.folder.join(format!("{name}.json"));
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    for case in selected {
        // A case that cannot run must not discard the results of the others.
        match (case.measure)(bench) {
            Ok(measured) => rows.extend(measured),
            Err(error) => {
                eprintln!("{}: {error:#}", case.name);
                failed.push(case.name);
            }
        }
        row::write_json(&rows, &json)?;
    }
    println!("{machine}");
    println!("{} repetitions of {} s", bench.repetitions, bench.seconds);
    print!("{}", row::format_table(&rows));
    println!("written to {}", json.display());
    let missed = rows.iter().filter(|row| !row.met).count();
    ensure!(failed.is_empty(), "not measured: {}", failed.join(", "));
    ensure!(missed == 0, "{missed} of {} rows do not meet their target", rows.len());
    Ok(())
}
