//! A chain's blocks and logs by hash, for all subscribers.
//!
//! The gateway stores the logs of recent blocks. If a reorg drops a block, subscribers receive its
//! logs again, marked as removed. Upstreams may no longer have these logs.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use wire::hex::hash_from_value;
use wire::json::walk;
use wire::logs::{LogFields, mark_removed};

use crate::call::response::Payload;
use crate::policy::chain_cursor::Change;
use crate::policy::contents::{Contents, Wanted};
use crate::policy::heads::{Hash, Head};
use crate::resolve::internal;
use crate::resolve::internal::InternalCall;
use crate::state::context::ThreadContext;

/// Maximum number of blocks fetched concurrently.
pub(super) const FETCHES_MAX: usize = 8;
/// How long the gateway doubts an empty list of logs for a block whose bloom filter has bits set.
/// An empty response after this time is accepted.
const EMPTY_CONFIRMED_AFTER: Duration = Duration::from_secs(6);
/// Replaces [`EMPTY_CONFIRMED_AFTER`] if the last doubted block was really empty. Some chains fill
/// the bloom filter differently.
const EMPTY_CONFIRMED_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Maximum number of doubted blocks.
const DOUBTED_MAX: usize = 64;
/// A doubt is dropped after this time.
const DOUBTED_FOR: Duration = Duration::from_secs(60);
/// Maximum number of blocks whose logs are stored: two epochs.
const RECENT_BLOCKS_MAX: usize = 64;
/// Maximum bytes of the stored logs.
const RECENT_BYTES_MAX: usize = 64 << 20;

/// Raw logs with their parsed fields.
pub(super) type Logs = Vec<(LogFields, Bytes)>;

/// The block or its logs are not available yet.
#[derive(Debug)]
pub(super) struct Unavailable;

/// The recent blocks of one chain.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    recent: Mutex<RecentLogs>,
    doubts: Mutex<Doubts>,
}

/// Doubts about upstreams that report no logs for a block.
#[derive(Debug, Default)]
struct Doubts {
    /// Doubted blocks, each with the time of the first empty response.
    since: VecDeque<(Hash, Duration)>,
    /// True if the last doubted block was really empty.
    was_empty: bool,
}

impl Doubts {
    fn has(&self, hash: Hash) -> bool {
        self.since.iter().any(|(own, _)| *own == hash)
    }

    /// Returns true if an empty response to a request at `asked` is doubted.
    fn is_doubted(&mut self, hash: Hash, asked: Duration) -> bool {
        let enough =
            if self.was_empty { EMPTY_CONFIRMED_AGAIN_AFTER } else { EMPTY_CONFIRMED_AFTER };
        let known = self.since.iter().position(|(own, _)| *own == hash);
        let since = known.map_or(asked, |index| self.since[index].1);
        if asked.saturating_sub(since) >= enough {
            self.was_empty = true;
            self.since.retain(|(own, _)| *own != hash);
            return false;
        }
        if known.is_none() {
            self.since.retain(|(_, since)| asked.saturating_sub(*since) < DOUBTED_FOR);
            // If the list is full, the new block is doubted but not added.
            if self.since.len() < DOUBTED_MAX {
                self.since.push_back((hash, asked));
            }
        }
        true
    }

    /// Resolves a doubt: the block has logs.
    fn resolve(&mut self, hash: Hash) {
        if self.has(hash) {
            self.since.retain(|(own, _)| *own != hash);
            self.was_empty = false;
        }
    }
}

#[derive(Debug, Default)]
struct RecentLogs {
    /// The newest block is last.
    blocks: VecDeque<(Hash, Arc<Logs>)>,
    bytes: usize,
}

/// Fetches a block of the chain with this index.
pub(super) async fn fetch_block(
    cx: &Rc<ThreadContext>,
    chain: usize,
    head: Head,
) -> Result<Bytes, Unavailable> {
    let params = format!("[\"{}\",false]", hex(&head.hash));
    let block = fetch_result(cx, chain, "eth_getBlockByHash", &params, head, false).await?;
    let hash = walk::member(&block, "hash").and_then(hash_from_value);
    if hash == Some(head.hash) { Ok(block) } else { Err(Unavailable) }
}

/// Fetches a result for a block from an upstream that has the block.
async fn fetch_result(
    cx: &Rc<ThreadContext>,
    chain: usize,
    method: &'static str,
    params: &str,
    head: Head,
    bypass_cache: bool,
) -> Result<Bytes, Unavailable> {
    let call = InternalCall {
        chain,
        method,
        params: params.as_bytes(),
        height: head.number,
        bypass_cache,
    };
    match internal::resolve_internal(cx, &call).await {
        Payload::Result(result) if &*result != b"null" => Ok(result),
        Payload::Result(_) | Payload::Error(_) | Payload::Failed(_) => Err(Unavailable),
    }
}

fn hex(hash: &Hash) -> alloy_primitives::B256 {
    alloy_primitives::B256::new(*hash)
}

impl Blocks {
    /// Returns the logs of the block that a change adds or drops. Logs of a dropped block are
    /// marked as removed.
    pub(super) async fn logs(
        &self,
        cx: &Rc<ThreadContext>,
        chain: usize,
        change: Change,
    ) -> Result<Arc<Logs>, Unavailable> {
        let (Change::Added(head) | Change::Dropped(head)) = change;
        let known = self.recent(head.hash);
        match change {
            Change::Added(_) => match known {
                Some(logs) => Ok(logs),
                None => {
                    let logs = Arc::new(self.fetch_logs(cx, chain, head).await?);
                    self.keep(head.hash, &logs);
                    Ok(logs)
                }
            },
            Change::Dropped(_) => {
                let logs = match known {
                    Some(logs) => logs,
                    // The block predates the subscription, and upstreams may have lost it.
                    None => Arc::new(self.fetch_logs(cx, chain, head).await.unwrap_or_default()),
                };
                let marked =
                    logs.iter().map(|(keys, raw)| (keys.clone(), mark_removed(raw).into()));
                Ok(Arc::new(marked.collect()))
            }
        }
    }

