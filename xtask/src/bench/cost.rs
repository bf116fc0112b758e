//! Measures the CPU time per request of cache hits and of misses, and its growth with connections,
//! nodes and cache entries.
//!
//! A *contender* is a server in a comparison: Weir or a peer. A case measures its contenders in
//! turn (A B C A B C …), so that a machine that slows down affects all of them. Each A B C is a
//! *repetition*, and ratios are computed within it. A *target* is the largest allowed ratio of our
//! cost to a peer's.

use anyhow::{Context, Result, ensure};

use super::http::{self, Connection};
use super::load::{self, COUNTER_FIRST, Load, transaction_count_call};
use super::row::{Row, RowSpec};
use super::server::{Cache, Contender, Server};
use super::{Bench, CONNECTIONS};

/// Requests a block without transactions, far below the finalized one. The response has 1.6 kB.
pub(crate) const BLOCK_CALL: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"eth_getBlockByNumber","params":["0x10d4f",false]}"#;
/// Seconds of load before every round. This load fills pools and caches and enlarges the kernel's
/// buffers.
const WARM_SECONDS: u64 = 1;
/// Calls in one batch that fills the cache.
const WARM_BATCH: u64 = 500;
/// Cache size that holds 10^6 small responses with their keys.
const BIG_CACHE_BYTES: u64 = 2 << 30;
/// Minimum share of requests that reach the node in a round of misses. It is below 1 because some
/// requests are in flight when wrk stops.
const MISS_SHARE_MIN: f64 = 0.99;
/// Factor on the duration of a round in which wrk opens 5,000 connections. Accepting a connection
/// takes about 70 us (measured). In the longer round, all accepts together take less than 5 % of
/// the CPU time.
const CONNECT_FACTOR: u64 = 3;
const UNIT: &str = "CPU us/request";

/// The figures of one contender over all repetitions.
#[derive(Clone)]
pub(crate) struct Figures {
    name: &'static str,
    /// Cost in each repetition, for example in CPU microseconds per request.
    costs: Vec<f64>,
    /// Reasons why rounds are invalid.
    problems: Vec<String>,
}

/// Measures a cache hit against nginx with a constant response and against nginx's cache.
///
/// # Errors
/// Fails if a server or wrk does not run.
pub(crate) fn measure_hits(bench: &Bench) -> Result<Vec<Row>> {
    let (backend, nodes) = Server::start_backend(1, BLOCK_CALL)?;
    let response = String::from_utf8(http::post(backend.address, BLOCK_CALL)?.body)?;
    let load = Load::Constant(BLOCK_CALL.to_owned());
    let contenders = [
        bench.weir_contender("weir", nodes.clone(), Cache::Default),
        Contender::NginxReturn { response: response.clone() },
        Contender::NginxCache { node: nodes[0] },
    ];
    let figures = interleave(bench, "hit", &contenders, |contender| {
        let server = Server::start(contender, BLOCK_CALL)?;
        let mut problems = check_response(&server, &response)?;
        load::run(server.address, &load, CONNECTIONS, WARM_SECONDS)?;
        problems.extend(check_hit(contender, &server, BLOCK_CALL)?);
        let round = load::measure_round(&server, &load, CONNECTIONS, bench.seconds)?;
        Ok((round, problems))
    })?;
    let (target_for_return, target_for_cache) = (Some(1.15), Some(0.75));
    Ok(build_rows("hit", &figures, &[target_for_return, target_for_cache]))
}

/// Measures a miss, with our cache off, against two proxies.
///
/// # Errors
/// Fails if a server or wrk does not run.
pub(crate) fn measure_misses(bench: &Bench) -> Result<Vec<Row>> {
    let (backend, nodes) = Server::start_backend(1, BLOCK_CALL)?;
    let contenders = [
        bench.weir_contender("weir --no-cache", nodes.clone(), Cache::Off),
        Contender::NginxProxy { node: nodes[0] },
        Contender::Haproxy { node: nodes[0] },
    ];
    let figures = interleave(bench, "miss", &contenders, |contender| {
        let server = Server::start(contender, BLOCK_CALL)?;
        measure_miss_round(bench, &server, &backend)
    })?;
    let (target_for_nginx, target_for_haproxy) = (Some(1.0), Some(1.0));
    Ok(build_rows("miss", &figures, &[target_for_nginx, target_for_haproxy]))
}

