//! Kills a sync with SIGKILL again and again while its chain has frequent reorgs: at random
//! instants, and while the sync rewinds (removes the blocks that a reorg dropped). In the end the
//! index is verified and compared with the index of an undisturbed sync.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use index::reader::Reader;
use index::search::SearchLimits;
use index::store::TransactionPart;
use index::store::{self, Location, Settings};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng};
use wire::logs::LogMatcher;

use test_support::running::{self, Weir};
use test_support::wait::pause;

/// Seed of the random instants of the kills.
const SEED: u64 = 0x1bde;
/// Range of the life of a sync, which is the time from its start to a kill at a random instant. The
/// shortest life ends before the sync has opened the file. The longest life ends after the sync has
/// reached the newest block and followed some reorgs.
const LIFE_MS: std::ops::Range<u64> = 10..900;
/// Largest factor by which lives are extended on a slow machine.
const LIFE_FACTOR_MAX: u32 = 16;

/// Maximum number of blocks that a reorg drops. A rewind of so many blocks takes long enough for a
/// kill to hit it.
const REORG_DEPTH: u64 = 36;
/// At least one kill in this many must hit the sync while it rewinds.
const KILLS_PER_REWIND: usize = 3;
/// Number of kills in each group that must hit a rewind. A group has [`KILLS_PER_REWIND`] times as
/// many kills. Kills aim at rewinds until the group has its number of hits. The other kills of the
/// group come at random instants. A killed sync starts with the same rewind again, so the next kill
/// can hit that rewind too.
const REWINDS_PER_GROUP: usize = 3;
/// Range of the time from the report of a rewind to the kill, which spreads the kills over the
/// rewind.
const KILL_DELAY_US: std::ops::Range<u64> = 0..1_500;

/// Starts a sync. `db` is a path or the URL of a PostgreSQL database, here and below.
fn start_sync(url: &str, db: &str, end: &str, more_arguments: &[&str]) -> Child {
    let mut command = running::command_killed_with_test(Path::new(env!("CARGO_BIN_EXE_weir")));
    command
        .args(["index", "sync", "--from", url, "--end", end, "--concurrency", "4", "--db", db])
        .args(more_arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    running::spawn(command).unwrap()
}

/// The last stored block before a rewind (`from`) and after it (`to`).
#[derive(Debug, Clone, Copy)]
struct Rewind {
    from: u64,
    to: u64,
}

/// Waits until a sync reports that it begins to rewind.
fn wait_for_rewind(child: &mut Child) -> Rewind {
    let mut other_lines = Vec::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap) {
        let reorg = line.strip_prefix("reorg: dropping ");
        if let Some((blocks, to)) =
            reorg.and_then(|text| text.split_once(" blocks, back to block "))
        {
            let (blocks, to): (u64, u64) = (blocks.parse().unwrap(), to.parse().unwrap());
            return Rewind { from: to + blocks, to };
        }
        other_lines.push(line);
    }
    panic!("the sync ended before a rewind: {other_lines:#?}")
}

/// Starts a sync, waits until it begins to rewind, and kills it after this delay.
fn kill_in_rewind(url: &str, db: &str, delay: Duration) -> Rewind {
    let mut child = start_sync(url, db, "follow", &[]);
    let rewind = wait_for_rewind(&mut child);
    pause(delay); // Sleeps: the instant of the kill.
    child.kill().unwrap();
    child.wait().unwrap();
    rewind
}

