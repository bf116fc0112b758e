//! Goal: a gateway with an index sends the same responses as its node, and calls no node for data
//! in the index. Method: a simulated node, an index with the first part of its chain, and a gateway
//! with both. Every response of the gateway is compared with the node's.

use std::process::Command;
use std::time::{Duration, Instant};

use index::reader::Reader;
use index::search::SearchLimits;
use index::serve::{Lookup, QueryContext};
use index::store::{Location, Settings};

use test_support::members::{difference, excerpt};
use test_support::postgres;
use test_support::raw::{Client, Response};
use test_support::running::{Running, Weir};
use test_support::wait::wait_until;

/// The number of the node's newest block.
const HEAD: u64 = 300;
/// The last block that is synced.
const LAST_STORED: u64 = 200;
/// Longest time until the gateway serves from the index; long enough for a busy machine.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(60);

fn node() -> Running {
    let head = HEAD.to_string();
    Weir::node().args(&["--head", &head, "--block-time", "1h", "--finality-depth", "10"]).start()
}

/// Returns calls that the index can answer: each a method and its parameters.
fn calls() -> Vec<(&'static str, String)> {
    let mut calls = Vec::new();
    for number in (0..LAST_STORED).step_by(17) {
        calls.push(("eth_getBlockByNumber", format!(r#"["{number:#x}",true]"#)));
        calls.push(("eth_getBlockByNumber", format!(r#"["{number:#x}",false]"#)));
        calls.push(("eth_getBlockReceipts", format!(r#"["{number:#x}"]"#)));
        calls
            .push(("eth_getTransactionByBlockNumberAndIndex", format!(r#"["{number:#x}","0x0"]"#)));
        calls.push(("eth_getBlockTransactionCountByNumber", format!(r#"["{number:#x}"]"#)));
    }
    let range = |from: u64, to: u64| {
        ("eth_getLogs", format!(r#"[{{"fromBlock":"{from:#x}","toBlock":"{to:#x}"}}]"#))
    };
    calls.extend([range(0, 50), range(7, 7), range(100, LAST_STORED)]);
    calls
}

/// Sends a call. Returns the response's body and the status in its header `x-weir-cache`.
fn call(client: &mut Client, method: &str, params: &str) -> (String, String) {
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
    let response = client.call("/", body.as_bytes());
    let cache_header = response.header("x-weir-cache").unwrap_or_default();
    let cache_status = cache_header.split(';').next().unwrap_or_default().to_owned();
    (response.text().to_owned(), cache_status)
}

/// Sends a GET request to the gateway's admin address.
fn admin(gateway: &Running, path: &str) -> Response {
    let mut client = Client::connect(gateway.admin.as_deref().unwrap());
    client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
    client.read_response().unwrap()
}

/// Returns the gateway's number of index lookups with this outcome.
fn count_lookups(gateway: &Running, outcome: &str) -> u64 {
    let metrics = admin(gateway, "/metrics");
    let name = format!("weir_index_lookups_total{{outcome=\"{outcome}\"}} ");
    let line = metrics.text().lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap().parse().unwrap()
}

/// Starts a gateway with an index. `db` is a path or the URL of a PostgreSQL database, here and
/// below; `more` is added to the section `[index]`.
fn start_gateway(node: &Running, db: &str, more: &str) -> Running {
    let url = node.url();
    let toml =
        format!("[[upstream]]\nname = \"one\"\nurl = \"{url}\"\n[index]\ndb = \"{db}\"\n{more}");
    Weir::serve().admin().config(&toml).start()
}

/// Runs a test with a file, and with a database if PostgreSQL is available.
fn with_each_database(test: impl Fn(&str)) {
    let folder = tempfile::tempdir().unwrap();
    test(folder.path().join("chain.db").to_str().unwrap());
    if let Some(server) = postgres::Postgres::start() {
        test(&server.url("chain"));
    }
}

#[test]
fn stored_data_is_served_without_a_node_and_the_rest_by_a_node() {
    with_each_database(check_stored_and_missing_data);
}

fn check_stored_and_missing_data(db: &str) {
    let node = node();
    let last_stored = LAST_STORED.to_string();
    let sync_output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args([
            "index",
            "sync",
            "--from",
            &node.url(),
            "--end",
            &last_stored,
            "--quiet",
            "--db",
            db,
        ])
        .output()
        .unwrap();
    assert!(sync_output.status.success(), "{}", String::from_utf8_lossy(&sync_output.stderr));
    let gateway = start_gateway(&node, db, "");
    let (mut gateway_client, mut node_client) =
        (Client::connect(&gateway.address), Client::connect(&node.address));
    let calls = calls();
    let (method, params) = &calls[0];
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
    let response = gateway_client.call("/", body.as_bytes());
    assert_eq!(response.header("x-weir-cache"), Some("hit; tier=index"));
    for (method, params) in &calls {
        let (response, cache_status) = call(&mut gateway_client, method, params);
        let (node_response, _) = call(&mut node_client, method, params);
        assert_eq!(cache_status, "hit", "{method} {params}");
        assert_eq!(
            difference(&node_response, &response),
            None,
            "{method} {params}: {}",
            excerpt(&response)
        );
    }
    assert_eq!(count_lookups(&gateway, "hit"), calls.len() as u64);
    // The index holds a part of the first range, nothing of the second, and all but the last block
    // of the third.
    for (from, to) in [(150, 0x120), (250, 280), (LAST_STORED, LAST_STORED + 1)] {
        let params = format!(r#"[{{"fromBlock":"{from:#x}","toBlock":"{to:#x}"}}]"#);
        let (response, cache_status) = call(&mut gateway_client, "eth_getLogs", &params);
        let (node_response, _) = call(&mut node_client, "eth_getLogs", &params);
        assert_eq!(difference(&node_response, &response), None, "{params}");
        assert_eq!(cache_status, "miss", "{params}");
    }
    let latest = r#"[{"fromBlock":"0x10"}]"#;
    let (node_response, _) = call(&mut node_client, "eth_getLogs", latest);
    assert_eq!(
        difference(&node_response, &call(&mut gateway_client, "eth_getLogs", latest).0),
        None
    );
    assert_eq!((count_lookups(&gateway, "part"), count_lookups(&gateway, "failed")), (3, 0));
    // A block above the last stored one comes from the node.
    let (_, cache_status) = call(&mut gateway_client, "eth_getBlockByNumber", r#"["0xc9",true]"#);
    assert_eq!(cache_status, "miss");
    // The index still serves its blocks and logs when no node is available.
    let logs = ("eth_getLogs", r#"[{"fromBlock":"0x15","toBlock":"0x3e"}]"#);
    let block = ("eth_getBlockByNumber", r#"["0x15",true]"#);
    let node_responses =
        [logs, block].map(|(method, params)| call(&mut node_client, method, params).0);
    drop(node);
    wait_until("no upstream can be used", || admin(&gateway, "/readyz").status == 503);
    for ((method, params), node_response) in [logs, block].into_iter().zip(node_responses) {
        let (response, cache_status) = call(&mut gateway_client, method, params);
        assert_eq!(difference(&node_response, &response), None, "{method}: {}", excerpt(&response));
        assert_eq!(cache_status, "hit", "{method}");
    }
}

#[test]
fn a_gateway_can_write_the_index_itself() {
    with_each_database(|db| check_following(db, ""));
}

#[test]
fn a_file_that_grows_may_be_mapped() {
    let folder = tempfile::tempdir().unwrap();
    check_following(folder.path().join("chain.db").to_str().unwrap(), "mmap = \"1GiB\"\n");
}

/// Checks a gateway that syncs the index itself (`follow = true`).
fn check_following(db: &str, more: &str) {
    let node = node();
    let gateway = start_gateway(&node, db, &format!("follow = true\n{more}"));
    wait_until_served_by_index(&gateway);
}

/// The node is behind TLS with a self-signed certificate, over HTTP and over WebSocket. A gateway's
/// own sync must trust the certificate that `tls_ca` of the upstream names.
#[test]
fn a_following_gateway_trusts_the_tls_ca_of_its_upstream() {
    let folder = tempfile::tempdir().unwrap();
    let path_of = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let certificate = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(path_of("cert.pem"), certificate.cert.pem()).unwrap();
    std::fs::write(path_of("key.pem"), certificate.signing_key.serialize_pem()).unwrap();
    let node = node();
    let tls_proxy = Weir::serve()
        .listen_as_configured()
        .config(&format!(
            "[server]\nlisten = \"off\"\nlisten_tls = \"127.0.0.1:0\"\n\
         [[certificate]]\nchain_file = \"{}\"\nkey_file = \"{}\"\n\
         [[upstream]]\nname = \"one\"\nurl = \"{}\"\n",
            path_of("cert.pem"),
            path_of("key.pem"),
            node.url(),
        ))
        .start();
    let port = tls_proxy.address.rsplit_once(':').unwrap().1.to_owned();
    for scheme in ["https", "wss"] {
        let db = path_of(&format!("{scheme}.db"));
        let url = format!("{scheme}://localhost:{port}");
        let gateway = Weir::serve()
            .admin()
            .config(&format!(
                "[[upstream]]\nname = \"one\"\nurl = \"{url}\"\ntls_ca = \"{}\"\n\
             [index]\ndb = \"{db}\"\nfollow = true\n",
                path_of("cert.pem")
            ))
            .start();
        wait_until_served_by_index(&gateway);
        // The command `weir index sync` trusts the certificate only with `--ca`.
        let sync = |more: &[&str]| {
            let file = path_of(&format!("{scheme}-{}.db", more.len()));
            let always = ["index", "sync", "--from", &url, "--db", &file, "--end", "20"];
            let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
            command.args(always).args(["--patience", "1", "--quiet"]).args(more).output().unwrap()
        };
        let without_ca = sync(&[]);
        let stderr = String::from_utf8(without_ca.stderr).unwrap();
        assert!(!without_ca.status.success() && stderr.contains("certificate"), "{stderr}");
        let with_ca = sync(&["--ca", &path_of("cert.pem")]);
        assert!(with_ca.status.success(), "{}", String::from_utf8_lossy(&with_ca.stderr));
        let with_empty_ca = sync(&["--ca", &path_of("key.pem"), "--batch", "10"]);
        let stderr = String::from_utf8(with_empty_ca.stderr).unwrap();
        assert!(stderr.contains("key.pem: it contains no certificate"), "{stderr}");
    }
}

/// Requests blocks until one comes from the index.
fn wait_until_served_by_index(gateway: &Running) {
    let mut gateway_client = Client::connect(&gateway.address);
    let deadline = Instant::now() + CATCH_UP_TIMEOUT;
    let mut number = 0;
    // Each request is for another block, so that the memory cache has none of them.
    while call(&mut gateway_client, "eth_getBlockByNumber", &format!(r#"["{number:#x}",true]"#)).1
        != "hit"
    {
        assert!(Instant::now() < deadline, "{}", gateway.log());
        number += 1;
        std::thread::park_timeout(Duration::from_millis(200)); // Sleeps: between two requests.
    }
    assert!(count_lookups(gateway, "hit") > 0);
}

/// A gateway serves nothing from the index of another chain.
#[test]
fn an_index_of_another_chain_is_not_used() {
    with_each_database(|file| {
        let (node, other) = (node(), other_node());
        let sync_output = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(["index", "sync", "--from", &other.url(), "--end", "200", "--quiet"])
            .args(["--db", file])
            .output()
            .unwrap();
        assert!(sync_output.status.success(), "{}", String::from_utf8_lossy(&sync_output.stderr));
        let gateway = start_gateway(&node, file, "");
        let (mut gateway_client, mut node_client) =
            (Client::connect(&gateway.address), Client::connect(&node.address));
        for (method, params) in &calls() {
            let (response, cache_status) = call(&mut gateway_client, method, params);
            let (node_response, _) = call(&mut node_client, method, params);
            assert_eq!(cache_status, "miss", "{method} {params}");
            assert_eq!(
                difference(&node_response, &response),
                None,
                "{method} {params}: {}",
                excerpt(&response)
            );
        }
        assert_eq!(count_lookups(&gateway, "hit") + count_lookups(&gateway, "part"), 0);
        let log = gateway.log();
        assert!(log.contains("the index is of chain 99"), "{log}");
    });
}

fn other_node() -> Running {
    let head = HEAD.to_string();
    let chain = ["--seed", "9", "--chain-id", "99"];
    Weir::node().args(&[&["--head", &head, "--block-time", "1h"], &chain[..]].concat()).start()
}

/// The index does not answer parameters that go-ethereum rejects or interprets unexpectedly; the
/// gateway sends such calls to a node.
#[test]
fn unusual_parameters_are_left_to_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chain.db");
    let node = node();
    let sync_output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["index", "sync", "--from", &node.url(), "--end", "200", "--quiet", "--db"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(sync_output.status.success(), "{}", String::from_utf8_lossy(&sync_output.stderr));
    let mut reader = Reader::open(Location::from(file), Settings::default()).unwrap().unwrap();
    let context = QueryContext {
        finalized: Some(200),
        is_canonical: &|_, _| true,
        limits: SearchLimits::NONE,
    };
    let mut look_up =
        |method: &str, params: &str| reader.lookup(method, params.as_bytes(), &context).unwrap();
    let Lookup::Full(block) = look_up("eth_getBlockByNumber", r#"["0x10",false]"#) else {
        panic!("the index has the block")
    };
    let block: serde_json::Value = serde_json::from_slice(&block).unwrap();
    let hash = &block["hash"];
    let unusual = [
        ("eth_getBlockByNumber", format!("[{hash},false]")),
        ("eth_getBlockByNumber", r#"[{"blockNumber":"0x10"},false]"#.to_owned()),
        ("eth_getTransactionByBlockNumberAndIndex", format!(r#"[{hash},"0x0"]"#)),
        ("eth_getBlockTransactionCountByNumber", format!("[{hash}]")),
        ("eth_getLogs", r#"[{"fromBlock":"0x0","toBlock":"0x10","Address":"0x00"}]"#.to_owned()),
        ("eth_getLogs", r#"[{"fromBlock":"0x0","toBlock":"0x10","Topics":[null]}]"#.to_owned()),
    ];
    for (method, params) in unusual {
        assert!(matches!(look_up(method, &params), Lookup::Miss), "{method} {params}");
    }
    let usual = r#"[{"fromBlock":"0x0","toBlock":"0x10","topics":[]}]"#;
    assert!(matches!(look_up("eth_getLogs", usual), Lookup::Full(_)));
    assert!(matches!(look_up("eth_getBlockReceipts", &format!("[{hash}]")), Lookup::Full(_)));
}
