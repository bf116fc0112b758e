//! The signed transactions of a run: chooses the next one to send, and stores the state of each.
//!
//! One engine thread sends all transactions and owns the [`TransactionQueue`]. So the queue needs
//! no lock, and its order depends on the responses alone. The [`TransactionLog`] is shared with the
//! thread that searches new blocks for the transactions. The size of the queue and of the log
//! depends on the plan's file of transactions, not on the server.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use lab_model::plan::transactions::{Hash, Transactions};
use lab_model::record::Class;
use parking_lot::Mutex;
use wire::json::DEPTH_CEILING;
use wire::response::{Outcome, parse_response};

use super::classify::CallOutcome;

#[cfg(test)]
mod tests;

/// Maximum number of distinct error messages that are counted separately.
const MESSAGES_MAX: usize = 32;
/// Maximum number of characters of a stored message.
const MESSAGE_CHARS_MAX: usize = 120;
/// Name under which all further messages are counted.
const OTHER_MESSAGES: &str = "other messages";

/// Chooses the next transaction to send. A sender account has at most one transaction in flight.
/// The next transaction is the first unsent one whose sender has no transaction in flight.
pub(super) struct TransactionQueue {
    transactions: Arc<Transactions>,
    log: Arc<TransactionLog>,
    /// For each sender without a transaction in flight: the index of its next transaction, and the
    /// time since which that transaction could be sent.
    ready: BinaryHeap<Reverse<(u32, u64)>>,
    /// Number of transactions that were not sent yet.
    unsent: usize,
}

impl TransactionQueue {
    /// Creates a queue with all transactions.
    pub(super) fn new(
        transactions: &Arc<Transactions>,
        log: &Arc<TransactionLog>,
    ) -> TransactionQueue {
        let first_indexes = transactions.first_of_senders.iter();
        TransactionQueue {
            ready: first_indexes.map(|&index| Reverse((index, 0))).collect(),
            unsent: transactions.len(),
            transactions: Arc::clone(transactions),
            log: Arc::clone(log),
        }
    }

    /// Returns the number of transactions that were not sent yet.
    pub(super) fn unsent(&self) -> usize {
        self.unsent
    }

    /// Returns the time since which the next transaction could be sent. Returns `None` if every
    /// sender waits for a response or has sent all of its transactions.
    pub(super) fn ready_since(&self) -> Option<u64> {
        self.ready.peek().map(|Reverse((_, since))| *since)
    }

    /// Takes the next transaction to send it and returns its index. `scheduled_at` is the scheduled
    /// time of the iteration. The inclusion time is the time from `scheduled_at` until the
    /// transaction is found in a block. Returns `None` if every sender waits for a response or has
    /// sent all of its transactions.
    pub(super) fn take(&mut self, scheduled_at: u64) -> Option<u32> {
        let Reverse((index, _)) = self.ready.pop()?;
        self.unsent -= 1;
        self.log.start(index, scheduled_at);
        Some(index)
    }

    /// Ends the sender's wait for the response to this transaction, so that the sender's next
    /// transaction may be sent from `now` on.
    pub(super) fn release_sender(&mut self, index: u32, now: u64) {
        if let Some(next) = self.transactions.next[index as usize] {
            self.ready.push(Reverse((next, now)));
        }
    }

    /// Marks a taken transaction as unsent, because the run ended before it was sent.
    pub(super) fn cancel(&self, index: u32) {
        self.log.cancel(index);
    }

    /// Puts a taken transaction back, because no connection could be opened.
    pub(super) fn put_back(&mut self, index: u32, now: u64) {
        self.log.states[index as usize].set(TransactionState::Unsent);
        self.unsent += 1;
        self.ready.push(Reverse((index, now)));
    }
}

/// State of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TransactionState {
    /// It was not sent.
    Unsent = 0,
    /// It was sent, and no JSON-RPC response to it has arrived.
    Sent = 1,
    /// The server returned a result.
    Accepted = 2,
    /// The server returned a JSON-RPC error.
    Refused = 3,
}

/// A transaction's state, which one thread sets and others read.
#[derive(Debug)]
struct StateCell {
    /// The number of a [`TransactionState`].
    state: AtomicU8,
    /// Scheduled time in nanoseconds since the start of the run.
    scheduled_at: AtomicU64,
}

impl StateCell {
    fn set(&self, state: TransactionState) {
        self.state.store(state as u8, Ordering::Release);
    }

    fn get(&self) -> TransactionState {
        match self.state.load(Ordering::Acquire) {
            0 => TransactionState::Unsent,
            1 => TransactionState::Sent,
            2 => TransactionState::Accepted,
            _ => TransactionState::Refused,
        }
    }
}

