//! Goal: no response lacks logs or receipts once a node has had them for a second, and no
//! incomplete response is cached. Method: the gateway and three simulated nodes that index late,
//! serve from a second backend or prune, in random phases, in virtual time. Each response is
//! compared with the chain. When all nodes are healthy again, every call is repeated to find
//! incomplete responses in the cache.
//!
//! `WEIR_LATE_CALLS` sets the number of calls, `WEIR_LATE_SEED` the seed.

mod judge;
mod nodes;
mod redis;
mod socket;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gateway::config::{Config, Overrides};
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
use judge::{Account, Judge, Question};
use nodes::Nodes;
use socket::Socket;

const CLIENTS: u64 = 20;
/// Number of calls, unless `WEIR_LATE_CALLS` is set.
const CALLS: u64 = 6_000;
/// The longest time between two calls of one client.
const PAUSE: Duration = Duration::from_millis(100);
const BLOCK_TIME: Duration = Duration::from_millis(500);
/// The longest time until the gateway has a new block.
const SEEN_AFTER: Duration = Duration::from_millis(150);
/// After this time without trouble, every node has indexed all blocks of before.
const SETTLED_AFTER: Duration = Duration::from_secs(10);
/// Maximum number of calls that are repeated at the end.
const REPEATED_MAX: usize = 20_000;

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
        admin: Some(None),
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
struct Crowd {
    world: Arc<World>,
    nodes: Nodes,
    judge: Judge,
    /// Number of calls that the clients still have to send.
    calls_left: Cell<u64>,
    /// The calls so far, except those that use a filter.
    asked: RefCell<BTreeSet<Question>>,
}

impl Crowd {
    fn new(world: &Arc<World>, calls: u64, rng: &mut SmallRng) -> Rc<Crowd> {
        Rc::new(Crowd {
            world: Arc::clone(world),
            nodes: Nodes::new(world, rng),
            judge: Judge::new(world),
            calls_left: Cell::new(calls),
            asked: RefCell::default(),
        })
    }

    fn account(&self) -> Account {
        self.judge.account.borrow().clone()
    }

