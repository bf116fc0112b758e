//! `weir check --connect`: asks all upstreams and the other servers of a configuration whether the
//! gateway can use them.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gateway::config::Config;
use gateway::config::chain::Chain;
use gateway::config::upstream::Upstream;
use index::store::{Location, Settings, StoreError, open_to_read};
use lab::capabilities::{Capabilities, MeasuredNode, Options, measure};
use lab_model::plan::Tls;
use settings::url::{NodeUrl, Transport};
use settings::value::Database;

use crate::nodes::{
    COLUMNS, Job, build_target, count_behind, describe_node, format_table, run_all,
};

/// Longest time of the check of one server.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of one call. The last call starts at least this long before [`CHECK_TIMEOUT`].
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout of a query to the database of the index.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// The result of a check of one server.
enum Outcome {
    /// An upstream. The error is the reason why it cannot be used, or was not checked.
    Upstream(Result<Capabilities, Problem>),
    /// Another server, with a description of its state. The error is the reason why it cannot be
    /// used.
    Other(Result<String, String>),
}

/// What is wrong with a server.
#[derive(Clone)]
struct Problem {
    /// True if the gateway cannot use the server.
    is_error: bool,
    text: String,
}

/// A server other than an upstream, as printed.
struct OtherServer {
    name: &'static str,
    address: String,
}

/// Asks all servers of a configuration and prints what they are and what is wrong. `folder` is the
/// folder of the configuration file. Returns true if the gateway can use all of them.
pub(super) fn check(config: &Config, folder: &Path) -> bool {
    let mut jobs: Vec<Job<Outcome>> = Vec::new();
    for upstream in &config.upstreams {
        let name = Arc::clone(&upstream.name);
        let node = to_node(config, upstream, folder);
        let options = Options {
            call_timeout: CALL_TIMEOUT,
            duration_max: CHECK_TIMEOUT.saturating_sub(CALL_TIMEOUT),
            sizes: false,
        };
        jobs.push(Box::new(move || {
            let to_problem = |reason: String| Problem::of_upstream(&name, &reason);
            Outcome::Upstream(node.and_then(|node| measure(&node, &options).map_err(to_problem)))
        }));
    }
    let others = add_other_servers(config, &mut jobs);
    let mut outcomes = run_all(jobs, CHECK_TIMEOUT).into_iter();
    let no_outcome = || format!("no result within {CHECK_TIMEOUT:?}");
    let mut upstreams: Vec<Result<Capabilities, Problem>> = Vec::new();
    for (upstream, outcome) in config.upstreams.iter().zip(outcomes.by_ref()) {
        upstreams.push(match outcome {
            Some(Outcome::Upstream(result)) => result,
            _ => Err(Problem::of_upstream(&upstream.name, &no_outcome())),
        });
    }
    let mut problems = Vec::new();
    print!("\n{}", describe_upstreams(config, &upstreams, &mut problems));
    for (server, outcome) in others.iter().zip(outcomes) {
        let OtherServer { name, address } = server;
        match outcome {
            Some(Outcome::Other(Ok(state))) => println!("{name} {address}: {state}"),
            Some(Outcome::Other(Err(reason))) => {
                problems.push(Problem::error(format!("{name} {address}: {reason}")));
            }
            _ => problems.push(Problem::error(format!("{name} {address}: {}", no_outcome()))),
        }
    }
    for Problem { is_error, text } in &problems {
        println!("{}: {text}", if *is_error { "error" } else { "warning" });
    }
    !problems.iter().any(|problem| problem.is_error)
}

impl Problem {
    fn error(text: String) -> Problem {
        Problem { is_error: true, text }
    }

    /// Returns the problem of an upstream that cannot be used.
    fn of_upstream(name: &str, reason: &str) -> Problem {
        Problem::error(format!("upstream {name}: {reason}"))
    }

    fn warning(text: String) -> Problem {
        Problem { is_error: false, text }
    }
}

