//! Fetches the blocks of a chain and their logs by hash, for all subscribers. A [`Head`] holds the
//! number and hash of a block.
//!
//! If a reorg drops a block, subscribers receive the block's logs again, marked as removed. By then
//! upstreams may have deleted these logs, so the gateway stores the logs of recent blocks.
//!
//! An upstream may index a block late, or first a part of it. So the logs of a block are requested
//! again until they are *settled*: equal twice or, if they contradict the block's bloom filter,
//! equal for ten minutes. Logs that come late are appended to the stored list. A subscriber that has
//! received the first logs of the list then receives the others.

use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::B256;
use bytes::Bytes;
use futures_util::StreamExt;
use parking_lot::Mutex;
use wire::hex::hash_from_value;
use wire::json::walk;
use wire::logs::{LogFields, mark_removed};
use wire::quantity;

use crate::call::Payload;
use crate::policy::block_headers::BlockHeader;
use crate::policy::branch::Hash;
use crate::policy::chain_cursor::Change;
use crate::policy::complete::{DOUBTED_FOR, YOUNG_FOR};
use crate::policy::heads::Head;
use crate::resolve::internal;
use crate::resolve::internal::InternalCall;
use crate::state::context::ThreadContext;

/// Maximum number of blocks fetched concurrently.
pub(super) const BLOCK_FETCHES_MAX: usize = 8;
/// Time for which the gateway *doubts* an empty list of logs if the block's bloom filter shows
/// logs: the upstream may not have indexed the block yet. The gateway does not use a doubted list.
/// After this time it accepts that the block has no logs.
const EMPTY_CONFIRMED_AFTER: Duration = Duration::from_secs(6);
/// Replaces [`EMPTY_CONFIRMED_AFTER`] if the last doubted block really had no logs. Some chains use
/// the bloom filter differently, so the long time would delay each of their blocks.
const EMPTY_CONFIRMED_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Maximum number of doubted blocks that are stored.
const DOUBTED_MAX: usize = 64;
/// Time after which a doubted block is removed from the store, even if the doubt has not ended.
const DOUBT_AGE_MAX: Duration = Duration::from_secs(60);
/// Maximum number of blocks whose logs are stored, and of those that are not settled: for chains
/// with a block time of a second or more, the blocks of the time for which logs may come late.
const RECENT_BLOCKS_MAX: usize = 600;
/// Maximum bytes of the stored logs.
const RECENT_BYTES_MAX: usize = 64 << 20;

/// A log of a transaction.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    /// The parsed fields that filters match.
    pub(super) fields: LogFields,
    /// The raw log, as an upstream sent it.
    pub(super) raw: Bytes,
}

/// The error that a block or its logs are not available yet.
#[derive(Debug)]
pub(super) struct Unavailable;

/// The logs of recent blocks of one chain.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    recent: Mutex<RecentLogs>,
    doubts: Mutex<Doubts>,
    unsettled: Mutex<VecDeque<UnsettledBlock>>,
}

/// A block whose logs are requested again.
#[derive(Debug, Clone, Copy)]
struct UnsettledBlock {
    head: Head,
    /// When the stored logs were first requested, as time since the start of the process.
    since: Duration,
    /// When the logs are requested next.
    next_at: Duration,
}

/// The logs that a subscriber has received of a block that is not settled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Received {
    hash: Hash,
    /// Number of received logs, which are the first of the stored list.
    count: usize,
}

/// The blocks whose empty lists of logs are doubted.
#[derive(Debug, Default)]
struct Doubts {
    blocks: VecDeque<DoubtedBlock>,
    /// True if the last block whose doubt ended really had no logs.
    last_was_empty: bool,
}

/// A block for which an upstream has returned no logs although the bloom filter shows logs.
#[derive(Debug)]
struct DoubtedBlock {
    hash: Hash,
    /// When the first empty list was requested, as time since the start of the process.
    since: Duration,
}