    async fn fetch_logs(
        &self,
        cx: &Rc<ThreadContext>,
        chain: usize,
        head: Head,
    ) -> Result<Logs, Unavailable> {
        let asked = cx.snapshot.now();
        let params = format!("[{{\"blockHash\":\"{}\"}}]", hex(&head.hash));
        // The call bypasses the cache. The cache would store a doubted empty response permanently.
        let raw = fetch_result(cx, chain, "eth_getLogs", &params, head, true).await?;
        let read = |log: &[u8]| {
            let keys = LogFields::parse(log).filter(|keys| keys.block_hash == head.hash)?;
            Some((keys, raw.slice_ref(log)))
        };
        let logs: Option<Logs> = walk::elements(&raw).map(read).collect();
        let logs = logs.filter(|_| raw.first() == Some(&b'[')).ok_or(Unavailable)?;
        // An upstream that has not indexed its newest block yet reports no logs.
        if logs.is_empty() {
            let raw = fetch_block(cx, chain, head).await?;
            let contents = Contents::read(&raw, asked);
            let may_have = contents.and_then(|block| block.may_have(&Wanted::default()));
            if may_have == Some(true) && self.doubts.lock().is_doubted(head.hash, asked) {
                return Err(Unavailable);
            }
        } else {
            self.doubts.lock().resolve(head.hash);
        }
        Ok(logs)
    }

    fn keep(&self, hash: Hash, logs: &Arc<Logs>) {
        let mut recent = self.recent.lock();
        if recent.blocks.iter().any(|(own, _)| *own == hash) {
            return;
        }
        recent.bytes += bytes_of(logs);
        recent.blocks.push_back((hash, Arc::clone(logs)));
        while recent.blocks.len() > RECENT_BLOCKS_MAX || recent.bytes > RECENT_BYTES_MAX {
            let Some((_, oldest)) = recent.blocks.pop_front() else { return };
            recent.bytes -= bytes_of(&oldest);
        }
    }

    fn recent(&self, hash: Hash) -> Option<Arc<Logs>> {
        let recent = self.recent.lock();
        recent.blocks.iter().rfind(|(own, _)| *own == hash).map(|(_, logs)| Arc::clone(logs))
    }
}

fn bytes_of(logs: &Logs) -> usize {
    logs.iter().map(|(_, raw)| raw.len()).sum()
}

#[cfg(test)]
mod tests {
    //! Goal: an empty response of an upstream without an index is doubted, and a chain with
    //! misleading bloom filters is not delayed repeatedly.

    use super::*;

    #[test]
    fn doubts_end() {
        let at = Duration::from_millis;
        let mut doubts = Doubts::default();
        let lasts = |doubts: &mut Doubts, hash: Hash, start: u64| {
            (0..).find(|ms| !doubts.is_doubted(hash, at(start + ms))).map(at)
        };
        assert_eq!(lasts(&mut doubts, [1; 32], 0), Some(EMPTY_CONFIRMED_AFTER));
        assert_eq!(
            lasts(&mut doubts, [2; 32], 9000),
            Some(EMPTY_CONFIRMED_AGAIN_AFTER),
            "as the last one"
        );
        assert!(doubts.is_doubted([3; 32], at(10_000)));
        doubts.resolve([4; 32]);
        assert!(doubts.was_empty, "nobody doubted that");
        doubts.resolve([3; 32]);
        assert_eq!(lasts(&mut doubts, [5; 32], 11_000), Some(EMPTY_CONFIRMED_AFTER));
    }

    #[test]
    fn concurrent_requests_do_not_confirm_an_empty_block() {
        let mut doubts = Doubts::default();
        assert!((0..1000).all(|_| doubts.is_doubted([1; 32], Duration::ZERO)));
    }

    #[test]
    fn forgotten_doubts_end_too() {
        let mut doubts = Doubts::default();
        let all = |doubts: &mut Doubts, seconds: u64| {
            let asked = Duration::from_secs(seconds);
            (0..200).filter(|byte| doubts.is_doubted([*byte; 32], asked)).count()
        };
        assert_eq!(all(&mut doubts, 0), 200);
        assert_eq!(doubts.since.len(), DOUBTED_MAX);
        assert_eq!(all(&mut doubts, 7), 200 - DOUBTED_MAX);
        assert!(doubts.since.len() <= DOUBTED_MAX);
        // Expired doubts make room for new ones.
        doubts.is_doubted([255; 32], Duration::from_secs(100));
        assert_eq!(doubts.since.len(), 1);
    }

    #[test]
    fn recent_logs_are_bounded() {
        let blocks = Blocks::default();
        for byte in 0..100 {
            let keys =
                LogFields { number: 1, block_hash: [byte; 32], address: [0; 20], topics: vec![] };
            let raw = Bytes::from(vec![b' '; RECENT_BYTES_MAX / 10]);
            blocks.keep([byte; 32], &Arc::new(vec![(keys, raw)]));
            blocks.keep([byte; 32], &Arc::default());
        }
        assert_eq!((0..100).filter(|byte| blocks.recent([*byte; 32]).is_some()).count(), 10);
        assert!(blocks.recent([99; 32]).is_some_and(|logs| logs.len() == 1));
        assert!(blocks.recent.lock().bytes <= RECENT_BYTES_MAX);
    }
}
