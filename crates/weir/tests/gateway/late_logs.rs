//! Goal: if a node has had logs or receipts for a second, no response lacks them. The gateway
//! caches no incomplete response.
//!
//! Method: the gateway and three simulated nodes, in virtual time. In random phases, the nodes
//! index blocks late, serve calls from a second backend, or prune data. The test compares each
//! response with the chain. When all nodes are healthy again, it repeats every call to find
//! incomplete responses in the cache.
//!
//! The environment variable `WEIR_LATE_CALLS` sets the number of calls, and `WEIR_LATE_SEED` the
//! seed.

mod judge;
mod nodes;
mod redis;
pub(crate) mod socket;
mod very_late;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gateway::config::{AdminOverride, Config, Overrides};
use gateway::runtime::simulated::Simulation;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use simnode::schedule::WorldOptions;
use simnode::world::World;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::time::{Instant, sleep};

use crate::sim::connection::Connection;
use judge::{BlockCall, ResponseChecker, Results};
use nodes::Nodes;
use socket::WebSocketClient;

const CLIENTS: u64 = 20;
/// Default number of calls.
const CALLS: u64 = 6_000;
/// The longest time between two calls of one client.
const PAUSE: Duration = Duration::from_millis(100);
const BLOCK_TIME: Duration = Duration::from_millis(500);
/// The longest time between a new block and the gateway's read of it.
const NEW_BLOCK_DELAY_MAX: Duration = Duration::from_millis(150);
/// If the nodes are healthy for this long, each has indexed all blocks from before that time.
const INDEXED_AFTER: Duration = Duration::from_secs(10);
/// Maximum number of calls that the test repeats at the end.
const REPEATED_CALLS_MAX: usize = 20_000;

/// A chain without reorgs, so that each call has one correct response.
fn world(seed: u64) -> Arc<World> {
    let options = WorldOptions {
        seed,
        height_start: 600,
        block_time: BLOCK_TIME,
        finality_depth: 16,
        transactions_min: 0,
        transactions_max: 8,
        ..WorldOptions::default()
    };
    Arc::new(World::new(options).unwrap())
}

fn config(urls: &[String], more: &str) -> Config {
    let mut text = format!(
        "[chain.sim]\nblock_time = \"{BLOCK_TIME:?}\"\npoll_interval = \"100ms\"\n\
         [cache]\nlogs_chunk_blocks = 8\n{more}\n"
    );
    for (url, name) in urls.iter().zip(["a", "b", "c"]) {
        text.push_str(&format!("[[upstream]]\nname = \"{name}\"\nurl = \"{url}\"\n"));
    }
    let config = Config::from_text("late", &text, Path::new(""), &|_| None);
    let config = config.unwrap_or_else(|faults| panic!("{faults}"));
    let listen = Some("127.0.0.1:0".parse().unwrap());
    config.with_overrides(&Overrides {
        listen,
        admin: AdminOverride::Off,
        threads: Some(1),
        no_cache: false,
    })
}

fn runtime(paused: bool) -> LocalRuntime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().start_paused(paused);
    builder.build_local(LocalOptions::default()).unwrap()
}

/// The state that all clients share.
struct SharedState {
    world: Arc<World>,
    nodes: Nodes,
    checker: ResponseChecker,
    /// Number of calls that the clients still have to send.
    calls_left: Cell<u64>,
    /// The calls that clients have sent, except those with a filter.
    sent_calls: RefCell<BTreeSet<BlockCall>>,
}

impl SharedState {
    fn new(world: &Arc<World>, calls: u64, rng: &mut SmallRng) -> Rc<SharedState> {
        Rc::new(SharedState {
            world: Arc::clone(world),
            nodes: Nodes::new(world, rng),
            checker: ResponseChecker::new(world),
            calls_left: Cell::new(calls),
            sent_calls: RefCell::default(),
        })
    }

    fn results(&self) -> Results {
        self.checker.results.borrow().clone()
    }

