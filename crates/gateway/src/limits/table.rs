//! The keys of one part of a zone: a flat table of fixed size, so that a call costs one look at
//! memory that is not in a cache, and a flood of keys costs nobody else's memory.
//!
//! Open addressing with linear probing; a key that goes leaves no gap behind (entries after it move
//! up). Nothing is allocated after the start, and the system gives memory only where keys come to
//! lie. What the states mean is `policy/limit.rs`.

use crate::policy::limit::State;

mod hint;

/// Longest key that is kept as it is; of a longer one its digest is.
pub(super) const KEY_BYTES_INLINE: usize = 23;
/// What an entry takes of memory.
const ENTRY_BYTES: usize = 48;
/// Share of the places that may be taken: beyond it runs of taken places grow long.
const LOAD: (usize, usize) = (3, 4);
/// What a key takes of a zone's memory, free places counted in: as much as nginx's states do.
pub(crate) const KEY_BYTES: usize = ENTRY_BYTES * LOAD.1 / LOAD.0;
/// Places looked at for the key that was called least lately, when one has to go.
const LOOKED_AT: usize = 32;

/// A key as it is found by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Material {
    /// Never 0, which marks a free place.
    pub(super) hash: u64,
    pub(super) key: [u64; 3],
}

/// Hash, key, excess with the time of the last call, time of the last charge. Plain words, so that
/// fresh memory, which is zero, is a table of free places.
type Entry = [u64; ENTRY_BYTES / 8];

const HASH: usize = 0;
/// Excess in the upper half, the time of the last call (ms, cut) in the lower.
const EXCESS: usize = 4;
/// Time of the last charge with the mark above it, or how many are in flight.
const LAST: usize = 5;
/// The mark of a key; clocks do not come so far.
const MARK: u64 = 1 << 63;

/// A table.
#[derive(Debug)]
pub(super) struct Table {
    places: Vec<Entry>,
    /// Those before it are not used, so that it begins on a huge page.
    first: usize,
    held: usize,
    held_max: usize,
    hand: usize,
    evicted: u64,
}

impl Table {
    /// A table for at most so many keys, at least one.
    pub(super) fn new(keys_max: usize) -> Table {
        let held_max = keys_max.max(1);
        // At least one place is always free, so that every search ends.
        let places = (held_max * LOAD.1).div_ceil(LOAD.0).max(held_max + 1);
        let mut all = vec![[0; ENTRY_BYTES / 8]; places + hint::spare::<Entry>(places)];
        let first = hint::lay_on_huge_pages(&mut all, places);
        all.truncate(first + places);
        Table { places: all, first, held: 0, held_max, hand: first, evicted: 0 }
    }

    /// Keys that it holds.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Keys that had to go for others so far.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Where a key lies.
    pub(super) fn find(&self, material: &Material) -> Option<usize> {
        let mut at = self.home(material.hash);
        loop {
            let entry = &self.places[at];
            if entry[HASH] == 0 {
                return None;
            }
            if entry[HASH] == material.hash && entry[1..4] == material.key {
                return Some(at);
            }
            at = self.next(at);
        }
    }

    /// Has the processor fetch where a key lies, if it lies where it should, without waiting for
    /// it.
    pub(super) fn fetch(&self, material: &Material) {
        if let Some(entry) = self.places.get(self.home(material.hash)) {
            hint::fetch(entry);
        }
    }

    /// The state of the key at a place.
    pub(super) fn state(&self, at: usize) -> State {
        let entry = &self.places[at];
        State { excess: entry[EXCESS] >> 32, last: entry[LAST] & !MARK }
    }

    /// Whether the key at a place was marked since its state was last kept.
    pub(super) fn is_marked(&self, at: usize) -> bool {
        self.places[at][LAST] & MARK != 0
    }

    /// Marks the key at a place.
    pub(super) fn mark(&mut self, at: usize) {
        self.places[at][LAST] |= MARK;
    }

    /// Notes that the key at a place was called, which is all that a refused call leaves.
    pub(super) fn touch(&mut self, at: usize, now: u64) {
        let entry = &mut self.places[at];
        entry[EXCESS] = (entry[EXCESS] & !u64::from(u32::MAX)) | u64::from(now as u32);
    }

    /// Keeps the state of a key that lies at `at`, or nowhere yet: then the key that was called
    /// least lately goes if there is no room, of those under the hand. Where it lies now.
    pub(super) fn keep(
        &mut self,
        material: &Material,
        at: Option<usize>,
        state: State,
        now: u64,
    ) -> usize {
        let at = at.unwrap_or_else(|| {
            if self.held >= self.held_max {
                self.evict(now);
            }
            self.take_place(material)
        });
        // The configuration bounds a burst, and so every excess that is kept, to 32 bits.
        self.places[at][EXCESS] = (state.excess << 32) | u64::from(now as u32);
        self.places[at][LAST] = state.last & !MARK;
        at
    }

    /// Counts one more in flight for a key, unless there are `in_flight_max` or there is no room.
    pub(super) fn enter(&mut self, material: &Material, in_flight_max: u64) -> bool {
        let at = match self.find(material) {
            Some(at) => at,
            None if self.held >= self.held_max => return false,
            None => self.take_place(material),
        };
        let free = self.places[at][LAST] < in_flight_max;
        self.places[at][LAST] += u64::from(free);
        free
    }

    /// Counts one less in flight.
    pub(super) fn leave(&mut self, material: &Material) {
        let Some(at) = self.find(material) else { return };
        self.places[at][LAST] = self.places[at][LAST].saturating_sub(1);
        if self.places[at][LAST] == 0 {
            self.remove(at);
        }
    }

