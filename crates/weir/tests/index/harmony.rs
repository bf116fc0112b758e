//! Goal: the index returns Harmony's blocks as the node writes them, in every form; other data
//! comes from the node. Method: a simulated node serves `eth_` and `hmyv2_` methods of one chain.
//! Its blocks are synced, and each call is sent to it and to a gateway with the file.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use index::audit::{self, Finding};
use index::harmony::{BlockOptions, UNVERIFIED};
use index::reader::Reader;
use index::store::Settings;
use index::verify::Level;
use parking_lot::Mutex;
use serde_json::Value;

use test_support::members::{self, difference, excerpt};
use test_support::proxy::start_proxy;
use test_support::raw::Client;
use test_support::running::{self, Running, Weir};

/// The node's head, and the last block that is synced.
const HEAD: u64 = 300;
const HELD: u64 = 200;
/// Timeout of a wait on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// All that a file can have of a Harmony chain.
const WHAT: &str = "blocks,receipts,logs,hmyv2";

fn node() -> Running {
    let head = HEAD.to_string();
    let settings = ["--head", &head, "--block-time", "1h", "--finality-depth", "10"];
    Weir::node().admin().args(&[&settings[..], &["--txs", "0..6"]].concat()).start()
}

struct Said {
    code: Option<i32>,
    text: String,
}

fn weir(arguments: &[&str], file: &Path) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = command.arg("index").args(arguments).arg("--db").arg(file).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    Said { code: output.status.code(), text }
}

fn sync(url: &str, file: &Path, more: &[&str]) -> Said {
    let arguments = ["sync", "--from", url, "--patience", "1", "--what", WHAT];
    weir(&[&arguments, more].concat(), file)
}

fn ask(client: &mut Client, method: &str, params: &str) -> (String, String) {
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
    let answer = client.call("/", body.as_bytes());
    let mark = answer.header("x-weir-cache").unwrap_or_default();
    let mark = mark.split(';').next().unwrap_or_default().to_owned();
    (answer.text().to_owned(), mark)
}

/// The raw result of the node.
fn result(client: &mut Client, method: &str, params: &str) -> String {
    let (text, _) = ask(client, method, params);
    let fields = members::members(&text);
    fields.get("result").unwrap_or_else(|| panic!("{method} {params}: {text}")).get().to_owned()
}

/// What the gateway has counted of its questions to the index.
fn lookups(gateway: &Running, outcome: &str) -> u64 {
    let mut client = Client::connect(gateway.admin.as_deref().unwrap());
    client.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let metrics = client.answer().unwrap();
    let name = format!("weir_index_lookups_total{{outcome=\"{outcome}\"}} ");
    let line = metrics.text().lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap().parse().unwrap()
}

/// The node's front: what was asked of it for ranges of blocks is noted.
struct Front {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Front {
    fn of(node: &Running) -> Front {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        let url = start_proxy(&node.address, move |body, answer| {
            if body.contains("\"hmyv2_getBlocks\"") {
                noted.lock().push(body.to_owned());
            }
            answer
        });
        Front { url, asked }
    }