impl Doubts {
    /// Returns true if an empty list of logs is doubted. `requested_at` is when the list was
    /// requested. Stores the first doubt about a block. Ends the doubt if this list was requested
    /// long enough after the block's first empty list.
    fn is_doubted(&mut self, hash: Hash, requested_at: Duration) -> bool {
        let confirmed_after =
            if self.last_was_empty { EMPTY_CONFIRMED_AGAIN_AFTER } else { EMPTY_CONFIRMED_AFTER };
        let stored_since =
            self.blocks.iter().find(|block| block.hash == hash).map(|block| block.since);
        let since = stored_since.unwrap_or(requested_at);
        if requested_at.saturating_sub(since) >= confirmed_after {
            self.last_was_empty = true;
            self.blocks.retain(|block| block.hash != hash);
            return false;
        }
        if stored_since.is_none() {
            self.blocks.retain(|block| requested_at.saturating_sub(block.since) < DOUBT_AGE_MAX);
            // If the store is full, this doubt is not stored, and begins anew with the next
            // request.
            if self.blocks.len() < DOUBTED_MAX {
                self.blocks.push_back(DoubtedBlock { hash, since: requested_at });
            }
        }
        true
    }

    /// Ends the doubt about a block, if any, because an upstream has returned logs of the block.
    fn resolve(&mut self, hash: Hash) {
        let count_before = self.blocks.len();
        self.blocks.retain(|block| block.hash != hash);
        let had_doubt = self.blocks.len() < count_before;
        self.last_was_empty &= !had_doubt;
    }
}

/// The stored logs of recent blocks.
#[derive(Debug, Default)]
struct RecentLogs {
    /// The logs by block. The newest block is last.
    blocks: VecDeque<(Hash, Arc<Vec<Log>>)>,
    /// Total bytes of all logs.
    bytes: usize,
}

impl RecentLogs {
    /// Removes the oldest logs while there are too many.
    fn evict(&mut self) {
        while self.blocks.len() > RECENT_BLOCKS_MAX || self.bytes > RECENT_BYTES_MAX {
            let Some((_, oldest)) = self.blocks.pop_front() else { return };
            self.bytes -= bytes_of(&oldest);
        }
    }
}

impl Log {
    /// Returns the position of the log in its block.
    fn index(&self) -> Option<u64> {
        walk::member(&self.raw, "logIndex").and_then(quantity::from_value)
    }
}

/// Fetches the block with the number and hash of `head`, without the bodies of its transactions.
/// `chain` is the index of the chain.
pub(super) async fn fetch_block(
    cx: &Rc<ThreadContext>,
    chain: usize,
    head: Head,
) -> Result<Bytes, Unavailable> {
    let params = format!("[\"{}\",false]", B256::new(head.hash));
    let bypass_cache = false;
    let block = fetch_result(cx, chain, "eth_getBlockByHash", &params, head, bypass_cache).await?;
    let hash = walk::member(&block, "hash").and_then(hash_from_value);
    if hash == Some(head.hash) { Ok(block) } else { Err(Unavailable) }
}

/// Fetches the result of a call about the block `head` from an upstream that has the block.
/// `params` is the raw array of parameters. A `null` result counts as unavailable. If
/// `bypass_cache` is true, the result comes from an upstream and not from a cache.
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

/// Fetches the logs of a block as an upstream has them now.
async fn request_logs(
    cx: &Rc<ThreadContext>,
    chain: usize,
    head: Head,
) -> Result<Vec<Log>, Unavailable> {
    let params = format!("[{{\"blockHash\":\"{}\"}}]", B256::new(head.hash));
    // The response may be incomplete, and the cache would keep it.
    let bypass_cache = true;
    let raw = fetch_result(cx, chain, "eth_getLogs", &params, head, bypass_cache).await?;
    let parse_log = |log: &[u8]| {
        let fields = LogFields::parse(log).filter(|fields| fields.block_hash == head.hash)?;
        Some(Log { fields, raw: raw.slice_ref(log) })
    };
    let logs: Option<Vec<Log>> = walk::elements(&raw).map(parse_log).collect();
    logs.filter(|_| raw.first() == Some(&b'[')).ok_or(Unavailable)
}