/// Starts a sync and kills it after this time.
fn kill_after(url: &str, db: &str, life: Duration) {
    let mut child = start_sync(url, db, "follow", &["--quiet"]);
    pause(life); // Sleeps: the instant of the kill.
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn location(db: &str) -> Location {
    db.parse().unwrap()
}

fn reader(db: &str) -> Reader {
    Reader::open(location(db), Settings::default()).unwrap().unwrap()
}

/// Reads a block and its receipts from an index.
fn read_block(reader: &mut Reader, number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    assert!(reader.write_block(&mut out, number, TransactionPart::Body).unwrap(), "block {number}");
    let (_, context) = reader.block_row(number).unwrap().unwrap();
    reader.write_transactions(&mut out, &context, number, TransactionPart::Receipt).unwrap();
    out
}

/// Reads the logs that match a filter in the blocks from 0 to `last`.
fn read_logs(reader: &mut Reader, filter: &str, last: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let selection = LogMatcher::parse(filter.as_bytes()).unwrap();
    reader.write_logs(&mut out, &selection, (0, last), SearchLimits::NONE).unwrap();
    out
}

/// Syncs into `killed_db` with kills and into `fresh_db` without, and compares them. `kills` is the
/// number of kills if `WEIR_KILLS` is not set.
pub(crate) fn check(killed_db: &str, fresh_db: &str, kills: usize) {
    let kills = std::env::var("WEIR_KILLS").map_or(kills, |text| text.parse().unwrap());
    let node = Weir::node()
        .args(&[
            "--block-time",
            "50ms",
            "--reorg-every",
            "40:36",
            "--head",
            "400",
            "--txs",
            "20..40",
        ])
        .start();
    let mut rng = StdRng::seed_from_u64(SEED);
    // The last stored block after each kill, the number of kills during a rewind, and the number of
    // kills just after a rewind.
    let (mut heights, mut in_rewinds, mut after_rewinds) = (Vec::new(), 0, 0);
    // A sync that stored no block doubles the factor, so that a slow machine progresses too.
    let mut life_factor = 1;
    for kill in 0..kills {
        // The number of groups so far, including the group of this kill.
        let groups = kill / (KILLS_PER_REWIND * REWINDS_PER_GROUP) + 1;
        // Only an index with blocks can be rewound.
        let rewind = if heights.len() > 1 && in_rewinds < groups * REWINDS_PER_GROUP {
            let delay = Duration::from_micros(rng.random_range(KILL_DELAY_US));
            Some(kill_in_rewind(&node.url(), killed_db, delay))
        } else {
            let life = Duration::from_millis(rng.random_range(LIFE_MS));
            kill_after(&node.url(), killed_db, life * life_factor);
            life_factor = (life_factor * 2).min(LIFE_FACTOR_MAX);
            None
        };
        // The stored blocks must start at block 0 and have no gaps.
        let Ok(store) = store::open_to_read(location(killed_db), Settings::default()) else {
            continue;
        };
        let Some(stored) = store.stored_range().unwrap() else { continue };
        assert_eq!((stored.first, store.totals().unwrap().0), (0, stored.last + 1), "kill {kill}");
        if heights.last() != Some(&stored.last) {
            life_factor = (life_factor / 4).max(1);
        }
        heights.push(stored.last);
        // If the last block is still `rewind.from`, the kill hit the rewind, because a rewind is
        // stored as a whole or not at all.
        in_rewinds += usize::from(rewind.is_some_and(|rewind| stored.last == rewind.from));
        after_rewinds += usize::from(rewind.is_some_and(|rewind| stored.last == rewind.to));
    }
    println!(
        "{kills} kills, {in_rewinds} in a rewind, {after_rewinds} just after one; heights {heights:?}"
    );
    assert!(heights.windows(2).filter(|pair| pair[1] != pair[0]).count() > kills / 4);
    assert!(in_rewinds * KILLS_PER_REWIND >= kills, "{in_rewinds} of {kills} hit a rewind");

    // Both indexes sync to the same block.
    let finish = |db: &str, end: &str| {
        let output = start_sync(&node.url(), db, end, &["--quiet"]).wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{stderr}");
    };
    // The last block must be above all blocks that were rewound.
    let end = (heights.last().unwrap() + REORG_DEPTH).to_string();
    finish(killed_db, &end);
    finish(fresh_db, &end);
    let (mut killed_reader, mut fresh_reader) = (reader(killed_db), reader(fresh_db));
    // A reorg between the two syncs may have replaced the newest blocks.
    let last = killed_reader.stored_range().unwrap().unwrap().last - REORG_DEPTH;
    for number in 0..=last {
        assert!(
            read_block(&mut killed_reader, number) == read_block(&mut fresh_reader, number),
            "block {number}"
        );
    }
    for filter in [
        "{}",
        r#"{"topics":["0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"]}"#,
    ] {
        let logs = read_logs(&mut killed_reader, filter, last);
        assert!(!logs.is_empty());
        assert!(logs == read_logs(&mut fresh_reader, filter, last), "{filter}");
    }
    drop((killed_reader, fresh_reader));
    // This verifies the tables against each other and every block against its hash.
    let audit = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["index", "verify", "--db", killed_db])
        .output()
        .unwrap();
    let printed = [audit.stdout, audit.stderr].concat();
    assert!(audit.status.success(), "{}", String::from_utf8_lossy(&printed));
}
