//! Measures the CPU cost of request limits: cache hits under a limit with 10^6 keys, against the
//! same hits without a limit. The limit counts calls by key, and a *zone* stores the counts.
//! Successive calls have different keys.
//!
//! Both gateways keep running, because filling the zone takes longer than all rounds. Only one
//! gateway is under load at a time. The limit rejects no call, so both gateways send the same
//! responses.

use anyhow::{Result, ensure};

use super::cost::{self, BLOCK_CALL, MeasuredRound, Variant};
use super::load::{self, Load};
use super::row::Row;
use super::server::{Contender, Server};
use super::{Bench, CONNECTIONS};

/// Number of keys in the zone.
const KEYS: u64 = 1_000_000;
/// A zone whose keys are values of a header, with a rate that no key exceeds.
const LIMIT: &str = "\
[zone.keys]
key = [\"header:x-key\"]
rate = \"1000r/s\"
bytes = \"64MiB\"

[[limit]]
zone = \"keys\"
burst = 1000
nodelay = true
";
/// Seconds of load before every round.
const WARM_SECONDS: u64 = 1;
/// Seconds of one run that fills the zone.
const FILL_SECONDS: u64 = 5;
/// Maximum number of runs that fill the zone.
const FILLS_MAX: u64 = 60;

/// Measures a hit under a limit against the same hit without one.
///
/// # Errors
/// Fails if a server or wrk does not run.
pub(crate) fn measure_request_limit(bench: &Bench) -> Result<Vec<Row>> {
    let (_backend, nodes) = Server::start_backend(1, BLOCK_CALL)?;
    let load = Load::Keyed { body: BLOCK_CALL.to_owned(), count: KEYS };
    let mut variants = Vec::new();
    for (label, extra) in [("limited, 10^6 keys", LIMIT), ("ourselves, no limit", "")] {
        let program = bench.weir.clone();
        let (nodes, extra) = (nodes.clone(), extra.to_owned());
        let contender = Contender::WeirConfigured { label, program, nodes, cache: true, extra };
        variants.push(Variant { label, value: Server::start(&contender, BLOCK_CALL)? });
    }
    eprintln!("limit: filling the zone");
    let mut sent = 0;
    for _ in 0..FILLS_MAX {
        // Each run starts at another key, so all runs together send nearly all keys.
        sent += load::run(variants[0].value.address, &load, CONNECTIONS, FILL_SECONDS)?.requests;
        if sent >= 2 * KEYS {
            break;
        }
    }
    ensure!(sent >= 2 * KEYS, "only {sent} requests in {} s", FILLS_MAX * FILL_SECONDS);
    let figures =
        cost::interleave(bench, "limit", &variants, |variant| -> Result<MeasuredRound> {
            load::run(variant.value.address, &load, CONNECTIONS, WARM_SECONDS)?;
            Ok((
                load::measure_round(&variant.value, &load, CONNECTIONS, bench.seconds)?,
                Vec::new(),
            ))
        })?;
    // Largest allowed ratio of the cost with the limit to the cost without it.
    let target = Some(1.03);
    Ok(cost::build_rows("hit under a limit", &figures, &[target]))
}