/// Returns true if the bloom filter of a block shows that the block has further logs.
fn has_further_logs(cx: &ThreadContext, chain: usize, head: Head, logs: &[Log]) -> bool {
    let headers = cx.snapshot.chains[chain].headers.read();
    let header = headers.get(&head.hash).filter(|_| headers.trusts_blooms());
    let fields = logs.iter().map(|log| &log.fields);
    header.and_then(|header| header.has_further_logs(fields)).unwrap_or(false)
}

impl Blocks {
    /// Returns the logs of the block that a change adds or drops. Logs of a dropped block are
    /// marked as removed.
    pub(super) async fn logs_of(
        &self,
        cx: &Rc<ThreadContext>,
        chain: usize,
        change: Change,
    ) -> Result<Arc<Vec<Log>>, Unavailable> {
        let (Change::Added(head) | Change::Dropped(head)) = change;
        let stored_logs = self.find_recent(head.hash);
        match change {
            Change::Added(_) => match stored_logs {
                Some(logs) => Ok(logs),
                None => {
                    let requested_at = cx.snapshot.now();
                    let logs = Arc::new(self.fetch_logs(cx, chain, head).await?);
                    let is_settled = logs.is_empty() && !has_further_logs(cx, chain, head, &logs);
                    if self.store_recent(head.hash, &logs) && !is_settled {
                        self.add_unsettled(head, requested_at);
                    }
                    Ok(self.find_recent(head.hash).unwrap_or(logs))
                }
            },
            Change::Dropped(_) => {
                let logs = match stored_logs {
                    Some(logs) => logs,
                    // The block is older than the subscription. If upstreams do not have the block
                    // any more, no logs are reported as removed.
                    None => Arc::new(request_logs(cx, chain, head).await.unwrap_or_default()),
                };
                let mark = |log: &Log| Log { raw: mark_removed(&log.raw).into(), ..log.clone() };
                Ok(Arc::new(logs.iter().map(mark).collect()))
            }
        }
    }

    /// Fetches the logs of a block. Fails if there are none although the block's bloom filter shows
    /// logs, as long as this is doubted.
    async fn fetch_logs(
        &self,
        cx: &Rc<ThreadContext>,
        chain: usize,
        head: Head,
    ) -> Result<Vec<Log>, Unavailable> {
        let requested_at = cx.snapshot.now();
        let logs = request_logs(cx, chain, head).await?;
        if !logs.is_empty() {
            self.doubts.lock().resolve(head.hash);
            return Ok(logs);
        }
        // An upstream that has not indexed its newest block yet reports no logs.
        let raw = fetch_block(cx, chain, head).await?;
        let header = BlockHeader::parse(&raw, requested_at);
        let may_have_logs = header.and_then(|header| header.has_further_logs([]));
        if may_have_logs == Some(true) && self.doubts.lock().is_doubted(head.hash, requested_at) {
            return Err(Unavailable);
        }
        Ok(logs)
    }

    fn add_unsettled(&self, head: Head, since: Duration) {
        let mut unsettled = self.unsettled.lock();
        if unsettled.len() >= RECENT_BLOCKS_MAX {
            unsettled.pop_front();
        }
        unsettled.push_back(UnsettledBlock { head, since, next_at: since + YOUNG_FOR });
    }

    /// Records that a subscriber has received `count` logs of a change. Only blocks that are not
    /// settled are recorded.
    pub(super) fn track(&self, received: &mut Vec<Received>, change: Change, count: usize) {
        match change {
            Change::Added(Head { hash, .. }) if self.is_unsettled(hash) => {
                received.push(Received { hash, count });
            }
            Change::Added(_) => {}
            Change::Dropped(head) => received.retain(|block| block.hash != head.hash),
        }
    }

    fn is_unsettled(&self, hash: Hash) -> bool {
        self.unsettled.lock().iter().any(|block| block.head.hash == hash)
    }

