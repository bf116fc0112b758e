//! Nodes behind a real nginx that speaks HTTP/2.

use std::collections::HashSet;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use simnode::schedule::WorldOptions;

use super::{UNCACHED, ask_all};
use crate::support::authority::{Authority, ConfigFiles, KeyType};
use crate::support::harness::{
    GET_BALANCE, NodeRuntime, SimNode, TestGateway, ask, balance_params, chain_polled_once, error,
    result, static_world, upstream_toml,
};
use test_support::port::ReservedPort;
use test_support::programs;
use test_support::wait::wait_until;

/// A provider of nodes: nginx with TLS in front of a node. nginx stops when this is dropped.
struct Provider {
    child: Child,
    address: SocketAddr,
    files: ConfigFiles,
    /// Path of the certificate authority's file.
    ca: String,
    _port: ReservedPort,
}

/// A request in nginx's access log.
struct LoggedRequest {
    protocol: String,
    connection: u64,
}

impl Provider {
    /// Starts nginx. `more` has further lines of its `server` block. Returns `None` if nginx is not
    /// installed.
    fn in_front_of(node: &SimNode, offers_http2: bool, more: &str) -> Option<Provider> {
        let program = programs::require("nginx")?;
        let authority = Authority::new("provider");
        let mut files = ConfigFiles::new();
        files.write_certificate("nginx", &authority, KeyType::Ecdsa, &["127.0.0.1"]);
        let ca = files.write("ca.pem", authority.pem().as_bytes());
        let port = ReservedPort::new();
        let address = port.address;
        let (folder, node) = (files.folder().display().to_string(), node.address);
        let listen = if offers_http2 { "ssl http2" } else { "ssl" };
        let config = format!(
            "daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ log_format own '$server_protocol $connection $status'; access_log {folder}/log own;\n\
             client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;\n\
             fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;\n\
             upstream node {{ server {node}; keepalive 16; }}\n\
             server {{ listen {address} {listen}; ssl_certificate {folder}/nginx.pem;\n\
             ssl_certificate_key {folder}/nginx.key; {more}\n\
             location / {{ proxy_pass http://node; proxy_http_version 1.1;\n\
             proxy_set_header Connection \"\"; }} }} }}\n"
        );
        let file = files.write("nginx.conf", config.as_bytes());
        let mut command = Command::new(program);
        command.arg("-p").arg(files.folder()).arg("-c").arg(&file).stdin(Stdio::null());
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        wait_until("nginx listens", || TcpStream::connect(address).is_ok());
        let ca = ca.to_str().unwrap().to_owned();
        Some(Provider { child, address, files, ca, _port: port })
    }

    /// The `[[upstream]]` table of this nginx. `more` has further lines.
    fn to_toml(&self, name: &str, more: &str) -> String {
        let more = format!("tls_ca = \"{}\"\n{more}", self.ca);
        upstream_toml(name, &format!("https://{}", self.address), &more)
    }

    /// Starts a gateway whose upstream is this nginx.
    fn start_gateway(&self, more: &str) -> TestGateway {
        let upstream = self.to_toml("node", more);
        let gateway = TestGateway::start(&format!("{}{UNCACHED}{upstream}", chain_polled_once("")));
        gateway.wait_for_candidates(&["node"]);
        gateway
    }

    /// Returns the requests so far over this protocol, such as `HTTP/2.0`.
    fn logged(&self, protocol: &str) -> Vec<LoggedRequest> {
        let text = fs::read_to_string(self.files.folder().join("log")).unwrap();
        let read = |line: &str| {
            let mut parts = line.split(' ');
            let protocol = parts.next().unwrap().to_owned();
            LoggedRequest { protocol, connection: parts.next().unwrap().parse().unwrap() }
        };
        text.lines().map(read).filter(|logged| logged.protocol == protocol).collect()
    }

    /// Waits until the log has this many HTTP/2 requests. Returns the number of their connections.
    fn connections_of(&self, requests: usize) -> usize {
        wait_until("nginx has written its log", || self.logged("HTTP/2.0").len() >= requests);
        let logged = self.logged("HTTP/2.0");
        assert_eq!(logged.len(), requests, "nginx must receive each call once");
        logged.iter().map(|logged| logged.connection).collect::<HashSet<u64>>().len()
    }

    fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends `each` calls from each of several concurrent clients. Compares each response with the
/// node's own.
fn ask_from_many(gateway: &TestGateway, node: &SimNode, clients: u64, each: u64) {
    std::thread::scope(|scope| {
        for client in 0..clients {
            scope.spawn(move || {
                let mut connection = gateway.client();
                for number in client * each..(client + 1) * each {
                    let params = balance_params(number, "0x64");
                    let answer = ask(&mut connection, GET_BALANCE, &params);
                    assert_eq!(result(&answer), node.call(GET_BALANCE, &params));
                }
            });
        }
    });
}

#[test]
fn calls_share_a_connection() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let Some(provider) = Provider::in_front_of(&node, true, "") else { return };
    let gateway = provider.start_gateway("http2 = true");
    node.set_latency(GET_BALANCE, 5.0);
    ask_from_many(&gateway, &node, 8, 25);
    assert_eq!(provider.connections_of(200), 1);
    assert_eq!(gateway.upstream(0, "multiplexed_calls"), 200);
    assert_eq!(gateway.upstream(0, "transports"), serde_json::json!(["http2"]));
}

