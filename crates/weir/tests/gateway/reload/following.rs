//! Goal: a gateway with `index.follow` writes new blocks of the chain into its index. During an
//! upgrade, the index stays complete and keeps growing, and there is one writer at any time.
//! Responses are correct, and no call fails.
//!
//! Method: the chain of the simulated node grows and reorganises all the time. The test upgrades
//! the gateway twice under load, and compares historical responses with the node's. It reads from
//! the kernel which process holds the writer's lock.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use index::reader::Reader;
use index::store::{Location, Settings};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng};

use super::*;
use test_support::members::{difference, excerpt};
use test_support::running::Weir;

/// Number of blocks in the index before the first upgrade.
const FIRST_BLOCKS: u64 = 300;
/// Number of blocks by which the index must grow after each upgrade.
const GROWTH: u64 = 30;
/// Blocks this far below the highest indexed block are final for the gateway.
const FINAL_DEPTH: u64 = 60;
const SEED: u64 = 0x0b57;

/// Returns the number of the last block in the index, or 0 if the index is empty.
fn height(db: &Path) -> u64 {
    let reader = Reader::open(Location::from(db), Settings::default()).ok().flatten();
    reader.and_then(|reader| reader.stored_range().unwrap()).map_or(0, |held| held.last)
}

/// Returns the ids of the processes that hold the writer's lock, from the open files of all
/// processes. `/proc/locks` does not serve for it: the kernel lists it page by page, so a lock
/// appears twice or not at all if others are taken or released meanwhile.
fn writers(db: &Path) -> BTreeSet<u64> {
    let lock = std::fs::metadata(format!("{}.lock", db.display())).unwrap().ino().to_string();
    // In `lock: 1: FLOCK  ADVISORY  WRITE 4711 fe:00:65 0 EOF`, 4711 is the process id. Then the
    // device and the inode follow.
    let holder = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_writer_lock = words.get(2) == Some(&"FLOCK")
            && words.get(6).is_some_and(|inode| inode.rsplit(':').next() == Some(&lock));
        is_writer_lock.then(|| words[5].parse::<u64>().unwrap())
    };
    let entries = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries("/proc".into())
        .flat_map(|process| entries(process.path().join("fdinfo")))
        // A file may be closed and a process may end meanwhile.
        .filter_map(|file| std::fs::read_to_string(file.path()).ok())
        .flat_map(|file| file.lines().filter_map(holder).collect::<Vec<_>>())
        .collect()
}

/// True if a process has ended or is a zombie.
fn has_ended(id: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

/// Returns the number of index lookups with this outcome, from the metrics of the current process.
fn lookups(admin: &str, outcome: &str) -> u64 {
    let metrics = get_admin(admin, "/metrics");
    let name = format!("weir_index_lookups_total{{outcome=\"{outcome}\"}} ");
    let line = metrics.text().lines().find_map(|line| line.strip_prefix(&name).map(str::to_owned));
    line.unwrap().parse().unwrap()
}

/// State of the client that requests historical data.
#[derive(Default)]
struct HistoryClient {
    /// The highest block that the client may request.
    last_block: AtomicU64,
    stop: AtomicBool,
    /// Number of responses from the cache or the index.
    hits: AtomicU64,
    /// Number of responses from a node.
    misses: AtomicU64,
}

/// Stops the history client when it is dropped.
struct StopGuard<'a>(&'a HistoryClient);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
    }
}