/// Measures a miss over one WebSocket that carries all calls, against two proxies over pooled
/// HTTP/1.1. The gateway over HTTP is measured too, to show the benefit of the WebSocket.
///
/// # Errors
/// Fails if a server or wrk does not run.
pub(crate) fn measure_multiplexed_misses(bench: &Bench) -> Result<Vec<Row>> {
    let (backend, nodes) = Server::start_backend(1, BLOCK_CALL)?;
    let contenders = [
        Contender::WeirUncached {
            label: "weir by websocket",
            program: bench.weir.clone(),
            url: format!("ws://{}", nodes[0]),
        },
        Contender::NginxProxy { node: nodes[0] },
        Contender::Haproxy { node: nodes[0] },
        bench.weir_contender("weir by http", nodes.clone(), Cache::Off),
        Contender::WeirConfigured {
            label: "weir by http in batches",
            program: bench.weir.clone(),
            nodes: nodes.clone(),
            cache: false,
            // Keys of `[[upstream]]`, the last table of the configuration.
            extra: "batch_calls_max = 64\nbatch_wait = \"0ms\"".to_owned(),
        },
    ];
    let figures = interleave(bench, "multiplexed", &contenders, |contender| {
        let server = Server::start(contender, BLOCK_CALL)?;
        measure_miss_round(bench, &server, &backend)
    })?;
    let [websocket, nginx, haproxy, http, batches] = figures.as_slice() else {
        return Ok(Vec::new());
    };
    let by_websocket = [websocket, nginx, haproxy, http].map(Figures::clone);
    let in_batches = [batches, nginx, haproxy, http].map(Figures::clone);
    // Only the comparisons of the WebSocket with the two proxies have a target.
    let targets = [Some(0.6), Some(0.6), None];
    let mut all_rows = build_rows("miss, by websocket", &by_websocket, &targets);
    all_rows.extend(build_rows("miss, by http in batches", &in_batches, &[None, None, None]));
    Ok(all_rows)
}

/// Measures a round of misses and checks that they reach the node.
///
/// # Errors
/// Fails if wrk does not run or a server does not respond.
pub(crate) fn measure_miss_round(
    bench: &Bench,
    server: &Server,
    backend: &Server,
) -> Result<MeasuredRound> {
    let response = String::from_utf8(http::post(backend.address, BLOCK_CALL)?.body)?;
    let load = Load::Constant(BLOCK_CALL.to_owned());
    let mut problems = check_response(server, &response)?;
    load::run(server.address, &load, CONNECTIONS, WARM_SECONDS)?;
    let before = count_served(backend)?;
    let round = load::measure_round(server, &load, CONNECTIONS, bench.seconds)?;
    let share = (count_served(backend)? - before) as f64 / round.summary.requests as f64;
    if share < MISS_SHARE_MIN {
        problems.push(format!("only {:.1} % of the requests reached the node", share * 100.0));
    }
    Ok((round, problems))
}

/// Measures the same hit over few and over many connections. The cost is *flat* if it hardly grows
/// with the number of connections.
///
/// # Errors
/// Fails if a server or wrk does not run.
pub(crate) fn measure_flat_connections(bench: &Bench) -> Result<Vec<Row>> {
    let (backend, nodes) = Server::start_backend(1, BLOCK_CALL)?;
    let response = String::from_utf8(http::post(backend.address, BLOCK_CALL)?.body)?;
    let load = Load::Constant(BLOCK_CALL.to_owned());
    let contender = bench.weir_contender("weir", nodes, Cache::Bytes(64 << 20));
    let variants = [
        Variant { label: "5,000 connections", value: 5_000 },
        Variant { label: "ourselves, 10 connections", value: 10 },
    ];
    let figures = interleave(bench, "flat connections", &variants, |variant| {
        let connections = variant.value;
        let server = Server::start(&contender, BLOCK_CALL)?;
        let mut problems = check_response(&server, &response)?;
        load::run(server.address, &load, connections, WARM_SECONDS)?;
        problems.extend(check_hit(&contender, &server, BLOCK_CALL)?);
        let seconds = bench.seconds * CONNECT_FACTOR;
        Ok((load::measure_round(&server, &load, connections, seconds)?, problems))
    })?;
    Ok(build_rows("hit, 5,000 connections", &figures, &[Some(1.5)]))
}

/// Measures the same miss with few and with many upstream nodes.
///
/// # Errors
/// Fails if a server or wrk does not run.
pub(crate) fn measure_flat_nodes(bench: &Bench) -> Result<Vec<Row>> {
    let (backend, nodes) = Server::start_backend(64, BLOCK_CALL)?;
    let variants = [
        Variant { label: "64 nodes", value: 64 },
        Variant { label: "ourselves, 2 nodes", value: 2 },
    ];
    let figures = interleave(bench, "flat nodes", &variants, |variant| {
        let contender =
            bench.weir_contender("weir --no-cache", nodes[..variant.value].to_vec(), Cache::Off);
        let server = Server::start(&contender, BLOCK_CALL)?;
        measure_miss_round(bench, &server, &backend)
    })?;
    Ok(build_rows("miss, 64 nodes", &figures, &[Some(1.5)]))
}