/// Converts an upstream to a node of a measurement. The error is the reason why it cannot be used,
/// or a warning that it is not checked.
fn to_node(config: &Config, upstream: &Upstream, folder: &Path) -> Result<MeasuredNode, Problem> {
    let name = &upstream.name;
    if upstream.tls_server_name.is_some() {
        return Err(Problem::warning(format!(
            "upstream {name}: not checked, because --connect does not support tls_server_name"
        )));
    }
    if upstream.url.transport() == Transport::Ipc {
        return Err(match UnixStream::connect(upstream.url.target()) {
            Ok(_) => Problem::warning(format!(
                "upstream {name}: the socket accepts connections, but --connect sends no calls to it"
            )),
            Err(error) => {
                Problem::of_upstream(name, &format!("cannot connect to the socket: {error}"))
            }
        });
    }
    let family = Some(config.chains[upstream.chain].family);
    let headers: Vec<(String, String)> = upstream
        .headers
        .iter()
        .map(|(name, value)| {
            (name.as_str().to_owned(), value.to_str().unwrap_or_default().to_owned())
        })
        .collect();
    let target = |url: &NodeUrl| build_target(url, family, headers.clone(), CALL_TIMEOUT);
    let websocket = match (&upstream.ws_url, upstream.url.transport()) {
        (Some(url), _) if url.transport() == Transport::WebSocket => Some(target(url)),
        (_, Transport::WebSocket) => Some(target(&upstream.url)),
        _ => None,
    };
    let tls = Tls {
        insecure: !upstream.tls_verify,
        ca: upstream.tls_ca.as_ref().map(|file| folder.join(file)),
        ..Tls::default()
    };
    Ok(MeasuredNode { target: target(&upstream.url), websocket, tls })
}

/// Adds a job for each configured server that is not an upstream. Returns the servers in the same
/// order.
fn add_other_servers(config: &Config, jobs: &mut Vec<Job<Outcome>>) -> Vec<OtherServer> {
    let mut servers = Vec::new();
    if let Some(redis) = config.redis.clone() {
        servers.push(OtherServer { name: "redis", address: redis.url.to_string() });
        jobs.push(Box::new(move || Outcome::Other(check_redis(&redis))));
    }
    if let Some(index) = &config.index
        && let Database::Url(url) = &index.db
    {
        servers.push(OtherServer { name: "index", address: url.to_string() });
        let (database, follow) = (index.db.clone(), index.follow);
        jobs.push(Box::new(move || Outcome::Other(check_database(&database, follow))));
    }
    if let Some(tracing) = config.tracing.clone() {
        servers.push(OtherServer { name: "collector", address: tracing.endpoint.to_string() });
        jobs.push(Box::new(move || {
            let checked = gateway::check_collector(&tracing);
            Outcome::Other(checked.map(|()| "it accepts spans".to_owned()))
        }));
    }
    servers
}

fn check_redis(redis: &gateway::config::redis::Redis) -> Result<String, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let round_trip = runtime.block_on(gateway::check_redis(redis))?;
    let (ms, timeout) = (round_trip.as_secs_f64() * 1000.0, redis.timeout);
    match round_trip > timeout {
        true => Err(format!(
            "a read takes {ms:.1} ms, and redis.timeout is {timeout:?}, so calls would not wait for it"
        )),
        false => Ok(format!("a read takes {ms:.1} ms")),
    }
}

