//! Corrupts one response between the gateway and a client, to prove that the checker detects a
//! violation. The head is the newest block that a response reports.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::calls::Call;

/// Age from which a head is certainly stale.
const STALE_AGE: Duration = Duration::from_secs(8);
/// Maximum number of remembered responses with a head. Fewer arrive in twice [`STALE_AGE`].
const REMEMBERED_MAX: usize = 4_096;

/// How the adversary corrupts a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Corruption {
    /// Returns an old block as the newest one.
    Stale,
    /// Returns a head that is one block below the last head of this client.
    Backward,
    /// Returns a block's first receipt together with a receipt of the block that a reorg replaced
    /// by it.
    Mixed,
    /// Changes one byte of a result.
    Wrong,
}

/// Corrupts the first suitable response and leaves all others unchanged.
#[derive(Default)]
pub(crate) struct Adversary {
    /// The corruption of the next suitable response. `None` after a response was corrupted, and in
    /// runs without corruption.
    corruption: Option<Corruption>,
    /// The latest results that contain a head, with the times of their responses, oldest first.
    heads: VecDeque<(Instant, Vec<u8>)>,
    /// The block number of the last head that each client received.
    last_heads: HashMap<u64, u64>,
    /// The first receipt of each returned block, by the block's number.
    receipts: HashMap<String, serde_json::Value>,
    /// Number of results so far.
    results: u64,
}

impl Adversary {
    pub(crate) fn new(corruption: Corruption) -> Adversary {
        Adversary { corruption: Some(corruption), ..Adversary::default() }
    }

    /// Returns the corrupted result, or `None` to leave the result unchanged.
    pub(crate) fn corrupt(
        &mut self,
        client: u64,
        call: &Call,
        result: &[u8],
        now: Instant,
    ) -> Option<Vec<u8>> {
        self.results += 1;
        let corrupted = match self.corruption? {
            Corruption::Stale => self.stale(call, result, now),
            Corruption::Backward => self.backward(client, call, result),
            Corruption::Mixed => self.mixed(call, result),
            // Skips the first results, so that the simulation is under full load.
            Corruption::Wrong if self.results > 500 && call.method == "eth_getBalance" => {
                let mut corrupted = result.to_vec();
                let last_digit = corrupted.len() - 2;
                corrupted[last_digit] = if corrupted[last_digit] == b'0' { b'1' } else { b'0' };
                Some(corrupted)
            }
            Corruption::Wrong => None,
        }?;
        self.corruption = None;
        Some(corrupted)
    }

    fn stale(&mut self, call: &Call, result: &[u8], now: Instant) -> Option<Vec<u8>> {
        if call.method != "eth_getBlockByNumber" || call.params != "[\"latest\",false]" {
            return None;
        }
        self.heads.push_back((now, result.to_vec()));
        if self.heads.len() > REMEMBERED_MAX {
            self.heads.pop_front();
        }
        let (received, _) = self.heads.front()?;
        if now - *received < STALE_AGE {
            return None;
        }
        Some(self.heads.pop_front()?.1)
    }

    fn backward(&mut self, client: u64, call: &Call, result: &[u8]) -> Option<Vec<u8>> {
        if call.method != "eth_blockNumber" {
            return None;
        }
        let digits = std::str::from_utf8(result).ok()?.trim_matches('"').strip_prefix("0x")?;
        let head = u64::from_str_radix(digits, 16).ok()?;
        // The block below is wrong only because the head goes backward. It is not stale, because
        // the client got the same head twice.
        match self.last_heads.insert(client, head) {
            Some(before) if before == head && self.results > 500 => {
                Some(format!("\"{:#x}\"", head - 1).into_bytes())
            }
            _ => None,
        }
    }

    fn mixed(&mut self, call: &Call, result: &[u8]) -> Option<Vec<u8>> {
        if call.method != "eth_getBlockReceipts" {
            return None;
        }
        let receipts: Vec<serde_json::Value> = serde_json::from_slice(result).ok()?;
        let first = receipts.into_iter().next()?;
        let number = first["blockNumber"].as_str()?.to_owned();
        let former = self.receipts.insert(number, first.clone())?;
        let replaced = former["blockHash"] != first["blockHash"];
        replaced.then(|| serde_json::to_vec(&[former, first]).expect("JSON stays JSON"))
    }
}
