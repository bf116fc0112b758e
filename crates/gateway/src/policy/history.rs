//! Which data of old blocks an upstream has.
//!
//! Nodes delete data of old blocks. The *depth* of a block is its distance below the served head,
//! the newest block that clients get. Most nodes keep a window of blocks that moves with the head,
//! so what an upstream has is known by depth. The window of a node whose data starts at a fixed
//! block grows with the head. Probes find this out (`upstream/watch/history.rs`).
//!
//! An upstream that is said to lack a block may have it after all, because the heads of nodes and
//! gateway differ by a few blocks. So such an upstream still gets the call if no other one may have
//! the block.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use wire::json::walk;
use wire::method::History;
use wire::quantity;

/// Number of calls in one search for the depth at which data is missing. The search doubles the
/// depth and then halves the interval, so 26 calls are exact for 1,000 blocks, and exact within 1 %
/// for 20 million.
pub const SEARCH_CALLS_MAX: u32 = 26;

/// Depth that stands for "no block is known to be missing".
const NONE_MISSING: u64 = u64::MAX;

/// The value of the key `history` of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HistorySetting {
    /// The gateway finds out what the upstream has.
    #[default]
    Auto,
    /// The upstream has all data.
    Archive,
    /// The upstream has the state and traces of this many blocks, and all other data.
    Blocks(u64),
}

/// What is known of the data that one upstream has. All threads share it, and calls read it without
/// a lock.
#[derive(Debug)]
pub struct UpstreamHistory {
    setting: HistorySetting,
    /// What is known of each kind of data, in the order of [`History::ALL`].
    horizons: [Horizon; History::ALL.len()],
}

/// What is known of one kind of data.
#[derive(Debug)]
struct Horizon {
    /// Greatest depth at which the upstream had the data.
    present: AtomicU64,
    /// Smallest depth at which the upstream lacked the data, or [`NONE_MISSING`].
    missing: AtomicU64,
    /// True if the upstream itself, the configuration or a search says that data is missing. A
    /// single refusal may be an accident.
    is_confirmed: AtomicBool,
}

impl UpstreamHistory {
    /// Creates the history of an upstream of which only the setting is known.
    pub fn new(setting: HistorySetting) -> UpstreamHistory {
        let horizons = History::ALL.map(|history| {
            let missing = match (setting, history) {
                (HistorySetting::Blocks(count), History::State | History::Traces) => count,
                _ => NONE_MISSING,
            };
            Horizon {
                present: AtomicU64::new(0),
                missing: AtomicU64::new(missing),
                is_confirmed: AtomicBool::new(missing != NONE_MISSING),
            }
        });
        UpstreamHistory { setting, horizons }
    }

    /// Returns true if the gateway finds out what the upstream has.
    pub fn is_learned(&self) -> bool {
        self.setting == HistorySetting::Auto
    }

    /// Returns true if the upstream is known to lack data of blocks at this depth.
    pub fn lacks(&self, history: History, depth: u64) -> bool {
        depth >= self.horizons[history as usize].missing.load(Ordering::Relaxed)
    }

    /// Returns true if it is confirmed that the upstream lacks data of some blocks. An upstream
    /// without such limits may be an archive, whose calls cost the most.
    pub fn is_limited(&self) -> bool {
        self.horizons.iter().any(|horizon| horizon.is_confirmed.load(Ordering::Relaxed))
    }

