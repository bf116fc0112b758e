//! Counts the instructions that tracing adds to cache hits and misses. 1 % of the calls are sampled
//! (traced). The peer is the same gateway without tracing. `studies/bench/tracing.toml` compares
//! the CPU time.

use anyhow::{Result, ensure};

use super::Bench;
use super::cost::BLOCK_CALL;
use super::instructions::{self, CallKind};
use super::row::{Row, RowSpec};
use super::server::Server;
use crate::shell;

/// Number of calls whose instructions are counted. About 100 of them are sampled.
const COUNTED_CALLS: u64 = 10_000;

/// Counts the instructions of hits and misses with and without tracing.
///
/// # Errors
/// Fails if Valgrind is missing or a server does not run.
pub(crate) fn count_traced_instructions(bench: &Bench) -> Result<Vec<Row>> {
    ensure!(shell::find("valgrind").is_some(), "valgrind is missing: it counts the instructions");
    // A constant node serves as the collector. It responds to spans with status 200.
    let (_collector, collectors) = Server::start_backend(1, BLOCK_CALL)?;
    let sampling =
        format!("[tracing]\nendpoint = \"http://{}\"\nsample_ratio = 0.01\n", collectors[0]);
    let mut rows = Vec::new();
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
