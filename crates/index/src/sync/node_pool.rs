//! The nodes of a sync. The pool selects the node for each call. It pauses nodes that fail, and
//! removes nodes that can never be used, such as nodes of another chain.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use wire::hex;
use wire::json::walk;
use wire::quantity;

use super::calls;
use super::chain_identity::{describe_wrong_chain, identity_calls, read_chain};
use super::error::SyncError;
use super::observer::{Event, Observer};
use super::options::Options;
use crate::contents::{Chain, Contents};
use crate::nodes::{Call, Client, Endpoint, Responses};
use crate::planner::backoff::Backoff;
use crate::planner::range::Tip;
use crate::postings::BLOCK_NUMBER_MAX;

#[cfg(test)]
pub(super) mod tests;

/// Maximum number of attempts to identify the chain of a node when the sync starts. If all attempts
/// fail, the sync starts without the node, and identifies the node's chain before it calls the
/// node.
const IDENTIFY_ATTEMPTS: u32 = 6;
/// The pause between two attempts to identify the chain of a node.
const IDENTIFY_PAUSE: Duration = Duration::from_millis(100);
/// Interval at which a pause checks if the sync was stopped.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Depth below the newest block at which a block counts as finalized, in blocks. Used if a node
/// does not support the tag `finalized`. Ethereum finalizes blocks within two epochs, which have 64
/// blocks. The depth is twice as large.
const FINALITY_DEPTH: u64 = 128;

/// The nodes and their state.
pub(super) struct NodePool<'a> {
    nodes: Vec<Node>,
    /// The sync fails if all nodes are paused and no call has succeeded for this time; `None` for
    /// no limit.
    patience: Option<Duration>,
    /// The start of the clock for backoffs, which measure time as a duration since this instant.
    started: Instant,
    /// When a call last succeeded; at first, when the sync started.
    succeeded_at: Mutex<Instant>,
    /// The chain that all nodes must be on, and the contents of the index; empty until the chain is
    /// known.
    chain: OnceLock<(Chain, Contents)>,
    /// A client for each node. The workers do not use these clients, because they have their own.
    clients: Mutex<Vec<Client>>,
    pub(super) observer: &'a dyn Observer,
    stop: &'a AtomicBool,
}

struct Node {
    endpoint: Arc<Endpoint>,
    state: Mutex<NodeState>,
}

#[derive(Default)]
struct NodeState {
    backoff: Backoff,
    /// The reason why the node was removed; `None` while the node is used.
    removal_reason: Option<String>,
    /// True if the chain of the node could not be identified yet.
    is_unidentified: bool,
    /// The error of the last failed call, as text. An error about a block is replaced by an error
    /// about a higher block only once the lower block has been fetched.
    last_error: Option<String>,
    /// The block that `last_error` names; `None` if it names none, or if the block has been fetched
    /// since.
    missing_block: Option<u64>,
}

/// The node to call.
pub(super) enum NodeChoice {
    /// The node with this index.
    Node(usize),
    /// No node, because all nodes are paused for at least this time.
    Wait(Duration),
}