    fn take_place(&mut self, material: &Material) -> usize {
        let mut at = self.home(material.hash);
        while self.places[at][HASH] != 0 {
            at = self.next(at);
        }
        let [first, second, third] = material.key;
        self.places[at] = [material.hash, first, second, third, 0, 0];
        self.held += 1;
        at
    }

    fn evict(&mut self, now: u64) {
        let mut oldest: Option<(u32, usize)> = None;
        let mut at = self.hand;
        for _ in 0..LOOKED_AT.min(self.used()) {
            let entry = &self.places[at];
            if entry[HASH] != 0 {
                let age = (now as u32).wrapping_sub(entry[EXCESS] as u32);
                if oldest.is_none_or(|(most, _)| age > most) {
                    oldest = Some((age, at));
                }
            }
            at = self.next(at);
        }
        self.hand = at;
        match oldest {
            Some((_, at)) => {
                self.remove(at);
                self.evicted += 1;
            }
            // So many free places in a row are next to impossible in a full table.
            None => self.evict(now),
        }
    }

    /// Frees a place and moves up what was put further on because of it.
    fn remove(&mut self, mut hole: usize) {
        let mut at = hole;
        loop {
            at = self.next(at);
            let hash = self.places[at][HASH];
            if hash == 0 {
                break;
            }
            if self.distance(self.home(hash), at) >= self.distance(hole, at) {
                self.places[hole] = self.places[at];
                hole = at;
            }
        }
        self.places[hole][HASH] = 0;
        self.held -= 1;
    }

    /// Where the search for a hash begins: its upper bits, scaled to the number of places (Lemire
    /// 2016, "A fast alternative to the modulo reduction").
    fn home(&self, hash: u64) -> usize {
        self.first + ((u128::from(hash) * self.used() as u128) >> 64) as usize
    }

    /// Places that keys may lie in.
    fn used(&self) -> usize {
        self.places.len() - self.first
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.places.len() { self.first } else { at + 1 }
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.used() - from }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the table keeps what a map would keep, whatever comes and goes, within its bound; and
    //! what goes is old. Method: the same random steps on it and on the standard library's map.

    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn material(number: u64) -> Material {
        // Few distinct upper bits, so that keys collide and wrap around the end.
        Material { hash: (number % 7).wrapping_mul(u64::MAX / 6) | 1, key: [number, 0, 0] }
    }

    fn state(excess: u64, last: u64) -> State {
        State { excess, last }
    }

    proptest! {
        #[test]
        fn it_holds_what_a_map_holds(steps in prop::collection::vec((0u64..40, 0u8..4), 1..300)) {
            let mut table = Table::new(64);
            let mut map = HashMap::new();
            for (now, (number, step)) in steps.into_iter().enumerate() {
                let now = now as u64;
                let material = material(number);
                let at = table.find(&material);
                prop_assert_eq!(at.map(|at| table.state(at)), map.get(&number).copied());
                match (step, at) {
                    (0, Some(at)) => {
                        table.remove(at);
                        map.remove(&number);
                    }
                    (1, Some(at)) => table.touch(at, now),
                    _ => {
                        table.keep(&material, at, state(now * 3, now), now);
                        map.insert(number, state(now * 3, now));
                    }
                }
                prop_assert_eq!(table.held(), map.len());
            }
            for (number, kept) in map {
                let at = table.find(&material(number)).unwrap();
                prop_assert_eq!(table.state(at), kept);
            }
        }
    }

    #[test]
    fn a_full_table_gives_up_what_was_called_least_lately() {
        let mut table = Table::new(10);
        for number in 0..10 {
            table.keep(&material(number), None, state(number, 0), number);
        }
        // Refused calls count as calls: who is refused all the time must not be forgotten.
        table.touch(table.find(&material(0)).unwrap(), 20);
        table.keep(&material(100), None, state(0, 0), 21);
        assert_eq!((table.held(), table.evicted()), (10, 1));
        assert!(table.find(&material(1)).is_none(), "the oldest one stayed");
        assert!(table.find(&material(0)).is_some());
        for number in 200..1200 {
            table.keep(&material(number), None, state(0, 0), number);
            assert!(table.find(&material(number)).is_some());
        }
        assert_eq!((table.held(), table.evicted()), (10, 1001));
    }

    #[test]
    fn those_in_flight_are_counted_to_the_last_and_keep_their_place() {
        let mut table = Table::new(2);
        let (a, b, c) = (material(1), material(2), material(3));
        assert!(table.enter(&a, 2) && table.enter(&a, 2) && !table.enter(&a, 2));
        assert!(table.enter(&b, 2));
        assert!(!table.enter(&c, 2), "there is no room, and nobody in flight may be forgotten");
        table.leave(&b);
        assert!(table.enter(&c, 2));
        table.leave(&a);
        assert!(table.enter(&a, 2) && !table.enter(&a, 2));
        for material in [&a, &a, &c] {
            table.leave(material);
        }
        assert_eq!(table.held(), 0);
        table.leave(&a);
        assert_eq!(table.held(), 0);
    }

    #[test]
    fn the_smallest_table_works() {
        let mut table = Table::new(0);
        for number in 0..100 {
            table.keep(&material(number), None, state(7, 0), number);
            assert_eq!(table.state(table.find(&material(number)).unwrap()), state(7, 0));
            assert_eq!(table.held(), 1);
        }
    }
}
