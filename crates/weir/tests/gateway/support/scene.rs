//! Simulated nodes on a separate thread, the gateway in front of them, and calls to the gateway.
//!
//! The tests check the results; these helpers only check that responses are well-formed.

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

use test_support::raw::{Client, Response, post, post_with};
use test_support::wait::{pause, wait_until};

/// A poll is over if no call reaches the nodes for this long. The gateway requests the headers of
/// a poll one after the other, with shorter gaps.
const QUIET: Duration = Duration::from_millis(100);

/// The head of a chain without new blocks, and its finalized block.
pub(crate) const HEAD: u64 = 1_000;
pub(crate) const FINAL: u64 = HEAD - 64;

/// A cheap method that reads one block. Tests make the nodes slow or faulty for it.
pub(crate) const READ: &str = "eth_getBalance";

/// A thread with a runtime for simulated nodes and the proxies in front of them.
pub(crate) struct Scene {
    pub(crate) handle: Handle,
    _stop: oneshot::Sender<()>,
}

/// A simulated node on the scene's thread.
pub(crate) struct SimNode {
    pub(crate) name: &'static str,
    pub(crate) node: Arc<Node>,
    pub(crate) address: SocketAddr,
    listening: NodeServer,
    handle: Handle,
}

impl Scene {
    /// Starts the thread. It ends when the scene is dropped.
    pub(crate) fn set() -> Scene {
        let (stop, stopped) = oneshot::channel();
        let (handle_sender, handle_receiver) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.unwrap();
            handle_sender.send(runtime.handle().clone()).unwrap();
            // The error is the signal: the test has dropped the scene.
            let _ = runtime.block_on(stopped);
        });
        Scene { handle: handle_receiver.recv().unwrap(), _stop: stop }
    }

    /// Starts a node that serves this simulated chain.
    pub(crate) fn node(&self, name: &'static str, world: &Arc<World>) -> SimNode {
        let _within = self.handle.enter();
        let node = Node::new(name, Arc::clone(world));
        let listening = node.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listening.addr();
        SimNode { name, node, address, listening, handle: self.handle.clone() }
    }

    /// Nodes with these names, of one chain without new blocks.
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

    /// The `[[upstream]]` table of this node, with further lines.
    pub(crate) fn entry(&self, more: &str) -> String {
        entry(self.name, &self.url(), more)
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Settings)) {
        self.node.set(change).unwrap();
    }

    /// Makes every call of a method take this many milliseconds.
    pub(crate) fn slow(&self, method: &str, ms: f64) {
        self.set(|settings| {
            settings.method_latency.insert(method.to_owned(), Latency::Constant { ms });
        });
    }

    /// Replaces the node's faults by this one.
    pub(crate) fn fail(&self, rule: FaultRule) {
        self.set(|settings| settings.faults = vec![rule]);
    }

    /// Calls received so far, including polls.
    pub(crate) fn calls(&self) -> u64 {
        self.node.counters().calls
    }

    /// Closes the node's listener and connections, as if its process were killed.
    pub(crate) fn down(&self) {
        self.handle.block_on(self.listening.close_port());
    }

    /// Listens again after [`SimNode::down`].
    pub(crate) fn up(&self) {
        self.handle.block_on(self.listening.open_port()).unwrap();
    }

    /// Calls the node directly, without the gateway, and returns the raw result. The node counts
    /// this call too.
    pub(crate) fn result(&self, method: &str, params: &str) -> String {
        let mut client = Client::connect(&self.address.to_string());
        result(&client.call("/", &body(method, params)))
    }
}

/// An `[[upstream]]` table with further lines.
pub(crate) fn entry(name: &str, url: &str, more: &str) -> String {
    format!("[[upstream]]\nname = \"{name}\"\nurl = \"{url}\"\n{more}\n")
}

/// The usual lines of `[server]`. With them, the gateway does not wait for idle connections when a
/// test ends.
const USUAL: &str = "[server]\ndrain_deadline = \"5s\"\ndrain_linger = \"0s\"\n";

const POLLED_ONCE: &str = "poll_interval = \"1h\"";

/// A `[chain.sim]` table whose nodes are polled only once during a test, with further lines.
pub(crate) fn polled_once(more: &str) -> String {
    format!("[chain.sim]\n{POLLED_ONCE}\n{more}\n")
}

/// A `[chain.sim]` table whose nodes are polled every 50 ms, with further lines.
pub(crate) fn polled_often(more: &str) -> String {
    format!("[chain.sim]\npoll_interval = \"50ms\"\n{more}\n")
}

/// A running gateway, with one thread unless a test sets more. It is stopped when it is dropped.
pub(crate) struct Served {
    /// `None` once the gateway is stopped.
    gateway: Option<Gateway>,
    /// The address for JSON-RPC.
    pub(crate) address: String,
    pub(crate) admin: String,
}

impl Served {
    /// Starts a gateway with this configuration. The addresses and threads are added to it.
    pub(crate) fn start(text: &str) -> Served {
        Served::with_server(USUAL, text)
    }

    /// Starts a gateway with these lines under `[server]` instead of the usual ones.
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

