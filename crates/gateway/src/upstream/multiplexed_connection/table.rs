//! The calls in flight on one connection, by the id that the gateway assigns to each call.
//!
//! Each call occupies a slot. The call's id holds the index and the generation of the slot. The
//! generation rises each time the slot is freed, so a late response never completes a later call.

use std::task::{Poll, Waker};

use bytes::Bytes;
use tokio::time::Instant;

use crate::upstream::exchange::ExchangeError;

/// Bits of an id that hold the index.
const INDEX_BITS: u32 = 16;

/// Identifies a call in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallKey {
    index: u16,
    generation: u32,
}

impl CallKey {
    /// Returns the id for the upstream. The id is below 2^48, so every JSON parser represents it
    /// exactly.
    pub(super) fn id(self) -> u64 {
        u64::from(self.generation) << INDEX_BITS | u64::from(self.index)
    }

    /// Parses an id; `None` if the id is out of range.
    fn from_id(id: u64) -> Option<CallKey> {
        let generation = u32::try_from(id >> INDEX_BITS).ok()?;
        Some(CallKey { index: (id & 0xffff) as u16, generation })
    }
}

/// A call that waits for its response.
#[derive(Debug)]
struct PendingCall {
    /// Wakes the caller; `None` before the caller first polls the call.
    waker: Option<Waker>,
    started: Instant,
    deadline: Instant,
    /// Offset of the call's first byte in the output of the connection.
    offset: u64,
}

#[derive(Debug)]
enum SlotState {
    Free,
    /// The call waits for its response.
    Waiting(PendingCall),
    /// The call has ended, and its caller has not polled it since.
    Done(Result<Bytes, ExchangeError>),
}

#[derive(Debug)]
struct Slot {
    /// Number of times that the slot was freed before.
    generation: u32,
    state: SlotState,
}

/// The calls in flight.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Vec<Slot>,
    /// Indices of free slots.
    free_indices: Vec<u16>,
    /// Number of calls that wait for a response.
    pub(super) waiting_calls: usize,
    /// Lower bound of the deadlines of all waiting calls. The bound may be too early, because the
    /// end of a call does not raise the bound. `None` means that no call waits.
    pub(super) earliest_deadline: Option<Instant>,
}

impl Table {
    /// Adds a call whose first byte has this offset in the output. Returns `None` if the table is
    /// full.
    pub(super) fn insert(
        &mut self,
        started: Instant,
        deadline: Instant,
        offset: u64,
    ) -> Option<CallKey> {
        let index = match self.free_indices.pop() {
            Some(index) => index,
            None => {
                let index = u16::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot { generation: 0, state: SlotState::Free });
                index
            }
        };
        let slot = &mut self.slots[usize::from(index)];
        slot.state = SlotState::Waiting(PendingCall { waker: None, started, deadline, offset });
        self.waiting_calls += 1;
        let earliest = self.earliest_deadline.unwrap_or(deadline);
        self.earliest_deadline = Some(earliest.min(deadline));
        Some(CallKey { index, generation: slot.generation })
    }

    /// Completes the call with this id if the call still waits.
    pub(super) fn complete(
        &mut self,
        id: u64,
        outcome: impl FnOnce() -> Result<Bytes, ExchangeError>,
    ) -> Delivery {
        let Some(key) = CallKey::from_id(id) else { return Delivery::Unknown };
        let Some(slot) = self.slots.get_mut(usize::from(key.index)) else {
            return Delivery::Unknown;
        };
        match &mut slot.state {
            SlotState::Waiting(call) if slot.generation == key.generation => {
                let waker = call.waker.take();
                slot.state = SlotState::Done(outcome());
                self.waiting_calls -= 1;
                Delivery::Delivered(waker)
            }
            _ if key.generation > slot.generation => Delivery::Unknown,
            _ => Delivery::Late,
        }
    }

    /// Returns the id of the waiting call if exactly one call waits.
    pub(super) fn only_waiting_id(&self) -> Option<u64> {
        if self.waiting_calls != 1 {
            return None;
        }
        let index =
            self.slots.iter().position(|slot| matches!(slot.state, SlotState::Waiting(_)))?;
        Some(CallKey { index: index as u16, generation: self.slots[index].generation }.id())
    }

    /// Polls the outcome of a call. A completed call is removed.
    pub(super) fn poll(
        &mut self,
        key: CallKey,
        waker: &Waker,
    ) -> Poll<Result<Bytes, ExchangeError>> {
        let slot = &mut self.slots[usize::from(key.index)];
        debug_assert_eq!(
            slot.generation, key.generation,
            "an index is reused only after its call was removed"
        );
        if let SlotState::Waiting(call) = &mut slot.state {
            if !call.waker.as_ref().is_some_and(|registered| registered.will_wake(waker)) {
                call.waker = Some(waker.clone());
            }
            return Poll::Pending;
        }
        match self.remove(key) {
            SlotState::Done(outcome) => Poll::Ready(outcome),
            SlotState::Waiting(_) | SlotState::Free => Poll::Pending,
        }
    }

    /// Removes a call whose caller has dropped it.
    pub(super) fn abandon(&mut self, key: CallKey) {
        if let SlotState::Waiting(_) = self.remove(key) {
            self.waiting_calls -= 1;
        }
    }

    /// Frees the slot of a call and returns its state.
    fn remove(&mut self, key: CallKey) -> SlotState {
        let slot = &mut self.slots[usize::from(key.index)];
        slot.generation = slot.generation.wrapping_add(1);
        self.free_indices.push(key.index);
        std::mem::replace(&mut slot.state, SlotState::Free)
    }

    /// Fails the calls whose deadline has passed and appends their wakers to `wakers`. `error_at`
    /// returns the error of the call at an output offset. Returns the latest start time of the
    /// failed calls; `None` if no deadline has passed.
    pub(super) fn expire(
        &mut self,
        now: Instant,
        error_at: impl Fn(u64) -> ExchangeError,
        wakers: &mut Vec<Waker>,
    ) -> Option<Instant> {
        let mut last_started = None;
        self.earliest_deadline = None;
        for slot in &mut self.slots {
            let SlotState::Waiting(call) = &mut slot.state else { continue };
            if call.deadline > now {
                let deadline = call.deadline;
                let earliest = self.earliest_deadline.unwrap_or(deadline);
                self.earliest_deadline = Some(earliest.min(deadline));
                continue;
            }
            wakers.extend(call.waker.take());
            last_started = last_started.max(Some(call.started));
            slot.state = SlotState::Done(Err(error_at(call.offset)));
            self.waiting_calls -= 1;
        }
        last_started
    }

    /// Fails all calls and appends their wakers to `wakers`.
    pub(super) fn fail_all(
        &mut self,
        error_at: impl Fn(u64) -> ExchangeError,
        wakers: &mut Vec<Waker>,
    ) {
        self.earliest_deadline = None;
        self.waiting_calls = 0;
        for slot in &mut self.slots {
            if let SlotState::Waiting(call) = &mut slot.state {
                wakers.extend(call.waker.take());
                slot.state = SlotState::Done(Err(error_at(call.offset)));
            }
        }
    }
}

