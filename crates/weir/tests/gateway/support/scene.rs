//! Simulated nodes on a thread of their own, the gateway in front of them, and calls.
//!
//! Nothing here judges; each test does.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gateway::config::Config;
use gateway::runtime::Gateway;
use serde_json::Value;
use simnode::node::Node;
use simnode::node::settings::{FaultRule, Latency, Settings};
use simnode::schedule::WorldOptions;
use simnode::serve::NodeServer;
use simnode::world::World;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use test_support::raw::{Answer, Client, post, post_with};
use test_support::wait::{pause, wait_until};

/// Headers of one poll are asked for one after the other; a gap of this length is its end.
const QUIET: Duration = Duration::from_millis(100);

/// The head of a world that stands still, and the block that is final there.
pub(crate) const HEAD: u64 = 1_000;
pub(crate) const FINAL: u64 = HEAD - 64;

/// A method that is cheap, of one block, and slow or faulty where a test says so.
pub(crate) const READ: &str = "eth_getBalance";

/// A thread for nodes and the proxies in front of them.
pub(crate) struct Scene {
    pub(crate) handle: Handle,
    _stop: oneshot::Sender<()>,
}

/// A node on the scene.
pub(crate) struct SimNode {
    pub(crate) name: &'static str,
    pub(crate) node: Arc<Node>,
    pub(crate) address: SocketAddr,
    listening: NodeServer,
    handle: Handle,
}

impl Scene {
    pub(crate) fn set() -> Scene {
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.unwrap();
            tell.send(runtime.handle().clone()).unwrap();
            // An error means that the test has ended.
            let _ = runtime.block_on(stopped);
        });
        Scene { handle: told.recv().unwrap(), _stop: stop }
    }

    /// A node that looks at a world.
    pub(crate) fn node(&self, name: &'static str, world: &Arc<World>) -> SimNode {
        let _within = self.handle.enter();
        let node = Node::new(name, Arc::clone(world));
        let listening = node.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listening.addr();
        SimNode { name, node, address, listening, handle: self.handle.clone() }
    }

    /// Nodes of one still world, by these names.
    pub(crate) fn nodes<const N: usize>(&self, names: [&'static str; N]) -> [SimNode; N] {
        let world = still_world(WorldOptions::default());
        names.map(|name| self.node(name, &world))
    }
}

/// A chain without new blocks during any test.
pub(crate) fn still_world(options: WorldOptions) -> Arc<World> {
    let still =
        WorldOptions { height_start: HEAD, block_time: Duration::from_secs(3600), ..options };
    Arc::new(World::new(still).unwrap())
}

impl SimNode {
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its lines in a configuration.
    pub(crate) fn entry(&self, more: &str) -> String {
        entry(self.name, &self.url(), more)
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Settings)) {
        self.node.set(change).unwrap();
    }

    /// Makes every call of a method take so long.
    pub(crate) fn slow(&self, method: &str, ms: f64) {
        self.set(|settings| {
            settings.method_latency.insert(method.to_owned(), Latency::Constant { ms });
        });
    }

    /// Replaces its faults by one.
    pub(crate) fn fail(&self, rule: FaultRule) {
        self.set(|settings| settings.faults = vec![rule]);
    }

    /// Calls received so far, including polls.
    pub(crate) fn calls(&self) -> u64 {
        self.node.tally().calls
    }

    /// As when its process is killed.
    pub(crate) fn down(&self) {
        self.handle.block_on(self.listening.down());
    }

    pub(crate) fn up(&self) {
        self.handle.block_on(self.listening.up()).unwrap();
    }

    /// What it answers to whom asks it directly; counted like any other call.
    pub(crate) fn result(&self, method: &str, params: &str) -> String {
        let mut client = Client::connect(&self.address.to_string());
        result(&client.call("/", &body(method, params)))
    }
}

/// A node's lines in a configuration.
pub(crate) fn entry(name: &str, url: &str, more: &str) -> String {
    format!("[[upstream]]\nname = \"{name}\"\nurl = \"{url}\"\n{more}\n")
}

/// What stands under `[server]` unless a test is about that: connections that idle when a test ends
/// are not waited for.
const USUAL: &str = "[server]\ndrain_deadline = \"5s\"\ndrain_linger = \"0s\"\n";

const POLLED_ONCE: &str = "poll_interval = \"1h\"";

/// A chain that polls its nodes once: `[chain.sim]` with further lines.
pub(crate) fn polled_once(more: &str) -> String {
    format!("[chain.sim]\n{POLLED_ONCE}\n{more}\n")
}

/// A chain that polls its nodes all the time.
pub(crate) fn polled_often(more: &str) -> String {
    format!("[chain.sim]\npoll_interval = \"50ms\"\n{more}\n")
}

/// The gateway, on one thread unless a test sets more. It is stopped with the test.
pub(crate) struct Served {
    gateway: Option<Gateway>,
    pub(crate) address: String,
    pub(crate) admin: String,
}

impl Served {
    /// Starts it with this configuration, addresses and threads apart.
    pub(crate) fn start(text: &str) -> Served {
        Served::with_server(USUAL, text)
    }

    /// The same with further lines under `[server]`.
    pub(crate) fn with_server(server: &str, text: &str) -> Served {
        let gateway = Gateway::start(Served::config(server, text)).unwrap();
        let (address, admin) = (gateway.listen.to_string(), gateway.admin.unwrap().to_string());
        Served { gateway: Some(gateway), address, admin }
    }

    fn config(server: &str, text: &str) -> Config {
        let threads = if server.contains("threads") { "" } else { "threads = 1\n" };
        let text =
            format!("{server}listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n{threads}{text}");
        let config = Config::from_text("test", &text, Path::new("/"), &|_| None);
        config.unwrap_or_else(|faults| panic!("{faults}"))
    }

