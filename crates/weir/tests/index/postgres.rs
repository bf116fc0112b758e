//! Goal: an index in PostgreSQL works like an index in a file, survives failures of the server, its
//! sessions and the writer, and never prints a password. Method: a real server and a simulated
//! node. Every command runs on an index of each kind, and the outputs are compared. Then the server
//! is killed, frozen and restarted, and clients use wrong passwords, while the program syncs and
//! the gateway serves.
//!
//! `gateway.rs` in this folder compares a gateway's responses from PostgreSQL with a simulated
//! node's, and `transparency.rs` compares the index's responses with geth's. These tests need
//! postgres; `test_support::programs` decides what happens without it.

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

/// The exit code and the printed text of a command.
struct CommandOutput {
    code: Option<i32>,
    out: String,
    err: String,
}

fn index_command(arguments: &[&str], password: Option<&str>) -> Command {
    let mut command = running::command_killed_with_test(Path::new(env!("CARGO_BIN_EXE_weir")));
    command.arg("index").args(arguments).env_remove("PGPASSWORD");
    if let Some(password) = password {
        command.env("PGPASSWORD", password);
    }
    command
}

fn run(mut command: Command) -> CommandOutput {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    CommandOutput { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

fn weir(arguments: &[&str]) -> CommandOutput {
    run(index_command(arguments, None))
}

/// Runs a command that must succeed, and returns its output.
fn run_ok(arguments: &[&str]) -> String {
    let output = weir(arguments);
    assert_eq!(output.code, Some(0), "{arguments:?}: {}{}", output.out, output.err);
    output.out
}

/// Asserts that a command failed with status 1 and a message that contains all these texts.
#[track_caller]
fn assert_fails(output: &CommandOutput, expected: &[&str]) {
    assert_eq!(output.code, Some(1), "{}{}", output.out, output.err);
    for text in expected {
        assert!(output.err.contains(text), "no {text:?} in: {}", output.err);
    }
}

fn node() -> Running {
    Weir::node().args(&["--head", "120", "--block-time", "1h", "--txs", "0..6"]).start()
}

/// Starts a node whose chain grows by ten blocks per second.
fn growing_node() -> Running {
    let settings = ["--block-time", "100ms", "--head", "300", "--finality-depth", "10"];
    Weir::node().args(&settings).start()
}

/// Starts a sync that follows the chain until it is stopped. `db` is the URL of the database.
fn start_following(node: &Running, db: &str) -> Child {
    let url = node.url();
    let arguments = ["sync", "--from", &url, "--end", "follow", "--quiet", "--db", db];
    let mut command = index_command(&arguments, None);
    command.stderr(Stdio::piped());
    running::spawn(command).unwrap()
}

/// Returns the last stored block; `None` if the index has no block or cannot be read.
fn last_block(db: &str) -> Option<u64> {
    let location: Location = db.parse().unwrap();
    let store = store::open_to_read(location, Settings::default()).ok()?;
    store.stored_range().ok()?.map(|range| range.last)
}

fn read_stderr(child: &mut Child) -> String {
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
fn every_command_prints_the_same_for_postgres_and_a_file() {
    let Some(server) = Postgres::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (node, path) = (node(), folder.path().join("chain.db"));
    let (file, url) = (path.to_str().unwrap(), server.url("commands"));
    let missing = weir(&["stats", "--db", &url]);
    assert_fails(&missing, &["there is no index in this schema", "schema=commands"]);
    for db in [file, &url] {
        run_ok(&["sync", "--from", &node.url(), "--end", "100", "--quiet", "--db", db]);
    }
    let run_on_both = |arguments: &[&str]| {
        let [from_postgres, from_file] =
            [&url, file].map(|db| run_ok(&[arguments, &["--db", db]].concat()));
        assert!(from_postgres == from_file, "{arguments:?}: {from_postgres} {from_file}");
        assert!(!from_postgres.is_empty(), "{arguments:?}");
        from_postgres
    };
    assert_eq!(run_on_both(&["verify"]), "blocks 0 to 100: sound (level full)\n");
    let logs = run_on_both(&["query", "logs"]);
    run_on_both(&["query", "logs", "--from", "20", "--to", "30", "--csv"]);
    let log: Value = serde_json::from_str(logs.lines().next().unwrap()).unwrap();
    run_on_both(&["query", "logs", "--address", log["address"].as_str().unwrap()]);
    run_on_both(&["query", "logs", "--topic0", log["topics"][0].as_str().unwrap()]);
    run_on_both(&["query", "receipt", log["transactionHash"].as_str().unwrap()]);
    run_on_both(&["query", "transaction", log["transactionHash"].as_str().unwrap()]);
    run_on_both(&["query", "block", log["blockHash"].as_str().unwrap()]);
    run_on_both(&["query", "block", "77", "--hashes"]);
    let stats = |db: &str| -> Value {
        let mut stats: Value =
            serde_json::from_str(&run_ok(&["stats", "--json", "--db", db])).unwrap();
        assert!(stats["bytes"].take().as_u64().unwrap() > 100_000);
        assert!(stats["bytes_per_block"].take().as_u64().unwrap() > 1000);
        stats
    };
    assert_eq!(stats(&url), stats(file));
    assert!(run_ok(&["stats", "--db", &url]).contains("\ndisk  "));
    let out = run_ok(&["vacuum", "--db", &url]);
    assert!(out.contains("schema=commands: ") && out.contains(" bytes) after; "), "{out}");
    assert_eq!(run_on_both(&["query", "logs"]), logs);
    let export = |name: &str, db: &str| {
        let out = folder.path().join(name);
        run_ok(&["export", "--out", out.to_str().unwrap(), "--quiet", "--db", db]);
        ["blocks", "transactions", "logs"]
            .map(|table| std::fs::read(out.join(format!("{table}.parquet"))).unwrap())
    };
    assert!(export("ours", &url) == export("theirs", file));
    let with_page_cache = weir(&["stats", "--page-cache", "1MiB", "--db", &url]);
    assert_fails(&with_page_cache, &["--page-cache is for files"]);
    let samples = folder.path().join("samples");
    let arguments = ["--samples", samples.to_str().unwrap(), "--end", "100", "--quiet"];
    run_ok(&[&["sync", "--from", &node.url(), "--db", &url], &arguments[..]].concat());
    let line = std::fs::read_to_string(samples).unwrap();
    let line: Value = serde_json::from_str(line.lines().next_back().unwrap()).unwrap();
    assert!(line.get("page_cache_hit").is_none() && line["disk"].as_u64().unwrap() > 0, "{line}");
    // A URL with the local socket leads to the same index.
    let socket = server.socket().display().to_string();
    let port = server.port;
    let local = format!("postgres:///postgres?host={socket}&port={port}&user=weir&schema=commands");
    assert_eq!(run_ok(&["query", "logs", "--db", &local]), logs);
}

#[test]
fn there_is_one_writer_and_it_must_keep_its_session() {
    let Some(server) = Postgres::start() else { return };
    let (node, url) = (growing_node(), server.url("taken"));
    let mut first = start_following(&node, &url);
    wait_until("the sync has begun", || last_block(&url).is_some());
    let second = weir(&["sync", "--from", &node.url(), "--quiet", "--db", &url]);
    assert_fails(&second, &["another process writes to this schema; only one writer is allowed"]);
    // Readers and writers to other schemas are allowed.
    assert!(run_ok(&["stats", "--db", &url]).contains("verified"));
    run_ok(&["sync", "--from", &node.url(), "--end", "5", "--quiet", "--db", &server.url("other")]);
    server.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'weir'",
    );
    let status = first.wait().unwrap();
    let text = read_stderr(&mut first);
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("continues after them"), "{text}");
    let before = last_block(&url).unwrap();
    let end = (before + 5).to_string();
    run_ok(&["sync", "--from", &node.url(), "--end", &end, "--quiet", "--db", &url]);
    assert!(run_ok(&["verify", "--db", &url]).ends_with("sound (level full)\n"));
}

#[test]
fn a_server_that_dies_in_the_middle_of_a_sync_keeps_whole_blocks() {
    let Some(mut server) = Postgres::start() else { return };
    let (node, url) = (growing_node(), server.url("dies"));
    for round in 0..3 {
        let mut child = start_following(&node, &url);
        let before = last_block(&url);
        wait_until("the sync goes on", || last_block(&url) > before);
        server.kill();
        let status = child.wait().unwrap();
        let text = read_stderr(&mut child);
        assert_eq!(status.code(), Some(1), "{text}");
        assert!(text.contains("continues after them"), "{text}");
        let unreachable = weir(&["stats", "--db", &url]);
        assert_fails(&unreachable, &["postgres://***@127.0.0.1:", "refused"]);
        assert!(!unreachable.err.contains("sync"), "{}", unreachable.err);
        server.restart();
        let location: Location = url.parse().unwrap();
        // The kill may have lost the last commits; in the first round that may be all of them.
        let store = match store::open_to_read(location, Settings::default()) {
            Err(StoreError::Missing(_)) => continue,
            opened => opened.unwrap(),
        };
        let (first, blocks) =
            store.stored_range().unwrap().map_or((0, 0), |range| (range.first, range.last + 1));
        assert_eq!((first, store.totals().unwrap().0), (0, blocks), "round {round}");
    }
    let end = (last_block(&url).unwrap_or(0) + 3).to_string();
    run_ok(&["sync", "--from", &node.url(), "--end", &end, "--quiet", "--db", &url]);
    assert!(run_ok(&["verify", "--db", &url]).ends_with("sound (level full)\n"));
}

/// Requests a block. Returns the status in the header `x-weir-cache` and the response time.
fn request_block(client: &mut Client, number: u64) -> (String, Duration) {
    let start = Instant::now();
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"eth_getBlockByNumber","params":["{number:#x}",true]}}"#
    );
    let response = client.call("/", body.as_bytes());
    assert!(response.text().contains("\"result\":{"), "{}", response.text());
    let cache_header = response.header("x-weir-cache").unwrap_or_default();
    (cache_header.split(';').next().unwrap_or_default().to_owned(), start.elapsed())
}

