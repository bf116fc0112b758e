//! Goal: under any failure of nodes and any fork, no client gets a stale, mixed or wrong response,
//! and no call fails while one node is healthy. The head, which is the newest block that a client
//! gets, never goes back, and no response shows a block above it.
//!
//! Method: the gateway, three simulated nodes and twenty clients run in one thread and in virtual
//! time, with all randomness from one seed. An oracle that knows the chain checks every response.
//! The same also runs over sockets in real time, for a few seconds. Further tests corrupt responses
//! on purpose, and the oracle must find these violations.
//!
//! Some violations are tolerated and counted (`sim/checker.rs`):
//! - errors while no node is healthy
//! - old heads until the gateway has caught up after all nodes were silent
//! - false responses about blocks above the gateway's head, if no other node can refute them
//! - missing logs and receipts that healthy nodes have had for less than a second
//!
//! `cargo xtask sim` runs this test with another seed and number of calls: the environment
//! variables `WEIR_SIM_SEED` and `WEIR_SIM_CALLS`.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gateway::admin::status::{Status, UpstreamStatus};
use gateway::config::{AdminOverride, Config, Overrides};
use gateway::runtime::Gateway;
use gateway::runtime::simulated::Simulation;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use simnode::oracle::OracleOptions;
use simnode::schedule::{Reorg, WorldOptions};
use simnode::world::World;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::time::Instant;

mod adversary;
pub(crate) mod calls;
mod checker;
mod clients;
pub(crate) mod connection;
mod failures;
mod shown_blocks;

use adversary::{Adversary, Corruption};
use checker::{CALL_DEADLINE, Checker, Tally};
use clients::{Behavior, ClientContext};
use failures::{Cluster, Failure, NODES, Transport};

const CLIENTS: u64 = 20;
/// Number of clients among them that call at each new block.
const FOLLOWERS: u64 = 5;
const REORG_DEPTH_MAX: u64 = 5;
/// Seeds of an ordinary run.
const SEEDS: [u64; 4] = [1, 2, 3, 4];
/// Number of calls of a run.
const CALLS: u64 = 5_000;
/// Number of calls of a short run, for tests that need no rare events.
const CALLS_FEW: u64 = 3_000;
/// Length of the run in real time.
const REAL_TIME: Duration = Duration::from_secs(6);
/// Number of blocks by which the best healthy node may be behind the chain.
const BEHIND_BLOCKS: u64 = 1;

/// Intervals of the chain, the gateway and the clients.
#[derive(Clone, Copy)]
struct Pace {
    block: Duration,
    poll: Duration,
    /// The longest time between two requests of a client that does not follow the chain.
    pause: Duration,
    /// Number of heights of which one has no block; `None` for a block at each height.
    skip_every: Option<u64>,
    /// Maximum age of the gateway's head, in addition to the allowed lag of healthy nodes.
    staleness: Duration,
}

const VIRTUAL: Pace = Pace {
    block: Duration::from_millis(500),
    poll: Duration::from_millis(100),
    pause: Duration::from_millis(400),
    skip_every: None,
    // The slowest node's delay (100 ms), one poll interval, three polls until the gateway ignores
    // an unavailable node, and the latency of the polls.
    staleness: Duration::from_millis(700),
};

const REAL: Pace = Pace {
    block: Duration::from_millis(200),
    poll: Duration::from_millis(50),
    pause: Duration::from_millis(100),
    skip_every: None,
    // The sum that `VIRTUAL` describes, plus the time for which a busy machine may delay a thread.
    staleness: Duration::from_millis(1_500),
};

/// The result of one run.
struct Outcome {
    tally: Tally,
    /// A hash of all responses and their times. It is equal for runs with the same seed.
    fingerprint: u64,
    summary: String,
}

/// Creates a chain with a reorg every 3 to 14 blocks.
fn world(seed: u64, blocks: u64, pace: Pace) -> Arc<World> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let height_start = 100;
    let mut reorgs = Vec::new();
    let (mut at_height, mut fork) = (height_start, 0);
    loop {
        at_height += rng.random_range(3..=14);
        if at_height > height_start + blocks {
            break;
        }
        let depth = rng.random_range(1..=REORG_DEPTH_MAX).min(at_height - fork);
        fork = at_height - depth;
        reorgs.push(Reorg { at_height, depth });
    }
    let Pace { block: block_time, skip_every, .. } = pace;
    let usual = WorldOptions { skip_every, finality_depth: 16, ..WorldOptions::default() };
    reorgs.retain(|reorg| !usual.is_skipped(reorg.at_height));
    let options = WorldOptions { seed, height_start, block_time, reorgs, ..usual };
    Arc::new(World::new(options).expect("the options are valid"))
}