/// Measures hits with few and with many cached responses. Both gateways keep running, because
/// filling the large cache takes longer than all rounds. Only one gateway is under load at a time.
///
/// # Errors
/// Fails if a server or wrk does not run.
pub(crate) fn measure_flat_entries(bench: &Bench) -> Result<Vec<Row>> {
    let counts = [("10^6 entries", 1_000_000), ("ourselves, 10^3 entries", 1_000)];
    let (_backend, nodes) = Server::start_backend(1, BLOCK_CALL)?;
    let contender = bench.weir_contender("weir", nodes, Cache::Bytes(BIG_CACHE_BYTES));
    let mut servers = Vec::new();
    for (label, count) in counts {
        let server = Server::start(&contender, BLOCK_CALL)?;
        eprintln!("flat entries: filling {label}");
        fill(&server, count)?;
        servers.push(Variant { label, value: (server, count) });
    }
    let contender = &contender;
    let figures = interleave(bench, "flat entries", &servers, |variant| {
        let (server, count) = &variant.value;
        let load = Load::Counter { first: COUNTER_FIRST, count: *count };
        load::run(server.address, &load, CONNECTIONS, WARM_SECONDS)?;
        let mut problems = Vec::new();
        // Checks that responses from the start to the end of the filled range are in the cache.
        for sample in [0, count / 3, count / 2, count - 1] {
            problems.extend(check_hit(
                contender,
                server,
                &transaction_count_call(COUNTER_FIRST + sample),
            )?);
        }
        Ok((load::measure_round(server, &load, CONNECTIONS, bench.seconds)?, problems))
    })?;
    Ok(build_rows("hit, 10^6 entries", &figures, &[Some(1.5)]))
}

/// Fills the cache with `count` distinct responses.
fn fill(server: &Server, count: u64) -> Result<()> {
    let mut connection = Connection::open(server.address)?;
    let mut next = COUNTER_FIRST;
    let end = COUNTER_FIRST + count;
    while next < end {
        let batch_end = end.min(next + WARM_BATCH);
        let calls: Vec<String> = (next..batch_end).map(transaction_count_call).collect();
        let reply = connection.post(&format!("[{}]", calls.join(",")))?;
        let errors = String::from_utf8_lossy(&reply.body).contains("\"error\"");
        ensure!(
            reply.status == 200 && !errors,
            "a batch that fills the cache failed: {}",
            reply.head
        );
        next = batch_end;
    }
    Ok(())
}

/// A subject of measurements with a label for tables: a server, a generator, or a variant of the
/// gateway.
pub(crate) trait Labeled {
    fn label(&self) -> &'static str;
}

impl Labeled for Contender {
    fn label(&self) -> &'static str {
        self.name()
    }
}

/// A variant of the gateway's setup, such as its number of nodes.
pub(crate) struct Variant<T> {
    pub(crate) label: &'static str,
    pub(crate) value: T,
}

impl<T> Labeled for Variant<T> {
    fn label(&self) -> &'static str {
        self.label
    }
}

/// Runs one round of every subject per repetition and collects costs and problems per subject.
pub(crate) fn interleave<T: Labeled>(
    bench: &Bench,
    case: &str,
    subjects: &[T],
    measure: impl Fn(&T) -> Result<MeasuredRound>,
) -> Result<Vec<Figures>> {
    let mut figures: Vec<Figures> = subjects
        .iter()
        .map(|subject| Figures { name: subject.label(), costs: Vec::new(), problems: Vec::new() })
        .collect();
    for repetition in 1..=bench.repetitions {
        for (subject, figure) in subjects.iter().zip(&mut figures) {
            let (round, problems) = retry_disturbed(|| measure(subject))?;
            eprintln!(
                "{case} {repetition}/{}: {:<24} {:>7.2} us, {:>7.0}/s, {:>3.0} % of its core",
                bench.repetitions,
                figure.name,
                round.cpu_us_per_request(),
                round.requests_per_second(),
                round.core_share() * 100.0
            );
            figure.costs.push(round.cpu_us_per_request());
            figure.problems.extend(problems.into_iter().chain(round.find_problems()));
        }
    }
    Ok(figures)
}

/// The figures of a round, and the problems that make it invalid. A valid round has no problem.
pub(crate) type MeasuredRound = (load::Round, Vec<String>);

/// Maximum number of attempts at a round while other processes disturb the core. The result of the
/// last attempt counts. If that attempt was disturbed too, it is reported as disturbed.
const ATTEMPTS_MAX: usize = 4;