    /// A random question about blocks that the gateway has seen.
    fn draw(&self, rng: &mut SmallRng) -> Question {
        let seen = Instant::now().checked_sub(SEEN_AFTER).unwrap_or(self.world.origin());
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
                Question::Range { from, to: number, address }
            }
            4 => Question::Range { from: number, to: number, address },
            5 => Question::ByHash { number, address },
            6 => Question::Filter { from: number - rng.random_range(0..4), to: number, address },
            7 => Question::Receipts { number, by_hash: rng.random_bool(0.5) },
            // The gateway knows the transactions of the blocks that it has seen.
            _ => Question::Receipt { number: newest, index: rng.random_range(0..4) },
        }
    }

    /// Sends random calls until `calls_left` is 0.
    async fn ask_on<S, F>(self: Rc<Self>, seed: u64, connect: impl Fn() -> F)
    where
        S: AsyncRead + AsyncWrite + Unpin,
        F: Future<Output = std::io::Result<S>>,
    {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut client = Connection::new(connect().await.unwrap());
        while self.calls_left.get() > 0 {
            self.calls_left.set(self.calls_left.get() - 1);
            sleep(PAUSE.mul_f64(rng.random())).await; // Sleeps: virtual time.
            let question = self.draw(&mut rng);
            self.ask(&mut client, question).await;
            if !matches!(question, Question::Filter { .. }) {
                self.asked.borrow_mut().insert(question);
            }
        }
    }

    async fn ask<S>(&self, client: &mut Connection<S>, question: Question)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Some((method, params)) = self.judge.call(question) else { return };
        let (method, params) = match question {
            Question::Filter { .. } => {
                let (id, _) = call(client, "eth_newFilter", &params).await;
                ("eth_getFilterLogs", format!("[{}]", id["result"]))
            }
            _ => (method, params),
        };
        let sent = Instant::now();
        let (response, cache) = call(client, method, &params).await;
        self.judge.judge(question, &response, &cache, sent, &self.nodes);
        if matches!(question, Question::Filter { .. }) {
            call(client, "eth_uninstallFilter", &params).await;
        }
    }

    /// Follows the chain with a filter. Returns the block number at the start and all logs.
    async fn follow<S, F>(self: Rc<Self>, connect: impl Fn() -> F) -> (u64, Vec<Value>)
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
                return (judge::number(&head_at_start["result"]), logs);
            }
            last = self.calls_left.get() == 0;
            let pause = if last { SETTLED_AFTER } else { PAUSE * 3 };
            sleep(pause).await; // Sleeps: virtual time.
        }
    }

    /// Follows the chain with a subscription. Returns the block number at the start and all logs.
    async fn subscribe<S, F>(self: Rc<Self>, connect: impl Fn() -> F) -> (u64, Vec<Value>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
        F: Future<Output = std::io::Result<S>>,
    {
        let mut client = Connection::new(connect().await.unwrap());
        let (head_at_start, _) = call(&mut client, "eth_blockNumber", "[]").await;
        let mut socket = Socket::open(connect().await.unwrap()).await.unwrap();
        let request = r#"{"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":["logs",{}]}"#;
        socket.send(request).await.unwrap();
        assert!(socket.next().await.unwrap()["result"].is_string());
        let mut logs = Vec::new();
        let mut until = None;
        loop {
            // The timeout is in virtual time.
            match tokio::time::timeout(PAUSE, socket.next()).await {
                Ok(notice) => logs.push(notice.unwrap()["params"]["result"].clone()),
                Err(_) if self.calls_left.get() > 0 => {}
                Err(_) => {
                    let until = *until.get_or_insert(Instant::now() + SETTLED_AFTER);
                    if Instant::now() >= until {
                        return (judge::number(&head_at_start["result"]), logs);
                    }
                }
            }
        }
    }

    /// Repeats the calls, once the nodes are healthy.
    async fn repeat<S>(&self, client: &mut Connection<S>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let asked: Vec<Question> = self.asked.borrow().iter().copied().collect();
        for question in asked.into_iter().take(REPEATED_MAX) {
            self.ask(client, question).await;
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
        let crowd = Crowd::new(&world, calls, &mut rng);
        let urls = ["a", "b", "c"].map(|name| format!("http://{name}.example"));
        let gateway = Simulation::start(config(&urls, ""), crowd.nodes.connectors(), seed);
        let gateway = Rc::new(gateway);
        sleep(Duration::from_secs(1)).await; // Sleeps: virtual time until the first heads.
        let connect = |client: u64| {
            let gateway = Rc::clone(&gateway);
            let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, client as u8));
            move || std::future::ready(Ok(gateway.connect(address)))
        };
        let phases = Rc::clone(&crowd);
        let phases = tokio::task::spawn_local(async move { phases.nodes.go_wrong(rng).await });
        let follower = tokio::task::spawn_local(Rc::clone(&crowd).follow(connect(200)));
        let subscriber = tokio::task::spawn_local(Rc::clone(&crowd).subscribe(connect(202)));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let crowd = Rc::clone(&crowd);
                tokio::task::spawn_local(crowd.ask_on(seed * 1_000 + client, connect(client)))
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
        phases.abort();
        let during = crowd.account();
        crowd.nodes.go_right();
        sleep(SETTLED_AFTER).await; // Sleeps: virtual time.
        crowd.repeat(&mut Connection::new(connect(201)().await.unwrap())).await;
        let followers = [follower.await.unwrap(), subscriber.await.unwrap()];
        let status = gateway.status();
        let upstream: u64 = status.chains[0].upstreams.iter().map(|node| node.attempts).sum();
        println!(
            "{during}\n  after: {}\n  phases {}, upstream calls {upstream}, hits {:.1} %",
            crowd.account(),
            crowd.nodes.phase_count(),
            status.cache.hit_ratio.unwrap_or_default() * 100.0,
        );
        for (head_at_start, logs) in followers {
            crowd.judge.check_followed(head_at_start, &logs);
        }
        let account = crowd.account();
        assert!(account.findings.is_empty(), "{account}\n{}", account.findings.join("\n"));
        assert!(during.lacking_early > 0, "no node was late: nothing is tested");
        assert!(during.hits > calls / 20, "hardly any response came from the cache: {during}");
    });
}

/// A filter in JSON with these bounds.
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