/// Returns the gateway's configuration. Deadlines are shorter than the defaults; otherwise, waits
/// for hanging nodes would fill most of a run. The retry budget is large, because the simulation
/// tests that the gateway finds a healthy node. It does not test the protection from overload.
fn config(urls: &[String], pace: Pace, threads: usize) -> Config {
    let Pace { block, poll, .. } = pace;
    let mut text = format!(
        "[chain.sim]\nblock_time = \"{block:?}\"\npoll_interval = \"{poll:?}\"\n\
         [call]\nattempt_deadline = \"2s\"\ndeadline = \"{CALL_DEADLINE:?}\"\n\
         retry_share_max = 1\nretry_rate_min = 1000\n\
         [cache]\nlogs_chunk_blocks = 8\n"
    );
    for (url, name) in urls.iter().zip(["a", "b", "c"]) {
        text.push_str(&format!("[[upstream]]\nname = \"{name}\"\nurl = \"{url}\"\n"));
    }
    let config = Config::from_text("sim", &text, Path::new(""), &|_| None);
    let config = config.unwrap_or_else(|faults| panic!("{faults}"));
    let listen = Some("127.0.0.1:0".parse().expect("an address"));
    let threads = Some(threads);
    let admin = AdminOverride::Off;
    config.with_overrides(&Overrides { listen, admin, threads, no_cache: false })
}

/// The failures of a run's nodes.
enum FailurePlan {
    /// Phases drawn from the seed.
    Random,
    /// No failures for three seconds, and then these until the end.
    Fixed([Failure; NODES]),
}

/// Applies the failures of a plan to the nodes.
async fn run_failures(context: Rc<ClientContext>, plan: FailurePlan, rng: SmallRng) {
    match plan {
        FailurePlan::Random => context.cluster.run_random_failures(rng).await,
        FailurePlan::Fixed(failures) => {
            tokio::time::sleep(Duration::from_secs(2)).await; // Sleeps: virtual time.
            context.cluster.begin_phase(failures);
        }
    }
}

/// Creates the state that all clients share, and begins the first phase, without failures.
fn client_context(
    world: &Arc<World>,
    cluster: Cluster,
    pace: Pace,
    calls: u64,
    rerun_command: String,
    adversary: Adversary,
) -> Rc<ClientContext> {
    let options = OracleOptions {
        staleness: pace.staleness,
        behind_blocks: BEHIND_BLOCKS,
        ..OracleOptions::default()
    };
    let checker = Checker::new(world, options, rerun_command);
    checker.adversary.replace(adversary);
    cluster.begin_phase([Failure::None, Failure::None, Failure::None]);
    Rc::new(ClientContext { checker, cluster, calls_left: Cell::new(calls), pause: pace.pause })
}

/// Returns the behavior of a client.
fn behavior(seed: u64, client: u64) -> Behavior {
    Behavior { client, seed: seed.wrapping_mul(1_000) + client, follows: client < FOLLOWERS }
}

fn runtime(paused: bool) -> LocalRuntime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().start_paused(paused);
    builder.build_local(LocalOptions::default()).expect("a runtime")
}

/// Runs a simulation in virtual time.
fn simulate(seed: u64, calls: u64, plan: FailurePlan, adversary: Adversary) -> Outcome {
    simulate_at(VIRTUAL, seed, calls, plan, adversary)
}