    /// Returns a random call about blocks that the gateway knows.
    fn random_call(&self, rng: &mut SmallRng) -> BlockCall {
        let seen = Instant::now().checked_sub(NEW_BLOCK_DELAY_MAX).unwrap_or(self.world.origin());
        let head = self.world.height_at(seen);
        let newest = head - rng.random_range(0..3);
        let number = match rng.random_range(0..10) {
            0..6 => newest,
            6..9 => head - rng.random_range(0..40),
            _ => head - rng.random_range(0..400),
        };
        let address = rng.random_bool(0.5).then(|| rng.random_range(0..3));
        match rng.random_range(0..10) {
            0..4 => {
                let from = number - rng.random_range(0..12);
                BlockCall::Range { from, to: number, address }
            }
            4 => BlockCall::Range { from: number, to: number, address },
            5 => BlockCall::ByHash { number, address },
            6 => BlockCall::Filter { from: number - rng.random_range(0..4), to: number, address },
            7 => BlockCall::Receipts { number, by_hash: rng.random_bool(0.5) },
            // The gateway knows the transactions of the blocks whose headers it has read.
            _ => BlockCall::Receipt { number: newest, index: rng.random_range(0..4) },
        }
    }

    /// Sends random calls until `calls_left` is 0.
    async fn run_client<S, F>(self: Rc<Self>, seed: u64, connect: impl Fn() -> F)
    where
        S: AsyncRead + AsyncWrite + Unpin,
        F: Future<Output = std::io::Result<S>>,
    {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut client = Connection::new(connect().await.unwrap());
        while self.calls_left.get() > 0 {
            self.calls_left.set(self.calls_left.get() - 1);
            sleep(PAUSE.mul_f64(rng.random())).await; // Sleeps: virtual time.
            let block_call = self.random_call(&mut rng);
            self.send_and_check(&mut client, block_call).await;
            if !matches!(block_call, BlockCall::Filter { .. }) {
                self.sent_calls.borrow_mut().insert(block_call);
            }
        }
    }

    /// Sends a call and compares the response with the chain.
    async fn send_and_check<S>(&self, client: &mut Connection<S>, block_call: BlockCall)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Some((method, params)) = self.checker.call(block_call) else { return };
        let (method, params) = match block_call {
            BlockCall::Filter { .. } => {
                let (id, _) = call(client, "eth_newFilter", &params).await;
                ("eth_getFilterLogs", format!("[{}]", id["result"]))
            }
            _ => (method, params),
        };
        let sent = Instant::now();
        let (response, cache) = call(client, method, &params).await;
        self.checker.check(block_call, &response, &cache, sent, &self.nodes);
        if matches!(block_call, BlockCall::Filter { .. }) {
            call(client, "eth_uninstallFilter", &params).await;
        }
    }

    /// Follows the chain with a filter. Returns the block number at the start and all logs.
    async fn follow_with_filter<S, F>(self: Rc<Self>, connect: impl Fn() -> F) -> (u64, Vec<Value>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
        F: Future<Output = std::io::Result<S>>,
    {
        let mut client = Connection::new(connect().await.unwrap());
        let (head_at_start, _) = call(&mut client, "eth_blockNumber", "[]").await;
        let (id, _) = call(&mut client, "eth_newFilter", "[{}]").await;
        let params = format!("[{}]", id["result"]);
        let mut logs = Vec::new();
        let mut last = false;
        loop {
            let (response, _) = call(&mut client, "eth_getFilterChanges", &params).await;
            logs.extend(response["result"].as_array().unwrap().iter().cloned());
            if last {
                return (judge::parse_quantity(&head_at_start["result"]), logs);
            }
            last = self.calls_left.get() == 0;
            let pause = if last { INDEXED_AFTER } else { PAUSE * 3 };
            sleep(pause).await; // Sleeps: virtual time.
        }
    }

    /// Follows the chain with a subscription. Returns the block number at the start and all logs.
    async fn follow_with_subscription<S, F>(
        self: Rc<Self>,
        connect: impl Fn() -> F,
    ) -> (u64, Vec<Value>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
        F: Future<Output = std::io::Result<S>>,
    {
        let mut client = Connection::new(connect().await.unwrap());
        let (head_at_start, _) = call(&mut client, "eth_blockNumber", "[]").await;
        let mut socket = WebSocketClient::open(connect().await.unwrap()).await.unwrap();
        let request = r#"{"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":["logs",{}]}"#;
        socket.send(request).await.unwrap();
        assert!(socket.next().await.unwrap()["result"].is_string());
        let mut logs = Vec::new();
        let mut until = None;
        loop {
            // The timeout is in virtual time.
            match tokio::time::timeout(PAUSE, socket.next()).await {
                Ok(message) => logs.push(message.unwrap()["params"]["result"].clone()),
                Err(_) if self.calls_left.get() > 0 => {}
                Err(_) => {
                    let until = *until.get_or_insert(Instant::now() + INDEXED_AFTER);
                    if Instant::now() >= until {
                        return (judge::parse_quantity(&head_at_start["result"]), logs);
                    }
                }
            }
        }
    }

    /// Repeats the calls that clients have sent. All nodes must be healthy.
    async fn repeat_calls<S>(&self, client: &mut Connection<S>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let sent_calls: Vec<BlockCall> = self.sent_calls.borrow().iter().copied().collect();
        for block_call in sent_calls.into_iter().take(REPEATED_CALLS_MAX) {
            self.send_and_check(client, block_call).await;
        }
    }
}

/// Sends a call. Returns its response and its cache status.
async fn call<S>(client: &mut Connection<S>, method: &str, params: &str) -> (Value, String)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
    client.send(body.as_bytes()).await.unwrap();
    let answer = client.receive().await.unwrap();
    (serde_json::from_slice(&answer.body).unwrap(), answer.cache)
}

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: a whole number is needed")))
}

