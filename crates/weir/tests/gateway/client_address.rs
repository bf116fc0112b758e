//! Goal: the gateway uses the address of the connection as the client's address. If a trusted proxy
//! sends another address, the gateway uses that one. This holds over HTTP/1.1, HTTP/2, TLS and the
//! PROXY protocol.
//!
//! Method: the gateway selects a node by a hash of the client's address (`hash_key = "client"`). So
//! the node that responds shows which address the gateway used. The tests for unusual headers are
//! in `crates/gateway/src/policy/client/tests.rs`.

use std::net::IpAddr;

use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::support::authority;
use crate::support::harness::{
    self, GET_BALANCE, NodeRuntime, SimNode, balance_params, chain_polled_once,
};
use crate::support::tls_client;
use test_support::raw::{self, Client};
use test_support::wait::wait_until;

const NAMES: [&str; 8] = ["n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7"];

/// A gateway that selects the node by a hash of the client's address.
struct HashingGateway {
    gateway: Option<gateway::runtime::Gateway>,
    address: String,
    /// Address of the TLS listener. `None` if there is none.
    tls_address: Option<String>,
    admin: String,
}

impl HashingGateway {
    /// Starts a gateway with these lines under `[server]` and under `[downstream]`.
    fn start(nodes: &[SimNode], server: &str, downstream: &str) -> HashingGateway {
        let entries: String = nodes.iter().map(|node| node.to_toml("")).collect();
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nthreads = 1\n{server}\n\
             [downstream]\n{downstream}\n\
             [call]\nbalance = \"hash\"\nhash_key = \"client\"\nhedge = false\n\
             [cache]\nenabled = false\ncoalesce = false\n{}\n{entries}",
            chain_polled_once("")
        );
        let config =
            gateway::config::Config::from_text("test", &text, std::path::Path::new("/"), &|_| None);
        let gateway = config.unwrap_or_else(|faults| panic!("{faults}"));
        let gateway = gateway::runtime::Gateway::start(gateway).unwrap();
        let hashing = HashingGateway {
            address: gateway.listen.to_string(),
            tls_address: gateway.listen_tls.map(|address| address.to_string()),
            admin: gateway.admin.unwrap().to_string(),
            gateway: Some(gateway),
        };
        wait_until("all nodes are candidates", || {
            let status = hashing.get_admin("/status");
            let status: serde_json::Value = serde_json::from_str(&status).unwrap();
            let candidates = &status["chains"][0]["groups"][0]["candidates"];
            candidates.as_array().is_some_and(|all| all.len() == nodes.len())
        });
        hashing
    }

    fn get_admin(&self, path: &str) -> String {
        let mut client = Client::connect(&self.admin);
        client.send(format!("GET {path} HTTP/1.1\r\nHost: admin\r\n\r\n").as_bytes());
        client.read_response().unwrap().text().to_owned()
    }

    /// Number of connections that the gateway refused for this reason.
    fn refused(&self, reason: &str) -> u64 {
        let line = format!("weir_proxy_refused_total{{reason=\"{reason}\"}} ");
        let metrics = self.get_admin("/metrics");
        metrics.lines().find_map(|row| row.strip_prefix(&line)).unwrap().parse().unwrap()
    }

    /// Opens a connection, and sends the bytes `start` and a request with these header lines.
    /// Returns the name of the responding node, or `None` if the gateway closes the connection.
    fn node_for(&self, start: &[u8], lines: &str) -> Option<String> {
        let mut client = Client::connect(&self.address);
        client.send(start);
        client.send(&request(lines));
        node_of(&client.read_response()?)
    }
}

impl Drop for HashingGateway {
    fn drop(&mut self) {
        if let Some(gateway) = self.gateway.take() {
            gateway.stop();
        }
    }
}

fn request(lines: &str) -> Vec<u8> {
    raw::post_with("/", lines, &harness::body(GET_BALANCE, &balance_params(1, "0x10")))
}

fn node_of(answer: &raw::Response) -> Option<String> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.header("x-weir-upstream").map(str::to_owned)
}

/// Client addresses for which the gateway selects different nodes. None of these nodes is the one
/// for this machine's own address.
struct KnownAddresses {
    addresses: Vec<(IpAddr, String)>,
    /// The name of the node for this machine's own address.
    local: String,
}

impl KnownAddresses {
    fn find(hashing: &HashingGateway) -> KnownAddresses {
        let local = hashing.node_for(b"", "").unwrap();
        let mut addresses: Vec<(IpAddr, String)> = Vec::new();
        for last in 1..=60u8 {
            let address = IpAddr::from([203, 0, 113, last]);
            let node = hashing.node_for(b"", &format!("X-Forwarded-For: {address}\r\n")).unwrap();
            if node != local && addresses.iter().all(|(_, known)| *known != node) {
                addresses.push((address, node));
            }
        }
        assert!(addresses.len() >= 4, "eight nodes share sixty addresses: {}", addresses.len());
        KnownAddresses { addresses, local }
    }

    fn address(&self, index: usize) -> IpAddr {
        self.addresses[index].0
    }

