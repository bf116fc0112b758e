//! The harness of most tests: simulated nodes on a separate thread, a gateway in front of them, and
//! calls to the gateway.
//!
//! The tests check the results. These helpers only check that responses are well-formed.
//!
//! Names from the crate `simnode`: a `Node` is a simulated blockchain node. A `World` is the
//! simulated chain that its nodes share.

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

use test_support::port::ReservedPort;
use test_support::raw::{Client, Response, post, post_with};
use test_support::wait::{pause, wait_until};

/// If no call reaches the nodes for this long, the gateway has completed its poll. A poll requests
/// block headers one after the other, with shorter gaps.
const POLL_GAP_MAX: Duration = Duration::from_millis(100);

/// Number of the newest block of a chain from [`static_world`].
pub(crate) const NEWEST_BLOCK: u64 = 1_000;
/// Number of the newest finalized block of that chain.
pub(crate) const FINALIZED_BLOCK: u64 = NEWEST_BLOCK - 64;

/// The method that most tests call, and for which they make nodes slow or faulty. It reads the
/// state of one block, and a node answers it quickly.
pub(crate) const GET_BALANCE: &str = "eth_getBalance";

/// A thread with a Tokio runtime for simulated nodes and the proxies in front of them.
pub(crate) struct NodeRuntime {
    pub(crate) handle: Handle,
    _stop: oneshot::Sender<()>,
}

/// A simulated node that runs on the thread of a [`NodeRuntime`].
pub(crate) struct SimNode {
    pub(crate) name: &'static str,
    pub(crate) node: Arc<Node>,
    pub(crate) address: SocketAddr,
    server: NodeServer,
    /// Reserves the port while the node does not listen, so that no other test gets it.
    _port: ReservedPort,
    handle: Handle,
}

impl NodeRuntime {
    /// Starts the thread. It ends when the `NodeRuntime` is dropped.
    pub(crate) fn start() -> NodeRuntime {
        let (stop, stopped) = oneshot::channel();
        let (handle_sender, handle_receiver) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.unwrap();
            handle_sender.send(runtime.handle().clone()).unwrap();
            // `_stop` sends nothing. The receiver fails when the `NodeRuntime` is dropped.
            let _ = runtime.block_on(stopped);
        });
        NodeRuntime { handle: handle_receiver.recv().unwrap(), _stop: stop }
    }

    /// Starts a node that serves this simulated chain.
    pub(crate) fn node(&self, name: &'static str, world: &Arc<World>) -> SimNode {
        let _within = self.handle.enter();
        let node = Node::new(name, Arc::clone(world));
        let port = ReservedPort::new();
        let address = port.address;
        let server = node.listen(address).unwrap();
        SimNode { name, node, address, server, _port: port, handle: self.handle.clone() }
    }

    /// Starts nodes with these names that share one chain without new blocks.
    pub(crate) fn nodes<const N: usize>(&self, names: [&'static str; N]) -> [SimNode; N] {
        let world = static_world(WorldOptions::default());
        names.map(|name| self.node(name, &world))
    }
}

/// A chain that gets no new block while a test runs.
pub(crate) fn static_world(options: WorldOptions) -> Arc<World> {
    let block_time = Duration::from_secs(3600);
    let options = WorldOptions { height_start: NEWEST_BLOCK, block_time, ..options };
    Arc::new(World::new(options).unwrap())
}

impl SimNode {
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The `[[upstream]]` table of this node in the gateway's configuration. `more` has further
    /// lines.
    pub(crate) fn to_toml(&self, more: &str) -> String {
        upstream_toml(self.name, &self.url(), more)
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Settings)) {
        self.node.set(change).unwrap();
    }

    /// Makes the node answer each call of a method after this many milliseconds.
    pub(crate) fn set_latency(&self, method: &str, ms: f64) {
        self.set(|settings| {
            settings.method_latency.insert(method.to_owned(), Latency::Constant { ms });
        });
    }

    /// Replaces all faults that the node injects by this one.
    pub(crate) fn set_fault(&self, rule: FaultRule) {
        self.set(|settings| settings.faults = vec![rule]);
    }

    /// Number of calls that the node has received, including the gateway's polls.
    pub(crate) fn calls(&self) -> u64 {
        self.node.counters().calls
    }

    /// Closes the node's listener and connections, as if its process were killed.
    pub(crate) fn stop_listening(&self) {
        self.handle.block_on(self.server.close_port());
    }

    /// Listens again after [`SimNode::stop_listening`].
    pub(crate) fn listen_again(&self) {
        self.handle.block_on(self.server.open_port()).unwrap();
    }

    /// Calls the node directly, without the gateway, and returns the raw result. The node counts
    /// this call too.
    pub(crate) fn call(&self, method: &str, params: &str) -> String {
        let mut client = Client::connect(&self.address.to_string());
        result(&client.call("/", &body(method, params)))
    }
}

