//! What a gateway adds to a call's latency while it is half busy: ours beside nginx, and the node
//! alone.

use std::process::Stdio;

use anyhow::{Context, Result};
use serde_json::Value;

use super::cost::BLOCK_CALL;
use super::load::{self, Load};
use super::row::{Row, Subject};
use super::server::{Cache, Contender, LOAD_CORE, Server, pinned};
use super::{Bench, CONNECTIONS};

/// Of its capacity, what the gateway is asked for.
const SHARE: f64 = 0.5;
/// Less than this is nothing.
const RESOLUTION_MS: f64 = 0.001;
/// A turn lasts so many times `--seconds`, for the sake of the 99th percentile.
const FACTOR: u64 = 2;

/// Median and 99th percentile of one turn, milliseconds from sending to the end of the answer.
struct Times {
    p50: f64,
    p99: f64,
    /// Why the generator does not vouch for it; none where it does.
    doubt: Option<String>,
}

/// Latency added at half of the gateway's capacity, by HTTP and by WebSocket, against nginx.
///
/// # Errors
/// If a server or the generator does not run.
pub(crate) fn latency(bench: &Bench) -> Result<Vec<Row>> {
    let (_backend, nodes) = Server::start_backend(1, BLOCK_CALL)?;
    let ours = bench.weir("weir by http", nodes.clone(), Cache::Off);
    let rate = half_of_capacity(&ours)?;
    bench.say(&format!("latency: {rate:.0}/s, half of what the gateway holds by http"));
    let contenders = [
        ours,
        Contender::WeirBefore {
            label: "weir by websocket",
            program: bench.weir.clone(),
            url: format!("ws://{}", nodes[0]),
        },
        Contender::NginxProxy { node: nodes[0] },
    ];
    let mut times: [Vec<Times>; 3] = Default::default();
    for repetition in 1..=bench.repetitions {
        let alone = generate(bench, &format!("http://{}", nodes[0]), rate)?;
        for (contender, own) in contenders.iter().zip(&mut times) {
            let server = Server::start(contender, BLOCK_CALL)?;
            let through = generate(bench, &format!("http://{}", server.address), rate)?;
            let p99 = (through.p99 - alone.p99).max(RESOLUTION_MS);
            let doubt = alone.doubt.clone().or(through.doubt);
            let added = Times { p50: through.p50 - alone.p50, p99, doubt };
            bench.say(&format!(
                "latency {repetition}/{}: {:<18} adds {:.3} ms at the median, {:.3} ms at p99",
                bench.repetitions,
                contender.name(),
                added.p50,
                added.p99
            ));
            own.push(added);
        }
    }
    let [http, websocket, nginx] = times;
    let mut rows = Vec::new();
    for (ours, name) in [(&http, "by http"), (&websocket, "by websocket")] {
        type Pick = fn(&Times) -> f64;
        let figures: [(&str, Pick); 2] = [("p50", |times| times.p50), ("p99", |times| times.p99)];
        for (which, pick) in figures {
            let case = format!("{which} added at half of the capacity, node {name}");
            let peer = "nginx proxy_pass";
            let subject = Subject { case: &case, unit: "ms", peer, bar: Some(1.0) };
            let of = |times: &[Times]| times.iter().map(pick).collect::<Vec<f64>>();
            let doubts = ours.iter().chain(&nginx).filter_map(|times| times.doubt.clone());
            let doubts = doubts.take(1).collect();
            rows.push(Row::of(&subject, &of(ours), &of(&nginx), doubts));
        }
    }
    Ok(rows)
}

/// Half of the calls per second that would fill the server's core.
fn half_of_capacity(contender: &Contender) -> Result<f64> {
    let server = Server::start(contender, BLOCK_CALL)?;
    let load = Load::Constant(BLOCK_CALL.to_owned());
    load::run(server.address, &load, CONNECTIONS, 1)?;
    let turn = load::turn(&server, &load, CONNECTIONS, 3)?;
    Ok(SHARE * 1e6 / turn.cost())
}

/// Sends calls at a rate, whatever the server does, and says how long they took.
fn generate(bench: &Bench, url: &str, rate: f64) -> Result<Times> {
    let mut command = pinned(LOAD_CORE);
    command.arg(&bench.weir).args(["load", url, "--json", "-", "--quiet", "--body", BLOCK_CALL]);
    command.args(["--rate", &format!("{rate:.0}"), "--warmup", "1s"]);
    command.args(["--duration", &format!("{}s", bench.seconds * FACTOR + 1)]);
    let output = command.stdin(Stdio::null()).output().context("cannot run weir load")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let result: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("weir load has no result: {said}"))?;
    let overall = &result["overall"];
    let outcome = &result["verdict"]["outcome"];
    let doubt = (outcome != "pass").then(|| {
        let failed = overall["failed_share"].as_f64().unwrap_or_default() * 100.0;
        format!("weir load says {outcome}, and {failed:.2} % of its calls failed")
    });
    let service = |name: &str| overall["service"][name].as_f64().context("no service time");
    Ok(Times { p50: service("p50_ms")?, p99: service("p99_ms")?, doubt })
}