impl<'a> NodePool<'a> {
    pub(super) fn new(
        options: &Options,
        observer: &'a dyn Observer,
        stop: &'a AtomicBool,
    ) -> NodePool<'a> {
        let new_node =
            |endpoint: &Arc<Endpoint>| Node { endpoint: endpoint.clone(), state: Mutex::default() };
        NodePool {
            nodes: options.nodes.iter().map(new_node).collect(),
            patience: options.patience,
            started: Instant::now(),
            succeeded_at: Mutex::new(Instant::now()),
            chain: OnceLock::new(),
            clients: Mutex::new(options.nodes.iter().cloned().map(Client::new).collect()),
            observer,
            stop,
        }
    }

    /// Returns true if the sync was stopped.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Pauses the thread for this time, or until the sync is stopped.
    pub(super) fn pause(&self, duration: Duration) {
        let end = Instant::now() + duration;
        while !self.is_stopped() {
            let Some(remaining) = end.checked_duration_since(Instant::now()) else { break };
            std::thread::park_timeout(remaining.min(STOP_CHECK_INTERVAL));
        }
    }

    /// Creates a client for each node, by the index of the node.
    pub(super) fn new_clients(&self) -> Vec<Client> {
        self.nodes.iter().map(|node| Client::new(node.endpoint.clone())).collect()
    }

    /// Returns the number of nodes, including removed nodes.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the URL of a node without secrets.
    pub(super) fn name(&self, index: usize) -> String {
        self.nodes[index].endpoint.to_string()
    }

    /// Chooses the next node to call: the first node from `first_index` on that is neither removed
    /// nor paused. The search wraps around at the last node.
    ///
    /// # Errors
    /// Fails if all nodes were removed, or if all are paused and no call has succeeded for the time
    /// of `patience`.
    pub(super) fn choose_node(&self, first_index: usize) -> Result<NodeChoice, SyncError> {
        let now = self.started.elapsed();
        let mut shortest_pause: Option<Duration> = None;
        for offset in 0..self.nodes.len() {
            let index = (first_index + offset) % self.nodes.len();
            let state = self.nodes[index].state.lock();
            if state.removal_reason.is_some() {
                continue;
            }
            match state.backoff.remaining(now) {
                None => return Ok(NodeChoice::Node(index)),
                Some(pause) => {
                    shortest_pause =
                        Some(shortest_pause.map_or(pause, |shortest| shortest.min(pause)))
                }
            }
        }
        let since_success = self.succeeded_at.lock().elapsed();
        let may_wait = self.patience.is_none_or(|patience| since_success < patience);
        let reason = match shortest_pause {
            Some(pause) if may_wait => return Ok(NodeChoice::Wait(pause)),
            Some(_) => "all nodes have failed for too long",
            None => "all nodes were removed",
        };
        Err(SyncError::Nodes(format!("{reason}; {}", self.last_errors())))
    }

    /// Returns a text that states for each node the reason of its removal, or else its last error.
    pub(super) fn last_errors(&self) -> String {
        let describe = |node: &Node| {
            let state = node.state.lock();
            let error = state.removal_reason.as_ref().or(state.last_error.as_ref());
            format!("{}: {}", node.endpoint, error.map_or("was not called", String::as_str))
        };
        self.nodes.iter().map(describe).collect::<Vec<_>>().join("; ")
    }

    /// Records a success of a node.
    pub(super) fn record_success(&self, index: usize) {
        self.nodes[index].state.lock().backoff.record_success();
        *self.succeeded_at.lock() = Instant::now();
    }

    /// Records that a node returned the blocks of this range.
    pub(super) fn record_fetch(&self, index: usize, (from, to): (u64, u64)) {
        self.record_success(index);
        for node in &self.nodes {
            node.state.lock().missing_block.take_if(|block| (from..=to).contains(block));
        }
    }

    /// Records the failure of a call that started at `started`. `block` is the block that `reason`
    /// names; `None` if it names none. `requested_pause` is the pause that the node requested;
    /// `None` if it requested none. Reports the node if this is its first pause since a success.
    pub(super) fn record_failure(
        &self,
        index: usize,
        (block, reason): (Option<u64>, &str),
        started: Instant,
        requested_pause: Option<Duration>,
    ) {
        let mut state = self.nodes[index].state.lock();
        // Workers are ahead of the first missing block, so blocks above it may fail after it.
        let is_above_missing_block = state.missing_block.zip(block).is_some_and(|(a, b)| a < b);
        if !is_above_missing_block {
            state.last_error = Some(reason.to_owned());
            state.missing_block = block;
        }
        let started = started.saturating_duration_since(self.started);
        if state.backoff.record_failure(started, self.started.elapsed(), requested_pause) {
            let reason = reason.to_owned();
            self.observer.on_event(&Event::NodePaused { node: self.name(index), reason });
        }
    }

    /// Removes a node. The sync never calls the node again.
    pub(super) fn remove(&self, index: usize, reason: &str) {
        let mut state = self.nodes[index].state.lock();
        if state.removal_reason.is_none() {
            state.removal_reason = Some(reason.to_owned());
            let reason = reason.to_owned();
            self.observer.on_event(&Event::NodeRemoved { node: self.name(index), reason });
        }
    }

    /// Calls one node until `read` accepts its responses, at most [`IDENTIFY_ATTEMPTS`] times.
    ///
    /// # Errors
    /// Returns the last error of `read`. Returns `None` if `read` was never called, because the
    /// node did not respond or the sync was stopped.
    pub(super) fn call_node<T>(
        &self,
        index: usize,
        calls: &[Call],
        read: impl Fn(&Responses) -> Result<T, String>,
    ) -> Result<T, Option<String>> {
        let mut read_error = None;
        for _ in 0..IDENTIFY_ATTEMPTS {
            if self.is_stopped() {
                break;
            }
            let started = Instant::now();
            let responses = self.clients.lock()[index].call(calls);
            let reason = match responses.as_ref().map(&read) {
                Ok(Ok(value)) => {
                    self.record_success(index);
                    return Ok(value);
                }
                Ok(Err(reason)) => read_error.insert(reason).clone(),
                Err(error) => error.to_string(),
            };
            self.record_failure(index, (None, &reason), started, None);
            self.pause(IDENTIFY_PAUSE);
        }
        Err(read_error)
    }

    /// Records that the chain of a node could not be identified when the sync started.
    pub(super) fn set_unidentified(&self, index: usize) {
        self.nodes[index].state.lock().is_unidentified = true;
    }

    /// Sets the chain that all nodes must be on.
    pub(super) fn set_chain(&self, chain: &Chain, contents: Contents) {
        self.chain.get_or_init(|| (chain.clone(), contents));
    }

    /// Returns true if a node is on the chain of the sync, or if that chain is not set yet. If the
    /// node's chain is still unknown, identifies it with this client. Returns false if this fails.
    pub(super) fn is_on_chain(&self, index: usize, client: &mut Client) -> bool {
        let Some((chain, contents)) = self.chain.get() else { return true };
        if !self.nodes[index].state.lock().is_unidentified {
            return true;
        }
        let started = Instant::now();
        let responses = client.call(&identity_calls(*contents));
        match responses.map(|responses| read_chain(&responses, *contents)) {
            Ok(Ok(node_chain)) if node_chain == *chain => {
                self.nodes[index].state.lock().is_unidentified = false;
                return true;
            }
            Ok(Ok(node_chain)) => self.remove(index, &describe_wrong_chain(&node_chain)),
            Ok(Err(reason)) => self.record_failure(index, (None, &reason), started, None),
            Err(error) => {
                self.record_failure(index, (None, &error.to_string()), started, error.retry_after())
            }
        }
        false
    }

    /// Calls one node after the other until a node responds. Returns `None` if the sync was
    /// stopped.
    ///
    /// # Errors
    /// Fails as [`NodePool::choose_node`] does.
    pub(super) fn call(&self, calls: &[Call]) -> Result<Option<Responses>, SyncError> {
        self.call_until(calls, Ok)
    }

    /// Calls one node after the other until `read` accepts the responses of a node. Returns `None`
    /// if the sync was stopped.
    fn call_until<T>(
        &self,
        calls: &[Call],
        read: impl Fn(Responses) -> Result<T, String>,
    ) -> Result<Option<T>, SyncError> {
        let mut first_index = 0;
        loop {
            if self.is_stopped() {
                return Ok(None);
            }
            let index = match self.choose_node(first_index)? {
                NodeChoice::Node(index) => index,
                NodeChoice::Wait(pause) => {
                    self.pause(pause);
                    continue;
                }
            };
            let started = Instant::now();
            let responses = {
                let mut clients = self.clients.lock();
                if !self.is_on_chain(index, &mut clients[index]) {
                    first_index = index + 1;
                    continue;
                }
                clients[index].call(calls)
            };
            let (reason, requested_pause) = match responses.map(&read) {
                Ok(Ok(value)) => {
                    self.record_success(index);
                    return Ok(Some(value));
                }
                Ok(Err(reason)) => (reason, None),
                Err(error) => (error.to_string(), error.retry_after()),
            };
            self.record_failure(index, (None, &reason), started, requested_pause);
            first_index = index + 1;
        }
    }

    /// Returns the tip of the chain: its newest and its last finalized block. Returns `None` if the
    /// sync was stopped.
    ///
    /// # Errors
    /// Fails as [`NodePool::choose_node`] does.
    pub(super) fn tip(&self) -> Result<Option<Tip>, SyncError> {
        let calls =
            [Call::new("eth_blockNumber", "[]"), Call::new(calls::BLOCK, r#"["finalized",false]"#)];
        self.call_until(&calls, |responses| {
            let head = responses.result(0).map(quantity::from_value);
            let head = head.map_err(|error| format!("eth_blockNumber: {error}"))?;
            let head = head.ok_or("eth_blockNumber: not a quantity")?;
            if head > BLOCK_NUMBER_MAX {
                return Err(format!("eth_blockNumber: {head}, which is too high for any chain"));
            }
            let finalized = responses.result(1).ok().and_then(|raw| walk::member(raw, "number"));
            let finalized = finalized.and_then(quantity::from_value);
            let finalized = finalized.unwrap_or(head.saturating_sub(FINALITY_DEPTH));
            Ok(Tip { head, finalized: finalized.min(head) })
        })
    }

    /// Returns the hash of the block with this number. Returns `None` if the node has no such block
    /// or returns an error for it, or if the sync was stopped.
    ///
    /// # Errors
    /// Fails as [`NodePool::choose_node`] does.
    pub(super) fn block_hash(&self, number: u64) -> Result<Option<[u8; 32]>, SyncError> {
        let full_transactions = false;
        let calls = [calls::block(number, full_transactions)];
        let Some(responses) = self.call(&calls)? else { return Ok(None) };
        let hash = responses.result(0).ok().and_then(|raw| walk::member(raw, "hash"));
        Ok(hash.and_then(hex::hash_from_value))
    }
}
