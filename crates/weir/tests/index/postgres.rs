//! Goal: an index in PostgreSQL works as one in a file does, under failures of the server, its
//! sessions and the writer; no password is ever printed. Method: a real server and a simulated
//! node. Every command runs on both kinds, and the outputs are compared. Then the server is killed,
//! frozen and restarted, and clients use wrong passwords, while the program syncs and the gateway
//! serves.
//!
//! `crates/weir/tests/index/gateway.rs` compares the gateway's responses from it, and
//! `crates/weir/tests/index/transparency.rs` compares them with geth's. Needs postgres; see
//! `test_support::programs` for what happens without.

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use index::store::{self, Location, Settings, StoreError};
use serde_json::Value;

use crate::kills;
use test_support::postgres::Postgres;
use test_support::raw::Client;
use test_support::running::{self, Running, Weir};
use test_support::wait::{pause, wait_until};

struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

fn command(arguments: &[&str], password: Option<&str>) -> Command {
    let mut command = running::command_killed_with_test(Path::new(env!("CARGO_BIN_EXE_weir")));
    command.arg("index").args(arguments).env_remove("PGPASSWORD");
    if let Some(password) = password {
        command.env("PGPASSWORD", password);
    }
    command
}

fn said(mut command: Command) -> Said {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

fn weir(arguments: &[&str]) -> Said {
    said(command(arguments, None))
}

/// As above, for a run that must succeed; returns its output.
fn fine(arguments: &[&str]) -> String {
    let said = weir(arguments);
    assert_eq!(said.code, Some(0), "{arguments:?}: {}{}", said.out, said.err);
    said.out
}

#[track_caller]
fn refused(said: &Said, words: &[&str]) {
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    for word in words {
        assert!(said.err.contains(word), "no {word:?} in: {}", said.err);
    }
}

fn node() -> Running {
    Weir::node().args(&["--head", "120", "--block-time", "1h", "--txs", "0..6"]).start()
}

fn moving_node() -> Running {
    let settings = ["--block-time", "100ms", "--head", "300", "--finality-depth", "10"];
    Weir::node().args(&settings).start()
}

/// A sync that follows.
fn following(node: &Running, at: &str) -> Child {
    let url = node.url();
    let arguments = ["sync", "--from", &url, "--end", "follow", "--quiet", "--db", at];
    let mut command = command(&arguments, None);
    command.stderr(Stdio::piped());
    running::spawn(command).unwrap()
}

/// The last stored block; `None` if the database is not available.
fn last(at: &str) -> Option<u64> {
    let location: Location = at.parse().unwrap();
    let store = store::open_to_read(location, Settings::default()).ok()?;
    store.stored_range().ok()?.map(|held| held.last)
}

fn stderr(child: &mut Child) -> String {
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_killed_sync_loses_nothing_and_repeats_nothing() {
    let Some(server) = Postgres::start() else { return };
    kills::check(&server.url("killed"), &server.url("fresh"), 25);
}

#[test]
fn every_command_says_the_same_of_both() {
    let Some(server) = Postgres::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (node, path) = (node(), folder.path().join("chain.db"));
    let (file, url) = (path.to_str().unwrap(), server.url("commands"));
    let missing = weir(&["stats", "--db", &url]);
    refused(&missing, &["there is no index in this schema", "schema=commands"]);
    for at in [file, &url] {
        fine(&["sync", "--from", &node.url(), "--end", "100", "--quiet", "--db", at]);
    }
    let both = |arguments: &[&str]| {
        let [ours, theirs] = [&url, file].map(|at| fine(&[arguments, &["--db", at]].concat()));
        assert!(ours == theirs && !ours.is_empty(), "{arguments:?}: {ours} {theirs}");
        ours
    };
    assert_eq!(both(&["verify"]), "blocks 0 to 100: sound (level full)\n");
    let logs = both(&["query", "logs"]);
    both(&["query", "logs", "--from", "20", "--to", "30", "--csv"]);
    let log: Value = serde_json::from_str(logs.lines().next().unwrap()).unwrap();
    both(&["query", "logs", "--address", log["address"].as_str().unwrap()]);
    both(&["query", "logs", "--topic0", log["topics"][0].as_str().unwrap()]);
    both(&["query", "receipt", log["transactionHash"].as_str().unwrap()]);
    both(&["query", "transaction", log["transactionHash"].as_str().unwrap()]);
    both(&["query", "block", log["blockHash"].as_str().unwrap()]);
    both(&["query", "block", "77", "--hashes"]);
    let stats = |at: &str| -> Value {
        let mut told: Value =
            serde_json::from_str(&fine(&["stats", "--json", "--db", at])).unwrap();
        assert!(told["bytes"].take().as_u64().unwrap() > 100_000);
        assert!(told["bytes_per_block"].take().as_u64().unwrap() > 1000);
        told
    };
    assert_eq!(stats(&url), stats(file));
    assert!(fine(&["stats", "--db", &url]).contains("\ndisk  "));
    let out = fine(&["vacuum", "--db", &url]);
    assert!(out.contains("schema=commands: ") && out.contains(" bytes) after; "), "{out}");
    assert_eq!(both(&["query", "logs"]), logs);
    let exported = |name: &str, at: &str| {
        let out = folder.path().join(name);
        fine(&["export", "--out", out.to_str().unwrap(), "--quiet", "--db", at]);
        ["blocks", "transactions", "logs"]
            .map(|table| std::fs::read(out.join(format!("{table}.parquet"))).unwrap())
    };
    assert!(exported("ours", &url) == exported("theirs", file));
    let pages = weir(&["stats", "--page-cache", "1MiB", "--db", &url]);
    refused(&pages, &["--page-cache is for files"]);
    let samples = folder.path().join("samples");
    let arguments = ["--samples", samples.to_str().unwrap(), "--end", "100", "--quiet"];
    fine(&[&["sync", "--from", &node.url(), "--db", &url], &arguments[..]].concat());
    let line = std::fs::read_to_string(samples).unwrap();
    let line: Value = serde_json::from_str(line.lines().next_back().unwrap()).unwrap();
    assert!(line.get("page_cache_hit").is_none() && line["disk"].as_u64().unwrap() > 0, "{line}");
    // By the local socket, as another name of the same.
    let socket = server.socket().display().to_string();
    let port = server.port;
    let local = format!("postgres:///postgres?host={socket}&port={port}&user=weir&schema=commands");
    assert_eq!(fine(&["query", "logs", "--db", &local]), logs);
}

#[test]
fn there_is_one_writer_and_it_must_keep_its_session() {
    let Some(server) = Postgres::start() else { return };
    let (node, url) = (moving_node(), server.url("taken"));
    let mut first = following(&node, &url);
    wait_until("the sync has begun", || last(&url).is_some());
    let second = weir(&["sync", "--from", &node.url(), "--quiet", "--db", &url]);
    refused(&second, &["another process writes to this schema; only one writer is allowed"]);
    // Readers and other schemas are free.
    assert!(fine(&["stats", "--db", &url]).contains("verified"));
    fine(&["sync", "--from", &node.url(), "--end", "5", "--quiet", "--db", &server.url("other")]);
    server.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'weir'",
    );
    let ended = first.wait().unwrap();
    let text = stderr(&mut first);
    assert_eq!(ended.code(), Some(1), "{text}");
    assert!(text.contains("continues after them"), "{text}");
    let before = last(&url).unwrap();
    let end = (before + 5).to_string();
    fine(&["sync", "--from", &node.url(), "--end", &end, "--quiet", "--db", &url]);
    assert!(fine(&["verify", "--db", &url]).ends_with("sound (level full)\n"));
}

#[test]
fn a_server_that_dies_in_the_middle_of_a_sync_keeps_whole_blocks() {
    let Some(mut server) = Postgres::start() else { return };
    let (node, url) = (moving_node(), server.url("dies"));
    for round in 0..3 {
        let mut child = following(&node, &url);
        let before = last(&url);
        wait_until("the sync goes on", || last(&url) > before);
        server.kill();
        let ended = child.wait().unwrap();
        let text = stderr(&mut child);
        assert_eq!(ended.code(), Some(1), "{text}");
        assert!(text.contains("continues after them"), "{text}");
        let gone = weir(&["stats", "--db", &url]);
        refused(&gone, &["postgres://***@127.0.0.1:", "refused"]);
        server.restart();
        let location: Location = url.parse().unwrap();
        // The last commits may be gone with the server, in the first round all that there were.
        let store = match store::open_to_read(location, Settings::default()) {
            Err(StoreError::Missing(_)) => continue,
            opened => opened.unwrap(),
        };
        let (first, blocks) =
            store.stored_range().unwrap().map_or((0, 0), |held| (held.first, held.last + 1));
        assert_eq!((first, store.totals().unwrap().0), (0, blocks), "round {round}");
    }
    let end = (last(&url).unwrap_or(0) + 3).to_string();
    fine(&["sync", "--from", &node.url(), "--end", &end, "--quiet", "--db", &url]);
    assert!(fine(&["verify", "--db", &url]).ends_with("sound (level full)\n"));
}

/// Mark and time of an answer to a call that memory has not.
fn ask(client: &mut Client, number: u64) -> (String, Duration) {
    let begun = Instant::now();
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"eth_getBlockByNumber","params":["{number:#x}",true]}}"#
    );
    let answer = client.call("/", body.as_bytes());
    assert!(answer.text().contains("\"result\":{"), "{}", answer.text());
    let mark = answer.header("x-weir-cache").unwrap_or_default();
    (mark.split(';').next().unwrap_or_default().to_owned(), begun.elapsed())
}