    /// Requests the logs of all blocks again whose time has come. Returns the time until the next
    /// request; `None` if all blocks are settled.
    pub(super) async fn request_again(
        &self,
        cx: &Rc<ThreadContext>,
        chain: usize,
    ) -> Option<Duration> {
        let now = cx.snapshot.now();
        let due: Vec<UnsettledBlock> = {
            let mut unsettled = self.unsettled.lock();
            let due = unsettled.iter_mut().filter(|block| block.next_at <= now);
            // The time of the next request is moved first, so that no other thread repeats it.
            due.map(|block| {
                block.next_at = now + now.saturating_sub(block.since).max(YOUNG_FOR);
                *block
            })
            .collect()
        };
        let requests =
            due.into_iter().map(async |block| (block, request_logs(cx, chain, block.head).await));
        let mut requests =
            std::pin::pin!(futures_util::stream::iter(requests).buffered(BLOCK_FETCHES_MAX));
        while let Some((block, logs)) = requests.next().await {
            let hash = block.head.hash;
            // A block that a reorg has dropped may be unavailable for good.
            let is_old = now.saturating_sub(block.since) >= DOUBTED_FOR;
            let is_settled = match logs {
                Ok(logs) => {
                    !self.append_recent(hash, &logs)
                        && (is_old || !has_further_logs(cx, chain, block.head, &logs))
                }
                Err(Unavailable) => is_old,
            };
            if is_settled {
                self.unsettled.lock().retain(|block| block.head.hash != hash);
            }
        }
        let unsettled = self.unsettled.lock();
        let next_at = unsettled.iter().map(|block| block.next_at).min()?;
        Some(next_at.saturating_sub(cx.snapshot.now()))
    }

    /// Returns the logs that came late, after the ones that a subscriber has received. Forgets
    /// blocks that are settled.
    pub(super) fn take_late(&self, received: &mut Vec<Received>) -> Vec<Log> {
        let mut late = Vec::new();
        received.retain_mut(|block| {
            // Read before the list: a list that grows later belongs to an unsettled block.
            let is_unsettled = self.is_unsettled(block.hash);
            let Some(logs) = self.find_recent(block.hash) else { return false };
            // A list that was dropped and fetched again may be shorter.
            late.extend_from_slice(logs.get(block.count..).unwrap_or_default());
            block.count = block.count.max(logs.len());
            is_unsettled
        });
        late
    }

    /// Stores the logs of a block. While a limit is exceeded, removes the oldest logs. Returns false
    /// if logs of this block are stored already.
    fn store_recent(&self, hash: Hash, logs: &Arc<Vec<Log>>) -> bool {
        let mut recent = self.recent.lock();
        if recent.blocks.iter().any(|(stored_hash, _)| *stored_hash == hash) {
            return false;
        }
        recent.bytes += bytes_of(logs);
        recent.blocks.push_back((hash, Arc::clone(logs)));
        recent.evict();
        true
    }

    /// Appends the logs that the stored list of a block lacks. Returns true if there were any.
    fn append_recent(&self, hash: Hash, logs: &[Log]) -> bool {
        let mut recent = self.recent.lock();
        let RecentLogs { blocks, bytes } = &mut *recent;
        let Some((_, stored)) = blocks.iter_mut().rfind(|(stored, _)| *stored == hash) else {
            return false;
        };
        let indexes: HashSet<Option<u64>> = stored.iter().map(Log::index).collect();
        let late: Vec<Log> =
            logs.iter().filter(|log| !indexes.contains(&log.index())).cloned().collect();
        if late.is_empty() {
            return false;
        }
        *bytes += bytes_of(&late);
        Arc::make_mut(stored).extend(late);
        recent.evict();
        true
    }

    /// Returns the stored logs of a block; `None` if they are not stored.
    fn find_recent(&self, hash: Hash) -> Option<Arc<Vec<Log>>> {
        let recent = self.recent.lock();
        let found = recent.blocks.iter().rfind(|(stored_hash, _)| *stored_hash == hash);
        found.map(|(_, logs)| Arc::clone(logs))
    }
}

fn bytes_of(logs: &[Log]) -> usize {
    logs.iter().map(|log| log.raw.len()).sum()
}

#[cfg(test)]
mod tests {
    //! Goal: an empty list of logs is doubted if the upstream may not have indexed the block, and a
    //! chain with misleading bloom filters is not delayed repeatedly.

    use super::*;

