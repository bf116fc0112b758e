//! Measures the CPU cost of tracing for cache hits and misses, as CPU time and as instructions.
//! 1 % of the calls are sampled (traced). The peer is the same gateway without tracing.

use anyhow::Result;

use super::cost::{self, BLOCK_CALL};
use super::instructions::{self, CallKind};
use super::load::{self, Load};
use super::row::{Row, RowSpec};
use super::server::{Contender, Server};
use super::{Bench, CONNECTIONS};
use crate::shell;

/// Seconds of load before every round.
const WARM_SECONDS: u64 = 1;
/// Largest allowed ratio of the cost with tracing to the cost without tracing.
const TARGET: f64 = 1.01;

/// Number of calls whose instructions are counted. About 100 of them are sampled.
const COUNTED_CALLS: u64 = 10_000;

/// Measures hits and misses with and without tracing.
///
/// # Errors
/// Fails if a server, wrk or an installed Valgrind does not run.
pub(crate) fn measure_tracing(bench: &Bench) -> Result<Vec<Row>> {
    let (backend, nodes) = Server::start_backend(1, BLOCK_CALL)?;
    // A constant node serves as the collector. It responds to spans with status 200.
    let (_collector, collectors) = Server::start_backend(1, BLOCK_CALL)?;
    let sampling =
        format!("[tracing]\nendpoint = \"http://{}\"\nsample_ratio = 0.01\n", collectors[0]);
    let contenders = |cache| {
        [("1 % traced", sampling.clone()), ("ourselves, not traced", String::new())].map(
            |(label, extra)| {
                let (program, nodes) = (bench.weir.clone(), nodes.clone());
                Contender::WeirConfigured { label, program, nodes, cache, extra }
            },
        )
    };
    let hits = cost::interleave(bench, "hit, traced", &contenders(true), |contender| {
        let server = Server::start(contender, BLOCK_CALL)?;
        let load = Load::Constant(BLOCK_CALL.to_owned());
        load::run(server.address, &load, CONNECTIONS, WARM_SECONDS)?;
        let problem = cost::check_hit(contender, &server, BLOCK_CALL)?;
        let round = load::measure_round(&server, &load, CONNECTIONS, bench.seconds)?;
        Ok((round, Vec::from_iter(problem)))
    })?;
    let misses = cost::interleave(bench, "miss, traced", &contenders(false), |contender| {
        let server = Server::start(contender, BLOCK_CALL)?;
        cost::measure_miss_round(bench, &server, &backend)
    })?;
    let mut rows = cost::build_rows("hit, 1 % traced", &hits, &[Some(TARGET)]);
    rows.extend(cost::build_rows("miss, 1 % traced", &misses, &[Some(TARGET)]));
    if shell::find("valgrind").is_none() {
        eprintln!("valgrind is missing, so no instructions are counted");
        return Ok(rows);
    }
    for (case, kind) in [("hit, 1 % traced", CallKind::Hit), ("miss, 1 % traced", CallKind::Miss)] {
        let count = |tables| {
            eprintln!("counting instructions of a {}", kind.as_str());
            instructions::count_instructions(&bench.weir, kind, COUNTED_CALLS, tables)
        };
        // No target: under Valgrind calls are slow, so that far fewer spans share a message to the
        // collector than under load.
        let spec = RowSpec {
            case,
            unit: "instructions/request",
            peer: "ourselves, not traced",
            target: None,
        };
        rows.push(Row::compare(&spec, &[count(&sampling)?], &[count("")?], Vec::new()));
    }
    Ok(rows)
}