    fn node(&self, index: usize) -> Option<String> {
        Some(self.addresses[index].1.clone())
    }
}

/// `[downstream]` keys with which trusted proxies send the client's address in a header.
const FORWARDED_FOR: &str = "trusted_proxies = [\"127.0.0.0/8\", \"10.0.0.0/8\"]\n\
                             client_address = \"x-forwarded-for\"";

#[test]
fn only_trusted_peers_speak_for_others() {
    let runtime = NodeRuntime::start();
    let nodes = runtime.nodes(NAMES);
    let hashing = HashingGateway::start(&nodes, "", FORWARDED_FOR);
    let known = KnownAddresses::find(&hashing);
    let (a, b) = (known.address(0), known.address(1));
    let node_for = |lines: &str| hashing.node_for(b"", lines);
    let list = |value: String| node_for(&format!("X-Forwarded-For: {value}\r\n"));
    assert_eq!(
        list(format!("{b}, {a}")),
        known.node(0),
        "the client may have forged the left address"
    );
    assert_eq!(
        list(format!("{b}, {a}, 10.0.0.7")),
        known.node(0),
        "a trusted proxy in the list was not skipped"
    );
    assert_eq!(list(format!("{a}:4711")), known.node(0));
    assert_eq!(list(format!("{a}, unknown")), Some(known.local.clone()));
    assert_eq!(node_for(&format!("Forwarded: for={a}\r\n")), Some(known.local.clone()));
    assert_eq!(node_for(&format!("X-Real-IP: {a}\r\n")), Some(known.local.clone()));
    let two = format!("x-forwarded-for: {b}\r\nX-FORWARDED-FOR: {a}\r\n");
    assert_eq!(node_for(&two), known.node(0), "several header lines are one list");
    // One connection of a proxy carries requests of several clients.
    let mut client = Client::connect(&hashing.address);
    for index in [0, 1, 2, 0, 1] {
        client.send(&request(&format!("X-Forwarded-For: {}\r\n", known.address(index))));
        assert_eq!(node_of(&client.read_response().unwrap()), known.node(index));
    }

    let plain = HashingGateway::start(&nodes, "", "");
    for lines in [format!("X-Forwarded-For: {a}\r\n"), format!("Forwarded: for={a}\r\n")] {
        assert_eq!(plain.node_for(b"", &lines), Some(known.local.clone()), "no proxy is trusted");
    }
    let elsewhere = FORWARDED_FOR.replace("127.0.0.0/8", "192.0.2.0/24");
    let other = HashingGateway::start(&nodes, "", &elsewhere);
    let lines = format!("X-Forwarded-For: {a}\r\n");
    assert_eq!(other.node_for(b"", &lines), Some(known.local.clone()), "this peer is not trusted");

    let forwarded =
        HashingGateway::start(&nodes, "", &FORWARDED_FOR.replace("x-forwarded-for", "forwarded"));
    let lines = format!("Forwarded: for={b}, for=\"{a}\";proto=https, for=10.0.0.7\r\n");
    assert_eq!(forwarded.node_for(b"", &lines), known.node(0));
    let lines = format!("X-Forwarded-For: {a}\r\n");
    assert_eq!(
        forwarded.node_for(b"", &lines),
        Some(known.local.clone()),
        "only the configured header counts"
    );
}

#[test]
fn http2_says_it_for_each_request() {
    let runtime = NodeRuntime::start();
    let nodes = runtime.nodes(NAMES);
    let hashing = HashingGateway::start(&nodes, "", FORWARDED_FOR);
    let known = KnownAddresses::find(&hashing);
    runtime.handle.block_on(async {
        let tcp = tokio::net::TcpStream::connect(&hashing.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(tcp))
                .await
                .unwrap();
        tokio::spawn(connection);
        for index in [0, 1, 2, 1] {
            let request = hyper::Request::post(format!("http://{}/", hashing.address))
                .header("content-type", "application/json")
                .header("x-forwarded-for", known.address(3).to_string())
                .header("x-forwarded-for", format!("{}, 10.1.1.1", known.address(index)))
                .body(Full::<hyper::body::Bytes>::from(harness::body(
                    GET_BALANCE,
                    &balance_params(1, "0x10"),
                )))
                .unwrap();
            let answer = sender.send_request(request).await.unwrap();
            let node = answer.headers()["x-weir-upstream"].to_str().unwrap().to_owned();
            assert_eq!(Some(node), known.node(index));
        }
    });
}

/// `[downstream]` keys with which trusted proxies send the client's address by the PROXY protocol.
const PROXY_PROTOCOL: &str = "trusted_proxies = [\"127.0.0.1\"]\n\
                              client_address = \"proxy-protocol\"\n\
                              header_timeout = \"500ms\"";

/// A PROXY protocol header of version 2 for a client with this address.
fn proxy_header_v2(address: IpAddr) -> Vec<u8> {
    let IpAddr::V4(address) = address else { panic!("an IPv4 address is used") };
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    header.extend_from_slice(&address.octets());
    header.extend_from_slice(&[127, 0, 0, 1, 0x12, 0x34, 0x01, 0xbb]);
    header
}

