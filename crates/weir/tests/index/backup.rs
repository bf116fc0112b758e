//! Goal: the commands of `docs/backup.md` back up and restore an index and the quota file while
//! they are in use. Method: the test reads the commands from the page and runs them in a shell,
//! while a sync writes and a gateway reads. Then it verifies the restored index and continues the
//! sync.
//!
//! These tests need sqlite3 and postgres; `test_support::programs` decides what happens without
//! them.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use test_support::postgres::Postgres;
use test_support::programs;
use test_support::raw::{Client, post_with};
use test_support::running::{Running, Weir, command_killed_with_test, spawn, weir};
use test_support::wait::wait_until;

/// The database URL in the commands of the page.
const SERVER: &str = "postgres://weir@db.example/chains";
/// Number of the block that the index must have before it is backed up.
const BLOCKS: u64 = 100;
const SECRET: &str = "0123456789abcdef";

/// Returns the commands of a section of the page, one string per block of commands.
fn commands(section: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/backup.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, text) =
        page.split_once(&format!("\n## {section}\n")).expect("the page has the section");
    let text = text.split("\n## ").next().unwrap();
    let blocks = text.split("```sh\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

/// Runs commands in a folder and returns their output. Each command must succeed.
fn run(commands: &str, folder: &Path) -> String {
    let programs = weir().parent().unwrap().display().to_string();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    let output = Command::new("sh")
        .args(["-ec", commands])
        .current_dir(folder)
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let printed = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{commands}: {printed}");
    printed
}

/// A sync that follows the chain until it is dropped.
struct Sync(Child);

impl Sync {
    fn start(node: &Running, db: &str) -> Sync {
        let mut command = command_killed_with_test(&weir());
        command.args(["index", "sync", "--quiet", "--end", "follow", "--from", &node.url()]);
        command.args(["--db", db]).stdin(Stdio::null());
        Sync(spawn(command).unwrap())
    }
}

impl Drop for Sync {
    fn drop(&mut self) {
        // SIGKILL, as in a failure of the machine: a restore must cope with the files that the sync
        // leaves behind.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the last block of an index; `None` while it cannot be read.
fn last_block(db: &str) -> Option<u64> {
    let mut command = Command::new(weir());
    command.args(["index", "stats", "--json", "--db", db]).stdin(Stdio::null());
    let stats: Value = serde_json::from_slice(&command.output().unwrap().stdout).ok()?;
    stats["last"].as_u64()
}

fn wait_for_block(db: &str, number: u64) {
    wait_until("the index has the block", || last_block(db).is_some_and(|last| last >= number));
}

/// Starts a node whose chain grows while the test runs.
fn start_node() -> Running {
    Weir::node().args(&["--head", "150", "--block-time", "100ms", "--finality-depth", "10"]).start()
}

/// Starts a gateway that reads the index.
fn start_gateway(node: &Running, db: &str) -> Running {
    let url = node.url();
    let config = format!("[[upstream]]\nname = \"one\"\nurl = \"{url}\"\n[index]\ndb = \"{db}\"\n");
    Weir::serve().config(&config).start()
}

/// Backs up an index with the commands of a section of the page, restores it and continues the
/// sync. `localize` replaces the locations in the commands by those of the test.
fn back_up_and_restore(section: &str, folder: &Path, db: &str, localize: impl Fn(&str) -> String) {
    let [back_up, restore] = &commands(section)[..] else { panic!("two blocks of commands") };
    let node = start_node();
    let sync = Sync::start(&node, db);
    wait_for_block(db, BLOCKS);
    let mut gateway = start_gateway(&node, db);
    let printed = run(&localize(back_up), folder);
    let backed_up_max = last_block(db).unwrap();
    wait_for_block(db, backed_up_max + 5);
    drop(sync);
    gateway.assert_sound();
    drop(gateway);

    let printed = printed + &run(&localize(restore), folder);
    assert!(printed.contains("sound"), "{printed}");
    let restored = last_block(db).unwrap();
    assert!((BLOCKS..=backed_up_max).contains(&restored), "{restored} of {backed_up_max}");
    let _sync = Sync::start(&node, db);
    wait_for_block(db, backed_up_max + 10);
}

#[test]
fn an_index_in_a_file_is_backed_up_and_restored() {
    if programs::require("sqlite3").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("chain.db");
    let db = db.to_str().unwrap();
    back_up_and_restore("An index in a file", folder.path(), db, str::to_owned);
}

#[test]
fn an_index_in_postgresql_is_backed_up_and_restored() {
    let Some(postgres) = Postgres::start() else { return };
    // pg_restore runs as this user, so the server must accept its version of the dump.
    for program in ["pg_dump", "pg_restore", "psql"] {
        if programs::require(program).is_none() {
            return;
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let db = format!("postgres://weir@127.0.0.1:{}/postgres", postgres.port);
    let localize = |commands: &str| {
        assert!(commands.contains(SERVER), "{commands}");
        commands.replace(SERVER, &db)
    };
    back_up_and_restore("An index in PostgreSQL", folder.path(), &db, localize);
}

#[test]
fn the_quota_file_is_backed_up_and_restored() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("quota.json");
    let file = file.to_str().unwrap();
    let [back_up, restore] = &commands("The quota file")[..] else { panic!("two commands") };
    let localize = |commands: &str| commands.replace("/var/lib/weir/quota.json", file);
    let node = start_node();
    let url = node.url();
    let config = format!(
        "[server]\nthreads = 1\n[[upstream]]\nname = \"one\"\nurl = \"{url}\"\n\
         [[key]]\nname = \"alice\"\nsecret = \"{SECRET}\"\nquota = 3\n\
         [quota]\nfile = \"{file}\"\ncost = \"call\"\n"
    );
    let call = |gateway: &Running| {
        let body = br#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#;
        let mut client = Client::connect(&gateway.address);
        client.send(&post_with("/", &format!("x-api-key: {SECRET}\r\n"), body));
        client.read_response().unwrap().status
    };
    let is_used_up =
        || std::fs::read_to_string(file).is_ok_and(|text| text.contains("\"alice\": 3"));

    let gateway = Weir::serve().admin().config(&config).start();
    let admin = gateway.admin.clone().unwrap();
    wait_until("the gateway is ready", || {
        let mut ready = Command::new(weir());
        ready.args(["ready", "--admin", &admin]).output().unwrap().status.success()
    });
    for _ in 0..3 {
        assert_eq!(call(&gateway), 200);
    }
    wait_until("the gateway has written its usage", is_used_up);
    run(&localize(back_up), folder.path());
    drop(gateway);
    std::fs::remove_file(file).unwrap();

    run(&localize(restore), folder.path());
    let gateway = Weir::serve().config(&config).start();
    assert_eq!(call(&gateway), 429, "the restored quota is used up");
}