/// Requests random blocks, receipts and logs until `stop` is set. Compares the responses with the
/// node's.
fn request_history(history: &HistoryClient, gateway: &str, node: &str) {
    let mut random = StdRng::seed_from_u64(SEED);
    while !history.stop.load(Ordering::Acquire) {
        let to = history.last_block.load(Ordering::Acquire);
        let [a, b] = [(); 2].map(|()| random.random_range(0..=to));
        let (from, to) = (a.min(b), a.max(b));
        let (method, params) = match random.random_range(0..3) {
            0 => ("eth_getBlockReceipts", format!(r#"["{a:#x}"]"#)),
            1 => ("eth_getBlockByNumber", format!(r#"["{a:#x}",true]"#)),
            _ => ("eth_getLogs", format!(r#"[{{"fromBlock":"{from:#x}","toBlock":"{to:#x}"}}]"#)),
        };
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        let gateway_response = raw::Client::connect(gateway).call("/", body.as_bytes());
        let node_response = raw::Client::connect(node).call("/", body.as_bytes());
        assert_eq!(gateway_response.status, 200, "{body}: {}", excerpt(gateway_response.text()));
        assert_eq!(difference(node_response.text(), gateway_response.text()), None, "{body}");
        match gateway_response.header("x-weir-cache") {
            Some(cache) if cache.starts_with("hit") => history.hits.fetch_add(1, Ordering::Release),
            _ => history.misses.fetch_add(1, Ordering::Release),
        };
    }
}

#[test]
fn an_upgrade_while_the_index_is_followed_costs_no_call_and_no_block() {
    let chain_arguments = ["--head", "300", "--block-time", "100ms", "--finality-depth", "20"];
    let reorgs = ["--reorg-every", "9:5", "--txs", "1..6"];
    let node = Weir::node().admin().args(&[&chain_arguments[..], &reorgs].concat()).start();
    let setup = Setup { nodes: vec![node], folder: tempfile::tempdir().unwrap() };
    let db = setup.folder.path().join("chain.db");
    // The memory cache stores only small responses, so most hits come from the index.
    let settings = format!(
        "[server]\nthreads = 2\n[cache]\nentry_bytes_max = \"1KiB\"\n\
         [index]\ndb = \"{}\"\nfollow = true\n",
        db.display()
    );
    setup.write(&[0], &settings);
    let mut gateway = setup.start_gateway();
    wait_until("the index has the first blocks", || height(&db) >= FIRST_BLOCKS);
    let (admin, address) = (admin(&gateway).to_owned(), gateway.address.clone());
    assert_eq!(writers(&db), BTreeSet::from([process_id(&admin)]));

    let history = HistoryClient::default();
    history.last_block.store(height(&db) - FINAL_DEPTH, Ordering::Release);
    let mut last_process = None;
    let load_result = std::thread::scope(|threads| {
        let history_thread =
            threads.spawn(|| request_history(&history, &address, &setup.nodes[0].address));
        // Stops the client even if this thread panics.
        let stop_guard = StopGuard(&history);
        let load = Load { connections: 10, calls_per_second: 100 };
        let load_result = run_under_load(load, &Mutex::new(address.clone()), || {
            for upgrade in 0..2 {
                let before = process_id(&admin);
                let (hits, height_before) = (history.hits.load(Ordering::Acquire), height(&db));
                wait_until("the index answers", || history.hits.load(Ordering::Acquire) > hits + 5);
                let upgraded = weir(&["upgrade", "--admin", &admin]);
                assert!(upgraded.status.success(), "{}", text(&upgraded.stderr));
                match upgrade {
                    0 => assert!(gateway.wait_for_exit().success(), "{}", gateway.log()),
                    _ => wait_until("the old process is over", || has_ended(before)),
                }
                let after = process_id(&admin);
                last_process = Some(Successor(after));
                assert_ne!(after, before);
                wait_until("the new process writes", || writers(&db) == BTreeSet::from([after]));
                wait_until("the index grows", || height(&db) >= height_before + GROWTH);
                history.last_block.store(height(&db) - FINAL_DEPTH, Ordering::Release);
                wait_until("the new process answers from it", || lookups(&admin, "hit") > 5);
                assert_eq!(lookups(&admin, "failed"), 0, "{}", gateway.log());
                assert_eq!(writers(&db), BTreeSet::from([after]));
            }
        });
        drop(stop_guard);
        history_thread.join().unwrap();
        load_result
    });
    let first_failures: Vec<&String> = load_result.failures.iter().take(5).collect();
    assert!(
        load_result.failures.is_empty(),
        "{} of {}: {first_failures:#?}",
        load_result.failures.len(),
        load_result.calls
    );
    let counted = |count: &AtomicU64| count.load(Ordering::Acquire);
    println!(
        "{} calls; {} hits, {} misses",
        load_result.calls,
        counted(&history.hits),
        counted(&history.misses)
    );

    // After a graceful stop of the last process, the index is complete.
    let Successor(id) = last_process.as_ref().unwrap();
    assert!(Command::new("kill").args(["-TERM", &id.to_string()]).status().unwrap().success());
    wait_until("the last process is over", || has_ended(*id));
    assert_eq!(writers(&db), BTreeSet::new());
    let verified = weir(&["index", "verify", "--db", db.to_str().unwrap()]);
    assert!(verified.status.success(), "{}{}", text(&verified.stdout), text(&verified.stderr));
    assert!(!gateway.log().contains("ERROR"), "{}", gateway.log());
}
