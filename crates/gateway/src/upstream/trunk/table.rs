//! The calls under way on one trunk, by private id.
//!
//! An id is a place in the table and how often the place was given away before, so that a late
//! answer to a call that nobody waits for any more cannot be taken for the answer to another.

use std::task::{Poll, Waker};

use bytes::Bytes;
use tokio::time::Instant;

use crate::upstream::trunk::Lost;

/// Bits of an id that name the place.
const PLACE_BITS: u32 = 16;

/// A call's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    place: u16,
    turn: u32,
}

impl Key {
    /// The id that the upstream sees: below 2^48, which every JSON reader keeps exact.
    pub(super) fn id(self) -> u64 {
        u64::from(self.turn) << PLACE_BITS | u64::from(self.place)
    }

    fn of(id: u64) -> Option<Key> {
        let turn = u32::try_from(id >> PLACE_BITS).ok()?;
        Some(Key { place: (id & 0xffff) as u16, turn })
    }
}

/// A call that waits for its answer.
#[derive(Debug)]
struct Waiting {
    waker: Option<Waker>,
    begun: Instant,
    deadline: Instant,
    /// Where in all that was to be sent its first byte stands.
    start: u64,
}

#[derive(Debug)]
enum State {
    Free,
    Waiting(Waiting),
    Done(Result<Bytes, Lost>),
}

#[derive(Debug)]
struct Slot {
    turn: u32,
    state: State,
}

/// The calls under way.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<u16>,
    waiting: usize,
    /// No waiting call has an earlier deadline.
    earliest: Option<Instant>,
}

impl Table {
    /// Calls that wait for their answer.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// The time before which no deadline passes.
    pub(super) fn earliest(&self) -> Option<Instant> {
        self.earliest
    }

    /// A place for a call; none while the table is full.
    pub(super) fn enter(&mut self, begun: Instant, deadline: Instant, start: u64) -> Option<Key> {
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                let place = u16::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot { turn: 0, state: State::Free });
                place
            }
        };
        let slot = &mut self.slots[usize::from(place)];
        slot.state = State::Waiting(Waiting { waker: None, begun, deadline, start });
        self.waiting += 1;
        self.earliest = Some(self.earliest.map_or(deadline, |earliest| earliest.min(deadline)));
        Some(Key { place, turn: slot.turn })
    }

    /// Ends the call with this id; who is to be woken. Nothing happens where nobody waits for it.
    pub(super) fn end(&mut self, id: u64, outcome: impl FnOnce() -> Result<Bytes, Lost>) -> Ended {
        let Some(key) = Key::of(id) else { return Ended::Unknown };
        let Some(slot) = self.slots.get_mut(usize::from(key.place)) else {
            return Ended::Unknown;
        };
        match &mut slot.state {
            State::Waiting(waiting) if slot.turn == key.turn => {
                let waker = waiting.waker.take();
                slot.state = State::Done(outcome());
                self.waiting -= 1;
                Ended::Waited(waker)
            }
            _ if key.turn > slot.turn => Ended::Unknown,
            _ => Ended::Late,
        }
    }

    /// The only call that waits, if it is the only one.
    pub(super) fn only(&self) -> Option<u64> {
        if self.waiting != 1 {
            return None;
        }
        let waits = |slot: &&Slot| matches!(slot.state, State::Waiting(_));
        let place = self.slots.iter().position(|slot| waits(&slot))?;
        Some(Key { place: place as u16, turn: self.slots[place].turn }.id())
    }

    /// The outcome of a call, whose place is free then.
    pub(super) fn poll(&mut self, key: Key, waker: &Waker) -> Poll<Result<Bytes, Lost>> {
        let slot = &mut self.slots[usize::from(key.place)];
        debug_assert_eq!(slot.turn, key.turn, "a place is given away once it is left");
        if let State::Waiting(waiting) = &mut slot.state {
            if !waiting.waker.as_ref().is_some_and(|own| own.will_wake(waker)) {
                waiting.waker = Some(waker.clone());
            }
            return Poll::Pending;
        }
        match self.leave(key) {
            State::Done(outcome) => Poll::Ready(outcome),
            State::Waiting(_) | State::Free => Poll::Pending,
        }
    }

    /// A call whose answer nobody wants any more.
    pub(super) fn abandon(&mut self, key: Key) {
        if let State::Waiting(_) = self.leave(key) {
            self.waiting -= 1;
        }
    }

    fn leave(&mut self, key: Key) -> State {
        let slot = &mut self.slots[usize::from(key.place)];
        slot.turn = slot.turn.wrapping_add(1);
        self.free.push(key.place);
        std::mem::replace(&mut slot.state, State::Free)
    }

    /// Ends calls whose deadline has passed; wakes those who wait. When the last of them had begun,
    /// if there was one.
    pub(super) fn expire(
        &mut self,
        now: Instant,
        lost: impl Fn(u64) -> Lost,
        woken: &mut Vec<Waker>,
    ) -> Option<Instant> {
        let mut last = None;
        self.earliest = None;
        for slot in &mut self.slots {
            let State::Waiting(waiting) = &mut slot.state else { continue };
            if waiting.deadline > now {
                let deadline = waiting.deadline;
                self.earliest = Some(self.earliest.map_or(deadline, |own| own.min(deadline)));
                continue;
            }
            woken.extend(waiting.waker.take());
            last = last.max(Some(waiting.begun));
            slot.state = State::Done(Err(lost(waiting.start)));
            self.waiting -= 1;
        }
        last
    }

    /// Ends all calls.
    pub(super) fn fail(&mut self, lost: impl Fn(u64) -> Lost, woken: &mut Vec<Waker>) {
        self.earliest = None;
        self.waiting = 0;
        for slot in &mut self.slots {
            if let State::Waiting(waiting) = &mut slot.state {
                woken.extend(waiting.waker.take());
                slot.state = State::Done(Err(lost(waiting.start)));
            }
        }
    }
}

