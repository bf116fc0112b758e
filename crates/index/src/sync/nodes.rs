//! Which node is asked, and who is left alone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use wire::json::walk;
use wire::{block, quantity};

use super::found::{chain_calls, foreign, read_chain};
use super::{Note, Options, SyncError, Watch};
use crate::nodes::{Call, Line, NodeUrl, Replies};
use crate::places::NUMBER_MAX;
use crate::rules::range::Tip;
use crate::rules::rest::Rest;
use crate::store::{Chain, What};

/// Tries of a node before it is passed over at the start, and the wait between them.
const TRIES: u32 = 6;
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// How often a wait looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The nodes and how they behave.
pub(super) struct Nodes {
    list: Vec<Known>,
    patience: Option<Duration>,
    /// What rests are counted from.
    since: Instant,
    /// When something last went well.
    well: Mutex<Instant>,
    /// The chain that all are to be of, and what is wanted of it, once it is known.
    chain: OnceLock<(Chain, What)>,
    /// For the few questions beside the fetching.
    lines: Mutex<Vec<Line>>,
}

struct Known {
    node: Arc<NodeUrl>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    rest: Rest,
    /// Why it is not asked any more.
    left: Option<String>,
    /// It did not answer when all were asked for their chain.
    unknown: bool,
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
            since: Instant::now(),
            well: Mutex::new(Instant::now()),
            chain: OnceLock::new(),
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
        let now = self.since.elapsed();
        let mut soonest: Option<Duration> = None;
        for step in 0..self.list.len() {
            let at = (turn + step) % self.list.len();
            let state = self.list[at].state.lock();
            if state.left.is_some() {
                continue;
            }
            match state.rest.left(now) {
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

    /// Asks one node, some times, until it says what can be read.
    ///
    /// # Errors
    /// Why what it said last cannot be read; nothing if it said nothing.
    pub(super) fn ask_one<T>(
        &self,
        at: usize,
        calls: &[Call],
        read: impl Fn(&Replies) -> Result<T, String>,
        (watch, stop): (&dyn Watch, &AtomicBool),
    ) -> Result<T, Option<String>> {
        let mut unread = None;
        for _ in 0..TRIES {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let begun = Instant::now();
            let replies = self.lines.lock()[at].ask(calls);
            let why = match replies.as_ref().map(&read) {
                Ok(Ok(found)) => {
                    self.went_well(at);
                    return Ok(found);
                }
                Ok(Err(why)) => unread.insert(why).clone(),
                Err(error) => error.to_string(),
            };
            self.failed(at, &why, (begun, None), watch);
            wait(TRY_AGAIN_AFTER, stop);
        }
        Err(unread)
    }

    /// What chain a node is of could not be found out.
    pub(super) fn is_unknown(&self, at: usize) {
        self.list[at].state.lock().unknown = true;
    }

    /// Who is unknown so far has to be of this chain.
    pub(super) fn are_of(&self, chain: &Chain, what: What) {
        self.chain.get_or_init(|| (chain.clone(), what));
    }

    /// Whether a node is of the chain, which one that was silent before is asked for first, over this
    /// line.
    pub(super) fn belongs(&self, at: usize, line: &mut Line, watch: &dyn Watch) -> bool {
        let Some((chain, what)) = self.chain.get() else { return true };
        if !self.list[at].state.lock().unknown {
            return true;
        }
        let begun = Instant::now();
        let said = line.ask(&chain_calls(*what));
        match said.map(|replies| read_chain(&replies, *what)) {
            Ok(Ok(found)) if found == *chain => {
                self.list[at].state.lock().unknown = false;
                true
            }
            Ok(Ok(found)) => {
                self.leave(at, &foreign(&found), watch);
                false
            }
            Ok(Err(why)) => {
                self.failed(at, &why, (begun, None), watch);
                false
            }
            Err(error) => {
                self.failed(at, &error.to_string(), (begun, error.retry_after()), watch);
                false
            }
        }
    }

    fn gave_up(&self, why: &str) -> SyncError {
        SyncError::Nodes(format!("{why}; {}", self.failures()))
    }

    pub(super) fn went_well(&self, at: usize) {
        let mut state = self.list[at].state.lock();
        state.rest.went_well();
        *self.well.lock() = Instant::now();
    }

    /// Leaves a node alone for a while if it has failed on more than what it was asked at once: when
    /// that was, and how long it wants to be left alone.
    pub(super) fn failed(
        &self,
        at: usize,
        why: &str,
        (begun, asked): (Instant, Option<Duration>),
        watch: &dyn Watch,
    ) {
        let mut state = self.list[at].state.lock();
        state.last = Some(why.to_owned());
        let begun = begun.saturating_duration_since(self.since);
        if state.rest.failed(begun, self.since.elapsed(), asked) {
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
    ) -> Result<Option<Replies>, SyncError> {
        self.ask_until(calls, Ok, (watch, stop))
    }

    /// The same until one says what can be read.
    fn ask_until<T>(
        &self,
        calls: &[Call],
        read: impl Fn(Replies) -> Result<T, String>,
        (watch, stop): (&dyn Watch, &AtomicBool),
    ) -> Result<Option<T>, SyncError> {
        let mut turn = 0;
        loop {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let at = match self.choose(turn)? {
                Choice::Node(at) => at,
                Choice::Wait(pause) => {
                    wait(pause, stop);
                    continue;
                }
            };
            let begun = Instant::now();
            let replies = {
                let mut lines = self.lines.lock();
                if !self.belongs(at, &mut lines[at], watch) {
                    turn = at + 1;
                    continue;
                }
                lines[at].ask(calls)
            };
            let (why, asked) = match replies.map(&read) {
                Ok(Ok(found)) => {
                    self.went_well(at);
                    return Ok(Some(found));
                }
                Ok(Err(why)) => (why, None),
                Err(error) => (error.to_string(), error.retry_after()),
            };
            self.failed(at, &why, (begun, asked), watch);
            turn = at + 1;
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
        let read = |replies: Replies| {
            let head = replies.result(0).map(quantity::from_value);
            let head = head.map_err(|refusal| format!("eth_blockNumber: {refusal}"))?;
            let head = head.ok_or("eth_blockNumber: no quantity")?;
            if head > NUMBER_MAX {
                return Err(format!("eth_blockNumber: {head}, which no chain has"));
            }
            let finalized = replies
                .result(1)
                .ok()
                .and_then(|raw| walk::member(raw, "number"))
                .and_then(quantity::from_value);
            let finalized = finalized.unwrap_or(head.saturating_sub(FINAL_DEPTH));
            Ok(Tip { head, finalized: finalized.min(head) })
        };
        self.ask_until(&calls, read, (watch, stop))
    }

    /// The hash that the nodes have at a number; none if they have none, or if it was told to stop.
    pub(super) fn hash_of(
        &self,
        number: u64,
        watch: &dyn Watch,
        stop: &AtomicBool,
    ) -> Result<Option<[u8; 32]>, SyncError> {
        let calls = [Call::new("eth_getBlockByNumber", format!(r#"["{number:#x}",false]"#))];
        let Some(replies) = self.ask(&calls, watch, stop)? else { return Ok(None) };
        let hash = replies.result(0).ok().and_then(|raw| walk::member(raw, "hash"));
        Ok(hash.and_then(block::hash_of_value))
    }
}

/// Below the head by so much, a block counts as final on chains whose nodes tell nothing: two
/// epochs of Ethereum's, twice.
const FINAL_DEPTH: u64 = 128;
