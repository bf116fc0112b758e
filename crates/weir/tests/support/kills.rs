//! A sync that is killed with SIGKILL at random instants, over and over, while its chain is
//! reorganised all the time: in the end what it has is looked through whole and compared with what was
//! synced in one go.
//!
//! Included by path from the test files that need it.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use index::reader::{Form, Reader};
use index::search::Bounds;
use index::store::{Location, Settings, Store};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng};
use wire::logs::Selection;

use super::running::Running;

/// Where the randomness begins: the instants of the kills.
const SEED: u64 = 0x1bde;
/// Shortest and longest life of a sync: from before it has opened the file to long after it has
/// caught up with the head and followed some reorgs.
const LIFE: std::ops::Range<u64> = 10..900;

fn sync(url: &str, at: &str, end: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command
        .args(["index", "sync", "--from", url, "--end", end, "--quiet", "--concurrency", "4"])
        .args(["--db", at])
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn location(at: &str) -> Location {
    at.parse().unwrap()
}

fn reader(at: &str) -> Reader {
    Reader::open(location(at), Settings::default()).unwrap().unwrap()
}

/// All that an index answers about a block.
fn told(reader: &mut Reader, number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    assert!(reader.block(&mut out, number, Form::Whole).unwrap(), "block {number}");
    let (_, of) = reader.row(number).unwrap().unwrap();
    reader.list(&mut out, &of, number, Form::Receipt).unwrap();
    out
}

fn logs(reader: &mut Reader, filter: &str, to: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let selection = Selection::read(filter.as_bytes()).unwrap();
    let bounds = Bounds { logs: u64::MAX, bytes: u64::MAX };
    reader.logs(&mut out, &selection, (0, to), bounds).unwrap();
    out
}

/// Waits as long as a test waits for an instant that nothing tells.
fn pause(time: Duration) {
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        std::thread::park_timeout(left);
    }
}

/// Syncs into `killed` with so many kills, unless `WEIR_KILLS` says how many, and into `fresh`
/// without.
pub(crate) fn check(killed: &str, fresh: &str, kills: usize) {
    let kills = std::env::var("WEIR_KILLS").map_or(kills, |text| text.parse().unwrap());
    let settings = [
        "--block-time",
        "150ms",
        "--reorg-every",
        "7:5",
        "--head",
        "400",
        "--txs",
        "1..6",
        "--finality-depth",
        "20",
    ];
    let node = Running::node(&settings);
    let mut random = StdRng::seed_from_u64(SEED);
    let (mut heights, mut rewound) = (Vec::new(), 0);
    for kill in 0..kills {
        let mut child = sync(&node.url(), killed, "follow");
        pause(Duration::from_millis(random.random_range(LIFE)));
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        // What is there now is a beginning of the chain, without holes.
        let Ok(store) = Store::open_to_read(location(killed), Settings::default()) else {
            continue;
        };
        let Some(held) = store.held().unwrap() else { continue };
        assert_eq!((held.first, store.holes().unwrap()), (0, 0), "kill {kill}");
        heights.push(held.last);
        rewound += usize::from(heights.windows(2).last().is_some_and(|two| two[1] < two[0]));
    }
    println!("{kills} kills; heights {heights:?}; ended lower than before {rewound} times");
    assert!(heights.windows(2).filter(|two| two[1] != two[0]).count() > kills / 4);

    // To the end of what is final now, in the killed index and in a new one.
    let finish = |at: &str, end: &str| {
        let output = sync(&node.url(), at, end).wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
    };
    // The last block must lie above all that was rewound.
    let end = (heights.last().unwrap() + 25).to_string();
    finish(killed, &end);
    finish(fresh, &end);
    let (mut ours, mut theirs) = (reader(killed), reader(fresh));
    // The newest blocks may have been dropped between the two.
    let last = ours.held().unwrap().unwrap().last - 10;
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