/// Asks until an answer is as wanted. Each takes a block that memory has not, of some hundreds, so
/// there is time between two of them.
fn ask_until(
    what: &str,
    next: &mut impl FnMut() -> (String, Duration),
    wanted: impl Fn((String, Duration)) -> bool,
) {
    wait_until(what, || {
        pause(Duration::from_millis(200)); // Sleeps: between two looks.
        wanted(next())
    });
}

#[test]
fn the_gateway_serves_without_the_server_and_with_it_again() {
    let Some(mut server) = Postgres::start() else { return };
    // Enough blocks for each call to be about one that memory has not.
    let node =
        Weir::node().args(&["--head", "1000", "--block-time", "1h", "--txs", "0..3"]).start();
    let url = server.url("served");
    fine(&["sync", "--from", &node.url(), "--end", "900", "--quiet", "--db", &url]);
    let toml = format!(
        "[server]\n[[upstream]]\nname = \"one\"\nurl = \"{}\"\n[index]\ndb = \"{url}\"\n",
        node.url()
    );
    let mut gateway = Weir::serve().admin().config(&toml).start();
    let mut client = Client::connect(&gateway.address);
    let mut numbers = 0..;
    let mut next = || ask(&mut client, numbers.next().unwrap());
    assert_eq!(next().0, "hit");
    server.kill();
    // The first calls find out; each is answered by the node, at once.
    for _ in 0..6 {
        let (mark, took) = next();
        assert_eq!(mark, "miss");
        assert!(took < Duration::from_secs(3), "{took:?}");
    }
    server.restart();
    ask_until("it is read again", &mut next, |(mark, _)| mark == "hit");
    // It hangs: nobody waits longer than a call may take, and soon nobody waits at all.
    server.signal_sessions("-STOP");
    server.signal("-STOP");
    for _ in 0..3 {
        let (mark, took) = next();
        assert_eq!(mark, "miss");
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
    ask_until("nobody waits", &mut next, |(_, took)| took < Duration::from_millis(500));
    server.signal("-CONT");
    // Those of its sessions are children that were stopped by their numbers.
    server.signal_sessions("-CONT");
    ask_until("it is read again", &mut next, |(mark, _)| mark == "hit");
    gateway.assert_sound();
}

#[test]
fn passwords_are_required_and_never_printed() {
    let Some(server) = Postgres::start() else { return };
    server.sql("CREATE ROLE guest LOGIN PASSWORD 'sekrit'");
    let node = node();
    let url = server.url("guarded").replace("weir@", "guest@");
    let sync = |password| {
        let arguments = ["sync", "--from", &node.url(), "--end", "20", "--quiet", "--db", &url];
        let said = said(command(&arguments, password));
        assert!(!(said.out.clone() + &said.err).contains("sekrit"), "{}", said.err);
        said
    };
    refused(&sync(Some("not-sekrit")), &["password authentication failed", "PGPASSWORD"]);
    refused(&sync(None), &["PGPASSWORD"]);
    refused(&sync(Some("sekrit")), &["permission denied for database", "GRANT CREATE"]);
    server.sql("GRANT CREATE ON DATABASE postgres TO guest");
    assert_eq!(sync(Some("sekrit")).code, Some(0));
    // Who may read nothing is told what is lacking.
    server.sql("CREATE ROLE stranger LOGIN");
    let stranger = url.replace("guest@", "stranger@");
    refused(&weir(&["stats", "--db", &stranger]), &["permission denied", "USAGE", "SELECT"]);
    // On the command line it is refused, and faults of a url do not show it.
    let open = url.replace("guest@", "guest:sekrit@");
    for at in [&open, &open.replace("schema=", "skema="), &open.replace("postgres:", "mysql:")] {
        let said = weir(&["stats", "--db", at]);
        assert_eq!(said.code, Some(2), "{}", said.err);
        assert!(said.err.contains("--db: ") && !said.err.contains("sekrit"), "{}", said.err);
    }
    // In a gateway's file it stands with the other secrets.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    let write = |password: &str| {
        let db = url.replace("guest@", &format!("guest:{password}@"));
        let node = node.url();
        let text =
            format!("[[upstream]]\nname = \"one\"\nurl = \"{node}\"\n[index]\ndb = \"{db}\"\n");
        std::fs::write(&file, text).unwrap();
    };
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(arguments)
            .arg(&file)
            .env_remove("PGPASSWORD")
            .output()
            .unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!text.contains("sekrit"), "{text}");
        (output.status.success(), text)
    };
    write("not-sekrit");
    assert!(run(&["check"]).0);
    let (served, text) = run(&["serve", "--listen", "127.0.0.1:0", "--admin", "off"]);
    assert!(!served && text.contains("password authentication failed"), "{text}");
    write("sekrit");
    let gateway = Weir::serve().admin().file(&file).start();
    assert_eq!(ask(&mut Client::connect(&gateway.address), 7).0, "hit");
    let mut admin = Client::connect(gateway.admin.as_deref().unwrap());
    for path in ["/metrics", "/status", "/"] {
        admin.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
        assert!(!admin.answer().unwrap().text().contains("sekrit"), "{path}");
    }
    assert!(!gateway.log().contains("sekrit"));
}