/// Measures a round, and repeats it while other processes disturb the core.
fn retry_disturbed(measure: impl Fn() -> Result<MeasuredRound>) -> Result<MeasuredRound> {
    let (mut round, mut problems) = measure()?;
    for _ in 1..ATTEMPTS_MAX {
        if !round.is_disturbed() {
            break;
        }
        (round, problems) = measure()?;
    }
    Ok((round, problems))
}

/// Builds a row for each comparison of the first contender with another one. `targets` has the
/// largest allowed ratio of each row, in order. `None` means that the row has no target.
pub(crate) fn build_rows(case: &str, figures: &[Figures], targets: &[Option<f64>]) -> Vec<Row> {
    let Some((ours, peers)) = figures.split_first() else { return Vec::new() };
    let with_targets = peers.iter().zip(targets);
    with_targets
        .map(|(theirs, target)| {
            let problems = [ours, theirs]
                .iter()
                .flat_map(|figure| figure.problems.iter().map(|problem| (figure.name, problem)))
                .map(|(name, problem)| format!("{name}: {problem}"))
                .collect();
            let row_spec = RowSpec { case, unit: UNIT, peer: theirs.name, target: *target };
            Row::compare(&row_spec, &ours.costs, &theirs.costs, problems)
        })
        .collect()
}

/// The costs of one case with two builds of Weir, in CPU microseconds per request, by repetition.
pub(crate) struct Builds {
    pub(crate) case: &'static str,
    pub(crate) before: Vec<f64>,
    pub(crate) after: Vec<f64>,
}

/// Measures a hit and a miss with two builds: `old` has the build before a change, `bench` the
/// build after it.
///
/// # Errors
/// Fails if a server or wrk does not run.
pub(crate) fn measure_builds(bench: &Bench, old: &Bench) -> Result<Vec<Builds>> {
    let (backend, nodes) = Server::start_backend(1, BLOCK_CALL)?;
    let load = Load::Constant(BLOCK_CALL.to_owned());
    let builds = |cache| {
        [
            old.weir_contender("before", nodes.clone(), cache),
            bench.weir_contender("after", nodes.clone(), cache),
        ]
    };
    let hits = interleave(bench, "hit", &builds(Cache::Default), |contender| {
        let server = Server::start(contender, BLOCK_CALL)?;
        load::run(server.address, &load, CONNECTIONS, WARM_SECONDS)?;
        let problems = check_hit(contender, &server, BLOCK_CALL)?.into_iter().collect();
        Ok((load::measure_round(&server, &load, CONNECTIONS, bench.seconds)?, problems))
    })?;
    let misses = interleave(bench, "miss", &builds(Cache::Off), |contender| {
        let server = Server::start(contender, BLOCK_CALL)?;
        measure_miss_round(bench, &server, &backend)
    })?;
    let mut pairs = Vec::new();
    for (case, figures) in [("hit", hits), ("miss", misses)] {
        let problems: Vec<&String> = figures.iter().flat_map(|figure| &figure.problems).collect();
        ensure!(problems.is_empty(), "{case} is invalid: {problems:?}");
        let mut costs = figures.into_iter().map(|figure| figure.costs);
        let (before, after) = (costs.next(), costs.next());
        let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
        pairs.push(Builds { case, before, after });
    }
    Ok(pairs)
}

/// Returns the number of calls that the constant node has served so far.
pub(crate) fn count_served(backend: &Server) -> Result<u64> {
    let call =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, crate::backend::SERVED_METHOD);
    let reply: serde_json::Value =
        serde_json::from_slice(&http::post(backend.address, &call)?.body)?;
    reply["result"].as_u64().with_context(|| format!("the constant node responds {reply}"))
}

/// Returns a problem if the response of `server` to [`BLOCK_CALL`] differs from `response`.
fn check_response(server: &Server, response: &str) -> Result<Vec<String>> {
    let reply = http::post(server.address, BLOCK_CALL)?;
    if reply.body == response.as_bytes() {
        return Ok(Vec::new());
    }
    let start = String::from_utf8_lossy(&reply.body).chars().take(120).collect::<String>();
    Ok(vec![format!("the response differs from the node's: {start}")])
}

/// Returns a problem if the server reports that `call` is not a cache hit. Returns `None` for a
/// hit, and for a contender that does not report hits in a header.
///
/// # Errors
/// Fails if the server does not respond.
pub(crate) fn check_hit(
    contender: &Contender,
    server: &Server,
    call: &str,
) -> Result<Option<String>> {
    let Some((name, value)) = contender.cache_hit_header() else { return Ok(None) };
    let reply = http::post(server.address, call)?;
    let actual = reply.header(name).unwrap_or("nothing");
    Ok((actual != value).then(|| format!("{name} is {actual}, {value} was expected")))
}
