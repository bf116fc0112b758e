//! Which node is asked, and who is left alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use wire::json::walk;
use wire::{block, quantity};

use super::{Note, Options, SyncError, Watch};
use crate::nodes::{AskError, Call, Line, NodeUrl, Replies};
use crate::rules::range::Tip;

/// Wait after a first failure; it doubles with each further one in a row.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest wait.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Tries of a node before it is passed over at the start.
const TRIES: u32 = 6;
/// How often a wait looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The nodes and how they behave.
pub(super) struct Nodes {
    list: Vec<Known>,
    patience: Option<Duration>,
    /// When something last went well.
    well: Mutex<Instant>,
    /// For the few questions beside the fetching.
    lines: Mutex<Vec<Line>>,
}

struct Known {
    node: Arc<NodeUrl>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Failures in a row.
    failures: u32,
    paused_until: Option<Instant>,
    /// Why it is not asked any more.
    left: Option<String>,
    last: Option<String>,
}

/// Whom to ask.
pub(super) enum Choice {
    /// This one.
    Node(usize),
    /// Nobody for so long.
    Wait(Duration),
}

/// Waits, unless it is told to stop.
pub(super) fn wait(time: Duration, stop: &AtomicBool) {
    let until = Instant::now() + time;
    while !stop.load(Ordering::Relaxed) {
        let Some(left) = until.checked_duration_since(Instant::now()) else { break };
        // Woken early by nobody; whether it is to end is looked at each time.
        std::thread::park_timeout(left.min(LOOK_EVERY));
    }
}

impl Nodes {
    pub(super) fn new(options: &Options) -> Nodes {
        let known = |node: &Arc<NodeUrl>| Known { node: node.clone(), state: Mutex::default() };
        Nodes {
            list: options.nodes.iter().map(known).collect(),
            patience: options.patience,
            well: Mutex::new(Instant::now()),
            lines: Mutex::new(options.nodes.iter().cloned().map(Line::new).collect()),
        }
    }

    /// A line to each node.
    pub(super) fn lines(&self) -> Vec<Line> {
        self.list.iter().map(|known| Line::new(known.node.clone())).collect()
    }

    pub(super) fn name(&self, at: usize) -> String {
        self.list[at].node.to_string()
    }