    /// Starts a gateway in front of these nodes and waits until it considers each a candidate. With
    /// [`polled_once`], also waits until the first poll is over.
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
    pub(crate) fn look(&self, path: &str) -> Response {
        let mut client = Client::connect(&self.admin);
        client.send(format!("GET {path} HTTP/1.1\r\nHost: admin\r\n\r\n").as_bytes());
        client.read_response().unwrap()
    }

    /// A value of `/status`, by JSON pointer.
    pub(crate) fn status(&self, pointer: &str) -> Value {
        let status: Value = serde_json::from_str(self.look("/status").text()).unwrap();
        let value = status.pointer(pointer);
        value.unwrap_or_else(|| panic!("{pointer} is not in {status:#}")).clone()
    }

    /// A whole number of `/status`, by JSON pointer.
    pub(crate) fn count(&self, pointer: &str) -> u64 {
        self.status(pointer).as_u64().unwrap()
    }

    /// A field of an upstream of the first chain, by the upstream's position.
    pub(crate) fn upstream(&self, position: usize, field: &str) -> Value {
        self.status(&format!("/chains/0/upstreams/{position}/{field}"))
    }

    /// Number of calls that the gateway has sent to an upstream of the first chain.
    pub(crate) fn attempts(&self, position: usize) -> u64 {
        self.upstream(position, "attempts").as_u64().unwrap()
    }

    /// Waits until exactly these nodes are the candidates of the first chain's last group.
    pub(crate) fn wait_for_candidates(&self, names: &[&str]) {
        let expected: Vec<Value> = names.iter().map(|name| Value::from(*name)).collect();
        wait_until(&format!("the candidates are {names:?}"), || {
            let groups = self.status("/chains/0/groups");
            groups.as_array().unwrap().last().unwrap()["candidates"]
                == Value::from(expected.clone())
        });
    }

    /// Waits until the first chain has this head; `None` waits until it has no head.
    pub(crate) fn wait_for_head(&self, head: Option<u64>) {
        wait_until(&format!("the head is {head:?}"), || {
            self.status("/chains/0/head").get("number").and_then(Value::as_u64) == head
        });
    }

    /// Stops the gateway and returns how long that took.
    pub(crate) fn stop(mut self) -> Duration {
        let start = Instant::now();
        self.gateway.take().unwrap().stop();
        start.elapsed()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(gateway) = self.gateway.take() {
            gateway.stop();
        }
    }
}

/// Waits until the first poll is over. It reads the head and then headers below it.
pub(crate) fn wait_for_quiet(nodes: &[&SimNode]) {
    let counts = || nodes.iter().map(|node| node.calls()).collect::<Vec<u64>>();
    wait_until("the nodes are asked nothing more", || {
        let before = counts();
        pause(QUIET); // Sleeps: a further call of the poll would arrive meanwhile.
        counts() == before
    });
}

/// A call with the id 7.
pub(crate) fn body(method: &str, params: &str) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{method}","params":{params}}}"#).into()
}

/// The parameters of [`READ`] at a block. Each number is another account.
pub(crate) fn account(number: u64, block: &str) -> String {
    format!(r#"["0x{number:040x}","{block}"]"#)
}

/// Sends a call on a connection and waits for its response.
pub(crate) fn ask(client: &mut Client, method: &str, params: &str) -> Response {
    client.call("/", &body(method, params))
}

/// Sends a call with a further header line and waits for its response.
pub(crate) fn ask_with(client: &mut Client, line: &str, method: &str, params: &str) -> Response {
    client.send(&post_with("/", &format!("{line}\r\n"), &body(method, params)));
    client.read_response().unwrap()
}

/// Sends a call without waiting for its response.
pub(crate) fn send(client: &mut Client, method: &str, params: &str) {
    client.send(&post("/", &body(method, params)));
}

/// The raw JSON of a response's result. Panics if the response has none.
pub(crate) fn result(answer: &Response) -> String {
    let text = answer.text();
    assert_eq!(answer.status, 200, "{text}");
    let raw = text.strip_prefix(r#"{"jsonrpc":"2.0","id":7,"result":"#);
    let raw = raw.and_then(|tail| tail.trim_end().strip_suffix('}'));
    raw.unwrap_or_else(|| panic!("no result: {text}")).to_owned()
}

/// HTTP status, JSON-RPC code and message of a response. Panics if it has no error.
pub(crate) fn error(answer: &Response) -> (u16, i64, String) {
    let parsed: Value = serde_json::from_str(answer.text()).unwrap();
    assert_eq!(parsed["id"], 7, "{parsed}");
    let error = &parsed["error"];
    let code = error["code"].as_i64().unwrap_or_else(|| panic!("no error: {parsed}"));
    (answer.status, code, error["message"].as_str().unwrap().to_owned())
}

/// The cache status of a response, such as `hit` or `miss`, without its parameters.
pub(crate) fn mark(answer: &Response) -> &str {
    let mark = answer.header("x-weir-cache").unwrap();
    mark.split(';').next().unwrap()
}

/// The name of the upstream that a response came from.
pub(crate) fn by(answer: &Response) -> &str {
    answer.header("x-weir-upstream").unwrap()
}