#[test]
fn the_proxy_protocol_says_it_for_a_connection() {
    let runtime = NodeRuntime::start();
    let nodes = runtime.nodes(NAMES);
    let known = KnownAddresses::find(&HashingGateway::start(&nodes, "", FORWARDED_FOR));
    let hashing = HashingGateway::start(&nodes, "", PROXY_PROTOCOL);
    let (a, b) = (known.address(0), known.address(1));
    let text = |address: IpAddr| format!("PROXY TCP4 {address} 127.0.0.1 4660 443\r\n");
    assert_eq!(hashing.node_for(text(a).as_bytes(), ""), known.node(0));
    assert_eq!(hashing.node_for(&proxy_header_v2(b), ""), known.node(1));
    let header = format!("X-Forwarded-For: {b}\r\n");
    assert_eq!(
        hashing.node_for(text(a).as_bytes(), &header),
        known.node(0),
        "headers do not count"
    );
    let local = Some(known.local.clone());
    assert_eq!(hashing.node_for(b"PROXY UNKNOWN\r\n", ""), local);
    assert_eq!(
        hashing.node_for(b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0", ""),
        local,
        "a proxy's own check"
    );
    // The PROXY header may arrive byte by byte, or together with requests.
    let mut client = Client::connect(&hashing.address);
    for byte in proxy_header_v2(a) {
        client.send(&[byte]);
    }
    client.send(&request(""));
    assert_eq!(node_of(&client.read_response().unwrap()), known.node(0));
    let mut client = Client::connect(&hashing.address);
    client.send(&[text(b).into_bytes(), request(""), request("")].concat());
    for _ in 0..2 {
        assert_eq!(node_of(&client.read_response().unwrap()), known.node(1));
    }
    assert_eq!(hashing.refused("malformed") + hashing.refused("timeout"), 0);

    for bad in [&b"PROXY TCP4 1.1.1.1\r\n"[..], b"GET / HTTP/1.1\r\n\r\n", &[b'P'; 300], b""] {
        let mut client = Client::connect(&hashing.address);
        client.send(bad);
        if bad.is_empty() {
            client.half_close();
        }
        assert!(client.is_closed(), "{bad:?}");
    }
    wait_until("all are counted", || hashing.refused("malformed") == 4);
    let mut slow = Client::connect(&hashing.address);
    slow.send(b"PROXY TCP4 ");
    assert!(slow.is_closed());
    assert_eq!(hashing.refused("timeout"), 1);

    let elsewhere = PROXY_PROTOCOL.replace("127.0.0.1", "192.0.2.1");
    let other = HashingGateway::start(&nodes, "", &elsewhere);
    for start in [text(a).into_bytes(), proxy_header_v2(a), Vec::new()] {
        assert_eq!(other.node_for(&start, ""), None, "only trusted peers connect");
    }
    assert_eq!(other.refused("untrusted"), 3);

    // If the PROXY protocol is not configured, a PROXY header is an invalid request.
    let plain = HashingGateway::start(&nodes, "", "");
    let mut client = Client::connect(&plain.address);
    client.send(text(a).as_bytes());
    assert_eq!(client.read_response().unwrap().status, 505, "PROXY is no version of HTTP");
}

#[test]
fn the_proxy_header_is_read_before_and_within_tls() {
    let runtime = NodeRuntime::start();
    let nodes = runtime.nodes(NAMES);
    let authority = authority::Authority::new("authority");
    let mut files = authority::ConfigFiles::new();
    files.write_certificate("own", &authority, authority::KeyType::Ecdsa, &["rpc.test"]);
    let folder = files.folder().display();
    let server = format!(
        "listen_tls = \"127.0.0.1:0\"\n[[certificate]]\nchain_file = \"{folder}/own.pem\"\n\
         key_file = \"{folder}/own.key\""
    );
    let with_header = HashingGateway::start(&nodes, &server, FORWARDED_FOR);
    let known = KnownAddresses::find(&with_header);
    let client = tls_client::TlsClient::new(&authority);
    let node_for = |hashing: &HashingGateway, start: &[u8], lines: &str| {
        let address = hashing.tls_address.as_ref().unwrap();
        let mut connection = client.connect_after_sending(address, "rpc.test", start).ok()?;
        let head = connection.request_head(&request(lines)).ok()?.to_ascii_lowercase();
        let (_, rest) = head.split_once("x-weir-upstream: ").unwrap();
        Some(rest.split("\r\n").next().unwrap().to_owned())
    };
    let lines = format!("X-Forwarded-For: {}, {}\r\n", known.address(1), known.address(0));
    assert_eq!(node_for(&with_header, b"", &lines), known.node(0));
    assert_eq!(node_for(&with_header, b"", ""), Some(known.local.clone()));

    let with_protocol = HashingGateway::start(&nodes, &server, PROXY_PROTOCOL);
    assert_eq!(node_for(&with_protocol, &proxy_header_v2(known.address(2)), ""), known.node(2));
    assert_eq!(node_for(&with_protocol, b"", ""), None, "a TLS handshake is not a PROXY header");
    assert_eq!(with_protocol.refused("malformed"), 1);
}