/// What became of an answer.
#[derive(Debug)]
pub(super) enum Ended {
    /// A call waited for it; who is to be woken.
    Waited(Option<Waker>),
    /// Nobody waits for it any more.
    Late,
    /// No call had this id.
    Unknown,
}

#[cfg(test)]
mod tests {
    //! Goal: an answer reaches the call that it is for, and no other.

    use std::time::Duration;

    use super::*;
    use crate::call::failure::Kind;
    use crate::policy::retry::Sent;

    fn lost(_: u64) -> Lost {
        Lost { kind: Kind::Closed, sent: Sent::Maybe, stale: false }
    }

    #[tokio::test]
    async fn answers_reach_their_calls_in_any_order() {
        let mut table = Table::default();
        let now = Instant::now();
        let keys: Vec<Key> = (0..5).map(|_| table.enter(now, now, 0).unwrap()).collect();
        for key in keys.iter().rev() {
            let answer = Bytes::from(key.id().to_string());
            assert!(matches!(table.end(key.id(), || Ok(answer)), Ended::Waited(None)));
        }
        for key in &keys {
            let outcome = table.poll(*key, Waker::noop());
            let Poll::Ready(Ok(answer)) = outcome else { panic!("{outcome:?}") };
            assert_eq!(answer, key.id().to_string());
        }
        assert_eq!(table.waiting(), 0);
    }

    #[tokio::test]
    async fn a_late_answer_is_nobodys() {
        let mut table = Table::default();
        let now = Instant::now();
        let first = table.enter(now, now, 0).unwrap();
        table.abandon(first);
        let second = table.enter(now, now, 0).unwrap();
        assert_eq!(first.place, second.place, "a place is used again");
        assert_ne!(first.id(), second.id());
        let answer = || Ok(Bytes::new());
        assert!(matches!(table.end(first.id(), answer), Ended::Late));
        assert!(matches!(table.end(1 << 40, answer), Ended::Unknown));
        assert!(matches!(table.end(u64::MAX, answer), Ended::Unknown));
        assert!(table.poll(second, Waker::noop()).is_pending());
        assert_eq!(table.only(), Some(second.id()));
        assert!(matches!(table.end(second.id(), answer), Ended::Waited(Some(_))));
        assert!(matches!(table.end(second.id(), answer), Ended::Late), "an answer comes once");
    }

    #[tokio::test]
    async fn deadlines_pass_one_by_one() {
        let mut table = Table::default();
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let late = table.enter(now, at(9), 0).unwrap();
        let early = table.enter(now, at(3), 0).unwrap();
        assert_eq!(table.earliest(), Some(at(3)));
        let mut woken = Vec::new();
        assert_eq!(table.expire(at(3), lost, &mut woken), Some(now));
        assert_eq!((table.earliest(), table.waiting()), (Some(at(9)), 1));
        assert!(matches!(table.poll(early, Waker::noop()), Poll::Ready(Err(_))));
        assert!(table.poll(late, Waker::noop()).is_pending());
        table.fail(lost, &mut woken);
        assert_eq!(woken.len(), 1);
        assert!(matches!(table.poll(late, Waker::noop()), Poll::Ready(Err(_))));
    }

    /// What `calls_per_connection_max` can be at most.
    const CALLS_CEILING: usize = 1 << PLACE_BITS;

    #[tokio::test]
    async fn the_table_is_bounded() {
        let mut table = Table::default();
        let now = Instant::now();
        let entered = (0..=CALLS_CEILING).filter(|_| table.enter(now, now, 0).is_some()).count();
        assert_eq!(entered, CALLS_CEILING);
    }
}
