//! Spoils one answer between the gateway and a client, to show that the simulation would notice.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::calls::Call;

/// Old enough to be stale by any account.
const OLD: Duration = Duration::from_secs(8);
/// Remembered answers; more than come in twice that time.
const REMEMBERED_MAX: usize = 4_096;

/// What is done to one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crime {
    /// A newest block from a while ago.
    Stale,
    /// A head one below what this client has seen.
    Backward,
    /// Receipts of a block, one of them from the block that a reorg put in its place.
    Mixed,
    /// One byte of a result.
    Wrong,
}

/// It commits its crime once, as soon as it can.
#[derive(Default)]
pub(crate) struct Adversary {
    crime: Option<Crime>,
    heads: VecDeque<(Instant, Vec<u8>)>,
    /// The highest head that each client received, and when.
    seen: HashMap<u64, u64>,
    /// A receipt by the number of its block.
    receipts: HashMap<String, serde_json::Value>,
    passed: u64,
}

impl Adversary {
    pub(crate) fn committing(crime: Crime) -> Adversary {
        Adversary { crime: Some(crime), ..Adversary::default() }
    }

    /// What the client gets in place of a result; none to leave it.
    pub(crate) fn pass(
        &mut self,
        client: u64,
        call: &Call,
        result: &[u8],
        now: Instant,
    ) -> Option<Vec<u8>> {
        self.passed += 1;
        let spoilt = match self.crime? {
            Crime::Stale => self.stale(call, result, now),
            Crime::Backward => self.backward(client, call, result),
            Crime::Mixed => self.mixed(call, result),
            // Not the first ones, so that the machine runs.
            Crime::Wrong if self.passed > 500 && call.method == "eth_getBalance" => {
                let mut spoilt = result.to_vec();
                let at = spoilt.len() - 2;
                spoilt[at] = if spoilt[at] == b'0' { b'1' } else { b'0' };
                Some(spoilt)
            }
            Crime::Wrong => None,
        }?;
        self.crime = None;
        Some(spoilt)
    }

    fn stale(&mut self, call: &Call, result: &[u8], now: Instant) -> Option<Vec<u8>> {
        if call.method != "eth_getBlockByNumber" || call.params != "[\"latest\",false]" {
            return None;
        }
        self.heads.push_back((now, result.to_vec()));
        if self.heads.len() > REMEMBERED_MAX {
            self.heads.pop_front();
        }
        let (at, _) = self.heads.front()?;
        if now - *at < OLD {
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
        // The same head as before, so that one below is still within what may be served.
        match self.seen.insert(client, head) {
            Some(before) if before == head && self.passed > 500 => {
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