#[test]
fn encrypted_connections_verify_the_server() {
    let Some(server) = Postgres::start() else { return };
    server.sql("CREATE ROLE sealed LOGIN SUPERUSER");
    let url = server.url("sealed").replace("weir@", "sealed@");
    let folder = tempfile::tempdir().unwrap();
    let made = || rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let (own, other) = (made(), made());
    let with = |name: &str, pem: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, pem).unwrap();
        format!("{url}&sslmode=verify-full&sslrootcert={}", path.display())
    };
    let (right, wrong) = (with("own.pem", own.cert.pem()), with("other.pem", other.cert.pem()));
    // The server does not speak TLS yet.
    refused(&weir(&["stats", "--db", &right]), &["TLS", "sslmode=disable"]);
    server.enable_tls(&own.cert.pem(), &own.signing_key.serialize_pem());
    let node = node();
    let sync =
        |at: &str| weir(&["sync", "--from", &node.url(), "--end", "10", "--quiet", "--db", at]);
    wait_until("it speaks TLS", || sync(&right).code == Some(0));
    refused(&sync(&wrong), &["certificate"]);
    let named = right.replace("127.0.0.1", "localhost");
    refused(&sync(&named), &["certificate"]);
    refused(&sync(&format!("{url}&sslmode=require")), &["certificate"]);
    // In the clear it would not have been let in.
    refused(&sync(&url), &["pg_hba.conf"]);
}