    /// Applies another configuration; returns the changed keys.
    pub(crate) fn reload(&self, text: &str) -> Vec<String> {
        let changes = self.gateway.as_ref().unwrap().reload(Served::config(USUAL, text));
        changes.into_iter().map(|change| change.key).collect()
    }

    /// Starts it in front of these nodes and waits until each may be chosen, and those that are
    /// polled once are asked nothing more.
    pub(crate) fn before(nodes: &[&SimNode], text: &str) -> Served {
        let entries: String = nodes.iter().map(|node| node.entry("")).collect();
        let served = Served::start(&format!("{text}\n{entries}"));
        served.wait_for_candidates(&nodes.iter().map(|node| node.name).collect::<Vec<_>>());
        if text.contains(POLLED_ONCE) {
            wait_for_quiet(nodes);
        }
        served
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.address)
    }

    /// The admin listener's response for a path.
    pub(crate) fn look(&self, path: &str) -> Answer {
        let mut client = Client::connect(&self.admin);
        client.send(format!("GET {path} HTTP/1.1\r\nHost: admin\r\n\r\n").as_bytes());
        client.answer().unwrap()
    }

    /// A value of the state, by JSON pointer.
    pub(crate) fn status(&self, pointer: &str) -> Value {
        let status: Value = serde_json::from_str(self.look("/status").text()).unwrap();
        let found = status.pointer(pointer);
        found.unwrap_or_else(|| panic!("{pointer} is not in {status:#}")).clone()
    }

    /// A whole number of the state.
    pub(crate) fn count(&self, pointer: &str) -> u64 {
        self.status(pointer).as_u64().unwrap()
    }

    /// A value of the first chain's node at a place.
    pub(crate) fn upstream(&self, place: usize, field: &str) -> Value {
        self.status(&format!("/chains/0/upstreams/{place}/{field}"))
    }

    /// Attempts at the first chain's node at a place.
    pub(crate) fn attempts(&self, place: usize) -> u64 {
        self.upstream(place, "attempts").as_u64().unwrap()
    }

    /// Waits until the last group of the first chain may choose exactly these nodes.
    pub(crate) fn wait_for_candidates(&self, names: &[&str]) {
        let due: Vec<Value> = names.iter().map(|name| Value::from(*name)).collect();
        wait_until(&format!("the candidates are {names:?}"), || {
            let groups = self.status("/chains/0/groups");
            groups.as_array().unwrap().last().unwrap()["candidates"] == Value::from(due.clone())
        });
    }

    /// Waits until it serves this head.
    pub(crate) fn wait_for_head(&self, head: Option<u64>) {
        wait_until(&format!("the head is {head:?}"), || {
            self.status("/chains/0/head").get("number").and_then(Value::as_u64) == head
        });
    }

    /// Stops it and returns how long that took.
    pub(crate) fn stop(mut self) -> Duration {
        let began = Instant::now();
        self.gateway.take().unwrap().stop();
        began.elapsed()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(gateway) = self.gateway.take() {
            gateway.stop();
        }
    }
}

/// Waits until the first poll is over: after the head, headers below it are asked for.
pub(crate) fn wait_for_quiet(nodes: &[&SimNode]) {
    let counts = || nodes.iter().map(|node| node.calls()).collect::<Vec<u64>>();
    wait_until("the nodes are asked nothing more", || {
        let before = counts();
        pause(QUIET); // Sleeps: a call that is to come has time to come.
        counts() == before
    });
}

/// A call with the id 7.
pub(crate) fn body(method: &str, params: &str) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{method}","params":{params}}}"#).into()
}

/// The parameters of [`READ`] at a block, different for each number.
pub(crate) fn account(number: u64, block: &str) -> String {
    format!(r#"["0x{number:040x}","{block}"]"#)
}

/// Asks on a connection.
pub(crate) fn ask(client: &mut Client, method: &str, params: &str) -> Answer {
    client.call("/", &body(method, params))
}

/// Asks with a further header line.
pub(crate) fn ask_with(client: &mut Client, line: &str, method: &str, params: &str) -> Answer {
    client.send(&post_with("/", &format!("{line}\r\n"), &body(method, params)));
    client.answer().unwrap()
}

/// Sends a call without waiting for its answer.
pub(crate) fn send(client: &mut Client, method: &str, params: &str) {
    client.send(&post("/", &body(method, params)));
}

/// The raw result of an answer that has one.
pub(crate) fn result(answer: &Answer) -> String {
    let text = answer.text();
    assert_eq!(answer.status, 200, "{text}");
    let raw = text.strip_prefix(r#"{"jsonrpc":"2.0","id":7,"result":"#);
    let raw = raw.and_then(|rest| rest.trim_end().strip_suffix('}'));
    raw.unwrap_or_else(|| panic!("no result: {text}")).to_owned()
}

/// HTTP status, code and message of an answer that has an error.
pub(crate) fn error(answer: &Answer) -> (u16, i64, String) {
    let parsed: Value = serde_json::from_str(answer.text()).unwrap();
    assert_eq!(parsed["id"], 7, "{parsed}");
    let error = &parsed["error"];
    let code = error["code"].as_i64().unwrap_or_else(|| panic!("no error: {parsed}"));
    (answer.status, code, error["message"].as_str().unwrap().to_owned())
}

/// The cache status of a response.
pub(crate) fn mark(answer: &Answer) -> &str {
    let mark = answer.header("x-weir-cache").unwrap();
    mark.split(';').next().unwrap()
}

/// The node that the answer names.
pub(crate) fn by(answer: &Answer) -> &str {
    answer.header("x-weir-upstream").unwrap()
}