/// An `[[upstream]]` table of the gateway's configuration. `more` has further lines.
pub(crate) fn upstream_toml(name: &str, url: &str, more: &str) -> String {
    format!("[[upstream]]\nname = \"{name}\"\nurl = \"{url}\"\n{more}\n")
}

/// The default `[server]` table of a [`TestGateway`]. With it, the gateway does not wait for idle
/// connections when a test ends.
const DEFAULT_SERVER_TABLE: &str = "[server]\ndrain_deadline = \"5s\"\ndrain_linger = \"0s\"\n";

const POLL_ONCE: &str = "poll_interval = \"1h\"";

/// A `[chain.sim]` table with which the gateway polls each node only once, at the start. `more` has
/// further lines.
pub(crate) fn chain_polled_once(more: &str) -> String {
    format!("[chain.sim]\n{POLL_ONCE}\n{more}\n")
}

/// A `[chain.sim]` table with which the gateway polls each node every 50 ms. `more` has further
/// lines.
pub(crate) fn chain_polled_often(more: &str) -> String {
    format!("[chain.sim]\npoll_interval = \"50ms\"\n{more}\n")
}

/// A gateway in the test's process. It has one thread by default, and stops when it is dropped.
pub(crate) struct TestGateway {
    /// `None` after [`TestGateway::stop`].
    gateway: Option<Gateway>,
    /// The address of the JSON-RPC listener.
    pub(crate) address: String,
    /// The address of the admin listener.
    pub(crate) admin: String,
}

impl TestGateway {
    /// Starts a gateway with the default `[server]` table, followed by this configuration.
    pub(crate) fn start(text: &str) -> TestGateway {
        TestGateway::with_server_table(DEFAULT_SERVER_TABLE, text)
    }

    /// Starts a gateway with this `[server]` table instead of the default one. The function adds
    /// the addresses, and one thread if the table does not set `threads`.
    pub(crate) fn with_server_table(server: &str, text: &str) -> TestGateway {
        let gateway = Gateway::start(TestGateway::config(server, text)).unwrap();
        let (address, admin) = (gateway.listen.to_string(), gateway.admin.unwrap().to_string());
        TestGateway { gateway: Some(gateway), address, admin }
    }

    fn config(server: &str, text: &str) -> Config {
        let threads = if server.contains("threads") { "" } else { "threads = 1\n" };
        let text =
            format!("{server}listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n{threads}{text}");
        let config = Config::from_text("test", &text, Path::new("/"), &|_| None);
        config.unwrap_or_else(|faults| panic!("{faults}"))
    }

    /// Replaces the gateway's configuration. Returns the names of the changed keys.
    pub(crate) fn reload(&self, text: &str) -> Vec<String> {
        let config = TestGateway::config(DEFAULT_SERVER_TABLE, text);
        let changes = self.gateway.as_ref().unwrap().reload(config);
        changes.into_iter().map(|change| change.key).collect()
    }