    #[test]
    fn doubts_end() {
        let ms = Duration::from_millis;
        let mut doubts = Doubts::default();
        let doubt_duration = |doubts: &mut Doubts, hash: Hash, start: u64| {
            (0..).find(|elapsed| !doubts.is_doubted(hash, ms(start + elapsed))).map(ms)
        };
        assert_eq!(doubt_duration(&mut doubts, [1; 32], 0), Some(EMPTY_CONFIRMED_AFTER));
        assert_eq!(
            doubt_duration(&mut doubts, [2; 32], 9000),
            Some(EMPTY_CONFIRMED_AGAIN_AFTER),
            "the last doubted block was empty"
        );
        assert!(doubts.is_doubted([3; 32], ms(10_000)));
        doubts.resolve([4; 32]);
        assert!(doubts.last_was_empty, "the block was not doubted");
        doubts.resolve([3; 32]);
        assert_eq!(doubt_duration(&mut doubts, [5; 32], 11_000), Some(EMPTY_CONFIRMED_AFTER));
    }

    #[test]
    fn concurrent_requests_do_not_confirm_an_empty_block() {
        let mut doubts = Doubts::default();
        assert!((0..1000).all(|_| doubts.is_doubted([1; 32], Duration::ZERO)));
    }

    #[test]
    fn forgotten_doubts_end_too() {
        let mut doubts = Doubts::default();
        let doubted_count = |doubts: &mut Doubts, seconds: u64| {
            let requested_at = Duration::from_secs(seconds);
            (0..200).filter(|byte| doubts.is_doubted([*byte; 32], requested_at)).count()
        };
        assert_eq!(doubted_count(&mut doubts, 0), 200);
        assert_eq!(doubts.blocks.len(), DOUBTED_MAX);
        assert_eq!(doubted_count(&mut doubts, 7), 200 - DOUBTED_MAX);
        assert!(doubts.blocks.len() <= DOUBTED_MAX);
        // Expired doubts are removed, so that new ones can be stored.
        doubts.is_doubted([255; 32], Duration::from_secs(100));
        assert_eq!(doubts.blocks.len(), 1);
    }

    #[test]
    fn recent_logs_are_bounded() {
        let blocks = Blocks::default();
        for byte in 0..100 {
            let fields = LogFields {
                block_number: 1,
                block_hash: [byte; 32],
                address: [0; 20],
                topics: vec![],
            };
            let raw = Bytes::from(vec![b' '; RECENT_BYTES_MAX / 10]);
            blocks.store_recent([byte; 32], &Arc::new(vec![Log { fields, raw }]));
            blocks.store_recent([byte; 32], &Arc::default());
        }
        assert_eq!((0..100).filter(|byte| blocks.find_recent([*byte; 32]).is_some()).count(), 10);
        assert!(blocks.find_recent([99; 32]).is_some_and(|logs| logs.len() == 1));
        assert!(blocks.recent.lock().bytes <= RECENT_BYTES_MAX);
    }

    #[test]
    fn late_logs_are_taken_once_also_from_a_list_that_was_fetched_again() {
        let blocks = Blocks::default();
        let head = Head { number: 1, hash: [1; 32] };
        let log = |index: u8| {
            let fields = LogFields {
                block_number: 1,
                block_hash: head.hash,
                address: [0; 20],
                topics: vec![],
            };
            Log { fields, raw: format!("{{\"logIndex\":\"{index:#x}\"}}").into() }
        };
        let take = |received: &mut Vec<Received>| blocks.take_late(received).len();
        blocks.store_recent(head.hash, &Arc::new(vec![log(0), log(1)]));
        blocks.add_unsettled(head, Duration::ZERO);
        let mut received = Vec::new();
        blocks.track(&mut received, Change::Added(head), 2);
        assert_eq!(take(&mut received), 0);
        assert!(blocks.append_recent(head.hash, &[log(0), log(2)]));
        assert!(!blocks.append_recent(head.hash, &[log(0), log(2)]), "nothing is new");
        assert_eq!((take(&mut received), take(&mut received)), (1, 0));
        *blocks.recent.lock() = RecentLogs::default();
        blocks.store_recent(head.hash, &Arc::new(vec![log(0)]));
        assert_eq!(take(&mut received), 0, "the new list is shorter");
        blocks.track(&mut received, Change::Dropped(head), 0);
        assert!(received.is_empty());
    }
}
