//! What a chain's nodes say of its blocks by their hashes, for all who are told of them.
//!
//! Logs of the newest blocks are kept, because they are told once more should the block be dropped,
//! when nodes may have forgotten it.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use wire::block::hash_of_value;
use wire::json::walk;
use wire::logs::{LogKeys, removed};

use crate::front::answer::Payload;
use crate::path::{self, Inquiry};
use crate::rules::heads::{Hash, Head};
use crate::rules::trail::Change;
use crate::worker::Worker;

/// Blocks that are fetched at a time.
pub(super) const FETCHES: usize = 8;
/// How often nodes may say that a block has no logs although its header says that it has some, before
/// they are believed: with the waits in between, some seconds.
const EMPTY_MAX: u32 = 12;
/// And how often after that was true: not every chain fills its bloom filters as Ethereum does.
const EMPTY_USUAL_MAX: u32 = 1;
/// Blocks that are doubted at a time.
const DOUBTED_MAX: usize = 64;
/// Blocks whose logs are kept: what two epochs hold.
const KEPT_BLOCKS: usize = 64;
/// Bytes of these logs.
const KEPT_BYTES: usize = 64 << 20;

/// Logs with what they are selected by.
pub(super) type Logs = Vec<(LogKeys, Bytes)>;

/// Nobody could say it now.
#[derive(Debug)]
pub(super) struct NotYet;

/// What is known of one chain's blocks.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    kept: Mutex<Kept>,
    doubts: Mutex<Doubts>,
}

/// Whether nodes are believed that say of a block that it has no logs.
#[derive(Debug, Default)]
struct Doubts {
    /// Blocks that should have some, and how often that was heard.
    heard: VecDeque<(Hash, u32)>,
    /// The last one of them had none.
    usual: bool,
}

impl Doubts {
    fn of(&self, hash: Hash) -> u32 {
        self.heard.iter().find(|(own, _)| *own == hash).map_or(0, |(_, heard)| *heard)
    }

    /// A block that has been doubted so often is doubted once more, unless it is believed now.
    fn doubt(&mut self, hash: Hash, heard: u32) -> bool {
        self.heard.retain(|(own, _)| *own != hash);
        let max = if self.usual { EMPTY_USUAL_MAX } else { EMPTY_MAX };
        if heard >= max {
            self.usual = true;
            return false;
        }
        self.heard.push_back((hash, heard + 1));
        if self.heard.len() > DOUBTED_MAX {
            self.heard.pop_front();
        }
        true
    }

    /// A block that was doubted has logs after all.
    fn were_right(&mut self) {
        self.usual = false;
    }
}

#[derive(Debug, Default)]
struct Kept {
    /// The newest last.
    blocks: VecDeque<(Hash, Arc<Logs>)>,
    bytes: usize,
}

/// A block of the chain with this index in the worker's configuration.
pub(super) async fn block(worker: &Rc<Worker>, chain: usize, head: Head) -> Result<Bytes, NotYet> {
    let params = format!("[\"{}\",false]", hex(&head.hash));
    let block = ask(worker, chain, "eth_getBlockByHash", &params, head, false).await?;
    let hash = walk::member(&block, "hash").and_then(hash_of_value);
    if hash == Some(head.hash) { Ok(block) } else { Err(NotYet) }
}

/// What the chain's nodes say of a block, those that have it.
async fn ask(
    worker: &Rc<Worker>,
    chain: usize,
    method: &'static str,
    params: &str,
    head: Head,
    fresh: bool,
) -> Result<Bytes, NotYet> {
    let inquiry = Inquiry { chain, method, params: params.as_bytes(), height: head.number, fresh };
    match path::inquire(worker, &inquiry).await {
        Payload::Result(result) if &*result != b"null" => Ok(result),
        Payload::Result(_) | Payload::Error(_) | Payload::Failed(_) => Err(NotYet),
    }
}

fn hex(hash: &Hash) -> alloy_primitives::B256 {
    alloy_primitives::B256::new(*hash)
}

impl Blocks {
    /// The logs that a change of the chain adds or, marked so, removes.
    pub(super) async fn logs(
        &self,
        worker: &Rc<Worker>,
        chain: usize,
        change: Change,
    ) -> Result<Arc<Logs>, NotYet> {
        let (Change::Added(head) | Change::Dropped(head)) = change;
        let known = self.kept(head.hash);
        match change {
            Change::Added(_) => match known {
                Some(logs) => Ok(logs),
                None => {
                    let logs = Arc::new(self.fetch(worker, chain, head).await?);
                    self.keep(head.hash, &logs);
                    Ok(logs)
                }
            },
            Change::Dropped(_) => {
                let logs = match known {
                    Some(logs) => logs,
                    // From before anybody wanted to know; nodes may have forgotten the block.
                    None => Arc::new(self.fetch(worker, chain, head).await.unwrap_or_default()),
                };
                let marked = logs.iter().map(|(keys, raw)| (keys.clone(), removed(raw).into()));
                Ok(Arc::new(marked.collect()))
            }
        }
    }

