//! Goal: clients get no error when nodes are killed, return, freeze, or send invalid responses, and
//! the gateway ejects the node within a second. Method: three simulated nodes and the gateway with
//! its default settings, each in its own process; an open-loop load of 2,000 calls/s of idempotent
//! reads from 50 keep-alive connections; the state of nodes is read from the status endpoint.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde_json::Value;

use test_support::raw;
use test_support::running::{Running, Weir};
use test_support::wait::pause;

const CONNECTIONS: u64 = 50;
const CALLS_PER_SECOND: u64 = 2_000;
/// The longest allowed time until a node is ejected that is dead or sends invalid responses.
const EJECT_MAX: Duration = Duration::from_secs(1);

/// Three nodes of one chain, with the gateway in front.
struct Scene {
    /// Start of the simulated chain.
    chain_start: SystemTime,
    /// `None` for a killed node.
    nodes: Vec<Option<Running>>,
    addresses: Vec<String>,
    gateway: Running,
}

/// The results of all clients: descriptions of failed calls, and the latency of each call.
#[derive(Default)]
struct Seen {
    faults: Vec<String>,
    latencies: Vec<Duration>,
}

impl Scene {
    fn new() -> Scene {
        let chain_start = SystemTime::now();
        let nodes: Vec<Running> = (0..3).map(|_| node(chain_start, "127.0.0.1:0")).collect();
        let urls: Vec<String> = nodes.iter().map(Running::url).collect();
        let gateway = Weir::serve().admin().upstreams(&urls).start();
        let addresses = nodes.iter().map(|node| node.address.clone()).collect();
        Scene { chain_start, nodes: nodes.into_iter().map(Some).collect(), addresses, gateway }
    }

    fn kill(&mut self, node: usize) {
        self.nodes[node] = None;
    }

    fn restart(&mut self, node: usize) {
        self.nodes[node] = Some(self::node(self.chain_start, &self.addresses[node]));
    }