fn simulate_at(
    pace: Pace,
    seed: u64,
    calls: u64,
    plan: FailurePlan,
    adversary: Adversary,
) -> Outcome {
    runtime(true).block_on(async {
        // Enough blocks that reorgs happen until the last call.
        let world = world(seed, 200 + calls / 20, pace);
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x5eed);
        let cluster = Cluster::new(&world, Transport::Memory, &mut rng);
        let urls = ["a", "b", "c"].map(|name| format!("http://{name}.example"));
        let gateway = Simulation::start(config(&urls, pace, 1), cluster.connectors(), seed);
        let gateway = Rc::new(gateway);
        let rerun_command = format!("WEIR_SIM_CALLS={calls} cargo xtask sim {seed}");
        let context = client_context(&world, cluster, pace, calls, rerun_command, adversary);
        // Sleeps: virtual time until the gateway knows the first heads.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let failures = tokio::task::spawn_local(run_failures(Rc::clone(&context), plan, rng));
        let clients = (0..CLIENTS).map(|client| {
            let gateway = Rc::clone(&gateway);
            let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, client as u8));
            let connect = move || std::future::ready(Ok(gateway.connect(address)));
            tokio::task::spawn_local(clients::run(
                Rc::clone(&context),
                behavior(seed, client),
                connect,
            ))
        });
        for client in clients.collect::<Vec<_>>() {
            client.await.expect("a client does not panic");
        }
        failures.abort();
        outcome(&context, &gateway.status())
    })
}

/// Returns the result of a run that has ended.
fn outcome(context: &ClientContext, status: &Status) -> Outcome {
    let checker = &context.checker;
    let (world, tally) = (&checker.world, checker.tally.borrow().clone());
    let now = Instant::now();
    let chain = &status.chains[0];
    let sum = |field: fn(&UpstreamStatus) -> u64| chain.upstreams.iter().map(field).sum::<u64>();
    let reorgs = world.schedule().branch_of_head(world.height_at(now));
    assert!(reorgs < world.schedule().reorgs().len(), "the reorgs ended before the calls");
    let totals = &status.totals;
    let summary = format!(
        "{tally}\n  in {:?}, {} phases; hits {:.1} %, joins {}, retries {}, hedges {} (won {}), \
         ejections {}, readmissions {}; reorgs of the chain {reorgs}, seen {} (deepest {})",
        now - world.origin(),
        context.cluster.phase_count(),
        status.cache.hit_ratio.unwrap_or_default() * 100.0,
        status.cache.coalesced,
        totals.retries,
        totals.hedges,
        totals.hedges_won,
        sum(|node| node.ejections),
        sum(|node| node.readmissions),
        chain.reorgs,
        chain.reorg_depth_max,
    );
    Outcome { tally, fingerprint: checker.fingerprint(), summary }
}

impl Outcome {
    /// Asserts that the checker found no violation.
    fn assert_correct(&self, name: &str) {
        let Tally { findings, findings_count, .. } = &self.tally;
        let findings_text = findings.join("\n");
        assert!(
            findings.is_empty(),
            "{name}: {findings_count} findings\n{findings_text}\n{}",
            self.summary
        );
    }

    /// Returns the number of calls with this verdict.
    fn count(&self, verdict: &str) -> u64 {
        self.tally.verdicts.get(verdict).copied().unwrap_or_default()
    }
}

/// Returns a number from an environment variable, or `None` if it is not set.
fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: a whole number is needed")))
}

/// The failures of a phase in which all nodes are healthy.
const NO_FAILURES: [Failure; NODES] = [Failure::None, Failure::None, Failure::None];

#[test]
fn whatever_happens_answers_are_right() {
    let calls = from_environment("WEIR_SIM_CALLS").unwrap_or(CALLS);
    let seeds = from_environment("WEIR_SIM_SEED").map_or(SEEDS.to_vec(), |seed| vec![seed]);
    for seed in seeds {
        let outcome = simulate(seed, calls, FailurePlan::Random, Adversary::default());
        println!("seed {seed}: {}", outcome.summary);
        outcome.assert_correct(&format!("seed {seed}"));
        assert!(outcome.count("right") > calls * 3 / 4, "{}", outcome.summary);
    }
}

#[test]
fn an_upstream_that_fails_does_not_end_the_search_for_a_block() {
    // Of three upstreams one is ejected, one lacks the block of every third call, and one returns
    // invalid responses.
    let outcome = simulate(6395, 1_000, FailurePlan::Random, Adversary::default());
    outcome.assert_correct("seed 6395");
}