/// Requests blocks until a response meets the condition. Each request uses up one of some hundred
/// blocks that are not in the memory cache, so there is a pause between requests.
fn request_until(
    condition: &str,
    request_next: &mut impl FnMut() -> (String, Duration),
    is_met: impl Fn((String, Duration)) -> bool,
) {
    wait_until(condition, || {
        pause(Duration::from_millis(200)); // Sleeps: between two requests.
        is_met(request_next())
    });
}

#[test]
fn the_gateway_serves_without_the_server_and_with_it_again() {
    let Some(mut server) = Postgres::start() else { return };
    // Enough blocks for each call to request one that is not in the memory cache.
    let node =
        Weir::node().args(&["--head", "1000", "--block-time", "1h", "--txs", "0..3"]).start();
    let url = server.url("served");
    run_ok(&["sync", "--from", &node.url(), "--end", "900", "--quiet", "--db", &url]);
    let toml = format!(
        "[server]\n[[upstream]]\nname = \"one\"\nurl = \"{}\"\n[index]\ndb = \"{url}\"\n",
        node.url()
    );
    let mut gateway = Weir::serve().admin().config(&toml).start();
    let mut client = Client::connect(&gateway.address);
    let mut numbers = 0..;
    let mut request_next = || request_block(&mut client, numbers.next().unwrap());
    assert_eq!(request_next().0, "hit");
    server.kill();
    // The first calls detect the failure. The node answers all of them without delay.
    for _ in 0..6 {
        let (cache_status, elapsed) = request_next();
        assert_eq!(cache_status, "miss");
        assert!(elapsed < Duration::from_secs(3), "{elapsed:?}");
    }
    server.restart();
    request_until("it is read again", &mut request_next, |(cache_status, _)| cache_status == "hit");
    // The server hangs: no call takes longer than its timeout, and soon calls do not wait for the
    // server at all.
    server.signal_sessions("-STOP");
    server.signal("-STOP");
    for _ in 0..3 {
        let (cache_status, elapsed) = request_next();
        assert_eq!(cache_status, "miss");
        assert!(elapsed < Duration::from_secs(20), "{elapsed:?}");
    }
    request_until("nobody waits", &mut request_next, |(_, elapsed)| {
        elapsed < Duration::from_millis(500)
    });
    server.signal("-CONT");
    // The sessions are child processes, which were stopped one by one.
    server.signal_sessions("-CONT");
    request_until("it is read again", &mut request_next, |(cache_status, _)| cache_status == "hit");
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
        let output = run(index_command(&arguments, password));
        assert!(!(output.out.clone() + &output.err).contains("sekrit"), "{}", output.err);
        output
    };
    assert_fails(&sync(Some("not-sekrit")), &["password authentication failed", "PGPASSWORD"]);
    assert_fails(&sync(None), &["PGPASSWORD"]);
    assert_fails(&sync(Some("sekrit")), &["permission denied for database", "GRANT CREATE"]);
    server.sql("GRANT CREATE ON DATABASE postgres TO guest");
    assert_eq!(sync(Some("sekrit")).code, Some(0));
    // A role without permission to read gets a message that names the missing permissions.
    server.sql("CREATE ROLE stranger LOGIN");
    let stranger = url.replace("guest@", "stranger@");
    assert_fails(&weir(&["stats", "--db", &stranger]), &["permission denied", "USAGE", "SELECT"]);
    // A password on the command line is rejected, and errors about a URL do not print it.
    let url_with_password = url.replace("guest@", "guest:sekrit@");
    for db_url in [
        &url_with_password,
        &url_with_password.replace("schema=", "skema="),
        &url_with_password.replace("postgres:", "mysql:"),
    ] {
        let output = weir(&["stats", "--db", db_url]);
        assert_eq!(output.code, Some(2), "{}", output.err);
        assert!(output.err.contains("--db: ") && !output.err.contains("sekrit"), "{}", output.err);
    }
    // A gateway's configuration file may contain the password, as it contains other secrets.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    let write_config = |password: &str| {
        let db = url.replace("guest@", &format!("guest:{password}@"));
        let node = node.url();
        let text =
            format!("[[upstream]]\nname = \"one\"\nurl = \"{node}\"\n[index]\ndb = \"{db}\"\n");
        std::fs::write(&file, text).unwrap();
    };
    let run_gateway_command = |arguments: &[&str]| {
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
    write_config("not-sekrit");
    assert!(run_gateway_command(&["check"]).0);
    let (is_served, text) =
        run_gateway_command(&["serve", "--listen", "127.0.0.1:0", "--admin", "off"]);
    assert!(!is_served && text.contains("password authentication failed"), "{text}");
    write_config("sekrit");
    let gateway = Weir::serve().admin().file(&file).start();
    assert_eq!(request_block(&mut Client::connect(&gateway.address), 7).0, "hit");
    let mut admin = Client::connect(gateway.admin.as_deref().unwrap());
    for path in ["/metrics", "/status", "/"] {
        admin.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
        assert!(!admin.read_response().unwrap().text().contains("sekrit"), "{path}");
    }
    assert!(!gateway.log().contains("sekrit"));
}