    /// Posts to a node's admin address.
    fn post_to_admin(&self, node: usize, path: &str, body: &[u8]) {
        let admin = self.nodes[node].as_ref().and_then(|node| node.admin.clone());
        let mut client = raw::Client::connect(&admin.expect("the node has an admin address"));
        let answer = client.call(path, body);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    fn signal(&self, node: usize, signal: &str) {
        let id = self.nodes[node].as_ref().expect("the node runs").id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().expect("kill is there");
        assert!(sent.success());
    }

    /// The gateway's view of a node.
    fn view(&self, node: usize) -> Value {
        let admin = self.gateway.admin.as_ref().expect("the gateway has an admin address");
        let mut client = raw::Client::connect(admin);
        client.send(format!("GET /status HTTP/1.1\r\nHost: {admin}\r\n\r\n").as_bytes());
        let answer = client.read_response().expect("the gateway returns its status");
        let status: Value = serde_json::from_slice(&answer.body).expect("the status is JSON");
        status["chains"][0]["upstreams"][node].clone()
    }

    /// Waits until `condition` is true for the gateway's view of a node. Returns how long that
    /// took.
    fn until(&self, node: usize, what: &str, condition: impl Fn(&Value) -> bool) -> Duration {
        let began = Instant::now();
        loop {
            let view = self.view(node);
            if condition(&view) {
                return began.elapsed();
            }
            assert!(began.elapsed() < Duration::from_secs(20), "node {node} is not {what}: {view}");
            // Sleeps: the polling interval. The caller checks the total time.
            pause(Duration::from_millis(10));
        }
    }
}

/// A node with the same chain and head as the others, whenever it starts.
fn node(chain_start: SystemTime, listen: &str) -> Running {
    let since = chain_start.duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs_f64();
    Weir::node()
        .admin()
        .listen(listen)
        .args(&["--block-time", "250ms", "--since", &since.to_string()])
        .start()
}

/// Sends calls while `story` runs. Returns the results of all clients.
fn under_load(scene: &mut Scene, story: impl FnOnce(&mut Scene)) -> Seen {
    let address = scene.gateway.address.clone();
    let stop = AtomicBool::new(false);
    let seen = Mutex::new(Seen::default());
    std::thread::scope(|scope| {
        for client in 0..CONNECTIONS {
            let (address, stop, seen) = (&address, &stop, &seen);
            scope.spawn(move || {
                let results = client_run(address, client, stop);
                let mut seen = seen.lock();
                seen.faults.extend(results.faults);
                seen.latencies.extend(results.latencies);
            });
        }
        // The guard stops the clients even if the story panics.
        let _stop = Stop(&stop);
        story(scene);
    });
    seen.into_inner()
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn client_run(address: &str, client: u64, stop: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    let mut connection = raw::Client::connect(address);
    let interval = Duration::from_secs(1) * CONNECTIONS as u32 / CALLS_PER_SECOND as u32;
    let start = Instant::now() + interval * client as u32 / CONNECTIONS as u32;
    for call_number in 0u32.. {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let planned = start + interval * call_number;
        pause(planned.saturating_duration_since(Instant::now())); // Sleeps: the planned rate.
        let body = call(client, call_number);
        let answer = connection.call("/", body.as_bytes());
        seen.latencies.push(planned.elapsed());
        let is_success = answer.status == 200
            && serde_json::from_slice::<Value>(&answer.body)
                .is_ok_and(|answer| answer["id"] == call_number && !answer["result"].is_null());
        if !is_success {
            seen.faults.push(format!("{body} -> {} {}", answer.status, answer.text()));
        }
    }
    seen
}

/// The call with this number of a client. Half of the calls are not cached.
fn call(client: u64, call_number: u32) -> String {
    let account = format!("0x{:040x}", u64::from(call_number) << 8 | client);
    let (method, params) = match call_number % 4 {
        0 => ("eth_blockNumber", "[]".to_owned()),
        1 => ("eth_getBlockByNumber", "[\"latest\",false]".to_owned()),
        2 => ("eth_getBalance", format!("[\"{account}\",\"latest\"]")),
        _ => ("eth_getBalance", format!("[\"{account}\",\"{:#x}\"]", 1 + call_number % 990)),
    };
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{call_number},\"method\":\"{method}\",\"params\":{params}}}"
    )
}

/// A condition for [`Scene::until`]: the node has this state.
fn is(state: &'static str) -> impl Fn(&Value) -> bool {
    move |view| view["state"] == state
}

/// Asserts that no call failed and prints latencies.
fn assert_unharmed(what: &str, mut seen: Seen) {
    assert!(seen.latencies.len() > 1_000, "hardly any calls: {}", seen.latencies.len());
    seen.latencies.sort_unstable();
    let at = |share: f64| seen.latencies[((seen.latencies.len() - 1) as f64 * share) as usize];
    let (count, p50, p99, max) = (seen.latencies.len(), at(0.5), at(0.99), at(1.0));
    println!("{what}: {count} calls, p50 {p50:?}, p99 {p99:?}, slowest {max:?}");
    let examples: Vec<&String> = seen.faults.iter().take(5).collect();
    assert!(seen.faults.is_empty(), "{} errors: {examples:#?}", seen.faults.len());
}

#[test]
fn a_killed_a_frozen_and_an_html_sending_node_cause_no_error() {
    let mut scene = Scene::new();
    for node in 0..3 {
        scene.until(node, "healthy", is("healthy"));
    }
    let seen = under_load(&mut scene, |scene| {
        pause(Duration::from_secs(1)); // Sleeps: load goes on meanwhile.
        scene.kill(0);
        let ejected_after = scene.until(0, "ejected", is("ejected"));
        println!("killed: ejected after {ejected_after:?}");
        assert!(ejected_after < EJECT_MAX, "a killed node was ejected after {ejected_after:?}");
        pause(Duration::from_secs(2)); // Sleeps: load goes on meanwhile.
        scene.restart(0);
        let back = scene.until(0, "healthy again", is("healthy"));
        println!("restarted: taken back after {back:?}");

        scene.post_to_admin(1, "/freeze", b"");
        let excluded_after = scene.until(1, "off the head", |view| view["at_head"] == false);
        println!("frozen: excluded from head reads after {excluded_after:?}");
        pause(Duration::from_secs(1)); // Sleeps: load goes on meanwhile.
        scene.post_to_admin(1, "/thaw", b"");
        scene.until(1, "healthy again", is("healthy"));

        scene.post_to_admin(2, "/faults", br#"{"faults":[{"fault":{"kind":"html"},"share":1.0}]}"#);
        let ejected_after = scene.until(2, "ejected", is("ejected"));
        println!("sends HTML: ejected after {ejected_after:?}");
        assert!(
            ejected_after < EJECT_MAX,
            "a node that sends HTML was ejected after {ejected_after:?}"
        );
        pause(Duration::from_secs(1)); // Sleeps: load goes on meanwhile.
        scene.post_to_admin(2, "/faults", br#"{"faults":[]}"#);
        scene.until(2, "healthy again", is("healthy"));
    });
    assert_unharmed("kill, freeze, babble", seen);
}

#[test]
fn a_stopped_process_holds_no_call_for_long() {
    let mut scene = Scene::new();
    for node in 0..3 {
        scene.until(node, "healthy", is("healthy"));
    }
    let seen = under_load(&mut scene, |scene| {
        pause(Duration::from_secs(2)); // Sleeps: load goes on meanwhile.
        scene.signal(1, "-STOP");
        pause(Duration::from_secs(5)); // Sleeps: load goes on meanwhile.
        scene.signal(1, "-CONT");
        scene.until(1, "healthy again", is("healthy"));
    });
    assert_unharmed("stopped for 5 s", seen);
}

#[test]
fn two_stopped_processes_of_three_hold_no_call_for_long() {
    let mut scene = Scene::new();
    for node in 0..3 {
        scene.until(node, "healthy", is("healthy"));
    }
    let mut seen = under_load(&mut scene, |scene| {
        pause(Duration::from_secs(2)); // Sleeps: load goes on meanwhile.
        scene.signal(0, "-STOP");
        scene.signal(1, "-STOP");
        pause(Duration::from_secs(5)); // Sleeps: load goes on meanwhile.
        scene.signal(0, "-CONT");
        scene.signal(1, "-CONT");
        scene.until(0, "healthy again", is("healthy"));
        scene.until(1, "healthy again", is("healthy"));
    });
    seen.latencies.sort_unstable();
    let at = |share: f64| seen.latencies[((seen.latencies.len() - 1) as f64 * share) as usize];
    // 36 ms and 305 ms were measured on an idle machine; the limits allow for a busy one.
    let (p999, slowest) = (at(0.999), at(1.0));
    assert!(p999 < Duration::from_millis(800), "p99.9 {p999:?}, slowest {slowest:?}");
    assert!(slowest < Duration::from_secs(2), "p99.9 {p999:?}, slowest {slowest:?}");
    assert_unharmed("two stopped for 5 s", seen);
}
