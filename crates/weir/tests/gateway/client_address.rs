//! Goal: a client's address is that of the connection, unless a trusted proxy sends another one,
//! over HTTP/1.1, HTTP/2, TLS and the PROXY protocol. Method: a gateway that balances by the
//! client's address (`hash_key = "client"`). The responding node reveals which address it used.
//! Unusual headers are tested in `crates/gateway/src/policy/client/tests.rs`.

use std::net::IpAddr;

use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::support::authority;
use crate::support::guest;
use crate::support::scene::{self, READ, Scene, SimNode, account, polled_once};
use test_support::raw::{self, Client};
use test_support::wait::wait_until;

const NAMES: [&str; 8] = ["n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7"];

/// A gateway that selects the node by the client's address.
struct HashingGateway {
    gateway: Option<gateway::runtime::Gateway>,
    address: String,
    /// Address of the TLS listener; `None` without one.
    tls_address: Option<String>,
    admin: String,
}

impl HashingGateway {
    /// Starts a gateway with these lines under `[server]` and under `[downstream]`.
    fn start(nodes: &[SimNode], server: &str, downstream: &str) -> HashingGateway {
        let entries: String = nodes.iter().map(|node| node.entry("")).collect();
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nthreads = 1\n{server}\n\
             [downstream]\n{downstream}\n\
             [call]\nbalance = \"hash\"\nhash_key = \"client\"\nhedge = false\n\
             [cache]\nenabled = false\ncoalesce = false\n{}\n{entries}",
            polled_once("")
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
            let status = hashing.look("/status");
            let status: serde_json::Value = serde_json::from_str(&status).unwrap();
            let candidates = &status["chains"][0]["groups"][0]["candidates"];
            candidates.as_array().is_some_and(|all| all.len() == nodes.len())
        });
        hashing
    }

    fn look(&self, path: &str) -> String {
        let mut client = Client::connect(&self.admin);
        client.send(format!("GET {path} HTTP/1.1\r\nHost: admin\r\n\r\n").as_bytes());
        client.read_response().unwrap().text().to_owned()
    }

    /// Number of connections that were refused for a reason.
    fn refused(&self, reason: &str) -> u64 {
        let line = format!("weir_proxy_refused_total{{reason=\"{reason}\"}} ");
        let metrics = self.look("/metrics");
        metrics.lines().find_map(|row| row.strip_prefix(&line)).unwrap().parse().unwrap()
    }

    /// Opens a connection, sends the bytes `start` and a request with these header lines. Returns
    /// the name of the responding node, or `None` if the gateway closes the connection.
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
    raw::post_with("/", lines, &scene::body(READ, &account(1, "0x10")))
}

fn node_of(answer: &raw::Response) -> Option<String> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.header("x-weir-upstream").map(str::to_owned)
}

/// Client addresses that map to distinct nodes, and not to the node of this machine's address.
struct Known {
    addresses: Vec<(IpAddr, String)>,
    /// The node of this machine's address.
    local: String,
}

impl Known {
    fn of(hashing: &HashingGateway) -> Known {
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
        Known { addresses, local }
    }

    fn address(&self, index: usize) -> IpAddr {
        self.addresses[index].0
    }

    fn node(&self, index: usize) -> Option<String> {
        Some(self.addresses[index].1.clone())
    }
}

const BY_LIST: &str = "trusted_proxies = [\"127.0.0.0/8\", \"10.0.0.0/8\"]\n\
                       client_address = \"x-forwarded-for\"";

#[test]
fn only_trusted_peers_speak_for_others() {
    let scene = Scene::set();
    let nodes = scene.nodes(NAMES);
    let hashing = HashingGateway::start(&nodes, "", BY_LIST);
    let known = Known::of(&hashing);
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
    // A proxy sends the requests of several clients on one connection.
    let mut client = Client::connect(&hashing.address);
    for place in [0, 1, 2, 0, 1] {
        client.send(&request(&format!("X-Forwarded-For: {}\r\n", known.address(place))));
        assert_eq!(node_of(&client.read_response().unwrap()), known.node(place));
    }

    let plain = HashingGateway::start(&nodes, "", "");
    for lines in [format!("X-Forwarded-For: {a}\r\n"), format!("Forwarded: for={a}\r\n")] {
        assert_eq!(plain.node_for(b"", &lines), Some(known.local.clone()), "no proxy is trusted");
    }
    let elsewhere = BY_LIST.replace("127.0.0.0/8", "192.0.2.0/24");
    let other = HashingGateway::start(&nodes, "", &elsewhere);
    let lines = format!("X-Forwarded-For: {a}\r\n");
    assert_eq!(other.node_for(b"", &lines), Some(known.local.clone()), "this peer is not trusted");

    let forwarded =
        HashingGateway::start(&nodes, "", &BY_LIST.replace("x-forwarded-for", "forwarded"));
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
    let scene = Scene::set();
    let nodes = scene.nodes(NAMES);
    let hashing = HashingGateway::start(&nodes, "", BY_LIST);
    let known = Known::of(&hashing);
    scene.handle.block_on(async {
        let tcp = tokio::net::TcpStream::connect(&hashing.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(tcp))
                .await
                .unwrap();
        tokio::spawn(connection);
        for place in [0, 1, 2, 1] {
            let request = hyper::Request::post(format!("http://{}/", hashing.address))
                .header("content-type", "application/json")
                .header("x-forwarded-for", known.address(3).to_string())
                .header("x-forwarded-for", format!("{}, 10.1.1.1", known.address(place)))
                .body(Full::<hyper::body::Bytes>::from(scene::body(READ, &account(1, "0x10"))))
                .unwrap();
            let answer = sender.send_request(request).await.unwrap();
            let node = answer.headers()["x-weir-upstream"].to_str().unwrap().to_owned();
            assert_eq!(Some(node), known.node(place));
        }
    });
}