#[test]
fn no_response_lacks_logs_that_a_node_has() {
    let calls = from_environment("WEIR_LATE_CALLS").unwrap_or(CALLS);
    let seed = from_environment("WEIR_LATE_SEED").unwrap_or(1);
    runtime(true).block_on(async {
        let world = world(seed);
        let mut rng = SmallRng::seed_from_u64(seed);
        let state = SharedState::new(&world, calls, &mut rng);
        let urls = ["a", "b", "c"].map(|name| format!("http://{name}.example"));
        let gateway = Simulation::start(config(&urls, ""), state.nodes.connectors(), seed);
        let gateway = Rc::new(gateway);
        sleep(Duration::from_secs(1)).await; // Sleeps: virtual time until the first heads.
        let connect = |client: u64| {
            let gateway = Rc::clone(&gateway);
            let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, client as u8));
            move || std::future::ready(Ok(gateway.connect(address)))
        };
        let phases = Rc::clone(&state);
        let phases =
            tokio::task::spawn_local(async move { phases.nodes.run_random_phases(rng).await });
        let follower = tokio::task::spawn_local(Rc::clone(&state).follow_with_filter(connect(200)));
        let subscriber = Rc::clone(&state).follow_with_subscription(connect(202));
        let subscriber = tokio::task::spawn_local(subscriber);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let state = Rc::clone(&state);
                tokio::task::spawn_local(state.run_client(seed * 1_000 + client, connect(client)))
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
        phases.abort();
        let during = state.results();
        state.nodes.make_healthy();
        sleep(INDEXED_AFTER).await; // Sleeps: virtual time.
        state.repeat_calls(&mut Connection::new(connect(201)().await.unwrap())).await;
        let followers = [follower.await.unwrap(), subscriber.await.unwrap()];
        let status = gateway.status();
        let upstream: u64 = status.chains[0].upstreams.iter().map(|node| node.attempts).sum();
        println!(
            "{during}\n  after: {}\n  phases {}, upstream calls {upstream}, hits {:.1} %",
            state.results(),
            state.nodes.phase_count(),
            status.cache.hit_ratio.unwrap_or_default() * 100.0,
        );
        for (head_at_start, logs) in followers {
            state.checker.check_followed(head_at_start, &logs);
        }
        let results = state.results();
        assert!(results.findings.is_empty(), "{results}\n{}", results.findings.join("\n"));
        assert!(during.lacking_early > 0, "no node was late: nothing is tested");
        assert!(during.hits > calls / 20, "hardly any response came from the cache: {during}");
    });
}

/// The parameters of `eth_getLogs` or `eth_newFilter`, with these members in the filter.
fn filter(bounds: &[(&str, String)], address: Option<String>) -> String {
    let mut filter = json!({});
    for (name, value) in bounds {
        filter[*name] = json!(value);
    }
    if let Some(address) = address {
        filter["address"] = json!(address);
    }
    json!([filter]).to_string()
}