    /// The parameters of what was asked for since the last look.
    fn ranges(&self) -> Vec<String> {
        let bodies = std::mem::take(&mut *self.asked.lock());
        let params = |body: &String| members::members(body)["params"].get().to_owned();
        bodies.iter().map(params).collect()
    }
}

fn gateway(url: &str, file: &Path, more: &str) -> Running {
    let file = file.display();
    Weir::serve()
        .admin()
        .config(&format!(
            "[chain.one]\nfamily = \"harmony\"\n[[upstream]]\nname = \"one\"\nurl = \"{url}\"\n\
         [index]\ndb = \"{file}\"\n{more}"
        ))
        .start()
}

/// Options of every form that is served.
const FORMS: [&str; 5] = [
    r#"{"withSigners":false,"fullTx":true,"inclStaking":true}"#,
    r#"{"fullTx":true}"#,
    r#"{"inclStaking":true,"fullTx":false}"#,
    r#"{"fullTx":false,"inclStaking":false,"withSigners":false}"#,
    "{}",
];

/// Calls that the index can answer.
fn calls(node: &mut Client) -> Vec<(&'static str, String)> {
    let mut calls = Vec::new();
    for options in FORMS {
        for (from, to) in [(0, 0), (0, 40), (17, 17), (90, HELD), (HELD, HELD)] {
            calls.push(("hmyv2_getBlocks", format!("[{from},{to},{options}]")));
        }
    }
    calls.push(("hmyv2_getBlocks", format!(r#"["3","0x5",{}]"#, FORMS[0])));
    for number in (1..HELD).step_by(13) {
        let block = result(node, "eth_getBlockByNumber", &format!(r#"["{number:#x}",false]"#));
        let block: Value = serde_json::from_str(&block).unwrap();
        let hash = &block["hash"];
        for options in [FORMS[0], FORMS[2]] {
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
    let said = sync(&node.url(), &file, &["--end", &HELD.to_string()]);
    assert_eq!(said.code, Some(0), "{}", said.text);
    assert_eq!(said.text.matches(UNVERIFIED).count(), 1, "{}", said.text);
    let stats = weir(&["stats"], &file).text;
    for told in ["(harmony)", &format!("holds         {WHAT}\n"), UNVERIFIED] {
        assert!(stats.contains(told), "{told}: {stats}");
    }
    assert!(!stats.contains("left to nodes"), "{stats}");
    let sound = weir(&["verify"], &file).text;
    assert!(sound.contains("blocks 0 to 200: sound (level off)"), "{sound}");

    let front = Front::of(&node);
    let gateway = gateway(&front.url, &file, "");
    let mut theirs = Client::connect(&node.address);
    let calls = calls(&mut theirs);
    let held = calls.len() as u64;
    let mut ours = Client::connect(&gateway.address);
    for (method, params) in &calls {
        let (answer, mark) = ask(&mut ours, method, params);
        let (direct, _) = ask(&mut theirs, method, params);
        assert_eq!(mark, "hit", "{method} {params}");
        assert_eq!(difference(&direct, &answer), None, "{method} {params}: {}", excerpt(&answer));
    }
    assert_eq!(lookups(&gateway, "hit"), held);

    assert_eq!(front.ranges(), [""; 0]);

    let over = HELD + 50;
    let elsewhere = [
        // Held as to the first part, in two forms, and not at all.
        ("hmyv2_getBlocks", format!("[150,{over},{}]", FORMS[0])),
        ("hmyv2_getBlocks", format!(r#"["0xc8",{},{}]"#, HELD + 1, FORMS[3])),
        ("hmyv2_getBlocks", format!("[{},{over},{}]", HELD + 1, FORMS[1])),
        ("hmyv2_getBlockByNumber", format!("[{over},{}]", FORMS[0])),
        // Signers are not kept.
        ("hmyv2_getBlocks", r#"[10,12,{"withSigners":true,"fullTx":true}]"#.to_owned()),
        ("hmyv2_getBlockByNumber", r#"[10,{"withSigners":true}]"#.to_owned()),
        // What nobody knows, and what is no range.
        ("hmyv2_getBlocks", r#"[10,12,{"fullTx":true,"somethingElse":1}]"#.to_owned()),
        ("hmyv2_getBlocks", format!("[12,10,{}]", FORMS[0])),
        ("hmyv2_getBlocks", format!("[0,1025,{}]", FORMS[0])),
        ("hmyv2_getBlocks", format!(r#"[290,"latest",{}]"#, FORMS[0])),
        ("hmyv2_getBlockSigners", "[10]".to_owned()),
    ];
    for (method, params) in &elsewhere {
        let (answer, mark) = ask(&mut ours, method, params);
        let (direct, _) = ask(&mut theirs, method, params);
        assert_ne!(mark, "hit", "{method} {params}");
        assert_eq!(difference(&direct, &answer), None, "{method} {params}: {}", excerpt(&answer));
    }
    assert_eq!(lookups(&gateway, "hit"), held);
    let rest = [
        format!("[201,{over},{}]", FORMS[0]),
        format!("[201,201,{}]", FORMS[3]),
        elsewhere[2].1.clone(),
    ];
    assert_eq!(front.ranges()[..3], rest);
    assert_eq!((lookups(&gateway, "part"), lookups(&gateway, "failed")), (2, 0));
    assert!(lookups(&gateway, "miss") > 5);
}

#[test]
fn a_gateway_that_follows_keeps_them_by_itself() {
    let node = node();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("followed.db");
    let gateway = gateway(&node.url(), &file, "follow = true\n");
    let mut ours = Client::connect(&gateway.address);
    let deadline = Instant::now() + PATIENCE;
    let mut number = 0;
    // Each time another block, so that memory has none of them.
    while ask(&mut ours, "hmyv2_getBlocks", &format!("[{number},{number},{}]", FORMS[0])).1 != "hit"
    {
        assert!(Instant::now() < deadline, "{}", gateway.log());
        number += 1;
        std::thread::park_timeout(Duration::from_millis(200)); // Sleeps: between two looks.
    }
    assert!(lookups(&gateway, "hit") > 0);
    let stats = weir(&["stats"], &file).text;
    assert!(stats.contains(WHAT) && stats.contains(UNVERIFIED), "{stats}");
}

#[test]
fn unavailable_or_unverifiable_parts_are_refused_with_a_reason() {
    let node = node();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("refused.db");
    let said = sync(&node.url(), &file, &["--verify", "full"]);
    assert_eq!(said.code, Some(2), "{}", said.text);
    assert!(said.text.contains("--verify full: "), "{}", said.text);
    assert!(!file.exists());
    node.set(r#"{"unsupported":["hmyv2_blockNumber","hmyv2_getBlocks"]}"#);
    let said = sync(&node.url(), &file, &["--end", "20"]);
    assert_eq!(said.code, Some(1), "{}", said.text);
    for word in [node.url().as_str(), "has no hmyv2_blockNumber", "error -32601"] {
        assert!(said.text.contains(word), "{word}: {}", said.text);
    }
    node.set(r#"{"unsupported":["hmyv2_getBlocks"]}"#);
    let said = sync(&node.url(), &file, &["--end", "20"]);
    assert_eq!(said.code, Some(1), "{}", said.text);
    assert!(said.text.contains("hmyv2_getBlocks"), "{}", said.text);
    // Receipts come one by one where the node takes no numbers for those of a block.
    node.set(r#"{"unsupported":["eth_getBlockReceipts"]}"#);
    let said = sync(&node.url(), &file, &["--end", "20", "--verify", "off"]);
    assert_eq!(said.code, Some(0), "{}", said.text);
    // A file goes on with what it was made for.
    let other = weir(&["sync", "--from", &node.url(), "--end", "30"], &file);
    assert_eq!(other.code, Some(1), "{}", other.text);
    assert!(other.text.contains("but blocks,receipts,logs was requested"), "{}", other.text);
    // A node that has lost a form writes none of it, so it is left to nodes that do.
    node.set(r#"{"unsupported":["hmyv2_getBlockTransactionCountByNumber"]}"#);
    let fewer = folder.path().join("fewer.db");
    let said = sync(&node.url(), &fewer, &["--end", "20"]);
    assert!(said.text.contains("cannot reproduce: hmyv2-count"), "{}", said.text);
}

/// A chain that turns all the time, followed until it has turned under the file some times.
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
        .args(["index", "sync", "--from", &node.url(), "--end", "follow", "--what", WHAT, "--db"])
        .arg(&file)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = running::spawn(command).unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut said = Vec::new();
    for line in lines {
        let turned = line.starts_with("reorg: ");
        said.push(line);
        let turns = said.iter().filter(|line| line.starts_with("reorg: ")).count();
        if turned && turns == 3 {
            let id = child.id().to_string();
            assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        }
    }
    assert_eq!(child.wait().unwrap().code(), Some(6), "{said:?}");
    let mut reader = Reader::open(&file, Settings::default()).unwrap().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    // The simulated chain hashes as Ethereum does, so that here hashes can be looked at.
    let report = audit::audit(&mut reader, Level::Full, &mut |_| (), &stop).unwrap();
    assert_eq!(report.findings.iter().map(Finding::to_string).collect::<Vec<_>>(), [""; 0]);
    let held = reader.stored_range().unwrap().unwrap();
    let mut theirs = Client::connect(&node.address);
    // The newest may have been dropped since.
    for number in 0..=held.last - 10 {
        let params = format!("[{number},{number},{}]", FORMS[0]);
        let direct = result(&mut theirs, "hmyv2_getBlocks", &params);
        let mut own = b"[".to_vec();
        assert!(reader.write_harmony_block(&mut own, number, BlockOptions::STORED).unwrap());
        own.push(b']');
        assert_eq!(String::from_utf8(own).unwrap(), direct, "block {number}");
    }
}