    async fn fetch(&self, worker: &Rc<Worker>, chain: usize, head: Head) -> Result<Logs, NotYet> {
        let heard = self.doubts.lock().of(head.hash);
        let params = format!("[{{\"blockHash\":\"{}\"}}]", hex(&head.hash));
        // Not through the cache: an empty answer that is doubted here would be kept there for ever.
        let raw = ask(worker, chain, "eth_getLogs", &params, head, true).await?;
        let read = |log: &[u8]| {
            let keys = LogKeys::read(log).filter(|keys| keys.block_hash == head.hash)?;
            Some((keys, raw.slice_ref(log)))
        };
        let logs: Option<Logs> = walk::elements(&raw).map(read).collect();
        let logs = logs.filter(|_| raw.first() == Some(&b'[')).ok_or(NotYet)?;
        // A node that has not indexed its newest block yet says that it has no logs.
        if logs.is_empty() {
            let bloom = has_bloom(&block(worker, chain, head).await?);
            if bloom && self.doubts.lock().doubt(head.hash, heard) {
                return Err(NotYet);
            }
        } else if heard > 0 {
            self.doubts.lock().were_right();
        }
        Ok(logs)
    }

    fn keep(&self, hash: Hash, logs: &Arc<Logs>) {
        let mut kept = self.kept.lock();
        if kept.blocks.iter().any(|(own, _)| *own == hash) {
            return;
        }
        kept.bytes += bytes_of(logs);
        kept.blocks.push_back((hash, Arc::clone(logs)));
        while kept.blocks.len() > KEPT_BLOCKS || kept.bytes > KEPT_BYTES {
            let Some((_, oldest)) = kept.blocks.pop_front() else { return };
            kept.bytes -= bytes_of(&oldest);
        }
    }

    fn kept(&self, hash: Hash) -> Option<Arc<Logs>> {
        let kept = self.kept.lock();
        kept.blocks.iter().rfind(|(own, _)| *own == hash).map(|(_, logs)| Arc::clone(logs))
    }
}

fn bytes_of(logs: &Logs) -> usize {
    logs.iter().map(|(_, raw)| raw.len()).sum()
}

/// Whether a block says of itself that it has logs.
fn has_bloom(block: &[u8]) -> bool {
    let bloom = walk::member(block, "logsBloom").unwrap_or_default();
    bloom.iter().any(|byte| !matches!(byte, b'"' | b'0' | b'x'))
}

#[cfg(test)]
mod tests {
    //! Goal: a node that has not indexed a block yet is not believed, and a chain whose headers say
    //! more than is true is not waited for again and again.

    use super::*;

    #[test]
    fn doubts_end() {
        let mut doubts = Doubts::default();
        let tries = |doubts: &mut Doubts, hash: Hash| {
            let mut tries = 0;
            while doubts.doubt(hash, doubts.of(hash)) {
                tries += 1;
            }
            tries
        };
        assert_eq!(tries(&mut doubts, [1; 32]), EMPTY_MAX);
        assert_eq!(tries(&mut doubts, [2; 32]), EMPTY_USUAL_MAX, "as the one before");
        assert!(doubts.doubt([3; 32], 0));
        doubts.were_right();
        assert_eq!(tries(&mut doubts, [4; 32]), EMPTY_MAX);
        for byte in 0..=255 {
            doubts.doubt([byte; 32], 0);
        }
        assert_eq!(doubts.heard.len(), DOUBTED_MAX);
    }

    #[test]
    fn a_header_says_whether_there_are_logs() {
        assert!(!has_bloom(br#"{"logsBloom":"0x0000"}"#));
        assert!(has_bloom(br#"{"logsBloom":"0x0010"}"#));
        assert!(!has_bloom(b"{}"), "a chain without bloom filters is believed");
    }

    #[test]
    fn logs_are_kept_within_bounds() {
        let blocks = Blocks::default();
        for byte in 0..100 {
            let keys =
                LogKeys { number: 1, block_hash: [byte; 32], address: [0; 20], topics: vec![] };
            let raw = Bytes::from(vec![b' '; KEPT_BYTES / 10]);
            blocks.keep([byte; 32], &Arc::new(vec![(keys, raw)]));
            blocks.keep([byte; 32], &Arc::default());
        }
        assert_eq!((0..100).filter(|byte| blocks.kept([*byte; 32]).is_some()).count(), 10);
        assert!(blocks.kept([99; 32]).is_some_and(|logs| logs.len() == 1));
        assert!(blocks.kept.lock().bytes <= KEPT_BYTES);
    }
}