const BY_PROXY: &str = "trusted_proxies = [\"127.0.0.1\"]\nclient_address = \"proxy-protocol\"\n\
                        header_timeout = \"500ms\"";

/// A PROXY protocol header of version 2 for a client with this address.
fn version_2(address: IpAddr) -> Vec<u8> {
    let IpAddr::V4(address) = address else { panic!("an IPv4 address is used") };
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    header.extend_from_slice(&address.octets());
    header.extend_from_slice(&[127, 0, 0, 1, 0x12, 0x34, 0x01, 0xbb]);
    header
}

#[test]
fn the_proxy_protocol_says_it_for_a_connection() {
    let scene = Scene::set();
    let nodes = scene.nodes(NAMES);
    let known = Known::of(&HashingGateway::start(&nodes, "", BY_LIST));
    let hashing = HashingGateway::start(&nodes, "", BY_PROXY);
    let (a, b) = (known.address(0), known.address(1));
    let text = |address: IpAddr| format!("PROXY TCP4 {address} 127.0.0.1 4660 443\r\n");
    assert_eq!(hashing.node_for(text(a).as_bytes(), ""), known.node(0));
    assert_eq!(hashing.node_for(&version_2(b), ""), known.node(1));
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
    // The header may arrive byte by byte, or together with requests.
    let mut client = Client::connect(&hashing.address);
    for byte in version_2(a) {
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

    let elsewhere = BY_PROXY.replace("127.0.0.1", "192.0.2.1");
    let other = HashingGateway::start(&nodes, "", &elsewhere);
    for start in [text(a).into_bytes(), version_2(a), Vec::new()] {
        assert_eq!(other.node_for(&start, ""), None, "only trusted peers connect");
    }
    assert_eq!(other.refused("untrusted"), 3);

    // Without the PROXY protocol, the header is an invalid request.
    let plain = HashingGateway::start(&nodes, "", "");
    let mut client = Client::connect(&plain.address);
    client.send(text(a).as_bytes());
    assert_eq!(client.read_response().unwrap().status, 505, "PROXY is no version of HTTP");
}

#[test]
fn the_proxy_header_is_read_before_and_within_tls() {
    let scene = Scene::set();
    let nodes = scene.nodes(NAMES);
    let authority = authority::Authority::new("authority");
    let mut files = authority::Files::new();
    files.certificate("own", &authority, authority::Kind::Ecdsa, &["rpc.test"]);
    let folder = files.folder().display();
    let server = format!(
        "listen_tls = \"127.0.0.1:0\"\n[[certificate]]\nchain_file = \"{folder}/own.pem\"\n\
         key_file = \"{folder}/own.key\""
    );
    let by_list = HashingGateway::start(&nodes, &server, BY_LIST);
    let known = Known::of(&by_list);
    let guest = guest::Guest::new(&authority);
    let node_for = |hashing: &HashingGateway, start: &[u8], lines: &str| {
        let address = hashing.tls_address.as_ref().unwrap();
        let mut talk = guest.connect_behind(address, "rpc.test", start).ok()?;
        let head = talk.ask(&request(lines)).ok()?.to_ascii_lowercase();
        let (_, rest) = head.split_once("x-weir-upstream: ").unwrap();
        Some(rest.split("\r\n").next().unwrap().to_owned())
    };
    let lines = format!("X-Forwarded-For: {}, {}\r\n", known.address(1), known.address(0));
    assert_eq!(node_for(&by_list, b"", &lines), known.node(0));
    assert_eq!(node_for(&by_list, b"", ""), Some(known.local.clone()));

    let by_proxy = HashingGateway::start(&nodes, &server, BY_PROXY);
    assert_eq!(node_for(&by_proxy, &version_2(known.address(2)), ""), known.node(2));
    assert_eq!(node_for(&by_proxy, b"", ""), None, "a TLS handshake is not a PROXY header");
    assert_eq!(by_proxy.refused("malformed"), 1);
}