#[test]
fn encrypted_connections_verify_the_server() {
    let Some(server) = Postgres::start() else { return };
    server.sql("CREATE ROLE sealed LOGIN SUPERUSER");
    let url = server.url("sealed").replace("weir@", "sealed@");
    let folder = tempfile::tempdir().unwrap();
    let new_certificate =
        || rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let (own, other) = (new_certificate(), new_certificate());
    let url_with_root = |name: &str, pem: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, pem).unwrap();
        format!("{url}&sslmode=verify-full&sslrootcert={}", path.display())
    };
    let right = url_with_root("own.pem", own.cert.pem());
    let wrong = url_with_root("other.pem", other.cert.pem());
    // The server does not speak TLS yet.
    assert_fails(&weir(&["stats", "--db", &right]), &["TLS", "sslmode=disable"]);
    server.enable_tls(&own.cert.pem(), &own.signing_key.serialize_pem());
    let node = node();
    let sync =
        |db: &str| weir(&["sync", "--from", &node.url(), "--end", "10", "--quiet", "--db", db]);
    wait_until("it speaks TLS", || sync(&right).code == Some(0));
    assert_fails(&sync(&wrong), &["certificate"]);
    let other_host = right.replace("127.0.0.1", "localhost");
    assert_fails(&sync(&other_host), &["certificate"]);
    assert_fails(&sync(&format!("{url}&sslmode=require")), &["certificate"]);
    // The server rejects connections without TLS.
    assert_fails(&sync(&url), &["pg_hba.conf"]);
}