    /// Records that a search, or the upstream itself, has confirmed that data is missing.
    pub fn confirm_missing(&self, history: History) {
        if self.is_learned() && self.missing_depth(history).is_some() {
            self.horizons[history as usize].is_confirmed.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the smallest depth at which the upstream lacks data; `None` if it is not known to lack
    /// any.
    pub fn missing_depth(&self, history: History) -> Option<u64> {
        let missing = self.horizons[history as usize].missing.load(Ordering::Relaxed);
        (missing != NONE_MISSING).then_some(missing)
    }

    /// Records that the upstream has returned data of a block at this depth.
    pub fn record_present(&self, history: History, depth: u64) {
        let horizon = &self.horizons[history as usize];
        if !self.is_learned() || depth < horizon.present.load(Ordering::Relaxed) {
            return;
        }
        horizon.present.store(depth, Ordering::Relaxed);
        if self.lacks(history, depth) {
            horizon.missing.store(depth + 1, Ordering::Relaxed);
        }
    }

    /// Records that the upstream lacks data of a block at this depth. Returns true if it was not
    /// known to lack it.
    pub fn record_missing(&self, history: History, depth: u64) -> bool {
        let horizon = &self.horizons[history as usize];
        // Every upstream has the head.
        if !self.is_learned() || depth == 0 || self.lacks(history, depth) {
            return false;
        }
        horizon.missing.store(depth, Ordering::Relaxed);
        horizon.present.fetch_min(depth - 1, Ordering::Relaxed);
        true
    }

    /// Records that the upstream is not known to lack any data.
    pub fn record_all_present(&self, history: History) {
        if self.is_learned() {
            let horizon = &self.horizons[history as usize];
            horizon.missing.store(NONE_MISSING, Ordering::Relaxed);
            horizon.is_confirmed.store(false, Ordering::Relaxed);
        }
    }
}

/// Reads the result of `eth_capabilities` (ethereum/execution-apis#755). Returns the smallest depth at
/// which the upstream says that data is missing, or `None` if it has all; for each kind of data about
/// which the result says something.
pub fn read_capabilities(result: &[u8]) -> Vec<(History, Option<u64>)> {
    const NAMES: [(History, &str); 4] = [
        (History::State, "state"),
        (History::Receipts, "receipts"),
        (History::Receipts, "logs"),
        (History::Blocks, "blocks"),
    ];
    let number = |raw: &[u8], name| walk::member(raw, name).and_then(quantity::from_value);
    let Some(head) = walk::member(result, "head").and_then(|head| number(head, "number")) else {
        return Vec::new();
    };
    let read = |(history, name): (History, &str)| {
        let resource = walk::member(result, name)?;
        if walk::member(resource, "disabled") == Some(b"true") {
            return Some((history, Some(1)));
        }
        let oldest = number(resource, "oldestBlock")?;
        // Nodes keep block 0 whatever they delete.
        let by_height = (oldest > 1).then(|| head.saturating_sub(oldest) + 1);
        let strategy = walk::member(resource, "deleteStrategy");
        let window = strategy.and_then(|strategy| number(strategy, "retentionBlocks"));
        // A window that is longer than the chain has deleted nothing yet.
        let window = window.filter(|window| *window < head);
        Some((history, [by_height, window].into_iter().flatten().min()))
    };
    NAMES.into_iter().filter_map(read).collect()
}

/// A search for the smallest depth at which an upstream lacks data.
#[derive(Debug, Clone)]
pub struct Search {
    /// Depth of the oldest block that is looked for.
    depth_max: u64,
    /// Greatest depth at which the data was present.
    present: u64,
    /// Smallest depth at which the data was missing; `None` before the first such answer.
    missing: Option<u64>,
    calls: u32,
}

impl Search {
    /// Starts a search that includes blocks to the depth `depth_max`.
    pub fn new(depth_max: u64) -> Search {
        Search { depth_max, present: 0, missing: None, calls: 0 }
    }

    /// Returns the depth to ask for next; `None` once the search has ended. The first question is
    /// about the oldest block, because an archive needs no other.
    pub fn next(&self) -> Option<u64> {
        let missing = match self.missing {
            _ if self.calls == SEARCH_CALLS_MAX => return None,
            None if self.present == self.depth_max => return None,
            None => return Some(self.depth_max),
            Some(missing) => missing,
        };
        // Windows are small against the chain, so the depth doubles until data is missing.
        let doubled = (self.present * 2).max(64);
        let middle = self.present + (missing - self.present) / 2;
        (missing > self.present + 1).then(|| doubled.min(middle))
    }

    /// Records an answer about the depth that [`Search::next`] has returned.
    pub fn record(&mut self, depth: u64, is_present: bool) {
        self.calls += 1;
        if is_present {
            self.present = depth;
        } else {
            self.missing = Some(depth);
        }
    }

    /// Returns the smallest depth at which the data was missing; `None` if it was always present.
    pub fn missing(&self) -> Option<u64> {
        self.missing
    }
}

#[cfg(test)]
mod tests {
    //! Goal: an upstream is not asked for data that it is known to lack, and what is known follows
    //! the upstream. Method: depths of answers, one after the other, and searches on windows of all
    //! sizes.

    use super::*;

    const STATE: History = History::State;

    #[test]
    fn the_nearest_refusal_counts_until_an_older_block_is_returned() {
        let known = UpstreamHistory::new(HistorySetting::Auto);
        assert!(!known.lacks(STATE, u64::MAX - 1) && !known.is_limited());
        assert!(known.record_missing(STATE, 1000));
        assert!(known.lacks(STATE, 1000) && known.lacks(STATE, 5000) && !known.lacks(STATE, 999));
        assert!(!known.lacks(History::Receipts, 5000), "another kind of data");
        assert!(!known.is_limited(), "one refusal may be an accident");
        known.confirm_missing(History::Blocks);
        assert!(!known.is_limited(), "no block is missing");
        known.confirm_missing(STATE);
        assert!(known.is_limited());
        assert!(!known.record_missing(STATE, 2000), "this is known");
        assert!(known.record_missing(STATE, 128));
        assert_eq!(known.missing_depth(STATE), Some(128));
        known.record_present(STATE, 300);
        assert_eq!(known.missing_depth(STATE), Some(301), "the window has grown");
        assert!(known.record_missing(STATE, 64), "the upstream has deleted data");
        known.record_present(STATE, 63);
        assert_eq!(known.missing_depth(STATE), Some(64));
        known.record_all_present(STATE);
        assert!(!known.is_limited());
    }

    #[test]
    fn the_head_is_never_missing() {
        let known = UpstreamHistory::new(HistorySetting::Auto);
        assert!(!known.record_missing(STATE, 0));
        assert!(!known.is_limited());
    }

    #[test]
    fn a_setting_is_not_overruled() {
        let archive = UpstreamHistory::new(HistorySetting::Archive);
        assert!(!archive.record_missing(STATE, 500) && !archive.is_limited());
        let window = UpstreamHistory::new(HistorySetting::Blocks(128));
        window.record_present(STATE, 200);
        window.record_all_present(STATE);
        assert!(window.lacks(STATE, 128) && window.lacks(History::Traces, 128));
        assert!(!window.lacks(STATE, 127) && !window.lacks(History::Blocks, 1_000_000));
    }

    #[test]
    fn a_search_finds_every_window() {
        for chain in [1, 2, 70, 1_000, 20_000_000_u64] {
            for window in [1, 2, 63, 64, 65, 127, 128, 10_064, 90_000, 20_000_000] {
                let mut search = Search::new(chain);
                let mut calls = 0;
                while let Some(depth) = search.next() {
                    assert!((1..=chain).contains(&depth), "{depth} of {chain}");
                    search.record(depth, depth < window);
                    calls += 1;
                }
                let name = format!("{window} blocks of {chain}, found {:?}", search.missing());
                assert!(calls <= SEARCH_CALLS_MAX, "{name} by {calls} calls");
                let Some(missing) = search.missing() else {
                    assert!(window > chain, "{name}");
                    continue;
                };
                assert!(missing >= window, "{name}");
                assert!(missing - window <= window / 100, "{name}");
            }
        }
    }

    #[test]
    fn capabilities_state_what_is_missing() {
        let result = br#"{"head":{"number":"0x3e8","hash":"0x00"},
            "state":{"disabled":false,"oldestBlock":"0x369",
                "deleteStrategy":{"type":"window","retentionBlocks":128}},
            "logs":{"disabled":false,"oldestBlock":"0x0",
                "deleteStrategy":{"type":"window","retentionBlocks":"0x23dbb0"}},
            "receipts":{"disabled":false,"oldestBlock":"0x65"},
            "blocks":{"disabled":true},"tx":{"disabled":false}}"#;
        let expected = [
            (History::State, Some(128)),
            (History::Receipts, Some(900)),
            (History::Receipts, None),
            (History::Blocks, Some(1)),
        ];
        assert_eq!(read_capabilities(result), expected);
        assert_eq!(read_capabilities(b"{}"), []);
        assert_eq!(read_capabilities(b"null"), []);
    }

    #[test]
    fn an_archive_takes_one_call() {
        let mut search = Search::new(20_000_000);
        assert_eq!(search.next(), Some(20_000_000));
        search.record(20_000_000, true);
        assert_eq!((search.next(), search.missing()), (None, None));
    }
}