#[test]
fn calls_beyond_the_stream_limit_open_another_connection() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let stream_limit = "http2_max_concurrent_streams 2;";
    let Some(provider) = Provider::in_front_of(&node, true, stream_limit) else { return };
    let gateway = provider.start_gateway("http2 = true\nconnections_max = 3");
    node.set_latency(GET_BALANCE, 20.0);
    ask_from_many(&gateway, &node, 8, 10);
    // The gateway may send the first calls before nginx has sent its limit.
    let connections = provider.connections_of(80);
    assert!((2..=3).contains(&connections), "{connections}, of at most 3");
}

/// nginx closes a connection with GOAWAY after ten requests, while other calls are in flight.
#[test]
fn a_connection_that_the_node_ends_costs_no_call() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let request_limit = "keepalive_requests 10;";
    let Some(provider) = Provider::in_front_of(&node, true, request_limit) else { return };
    let gateway = provider.start_gateway("http2 = true");
    ask_from_many(&gateway, &node, 8, 50);
    assert!(provider.connections_of(400) >= 30);
}

#[test]
fn a_node_without_http2_gets_http1() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let Some(provider) = Provider::in_front_of(&node, false, "") else { return };
    let gateway = provider.start_gateway("http2 = true");
    ask_from_many(&gateway, &node, 4, 10);
    assert_eq!(gateway.upstream(0, "multiplexed_calls"), 0);
    assert_eq!(provider.logged("HTTP/2.0").len(), 0);
}

#[test]
fn large_responses_are_complete_and_too_large_ones_are_rejected() {
    let runtime = NodeRuntime::start();
    let world = static_world(WorldOptions {
        transactions_min: 2_000,
        transactions_max: 2_000,
        ..WorldOptions::default()
    });
    let node = runtime.node("node", &world);
    let Some(provider) = Provider::in_front_of(&node, true, "") else { return };
    let (method, params) = ("eth_getBlockByNumber", r#"["0x3e8",true]"#);
    let theirs = node.call(method, params);
    assert!(theirs.len() > 500_000, "{}", theirs.len());
    let gateway = provider.start_gateway("http2 = true");
    for _ in 0..3 {
        assert_eq!(result(&ask(&mut gateway.client(), method, params)), theirs);
    }
    drop(gateway);
    let call = "[call]\nresponse_bytes_max = \"100KiB\"\n";
    let upstream = provider.to_toml("node", "http2 = true");
    let text = format!("{}{UNCACHED}{call}{upstream}", chain_polled_once(""));
    let gateway = TestGateway::start(&text);
    gateway.wait_for_candidates(&["node"]);
    let (_, _, message) = error(&ask(&mut gateway.client(), method, params));
    assert!(message.contains("exceeds the size limit"), "{message}");
    let params = balance_params(1, "0x3e8");
    let answer = ask(&mut gateway.client(), GET_BALANCE, &params);
    assert_eq!(result(&answer), node.call(GET_BALANCE, &params));
}

#[test]
fn batches_use_http2() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let Some(provider) = Provider::in_front_of(&node, true, "") else { return };
    let keys = "http2 = true\nbatch_calls_max = 100\nbatch_wait = \"0ms\"";
    let gateway = provider.start_gateway(keys);
    ask_all(&mut gateway.client(), &node, 0..40);
    assert_eq!(provider.connections_of(1), 1);
}

/// A stopped nginx keeps the connection open and sends nothing, like a network that drops packets.
#[test]
fn a_silent_connection_is_closed() {
    let runtime = NodeRuntime::start();
    let [node, other] = runtime.nodes(["node", "other"]);
    let Some(provider) = Provider::in_front_of(&node, true, "") else { return };
    let upstreams = provider.to_toml("node", "http2 = true\nping_interval = \"100ms\"")
        + &other.to_toml("backup = true");
    let call = "[call]\nhedge = false\n";
    let text = format!("{}{UNCACHED}{call}{upstreams}", chain_polled_once(""));
    let gateway = TestGateway::start(&text);
    gateway.wait_for_candidates(&["node"]);
    let params = balance_params(1, "0x64");
    let answer = ask(&mut gateway.client(), GET_BALANCE, &params);
    assert_eq!(result(&answer), node.call(GET_BALANCE, &params));
    provider.signal("-STOP");
    let began = Instant::now();
    let answer = ask(&mut gateway.client(), GET_BALANCE, &params);
    assert_eq!(result(&answer), node.call(GET_BALANCE, &params));
    // Without pings, the gateway would wait for the much longer deadline of an attempt.
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    provider.signal("-CONT");
}
