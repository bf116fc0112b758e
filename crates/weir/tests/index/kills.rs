//! A sync that is killed with SIGKILL over and over while its chain is reorganised all the time, at
//! random instants and in the midst of rewinds: in the end what it has is looked through whole and
//! compared with what was synced in one go.

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

/// Where the randomness begins: the instants of the kills.
const SEED: u64 = 0x1bde;
/// Shortest and longest life of a sync: from before it has opened the file to long after it has
/// caught up with the head and followed some reorgs.
const LIFE: std::ops::Range<u64> = 10..900;
/// How many times as long a slow machine may let it live.
const LONGER_MAX: u32 = 16;

/// Blocks that a reorg drops at most; so many that it takes a while to rewind them.
const REORG_DEPTH: u64 = 36;
/// One kill of so many hits the sync while it rewinds, at least; three in a row, since one that was
/// killed begins with the same rewind again.
const REWINDS_ONE_OF: usize = 3;
const REWINDS_IN_A_ROW: usize = 3;
/// Longest time from the sign of a rewind to the kill, in microseconds, so that kills are spread
/// over its course.
const AFTER_SIGN: std::ops::Range<u64> = 0..1_500;

fn sync(url: &str, at: &str, end: &str, more: &[&str]) -> Child {
    let mut command = running::command_killed_with_test(Path::new(env!("CARGO_BIN_EXE_weir")));
    command
        .args(["index", "sync", "--from", url, "--end", end, "--concurrency", "4", "--db", at])
        .args(more)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    running::spawn(command).unwrap()
}

/// From which block to which a sync goes back.
#[derive(Debug, Clone, Copy)]
struct Rewind {
    from: u64,
    to: u64,
}

/// Waits until a sync reports a rewind.
fn begun_to_rewind(child: &mut Child) -> Rewind {
    let mut said = Vec::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap) {
        let told = line.strip_prefix("reorg: dropping ");
        if let Some((blocks, to)) = told.and_then(|rest| rest.split_once(" blocks, back to block "))
        {
            let (blocks, to): (u64, u64) = (blocks.parse().unwrap(), to.parse().unwrap());
            return Rewind { from: to + blocks, to };
        }
        said.push(line);
    }
    panic!("it ended before a rewind: {said:#?}")
}

/// Kills a sync so long after it has begun to rewind.
fn kill_in_rewind(url: &str, at: &str, after: Duration) -> Rewind {
    let mut child = sync(url, at, "follow", &[]);
    let rewind = begun_to_rewind(&mut child);
    pause(after); // Sleeps: the instant of the kill.
    child.kill().unwrap();
    child.wait().unwrap();
    rewind
}

/// Kills a sync after this time.
fn kill_after(url: &str, at: &str, life: Duration) {
    let mut child = sync(url, at, "follow", &["--quiet"]);
    pause(life); // Sleeps: the instant of the kill.
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn location(at: &str) -> Location {
    at.parse().unwrap()
}

fn reader(at: &str) -> Reader {
    Reader::open(location(at), Settings::default()).unwrap().unwrap()
}

/// All responses of an index about a block.
fn told(reader: &mut Reader, number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    assert!(reader.write_block(&mut out, number, TransactionPart::Body).unwrap(), "block {number}");
    let (_, context) = reader.block_row(number).unwrap().unwrap();
    reader.write_transactions(&mut out, &context, number, TransactionPart::Receipt).unwrap();
    out
}

fn logs(reader: &mut Reader, filter: &str, to: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let selection = LogMatcher::parse(filter.as_bytes()).unwrap();
    reader.write_logs(&mut out, &selection, (0, to), SearchLimits::NONE).unwrap();
    out
}

/// Syncs into `killed` with so many kills, unless `WEIR_KILLS` says how many, and into `fresh`
/// without.
pub(crate) fn check(killed: &str, fresh: &str, kills: usize) {
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
    let mut random = StdRng::seed_from_u64(SEED);
    let (mut heights, mut in_rewinds, mut after_rewinds) = (Vec::new(), 0, 0);
    // A slow machine lets a sync live longer: a life that stored nothing doubles the next one.
    let mut lives = 1;
    for kill in 0..kills {
        let row = kill / (REWINDS_ONE_OF * REWINDS_IN_A_ROW) + 1;
        // There must be something to go back from.
        let rewind = if heights.len() > 1 && in_rewinds < row * REWINDS_IN_A_ROW {
            let after = Duration::from_micros(random.random_range(AFTER_SIGN));
            Some(kill_in_rewind(&node.url(), killed, after))
        } else {
            let life = Duration::from_millis(random.random_range(LIFE));
            kill_after(&node.url(), killed, life * lives);
            lives = (lives * 2).min(LONGER_MAX);
            None
        };
        // What is there now is a beginning of the chain, without holes.
        let Ok(store) = store::open_to_read(location(killed), Settings::default()) else {
            continue;
        };
        let Some(held) = store.stored_range().unwrap() else { continue };
        assert_eq!((held.first, store.totals().unwrap().0), (0, held.last + 1), "kill {kill}");
        if heights.last() != Some(&held.last) {
            lives = (lives / 4).max(1);
        }
        heights.push(held.last);
        // It had said that it goes back, and has not: nothing of that rewind is there.
        in_rewinds += usize::from(rewind.is_some_and(|rewind| held.last == rewind.from));
        after_rewinds += usize::from(rewind.is_some_and(|rewind| held.last == rewind.to));
    }
    println!(
        "{kills} kills, {in_rewinds} in a rewind, {after_rewinds} just after one; heights {heights:?}"
    );
    assert!(heights.windows(2).filter(|two| two[1] != two[0]).count() > kills / 4);
    assert!(in_rewinds * REWINDS_ONE_OF >= kills, "{in_rewinds} of {kills} hit a rewind");

    // To the end of what is final now, in the killed index and in a new one.
    let finish = |at: &str, end: &str| {
        let output = sync(&node.url(), at, end, &["--quiet"]).wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
    };
    // The last block must lie above all that was rewound.
    let end = (heights.last().unwrap() + REORG_DEPTH).to_string();
    finish(killed, &end);
    finish(fresh, &end);
    let (mut ours, mut theirs) = (reader(killed), reader(fresh));
    // The newest blocks may have been dropped between the two.
    let last = ours.stored_range().unwrap().unwrap().last - REORG_DEPTH;
    for number in 0..=last {
        assert!(told(&mut ours, number) == told(&mut theirs, number), "block {number}");
    }
    for filter in [
        "{}",
        r#"{"topics":["0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"]}"#,
    ] {
        let found = logs(&mut ours, filter, last);
        assert!(!found.is_empty());
        assert!(found == logs(&mut theirs, filter, last), "{filter}");
    }
    drop((ours, theirs));
    // Every table against every other, and every block against its hash.
    let audit = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["index", "verify", "--db", killed])
        .output()
        .unwrap();
    let said = [audit.stdout, audit.stderr].concat();
    assert!(audit.status.success(), "{}", String::from_utf8_lossy(&said));
}