#[test]
fn answers_are_right_on_a_chain_with_heights_without_a_block() {
    let pace = Pace { skip_every: Some(7), ..VIRTUAL };
    let outcome = simulate_at(pace, 10, CALLS, FailurePlan::Random, Adversary::default());
    outcome.assert_correct("seed 10");
    assert!(outcome.count("right") > CALLS * 3 / 4, "{}", outcome.summary);
}

#[test]
fn equal_seeds_give_equal_runs() {
    let run = |seed| simulate(seed, CALLS_FEW, FailurePlan::Random, Adversary::default());
    let (first, second, other) = (run(5), run(5), run(6));
    assert_eq!(first.summary, second.summary);
    assert_eq!(first.fingerprint, second.fingerprint, "equal counts, but other responses");
    assert_ne!(first.fingerprint, other.fingerprint);
}

#[test]
fn planted_violations_are_found() {
    for (corruption, verdict) in [
        (Corruption::Stale, "stale"),
        (Corruption::Backward, "backward"),
        (Corruption::Mixed, "mixed"),
        (Corruption::Wrong, "wrong"),
    ] {
        let outcome =
            simulate(7, CALLS, FailurePlan::Fixed(NO_FAILURES), Adversary::new(corruption));
        assert_eq!(outcome.count(verdict), 1, "{corruption:?}: {}", outcome.summary);
        assert_eq!(outcome.tally.findings_count, 1, "{corruption:?}: {}", outcome.summary);
        let finding = &outcome.tally.findings[0];
        assert!(finding.contains("cargo xtask sim 7"), "{finding}");
    }
}

#[test]
fn stale_responses_are_found_if_all_nodes_fail_alike() {
    for failure in [Failure::Frozen, Failure::Lagging(12), Failure::Lying(40)] {
        let plan = FailurePlan::Fixed([failure.clone(), failure.clone(), failure.clone()]);
        let outcome = simulate(8, CALLS_FEW, plan, Adversary::default());
        // The gateway mostly rejects the false heads, so its own head becomes old.
        assert!(outcome.count("stale") > 100, "{failure:?}: {}", outcome.summary);
        assert!(outcome.tally.findings_count > 100, "{failure:?}: {}", outcome.summary);
    }
}

#[test]
fn over_sockets_in_real_time_answers_are_right() {
    let seed = 9;
    let outcome = runtime(false).block_on(async {
        let blocks = REAL_TIME.as_millis() / REAL.block.as_millis() * 4;
        let world = world(seed, blocks as u64, REAL);
        let mut rng = SmallRng::seed_from_u64(seed);
        let cluster = Cluster::new(&world, Transport::Ports, &mut rng);
        let any = "127.0.0.1:0".parse().expect("an address");
        let ports: Vec<_> =
            cluster.nodes().map(|node| node.listen(any).expect("a free port")).collect();
        let urls: Vec<_> = ports.iter().map(|port| format!("http://{}", port.addr())).collect();
        let starting = tokio::task::spawn_blocking(move || Gateway::start(config(&urls, REAL, 2)));
        let gateway = starting.await.expect("it does not panic").expect("it starts");
        let rerun_command = "cargo test -p weir --test gateway sim::over_sockets".to_owned();
        let context =
            client_context(&world, cluster, REAL, u64::MAX, rerun_command, Adversary::default());
        let failures =
            tokio::task::spawn_local(run_failures(Rc::clone(&context), FailurePlan::Random, rng));
        let clients = (0..CLIENTS).map(|client| {
            let address = gateway.listen;
            let connect = move || tokio::net::TcpStream::connect(address);
            tokio::task::spawn_local(clients::run(
                Rc::clone(&context),
                behavior(seed, client),
                connect,
            ))
        });
        let clients: Vec<_> = clients.collect();
        tokio::time::sleep(REAL_TIME).await; // Sleeps: how long the test lasts.
        context.calls_left.set(0);
        for client in clients {
            client.await.expect("a client does not panic");
        }
        failures.abort();
        let stopped = tokio::task::spawn_blocking(move || gateway.stop());
        stopped.await.expect("it does not panic");
        let tally = context.checker.tally.borrow().clone();
        let summary = format!("{tally}\n  {} phases", context.cluster.phase_count());
        Outcome { tally, fingerprint: 0, summary }
    });
    println!("over sockets: {}", outcome.summary);
    outcome.assert_correct("over sockets");
    assert!(outcome.count("right") > 500, "{}", outcome.summary);
}
