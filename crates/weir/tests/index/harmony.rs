//! Goal: the index returns Harmony's blocks byte for byte as the node does, in every form; other
//! data comes from the node. Method: a simulated node serves `eth_` and `hmyv2_` methods of one
//! chain. A sync stores its blocks in a file. Each call is sent to the node and to a gateway with
//! the file, and the responses are compared.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use index::audit::{self, Finding};
use index::harmony::{BlockOptions, UNVERIFIED_REASON};
use index::reader::Reader;
use index::store::Settings;
use index::verify::Level;
use parking_lot::Mutex;
use serde_json::Value;

use test_support::members::{self, difference, excerpt};
use test_support::proxy::start_proxy;
use test_support::raw::Client;
use test_support::running::{self, Running, Weir};

/// The number of the node's newest block.
const HEAD: u64 = 300;
/// The last block that is synced.
const LAST_STORED: u64 = 200;
/// Timeout of waits; long enough for a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
/// All contents that an index of a Harmony chain can have.
const CONTENTS: &str = "blocks,receipts,logs,hmyv2";

fn node() -> Running {
    let head = HEAD.to_string();
    let settings = ["--head", &head, "--block-time", "1h", "--finality-depth", "10"];
    Weir::node().admin().args(&[&settings[..], &["--txs", "0..6"]].concat()).start()
}

/// The exit code and the printed text of a command.
struct CommandOutput {
    code: Option<i32>,
    text: String,
}

fn weir(arguments: &[&str], file: &Path) -> CommandOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = command.arg("index").args(arguments).arg("--db").arg(file).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    CommandOutput { code: output.status.code(), text }
}

fn sync(url: &str, file: &Path, more: &[&str]) -> CommandOutput {
    let arguments = ["sync", "--from", url, "--patience", "1", "--what", CONTENTS];
    weir(&[&arguments, more].concat(), file)
}

/// Sends a call. Returns the response's body and the status in its header `x-weir-cache`.
fn call(client: &mut Client, method: &str, params: &str) -> (String, String) {
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
    let response = client.call("/", body.as_bytes());
    let cache_header = response.header("x-weir-cache").unwrap_or_default();
    let cache_status = cache_header.split(';').next().unwrap_or_default().to_owned();
    (response.text().to_owned(), cache_status)
}

/// Sends a call and returns its result as raw JSON.
fn call_result(client: &mut Client, method: &str, params: &str) -> String {
    let (text, _) = call(client, method, params);
    let fields = members::members(&text);
    fields.get("result").unwrap_or_else(|| panic!("{method} {params}: {text}")).get().to_owned()
}

/// Returns the gateway's number of index lookups with this outcome.
fn count_lookups(gateway: &Running, outcome: &str) -> u64 {
    let mut client = Client::connect(gateway.admin.as_deref().unwrap());
    client.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let metrics = client.read_response().unwrap();
    let name = format!("weir_index_lookups_total{{outcome=\"{outcome}\"}} ");
    let line = metrics.text().lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap().parse().unwrap()
}

/// A proxy in front of a node that records the requests for ranges of blocks.
struct RecordingProxy {
    url: String,
    range_requests: Arc<Mutex<Vec<String>>>,
}

impl RecordingProxy {
    fn start(node: &Running) -> RecordingProxy {
        let range_requests = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&range_requests);
        let url = start_proxy(&node.address, move |request, response| {
            if request.contains("\"hmyv2_getBlocks\"") {
                recorded.lock().push(request.to_owned());
            }
            response
        });
        RecordingProxy { url, range_requests }
    }

    /// Returns the parameters of the recorded requests and forgets the requests.
    fn take_range_params(&self) -> Vec<String> {
        let bodies = std::mem::take(&mut *self.range_requests.lock());
        let params = |body: &String| members::members(body)["params"].get().to_owned();
        bodies.iter().map(params).collect()
    }
}

fn start_gateway(url: &str, file: &Path, more: &str) -> Running {
    let file = file.display();
    Weir::serve()
        .admin()
        .config(&format!(
            "[chain.one]\nfamily = \"harmony\"\n[[upstream]]\nname = \"one\"\nurl = \"{url}\"\n\
         [index]\ndb = \"{file}\"\n{more}"
        ))
        .start()
}

/// Options of `hmyv2_getBlocks`: each form that the index serves.
const OPTIONS: [&str; 5] = [
    r#"{"withSigners":false,"fullTx":true,"inclStaking":true}"#,
    r#"{"fullTx":true}"#,
    r#"{"inclStaking":true,"fullTx":false}"#,
    r#"{"fullTx":false,"inclStaking":false,"withSigners":false}"#,
    "{}",
];

