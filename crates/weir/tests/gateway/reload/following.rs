//! Goal: an upgrade of a gateway that follows the chain into its index keeps the index complete and
//! growing, with one writer at any time. Responses are correct, and no call fails. Method: a
//! simulated node whose chain grows and reorganises continuously; two upgrades under load;
//! historical responses compared with the node's; the lock's owner as the kernel reports it.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use index::reader::Reader;
use index::store::{Location, Settings};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng};

use super::*;
use test_support::members::{difference, excerpt};
use test_support::running::Weir;

/// Blocks that the index has before the first upgrade, and by which it must grow after each.
const HEAD: u64 = 300;
const GROWTH: u64 = 30;
/// Blocks below the highest that was held: no reorg comes there, and the gateway knows them final.
const DEEP: u64 = 60;
const SEED: u64 = 0x0b57;

/// The last block of the index; 0 as long as there is none.
fn height(db: &Path) -> u64 {
    let reader = Reader::open(Location::from(db), Settings::default()).ok().flatten();
    reader.and_then(|reader| reader.stored_range().unwrap()).map_or(0, |held| held.last)
}

/// The processes that hold the writer's lock.
fn writers(db: &Path) -> Vec<u64> {
    let lock = std::fs::metadata(format!("{}.lock", db.display())).unwrap().ino().to_string();
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    // `7: FLOCK  ADVISORY  WRITE 4711 fe:00:65 0 EOF`: process, then device and inode.
    let of_line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ours = words.get(1) == Some(&"FLOCK")
            && words.get(5).is_some_and(|place| place.rsplit(':').next() == Some(&lock));
        ours.then(|| words[4].parse().unwrap())
    };
    locks.lines().filter_map(of_line).collect()
}

/// True if a process has ended or is a zombie.
fn is_over(id: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

/// What the gateway's serving process has counted of its questions to the index.
fn lookups(admin: &str, outcome: &str) -> u64 {
    let metrics = look(admin, "/metrics");
    let name = format!("weir_index_lookups_total{{outcome=\"{outcome}\"}} ");
    let line = metrics.text().lines().find_map(|line| line.strip_prefix(&name).map(str::to_owned));
    line.unwrap().parse().unwrap()
}

/// What clients asked about the past until they were told to stop.
#[derive(Default)]
struct Past {
    /// Up to which block it may be asked.
    to: AtomicU64,
    stop: AtomicBool,
    /// Answered by the gateway alone, or by a node in its place.
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Stops the client of history when it is dropped.
struct Stopping<'a>(&'a Past);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
    }
}

/// Asks for blocks and logs that no memory has, and compares them with the node's.
fn ask_about(past: &Past, gateway: &str, node: &str) {
    let mut random = StdRng::seed_from_u64(SEED);
    while !past.stop.load(Ordering::Acquire) {
        let to = past.to.load(Ordering::Acquire);
        let [a, b] = [(); 2].map(|()| random.random_range(0..=to));
        let (from, to) = (a.min(b), a.max(b));
        let (method, params) = match random.random_range(0..3) {
            0 => ("eth_getBlockReceipts", format!(r#"["{a:#x}"]"#)),
            1 => ("eth_getBlockByNumber", format!(r#"["{a:#x}",true]"#)),
            _ => ("eth_getLogs", format!(r#"[{{"fromBlock":"{from:#x}","toBlock":"{to:#x}"}}]"#)),
        };
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        let ours = raw::Client::connect(gateway).call("/", body.as_bytes());
        let theirs = raw::Client::connect(node).call("/", body.as_bytes());
        assert_eq!(ours.status, 200, "{body}: {}", excerpt(ours.text()));
        assert_eq!(difference(theirs.text(), ours.text()), None, "{body}");
        match ours.header("x-weir-cache") {
            Some(mark) if mark.starts_with("hit") => past.hits.fetch_add(1, Ordering::Release),
            _ => past.misses.fetch_add(1, Ordering::Release),
        };
    }
}

#[test]
fn an_upgrade_while_the_index_is_followed_costs_no_call_and_no_block() {
    let more = ["--head", "300", "--block-time", "100ms", "--finality-depth", "20"];
    let reorgs = ["--reorg-every", "9:5", "--txs", "1..6"];
    let node = Weir::node().admin().args(&[&more[..], &reorgs].concat()).start();
    let scene = Scene { nodes: vec![node], folder: tempfile::tempdir().unwrap() };
    let db = scene.folder.path().join("chain.db");
    // Memory keeps little: what is a hit is of the index.
    let told = format!(
        "[server]\nthreads = 2\n[cache]\nentry_bytes_max = \"1KiB\"\n\
         [index]\ndb = \"{}\"\nfollow = true\n",
        db.display()
    );
    scene.write(&[0], &told);
    let mut gateway = scene.gateway();
    wait_until("the index has the past", || height(&db) >= HEAD);
    let (admin, address) = (admin(&gateway).to_owned(), gateway.address.clone());
    assert_eq!(writers(&db), [process(&admin)]);

    let past = Past::default();
    past.to.store(height(&db) - DEEP, Ordering::Release);
    let mut last = None;
    let seen = std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask_about(&past, &address, &scene.nodes[0].address));
        // Also when something fails here, so that it ends.
        let stopping = Stopping(&past);
        let load = Load { connections: 10, calls_per_second: 100 };
        let seen = under_load(load, &Mutex::new(address.clone()), || {
            for turn in 0..2 {
                let before = process(&admin);
                let (hits, at) = (past.hits.load(Ordering::Acquire), height(&db));
                wait_until("the index answers", || past.hits.load(Ordering::Acquire) > hits + 5);
                let upgraded = weir(&["upgrade", "--admin", &admin]);
                assert!(upgraded.status.success(), "{}", text(&upgraded.stderr));
                match turn {
                    0 => assert!(gateway.ended().success(), "{}", gateway.log()),
                    _ => wait_until("the old process is over", || is_over(before)),
                }
                let after = process(&admin);
                last = Some(Successor(after));
                assert_ne!(after, before);
                wait_until("the new process writes", || writers(&db) == [after]);
                wait_until("the index grows", || height(&db) >= at + GROWTH);
                past.to.store(height(&db) - DEEP, Ordering::Release);
                wait_until("the new process answers from it", || lookups(&admin, "hit") > 5);
                assert_eq!(lookups(&admin, "failed"), 0, "{}", gateway.log());
                assert_eq!(writers(&db), [after]);
            }
        });
        drop(stopping);
        asking.join().unwrap();
        seen
    });
    let few: Vec<&String> = seen.faults.iter().take(5).collect();
    assert!(seen.faults.is_empty(), "{} of {}: {few:#?}", seen.faults.len(), seen.calls);
    let counted = |count: &AtomicU64| count.load(Ordering::Acquire);
    println!(
        "{} calls; {} hits, {} misses",
        seen.calls,
        counted(&past.hits),
        counted(&past.misses)
    );

    // The last one ends gracefully; what it leaves is whole.
    let Successor(id) = last.as_ref().unwrap();
    assert!(Command::new("kill").args(["-TERM", &id.to_string()]).status().unwrap().success());
    wait_until("the last process is over", || is_over(*id));
    assert_eq!(writers(&db), [] as [u64; 0]);
    let verified = weir(&["index", "verify", "--db", db.to_str().unwrap()]);
    assert!(verified.status.success(), "{}{}", text(&verified.stdout), text(&verified.stderr));
    assert!(!gateway.log().contains("ERROR"), "{}", gateway.log());
}
