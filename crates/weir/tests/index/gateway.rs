//! Goal: with an index the gateway sends the same responses, without calls to nodes for data in the
//! file. Method: a simulated node, a file with the first part of its chain, and a gateway with
//! both; every response is compared with the node's.

use std::process::Command;
use std::time::{Duration, Instant};

use index::reader::Reader;
use index::search::SearchLimits;
use index::serve::{Lookup, QueryContext};
use index::store::{Location, Settings};

use test_support::members::{difference, excerpt};
use test_support::postgres;
use test_support::raw::{Answer, Client};
use test_support::running::{Running, Weir};
use test_support::wait::wait_until;

/// The node's head, and the last block that is synced.
const HEAD: u64 = 300;
const HELD: u64 = 200;
/// How long a busy machine may take until the gateway has caught up.
const PATIENCE: Duration = Duration::from_secs(60);

fn node() -> Running {
    let head = HEAD.to_string();
    Weir::node().args(&["--head", &head, "--block-time", "1h", "--finality-depth", "10"]).start()
}

fn calls() -> Vec<(&'static str, String)> {
    let mut calls = Vec::new();
    for number in (0..HELD).step_by(17) {
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
    calls.extend([range(0, 50), range(7, 7), range(100, HELD)]);
    calls
}

fn ask(client: &mut Client, method: &str, params: &str) -> (String, String) {
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
    let answer = client.call("/", body.as_bytes());
    let mark = answer.header("x-weir-cache").unwrap_or_default();
    let mark = mark.split(';').next().unwrap_or_default().to_owned();
    (answer.text().to_owned(), mark)
}

/// Sends a GET request to the gateway's admin address.
fn admin(gateway: &Running, path: &str) -> Answer {
    let mut client = Client::connect(gateway.admin.as_deref().unwrap());
    client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
    client.answer().unwrap()
}

/// The gateway's count of index lookups with this outcome.
fn lookups(gateway: &Running, outcome: &str) -> u64 {
    let metrics = admin(gateway, "/metrics");
    let name = format!("weir_index_lookups_total{{outcome=\"{outcome}\"}} ");
    let line = metrics.text().lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap().parse().unwrap()
}

fn configured(node: &Running, file: &str, more: &str) -> Running {
    let url = node.url();
    let toml =
        format!("[[upstream]]\nname = \"one\"\nurl = \"{url}\"\n[index]\ndb = \"{file}\"\n{more}");
    Weir::serve().admin().config(&toml).start()
}

/// Runs a test with a file, and with a database if PostgreSQL is available.
fn each(test: impl Fn(&str)) {
    let folder = tempfile::tempdir().unwrap();
    test(folder.path().join("chain.db").to_str().unwrap());
    if let Some(server) = postgres::Postgres::start() {
        test(&server.url("chain"));
    }
}

#[test]
fn stored_data_is_served_without_a_node_and_the_rest_by_a_node() {
    each(held_and_rest);
}

fn held_and_rest(file: &str) {
    let node = node();
    let held = HELD.to_string();
    let synced = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["index", "sync", "--from", &node.url(), "--end", &held, "--quiet", "--db", file])
        .output()
        .unwrap();
    assert!(synced.status.success(), "{}", String::from_utf8_lossy(&synced.stderr));
    let gateway = configured(&node, file, "");
    let (mut ours, mut theirs) =
        (Client::connect(&gateway.address), Client::connect(&node.address));
    let calls = calls();
    let (method, params) = &calls[0];
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
    let answer = ours.call("/", body.as_bytes());
    assert_eq!(answer.header("x-weir-cache"), Some("hit; tier=index"));
    for (method, params) in &calls {
        let (answer, mark) = ask(&mut ours, method, params);
        let (direct, _) = ask(&mut theirs, method, params);
        assert_eq!(mark, "hit", "{method} {params}");
        assert_eq!(difference(&direct, &answer), None, "{method} {params}: {}", excerpt(&answer));
    }
    assert_eq!(lookups(&gateway, "hit"), calls.len() as u64);
    // A range of which a part is held, one of which nothing is, one of unheld and held blocks to
    // the head by its tag.
    for (from, to) in [(150, 0x120), (250, 280), (HELD, HELD + 1)] {
        let params = format!(r#"[{{"fromBlock":"{from:#x}","toBlock":"{to:#x}"}}]"#);
        let (answer, mark) = ask(&mut ours, "eth_getLogs", &params);
        let (direct, _) = ask(&mut theirs, "eth_getLogs", &params);
        assert_eq!(difference(&direct, &answer), None, "{params}");
        assert_eq!(mark, "miss", "{params}");
    }
    let latest = r#"[{"fromBlock":"0x10"}]"#;
    let (direct, _) = ask(&mut theirs, "eth_getLogs", latest);
    assert_eq!(difference(&direct, &ask(&mut ours, "eth_getLogs", latest).0), None);
    assert_eq!((lookups(&gateway, "part"), lookups(&gateway, "failed")), (3, 0));
    // A block above is the nodes'.
    let (_, mark) = ask(&mut ours, "eth_getBlockByNumber", r#"["0xc9",true]"#);
    assert_eq!(mark, "miss");
    // Without any node the index still serves the blocks and logs that it holds.
    let logs = ("eth_getLogs", r#"[{"fromBlock":"0x15","toBlock":"0x3e"}]"#);
    let block = ("eth_getBlockByNumber", r#"["0x15",true]"#);
    let direct = [logs, block].map(|(method, params)| ask(&mut theirs, method, params).0);
    drop(node);
    wait_until("no upstream can be used", || admin(&gateway, "/readyz").status == 503);
    for ((method, params), direct) in [logs, block].into_iter().zip(direct) {
        let (answer, mark) = ask(&mut ours, method, params);
        assert_eq!(difference(&direct, &answer), None, "{method}: {}", excerpt(&answer));
        assert_eq!(mark, "hit", "{method}");
    }
}

#[test]
fn the_gateway_follows_by_itself() {
    each(|db| follows(db, ""));
}

#[test]
fn a_file_that_grows_may_be_mapped() {
    let folder = tempfile::tempdir().unwrap();
    follows(folder.path().join("chain.db").to_str().unwrap(), "mmap = \"1GiB\"\n");
}

fn follows(db: &str, more: &str) {
    let node = node();
    let gateway = configured(&node, db, &format!("follow = true\n{more}"));
    catches_up(&gateway);
}

/// A node behind TLS under an authority of its own, by HTTP and by WebSocket.
#[test]
fn who_follows_trusts_whom_the_node_s_entry_names() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(at("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(at("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let node = node();
    let front = Weir::serve()
        .listen_as_configured()
        .config(&format!(
            "[server]\nlisten = \"off\"\nlisten_tls = \"127.0.0.1:0\"\n\
         [[certificate]]\nchain_file = \"{}\"\nkey_file = \"{}\"\n\
         [[upstream]]\nname = \"one\"\nurl = \"{}\"\n",
            at("cert.pem"),
            at("key.pem"),
            node.url(),
        ))
        .start();
    let port = front.address.rsplit_once(':').unwrap().1.to_owned();
    for scheme in ["https", "wss"] {
        let db = at(&format!("{scheme}.db"));
        let url = format!("{scheme}://localhost:{port}");
        let gateway = Weir::serve()
            .admin()
            .config(&format!(
                "[[upstream]]\nname = \"one\"\nurl = \"{url}\"\ntls_ca = \"{}\"\n\
             [index]\ndb = \"{db}\"\nfollow = true\n",
                at("cert.pem")
            ))
            .start();
        catches_up(&gateway);
        // The command by itself: trusted only if it is told to.
        let sync = |more: &[&str]| {
            let file = at(&format!("{scheme}-{}.db", more.len()));
            let always = ["index", "sync", "--from", &url, "--db", &file, "--end", "20"];
            let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
            command.args(always).args(["--patience", "1", "--quiet"]).args(more).output().unwrap()
        };
        let blind = sync(&[]);
        let said = String::from_utf8(blind.stderr).unwrap();
        assert!(!blind.status.success() && said.contains("certificate"), "{said}");
        let told = sync(&["--ca", &at("cert.pem")]);
        assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
        let none = sync(&["--ca", &at("key.pem"), "--batch", "10"]);
        let said = String::from_utf8(none.stderr).unwrap();
        assert!(said.contains("key.pem: it contains no certificate"), "{said}");
    }
}

fn catches_up(gateway: &Running) {
    let mut ours = Client::connect(&gateway.address);
    let deadline = Instant::now() + PATIENCE;
    let mut number = 0;
    // Each time another block, so that memory has none of them.
    while ask(&mut ours, "eth_getBlockByNumber", &format!(r#"["{number:#x}",true]"#)).1 != "hit" {
        assert!(Instant::now() < deadline, "{}", gateway.log());
        number += 1;
        std::thread::park_timeout(Duration::from_millis(200)); // Sleeps: between two looks.
    }
    assert!(lookups(gateway, "hit") > 0);
}

/// A gateway serves nothing from the index of another chain.
#[test]
fn an_index_of_another_chain_is_not_used() {
    each(|file| {
        let (own, other) = (node(), other_node());
        let synced = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(["index", "sync", "--from", &other.url(), "--end", "200", "--quiet"])
            .args(["--db", file])
            .output()
            .unwrap();
        assert!(synced.status.success(), "{}", String::from_utf8_lossy(&synced.stderr));
        let gateway = configured(&own, file, "");
        let (mut ours, mut theirs) =
            (Client::connect(&gateway.address), Client::connect(&own.address));
        for (method, params) in &calls() {
            let (answer, mark) = ask(&mut ours, method, params);
            let (direct, _) = ask(&mut theirs, method, params);
            assert_eq!(mark, "miss", "{method} {params}");
            assert_eq!(
                difference(&direct, &answer),
                None,
                "{method} {params}: {}",
                excerpt(&answer)
            );
        }
        assert_eq!(lookups(&gateway, "hit") + lookups(&gateway, "part"), 0);
        let said = gateway.log();
        assert!(said.contains("the index is of chain 99"), "{said}");
    });
}

fn other_node() -> Running {
    let head = HEAD.to_string();
    let chain = ["--seed", "9", "--chain-id", "99"];
    Weir::node().args(&[&["--head", &head, "--block-time", "1h"], &chain[..]].concat()).start()
}

/// What go-ethereum reads in another way than it looks, or refuses, is left to it.
#[test]
fn odd_forms_are_the_node_s() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chain.db");
    let node = node();
    let synced = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["index", "sync", "--from", &node.url(), "--end", "200", "--quiet", "--db"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(synced.status.success(), "{}", String::from_utf8_lossy(&synced.stderr));
    let mut reader = Reader::open(Location::from(file), Settings::default()).unwrap().unwrap();
    let context = QueryContext {
        finalized: Some(200),
        is_canonical: &|_, _| true,
        limits: SearchLimits::NONE,
    };
    let mut answer =
        |method: &str, params: &str| reader.lookup(method, params.as_bytes(), &context).unwrap();
    let Lookup::Full(block) = answer("eth_getBlockByNumber", r#"["0x10",false]"#) else {
        panic!("it is there")
    };
    let block: serde_json::Value = serde_json::from_slice(&block).unwrap();
    let hash = &block["hash"];
    let odd = [
        ("eth_getBlockByNumber", format!("[{hash},false]")),
        ("eth_getBlockByNumber", r#"[{"blockNumber":"0x10"},false]"#.to_owned()),
        ("eth_getTransactionByBlockNumberAndIndex", format!(r#"[{hash},"0x0"]"#)),
        ("eth_getBlockTransactionCountByNumber", format!("[{hash}]")),
        ("eth_getLogs", r#"[{"fromBlock":"0x0","toBlock":"0x10","Address":"0x00"}]"#.to_owned()),
        ("eth_getLogs", r#"[{"fromBlock":"0x0","toBlock":"0x10","Topics":[null]}]"#.to_owned()),
    ];
    for (method, params) in odd {
        assert!(matches!(answer(method, &params), Lookup::Miss), "{method} {params}");
    }
    let plain = r#"[{"fromBlock":"0x0","toBlock":"0x10","topics":[]}]"#;
    assert!(matches!(answer("eth_getLogs", plain), Lookup::Full(_)));
    assert!(matches!(answer("eth_getBlockReceipts", &format!("[{hash}]")), Lookup::Full(_)));
}