/// Opens the database of an index to read. If `follow` is true, the gateway creates a missing index.
fn check_database(database: &Database, follow: bool) -> Result<String, String> {
    let location = Location::new(database)?.with_password_of_environment();
    let settings = Settings { query_timeout: QUERY_TIMEOUT, ..Settings::default() };
    match open_to_read(location, settings) {
        Ok(_) => Ok("it has an index".to_owned()),
        Err(StoreError::Missing(_)) if follow => Ok("weir serve creates the index".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Describes the upstreams in a table with one line each, and adds their problems.
fn describe_upstreams(
    config: &Config,
    results: &[Result<Capabilities, Problem>],
    problems: &mut Vec<Problem>,
) -> String {
    let header = ["UPSTREAM", "CHAIN"].into_iter().chain(COLUMNS);
    let mut rows: Vec<Vec<String>> = vec![header.map(str::to_owned).collect()];
    for chain in &config.chains {
        let nodes: Vec<Option<&Capabilities>> =
            chain.upstreams.iter().map(|&upstream| results[upstream].as_ref().ok()).collect();
        let expected_id = chain.id.or_else(|| find_usual_id(&nodes));
        // The head of a node of another chain is not comparable.
        let is_of_chain = |node: &Capabilities| {
            node.chain_id
                .as_ref()
                .ok()
                .zip(expected_id)
                .is_none_or(|(id, expected)| *id == expected)
        };
        let head = |node: &Option<&Capabilities>| {
            node.filter(|node| is_of_chain(node)).and_then(|node| node.head.clone().ok())
        };
        let behind = count_behind(&nodes.iter().map(head).collect::<Vec<_>>());
        for (position, &upstream) in chain.upstreams.iter().enumerate() {
            let name = &config.upstreams[upstream].name;
            let mut row = vec![name.to_string(), chain.name.to_string()];
            match &results[upstream] {
                Ok(node) => {
                    row.extend(describe_node(node, behind[position]));
                    let found = find_problems(name, chain, expected_id, node, behind[position]);
                    problems.extend(found);
                }
                Err(problem) => {
                    row.extend(COLUMNS.map(|_| "-".to_owned()));
                    problems.push(problem.clone());
                }
            }
            rows.push(row);
        }
    }
    format_table(&rows)
}

/// Returns the chain id that most of the nodes have; the first one if several are equally frequent.
fn find_usual_id(nodes: &[Option<&Capabilities>]) -> Option<u64> {
    let ids: Vec<u64> =
        nodes.iter().flatten().filter_map(|node| node.chain_id.clone().ok()).collect();
    let count = |id: &u64| ids.iter().filter(|other| *other == id).count();
    // `max_by_key` returns the last of several, so the list is reversed.
    ids.iter().rev().max_by_key(|id| count(id)).copied()
}

/// Returns what is wrong with an upstream that responds.
fn find_problems(
    name: &str,
    chain: &Chain,
    expected_id: Option<u64>,
    node: &Capabilities,
    behind: Option<u64>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    match (&node.chain_id, expected_id) {
        (Ok(id), Some(expected)) if *id != expected => {
            let of_chain = match chain.id {
                Some(_) => format!("chain.{}.id is {expected}", chain.name),
                None => format!("other upstreams of {} have {expected}", chain.name),
            };
            problems.push(Problem::error(format!(
                "upstream {name}: its chain id is {id}, but {of_chain}; correct the URL or the key chain"
            )));
        }
        (Err(reason), Some(_)) if chain.id.is_some() => {
            problems.push(Problem::error(format!(
                "upstream {name}: its chain id is unknown: {reason}"
            )));
        }
        _ => {}
    }
    if let Err(reason) = &node.head {
        problems.push(Problem::error(format!(
            "upstream {name}: its newest block is unknown: {reason}"
        )));
    }
    if let Some(behind) = behind.filter(|behind| *behind > chain.lag_max) {
        problems.push(Problem::warning(format!(
            "upstream {name}: it is {behind} blocks behind, more than chain.{}.lag_max ({}), so it \
             gets only calls that no other upstream can serve; wait until it has synced",
            chain.name, chain.lag_max
        )));
    }
    if let Err(reason) = &node.state
        && node.head.is_ok()
        && chain.family != wire::family::Family::Bitcoin
    {
        problems.push(Problem::warning(format!(
            "upstream {name}: which blocks it has the state of is unknown: {reason}"
        )));
    }
    for (method, is_served) in &node.methods {
        if let Err(reason) = is_served {
            problems.push(Problem::warning(format!(
                "upstream {name}: whether it serves {method} is unknown: {reason}"
            )));
        }
    }
    if let Some(Err(reason)) = &node.websocket {
        problems.push(Problem::warning(format!(
            "upstream {name}: it does not accept a subscription over its WebSocket: {reason}; \
             correct ws_url, or enable WebSockets on the node"
        )));
    }
    problems
}