    /// Starts a gateway in front of these nodes. Waits until each node is a candidate, which means
    /// that the gateway may send calls to it. With [`chain_polled_once`], also waits until the
    /// gateway has completed its first poll.
    pub(crate) fn in_front_of(nodes: &[&SimNode], text: &str) -> TestGateway {
        let entries: String = nodes.iter().map(|node| node.to_toml("")).collect();
        let gateway = TestGateway::start(&format!("{text}\n{entries}"));
        gateway.wait_for_candidates(&nodes.iter().map(|node| node.name).collect::<Vec<_>>());
        if text.contains(POLL_ONCE) {
            wait_until_idle(nodes);
        }
        gateway
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.address)
    }

    /// Sends a GET request to the admin listener and returns the response.
    pub(crate) fn get_admin(&self, path: &str) -> Response {
        let mut client = Client::connect(&self.admin);
        client.send(format!("GET {path} HTTP/1.1\r\nHost: admin\r\n\r\n").as_bytes());
        client.read_response().unwrap()
    }

    /// Reads `/status` of the admin listener and returns the value at a JSON pointer.
    pub(crate) fn status(&self, pointer: &str) -> Value {
        let status: Value = serde_json::from_str(self.get_admin("/status").text()).unwrap();
        let value = status.pointer(pointer);
        value.unwrap_or_else(|| panic!("{pointer} is not in {status:#}")).clone()
    }

    /// Like [`TestGateway::status`], for a value that is a whole number.
    pub(crate) fn status_u64(&self, pointer: &str) -> u64 {
        self.status(pointer).as_u64().unwrap()
    }

    /// A field of an upstream in `/status`. `position` is that of the upstream in the configuration
    /// of the first chain, from 0.
    pub(crate) fn upstream(&self, position: usize, field: &str) -> Value {
        self.status(&format!("/chains/0/upstreams/{position}/{field}"))
    }

    /// Number of calls that the gateway has sent to an upstream of the first chain, including
    /// retries.
    pub(crate) fn attempts(&self, position: usize) -> u64 {
        self.upstream(position, "attempts").as_u64().unwrap()
    }

    /// Waits until exactly these nodes are the candidates of the first chain's last group of
    /// upstreams. The gateway may send calls to candidates.
    pub(crate) fn wait_for_candidates(&self, names: &[&str]) {
        let expected: Vec<Value> = names.iter().map(|name| Value::from(*name)).collect();
        wait_until(&format!("the candidates are {names:?}"), || {
            let groups = self.status("/chains/0/groups");
            groups.as_array().unwrap().last().unwrap()["candidates"]
                == Value::from(expected.clone())
        });
    }

    /// Waits until this is the newest block of the first chain, as the gateway sees it. `None`
    /// waits until the gateway knows no newest block.
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

impl Drop for TestGateway {
    fn drop(&mut self) {
        if let Some(gateway) = self.gateway.take() {
            gateway.stop();
        }
    }
}

/// Waits until the nodes receive no calls, because the gateway has completed its first poll. That
/// poll reads the newest block and then the headers of earlier blocks.
pub(crate) fn wait_until_idle(nodes: &[&SimNode]) {
    let counts = || nodes.iter().map(|node| node.calls()).collect::<Vec<u64>>();
    wait_until("the nodes are asked nothing more", || {
        let before = counts();
        pause(POLL_GAP_MAX); // Sleeps: a further call of the poll would arrive meanwhile.
        counts() == before
    });
}

/// The body of a call with the id 7.
pub(crate) fn body(method: &str, params: &str) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{method}","params":{params}}}"#).into()
}

/// The parameters of [`GET_BALANCE`] at a block. `account` is the account's address as a number.
pub(crate) fn balance_params(account: u64, block: &str) -> String {
    format!(r#"["0x{account:040x}","{block}"]"#)
}

/// Sends a call on a connection and waits for its response.
pub(crate) fn ask(client: &mut Client, method: &str, params: &str) -> Response {
    client.call("/", &body(method, params))
}

/// Sends a call with a further header line and waits for its response.
pub(crate) fn ask_with_header(
    client: &mut Client,
    header: &str,
    method: &str,
    params: &str,
) -> Response {
    client.send(&post_with("/", &format!("{header}\r\n"), &body(method, params)));
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

/// The HTTP status of a response, and the code and message of its JSON-RPC error. Panics if the
/// response has no error.
pub(crate) fn error(answer: &Response) -> (u16, i64, String) {
    let parsed: Value = serde_json::from_str(answer.text()).unwrap();
    assert_eq!(parsed["id"], 7, "{parsed}");
    let error = &parsed["error"];
    let code = error["code"].as_i64().unwrap_or_else(|| panic!("no error: {parsed}"));
    (answer.status, code, error["message"].as_str().unwrap().to_owned())
}

/// The cache status of a response, such as `hit` or `miss`, without its parameters.
pub(crate) fn cache_status(answer: &Response) -> &str {
    let header = answer.header("x-weir-cache").unwrap();
    header.split(';').next().unwrap()
}

/// The name of the upstream that a response came from.
pub(crate) fn upstream_of(answer: &Response) -> &str {
    answer.header("x-weir-upstream").unwrap()
}