    /// The next node to be asked, from `turn` on.
    ///
    /// # Errors
    /// If none is left, or all have failed for too long.
    pub(super) fn choose(&self, turn: usize) -> Result<Choice, SyncError> {
        let now = Instant::now();
        let mut soonest: Option<Duration> = None;
        for step in 0..self.list.len() {
            let at = (turn + step) % self.list.len();
            let state = self.list[at].state.lock();
            if state.left.is_some() {
                continue;
            }
            match state.paused_until.and_then(|until| until.checked_duration_since(now)) {
                None => return Ok(Choice::Node(at)),
                Some(pause) => soonest = Some(soonest.map_or(pause, |known| known.min(pause))),
            }
        }
        let patient = self.patience.is_none_or(|patience| self.well.lock().elapsed() < patience);
        match soonest {
            Some(pause) if patient => Ok(Choice::Wait(pause)),
            Some(_) => Err(self.gave_up("no node has given anything for too long")),
            None => Err(self.gave_up("no node is left to ask")),
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// What each said last.
    pub(super) fn failures(&self) -> String {
        let list: Vec<String> = self
            .list
            .iter()
            .map(|known| {
                let state = known.state.lock();
                let said = state.left.as_ref().or(state.last.as_ref());
                format!("{}: {}", known.node, said.map_or("was not asked", String::as_str))
            })
            .collect();
        list.join("; ")
    }

    /// Asks one node, some times; none if nothing came of it.
    pub(super) fn ask_one(
        &self,
        at: usize,
        calls: &[Call],
        watch: &dyn Watch,
        stop: &AtomicBool,
    ) -> Option<Replies> {
        for _ in 0..TRIES {
            if stop.load(Ordering::Relaxed) {
                return None;
            }
            match self.lines.lock()[at].ask(calls) {
                Ok(replies) => {
                    self.went_well(at);
                    return Some(replies);
                }
                Err(error) => self.failed(at, &error.to_string(), None, watch),
            }
            wait(PAUSE_MIN, stop);
        }
        None
    }

    fn gave_up(&self, why: &str) -> SyncError {
        SyncError::Nodes(format!("{why}; {}", self.failures()))
    }

    pub(super) fn went_well(&self, at: usize) {
        let mut state = self.list[at].state.lock();
        state.failures = 0;
        state.paused_until = None;
        *self.well.lock() = Instant::now();
    }

    /// Leaves a node alone for a while, longer with each failure in a row.
    pub(super) fn failed(&self, at: usize, why: &str, asked: Option<Duration>, watch: &dyn Watch) {
        let mut state = self.list[at].state.lock();
        state.last = Some(why.to_owned());
        // Several threads fail on it at once: that is one failure.
        if state.paused_until.is_some_and(|until| until > Instant::now()) {
            return;
        }
        state.failures = state.failures.saturating_add(1);
        let grown = PAUSE_MIN.saturating_mul(1 << (state.failures - 1).min(10));
        let pause = asked.unwrap_or(grown).min(PAUSE_MAX);
        state.paused_until = Some(Instant::now() + pause);
        // The first of several threads that fail on it tells.
        if state.failures == 1 {
            watch.note(&Note::Failed { node: self.name(at), why: why.to_owned() });
        }
    }

    /// Never asks a node again.
    pub(super) fn leave(&self, at: usize, why: &str, watch: &dyn Watch) {
        let mut state = self.list[at].state.lock();
        if state.left.is_none() {
            state.left = Some(why.to_owned());
            watch.note(&Note::Left { node: self.name(at), why: why.to_owned() });
        }
    }

    /// Asks one node after the other until one answers; none if it was told to stop.
    pub(super) fn ask(
        &self,
        calls: &[Call],
        watch: &dyn Watch,
        stop: &AtomicBool,
    ) -> Result<Option<(usize, Replies)>, SyncError> {
        let mut turn = 0;
        loop {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            match self.choose(turn)? {
                Choice::Wait(pause) => wait(pause, stop),
                Choice::Node(at) => {
                    let replies = self.lines.lock()[at].ask(calls);
                    match replies {
                        Ok(replies) => {
                            self.went_well(at);
                            return Ok(Some((at, replies)));
                        }
                        Err(error) => {
                            let asked = match &error {
                                AskError::Status { retry_after, .. } => *retry_after,
                                _ => None,
                            };
                            self.failed(at, &error.to_string(), asked, watch);
                            turn = at + 1;
                        }
                    }
                }
            }
        }
    }

    /// The end of the chain; none if it was told to stop. Nodes without `finalized` have no final
    /// blocks that we could tell, but for those far below the head.
    pub(super) fn tip(
        &self,
        watch: &dyn Watch,
        stop: &AtomicBool,
    ) -> Result<Option<Tip>, SyncError> {
        let calls = [
            Call::new("eth_blockNumber", "[]"),
            Call::new("eth_getBlockByNumber", r#"["finalized",false]"#),
        ];
        loop {
            let Some((at, replies)) = self.ask(&calls, watch, stop)? else { return Ok(None) };
            let head = replies.result(0).map(quantity::from_value);
            match head {
                Ok(Some(head)) => {
                    let finalized = replies
                        .result(1)
                        .ok()
                        .and_then(|raw| walk::member(raw, "number"))
                        .and_then(quantity::from_value);
                    let finalized = finalized.unwrap_or(head.saturating_sub(FINAL_DEPTH));
                    return Ok(Some(Tip { head, finalized: finalized.min(head) }));
                }
                Ok(None) => self.failed(at, "eth_blockNumber: no quantity", None, watch),
                Err(refusal) => {
                    self.failed(at, &format!("eth_blockNumber: {refusal}"), None, watch);
                }
            }
        }
    }

    /// The hash that the nodes have at a number; none if they have none, or if it was told to stop.
    pub(super) fn hash_of(
        &self,
        number: u64,
        watch: &dyn Watch,
        stop: &AtomicBool,
    ) -> Result<Option<[u8; 32]>, SyncError> {
        let calls = [Call::new("eth_getBlockByNumber", format!(r#"["{number:#x}",false]"#))];
        let Some((_, replies)) = self.ask(&calls, watch, stop)? else { return Ok(None) };
        let hash = replies.result(0).ok().and_then(|raw| walk::member(raw, "hash"));
        Ok(hash.and_then(block::hash_of_value))
    }
}

/// Below the head by so much, a block counts as final on chains whose nodes tell nothing: two
/// epochs of Ethereum's, twice.
const FINAL_DEPTH: u64 = 128;