/// Number of transactions by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCounts {
    /// Number of transactions that were sent.
    pub sent: u64,
    /// Number of sent transactions with a result.
    pub accepted: u64,
    /// Number of sent transactions with a JSON-RPC error.
    pub refused: u64,
}

/// The states of all transactions of a run.
#[derive(Debug)]
pub struct TransactionLog {
    transactions: Arc<Transactions>,
    states: Vec<StateCell>,
    /// Messages of JSON-RPC errors, each with the number of its errors.
    messages: Mutex<BTreeMap<String, u64>>,
}

impl TransactionLog {
    /// Creates a log of unsent transactions.
    pub fn new(transactions: &Arc<Transactions>) -> Arc<TransactionLog> {
        let unsent = || StateCell {
            state: AtomicU8::new(TransactionState::Unsent as u8),
            scheduled_at: AtomicU64::new(0),
        };
        Arc::new(TransactionLog {
            states: transactions.hashes.iter().map(|_| unsent()).collect(),
            transactions: Arc::clone(transactions),
            messages: Mutex::default(),
        })
    }

    /// Returns the hashes of all transactions, in the order of [`Transactions`].
    pub fn hashes(&self) -> &[Hash] {
        &self.transactions.hashes
    }

    /// Returns a transaction's state, and the scheduled time of its send in nanoseconds since the
    /// start of the run.
    pub fn state(&self, index: usize) -> (TransactionState, u64) {
        let cell = &self.states[index];
        (cell.get(), cell.scheduled_at.load(Ordering::Relaxed))
    }

    /// Counts the transactions by state.
    pub fn count(&self) -> StateCounts {
        let mut counts = StateCounts::default();
        for state in self.states.iter().map(StateCell::get) {
            counts.sent += u64::from(state != TransactionState::Unsent);
            counts.accepted += u64::from(state == TransactionState::Accepted);
            counts.refused += u64::from(state == TransactionState::Refused);
        }
        counts
    }

    /// Returns the messages of JSON-RPC errors, each with the number of its errors. The most
    /// frequent message is first.
    pub fn messages(&self) -> Vec<(String, u64)> {
        let messages = self.messages.lock();
        let mut list: Vec<_> =
            messages.iter().map(|(text, count)| (text.clone(), *count)).collect();
        list.sort_by_key(|(_, count)| Reverse(*count));
        list
    }

    /// Marks a transaction as sent. Must be called before the first byte is sent, because a block
    /// could contain the transaction right after that. `scheduled_at` is in nanoseconds since the
    /// start of the run.
    pub fn start(&self, index: u32, scheduled_at: u64) {
        let cell = &self.states[index as usize];
        cell.scheduled_at.store(scheduled_at, Ordering::Relaxed);
        cell.set(TransactionState::Sent);
    }

    fn cancel(&self, index: u32) {
        self.states[index as usize].set(TransactionState::Unsent);
    }

    /// Records the response to a transaction. Only a JSON-RPC result or error changes the state.
    pub(super) fn record_response(&self, index: u32, outcome: CallOutcome, body: &[u8]) {
        let state = match outcome.class {
            Class::Ok => TransactionState::Accepted,
            Class::RpcError => TransactionState::Refused,
            _ => return,
        };
        self.states[index as usize].set(state);
        if state != TransactionState::Refused {
            return;
        }
        if let Ok(response) = parse_response(body, DEPTH_CEILING)
            && let Outcome::Error { message, .. } = response.outcome
        {
            let message = normalize(&message);
            let mut messages = self.messages.lock();
            let has_room = messages.len() < MESSAGES_MAX || messages.contains_key(&message);
            let message = if has_room { message } else { OTHER_MESSAGES.to_owned() };
            *messages.entry(message).or_default() += 1;
        }
    }
}

/// Replaces the numbers and hashes of a message by `N`, so that errors with the same reason are
/// counted together. Shortens long messages.
fn normalize(message: &str) -> String {
    let mut text = String::new();
    for (index, word) in message.split(' ').enumerate() {
        if index > 0 {
            text.push(' ');
        }
        let trimmed = word.trim_matches(|letter: char| !letter.is_ascii_alphanumeric());
        let digits = trimmed.strip_prefix("0x").unwrap_or(trimmed);
        let has_prefix = trimmed.len() > digits.len();
        let is_number = !digits.is_empty()
            && (digits.bytes().all(|byte| byte.is_ascii_digit())
                || (has_prefix && digits.bytes().all(|byte| byte.is_ascii_hexdigit())));
        match is_number {
            true => text.push_str(&word.replacen(trimmed, "N", 1)),
            false => text.push_str(word),
        }
    }
    let printable = text.chars().filter(|letter| !letter.is_control());
    printable.take(MESSAGE_CHARS_MAX).collect()
}