/// How a response was delivered.
#[derive(Debug)]
pub(super) enum Delivery {
    /// A waiting call was completed; holds its waker.
    Delivered(Option<Waker>),
    /// The call was dropped or is already completed.
    Late,
    /// No call has had this id.
    Unknown,
}

#[cfg(test)]
mod tests {
    //! Goal: a response reaches its own call and no other.

    use std::time::Duration;

    use super::*;
    use crate::call::failure::{FailureKind, Sent};

    fn failure(_: u64) -> ExchangeError {
        ExchangeError::new(FailureKind::Closed, Sent::Maybe)
    }

    #[tokio::test]
    async fn responses_reach_their_calls_in_any_order() {
        let mut table = Table::default();
        let now = Instant::now();
        let keys: Vec<CallKey> = (0..5).map(|_| table.insert(now, now, 0).unwrap()).collect();
        for key in keys.iter().rev() {
            let response = Bytes::from(key.id().to_string());
            assert!(matches!(table.complete(key.id(), || Ok(response)), Delivery::Delivered(None)));
        }
        for key in &keys {
            let outcome = table.poll(*key, Waker::noop());
            let Poll::Ready(Ok(response)) = outcome else { panic!("{outcome:?}") };
            assert_eq!(response, key.id().to_string());
        }
        assert_eq!(table.waiting_calls, 0);
    }

    #[tokio::test]
    async fn a_late_response_is_discarded() {
        let mut table = Table::default();
        let now = Instant::now();
        let first = table.insert(now, now, 0).unwrap();
        table.abandon(first);
        let second = table.insert(now, now, 0).unwrap();
        assert_eq!(first.index, second.index, "an index is reused");
        assert_ne!(first.id(), second.id());
        let response = || Ok(Bytes::new());
        assert!(matches!(table.complete(first.id(), response), Delivery::Late));
        assert!(matches!(table.complete(1 << 40, response), Delivery::Unknown));
        assert!(matches!(table.complete(u64::MAX, response), Delivery::Unknown));
        assert!(table.poll(second, Waker::noop()).is_pending());
        assert_eq!(table.only_waiting_id(), Some(second.id()));
        assert!(matches!(table.complete(second.id(), response), Delivery::Delivered(Some(_))));
        assert!(
            matches!(table.complete(second.id(), response), Delivery::Late),
            "a call is completed once"
        );
    }

    #[tokio::test]
    async fn deadlines_pass_one_by_one() {
        let mut table = Table::default();
        let now = Instant::now();
        let after_seconds = |seconds| now + Duration::from_secs(seconds);
        let late = table.insert(now, after_seconds(9), 0).unwrap();
        let early = table.insert(now, after_seconds(3), 0).unwrap();
        assert_eq!(table.earliest_deadline, Some(after_seconds(3)));
        let mut wakers = Vec::new();
        assert_eq!(table.expire(after_seconds(3), failure, &mut wakers), Some(now));
        assert_eq!((table.earliest_deadline, table.waiting_calls), (Some(after_seconds(9)), 1));
        assert!(matches!(table.poll(early, Waker::noop()), Poll::Ready(Err(_))));
        assert!(table.poll(late, Waker::noop()).is_pending());
        table.fail_all(failure, &mut wakers);
        assert_eq!(wakers.len(), 1);
        assert!(matches!(table.poll(late, Waker::noop()), Poll::Ready(Err(_))));
    }

    /// Upper limit of the key `calls_per_connection_max`.
    const CALLS_CEILING: usize = 1 << INDEX_BITS;

    #[tokio::test]
    async fn the_table_is_bounded() {
        let mut table = Table::default();
        let now = Instant::now();
        let inserted = (0..=CALLS_CEILING).filter(|_| table.insert(now, now, 0).is_some()).count();
        assert_eq!(inserted, CALLS_CEILING);
    }
}