/// Returns calls that the index can answer.
fn calls(node: &mut Client) -> Vec<(&'static str, String)> {
    let mut calls = Vec::new();
    for options in OPTIONS {
        for (from, to) in [(0, 0), (0, 40), (17, 17), (90, LAST_STORED), (LAST_STORED, LAST_STORED)]
        {
            calls.push(("hmyv2_getBlocks", format!("[{from},{to},{options}]")));
        }
    }
    calls.push(("hmyv2_getBlocks", format!(r#"["3","0x5",{}]"#, OPTIONS[0])));
    for number in (1..LAST_STORED).step_by(13) {
        let block = call_result(node, "eth_getBlockByNumber", &format!(r#"["{number:#x}",false]"#));
        let block: Value = serde_json::from_str(&block).unwrap();
        let hash = &block["hash"];
        for options in [OPTIONS[0], OPTIONS[2]] {
            calls.push(("hmyv2_getBlockByNumber", format!("[{number},{options}]")));
            calls.push(("hmyv2_getBlockByHash", format!("[{hash},{options}]")));
        }
        calls.push(("hmyv2_getBlockTransactionCountByNumber", format!("[{number}]")));
        calls.push(("hmyv2_getBlockTransactionCountByHash", format!("[{hash}]")));
        calls.push(("eth_getBlockByNumber", format!(r#"["{number:#x}",true]"#)));
    }
    calls
}

#[test]
fn stored_data_is_served_without_a_node_and_the_rest_by_a_node() {
    let node = node();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("harmony.db");
    let output = sync(&node.url(), &file, &["--end", &LAST_STORED.to_string()]);
    assert_eq!(output.code, Some(0), "{}", output.text);
    assert_eq!(output.text.matches(UNVERIFIED_REASON).count(), 1, "{}", output.text);
    let stats = weir(&["stats"], &file).text;
    for expected in ["(harmony)", &format!("holds         {CONTENTS}\n"), UNVERIFIED_REASON] {
        assert!(stats.contains(expected), "{expected}: {stats}");
    }
    assert!(!stats.contains("left to nodes"), "{stats}");
    let sound = weir(&["verify"], &file).text;
    assert!(sound.contains("blocks 0 to 200: sound (level off)"), "{sound}");

    let proxy = RecordingProxy::start(&node);
    let gateway = start_gateway(&proxy.url, &file, "");
    let mut node_client = Client::connect(&node.address);
    let calls = calls(&mut node_client);
    let stored_calls = calls.len() as u64;
    let mut gateway_client = Client::connect(&gateway.address);
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
    assert_eq!(count_lookups(&gateway, "hit"), stored_calls);

    assert_eq!(proxy.take_range_params(), [""; 0]);

    let past_stored = LAST_STORED + 50;
    let node_calls = [
        // Two ranges that begin with stored blocks, and requests for blocks that are not stored.
        ("hmyv2_getBlocks", format!("[150,{past_stored},{}]", OPTIONS[0])),
        ("hmyv2_getBlocks", format!(r#"["0xc8",{},{}]"#, LAST_STORED + 1, OPTIONS[3])),
        ("hmyv2_getBlocks", format!("[{},{past_stored},{}]", LAST_STORED + 1, OPTIONS[1])),
        ("hmyv2_getBlockByNumber", format!("[{past_stored},{}]", OPTIONS[0])),
        // The index does not store signers.
        ("hmyv2_getBlocks", r#"[10,12,{"withSigners":true,"fullTx":true}]"#.to_owned()),
        ("hmyv2_getBlockByNumber", r#"[10,{"withSigners":true}]"#.to_owned()),
        // An unknown option, invalid ranges, and another method.
        ("hmyv2_getBlocks", r#"[10,12,{"fullTx":true,"somethingElse":1}]"#.to_owned()),
        ("hmyv2_getBlocks", format!("[12,10,{}]", OPTIONS[0])),
        ("hmyv2_getBlocks", format!("[0,1025,{}]", OPTIONS[0])),
        ("hmyv2_getBlocks", format!(r#"[290,"latest",{}]"#, OPTIONS[0])),
        ("hmyv2_getBlockSigners", "[10]".to_owned()),
    ];
    for (method, params) in &node_calls {
        let (response, cache_status) = call(&mut gateway_client, method, params);
        let (node_response, _) = call(&mut node_client, method, params);
        assert_ne!(cache_status, "hit", "{method} {params}");
        assert_eq!(
            difference(&node_response, &response),
            None,
            "{method} {params}: {}",
            excerpt(&response)
        );
    }
    assert_eq!(count_lookups(&gateway, "hit"), stored_calls);
    let remaining_ranges = [
        format!("[201,{past_stored},{}]", OPTIONS[0]),
        format!("[201,201,{}]", OPTIONS[3]),
        node_calls[2].1.clone(),
    ];
    assert_eq!(proxy.take_range_params()[..3], remaining_ranges);
    assert_eq!((count_lookups(&gateway, "part"), count_lookups(&gateway, "failed")), (2, 0));
    assert!(count_lookups(&gateway, "miss") > 5);
}

#[test]
fn a_gateway_that_follows_the_chain_stores_harmony_blocks() {
    let node = node();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("followed.db");
    let gateway = start_gateway(&node.url(), &file, "follow = true\n");
    let mut gateway_client = Client::connect(&gateway.address);
    let deadline = Instant::now() + WAIT_TIMEOUT;
    let mut number = 0;
    // Each request is for another block, so that the memory cache has none of them.
    while call(
        &mut gateway_client,
        "hmyv2_getBlocks",
        &format!("[{number},{number},{}]", OPTIONS[0]),
    )
    .1 != "hit"
    {
        assert!(Instant::now() < deadline, "{}", gateway.log());
        number += 1;
        std::thread::park_timeout(Duration::from_millis(200)); // Sleeps: between two requests.
    }
    assert!(count_lookups(&gateway, "hit") > 0);
    let stats = weir(&["stats"], &file).text;
    assert!(stats.contains(CONTENTS) && stats.contains(UNVERIFIED_REASON), "{stats}");
}

#[test]
fn unavailable_or_unverifiable_parts_are_refused_with_a_reason() {
    let node = node();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("refused.db");
    let output = sync(&node.url(), &file, &["--verify", "full"]);
    assert_eq!(output.code, Some(2), "{}", output.text);
    assert!(output.text.contains("--verify full: "), "{}", output.text);
    assert!(!file.exists());
    node.set_node_settings(r#"{"unsupported":["hmyv2_blockNumber","hmyv2_getBlocks"]}"#);
    let output = sync(&node.url(), &file, &["--end", "20"]);
    assert_eq!(output.code, Some(1), "{}", output.text);
    for word in [node.url().as_str(), "has no hmyv2_blockNumber", "error -32601"] {
        assert!(output.text.contains(word), "{word}: {}", output.text);
    }
    node.set_node_settings(r#"{"unsupported":["hmyv2_getBlocks"]}"#);
    let output = sync(&node.url(), &file, &["--end", "20"]);
    assert_eq!(output.code, Some(1), "{}", output.text);
    assert!(output.text.contains("hmyv2_getBlocks"), "{}", output.text);
    // Without eth_getBlockReceipts the sync requests receipts one by one.
    node.set_node_settings(r#"{"unsupported":["eth_getBlockReceipts"]}"#);
    let output = sync(&node.url(), &file, &["--end", "20", "--verify", "off"]);
    assert_eq!(output.code, Some(0), "{}", output.text);
    // A later sync must request the contents that the file was created with.
    let other = weir(&["sync", "--from", &node.url(), "--end", "30"], &file);
    assert_eq!(other.code, Some(1), "{}", other.text);
    assert!(other.text.contains("but blocks,receipts,logs was requested"), "{}", other.text);
    // The index does not serve a form that the node did not return during the sync.
    node.set_node_settings(r#"{"unsupported":["hmyv2_getBlockTransactionCountByNumber"]}"#);
    let fewer = folder.path().join("fewer.db");
    let output = sync(&node.url(), &fewer, &["--end", "20"]);
    assert!(output.text.contains("cannot reproduce: hmyv2-count"), "{}", output.text);
}

/// A sync follows a chain with frequent reorgs until it has handled three of them.
#[test]
fn reorgs_are_followed() {
    let settings = ["--block-time", "150ms", "--reorg-every", "7:5", "--head", "60"];
    let node = Weir::node()
        .args(&[&settings[..], &["--txs", "1..4", "--finality-depth", "20"]].concat())
        .start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("turned.db");
    let mut command = running::command_killed_with_test(Path::new(env!("CARGO_BIN_EXE_weir")));
    command
        .args([
            "index",
            "sync",
            "--from",
            &node.url(),
            "--end",
            "follow",
            "--what",
            CONTENTS,
            "--db",
        ])
        .arg(&file)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = running::spawn(command).unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut lines = Vec::new();
    let mut reorgs = 0;
    for line in stderr {
        let is_reorg = line.starts_with("reorg: ");
        lines.push(line);
        reorgs += u32::from(is_reorg);
        if is_reorg && reorgs == 3 {
            let id = child.id().to_string();
            assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        }
    }
    // Exit code 6: the sync was interrupted.
    assert_eq!(child.wait().unwrap().code(), Some(6), "{lines:?}");
    let mut reader = Reader::open(&file, Settings::default()).unwrap().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    // The simulated chain hashes blocks as Ethereum does, so the audit can verify the hashes.
    let report = audit::audit(&mut reader, Level::Full, &mut |_| (), &stop).unwrap();
    assert_eq!(report.findings.iter().map(Finding::to_string).collect::<Vec<_>>(), [""; 0]);
    let stored = reader.stored_range().unwrap().unwrap();
    let mut node_client = Client::connect(&node.address);
    // A reorg may have replaced the newest blocks since.
    for number in 0..=stored.last - 10 {
        let params = format!("[{number},{number},{}]", OPTIONS[0]);
        let node_response = call_result(&mut node_client, "hmyv2_getBlocks", &params);
        let mut index_response = b"[".to_vec();
        assert!(
            reader.write_harmony_block(&mut index_response, number, BlockOptions::STORED).unwrap()
        );
        index_response.push(b']');
        assert_eq!(String::from_utf8(index_response).unwrap(), node_response, "block {number}");
    }
}
