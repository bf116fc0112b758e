//! The keys of one part of a zone, in a flat table of fixed size. A call costs one cache miss, and
//! a flood of keys uses no further memory.
//!
//! The table uses open addressing with linear probing and backward-shift deletion. Nothing is
//! allocated after the start, and the system commits memory only for used pages. `policy/limit.rs`
//! defines the states.

use crate::policy::limit::KeyState;

mod hint;

/// Longest key, in bytes, that is stored unchanged. A longer key is stored as its digest.
pub(super) const KEY_BYTES_INLINE: usize = 23;
/// Bytes of an entry.
const ENTRY_BYTES: usize = 48;
/// Numerator and denominator of the maximum load factor. Above it, runs of used slots grow long.
const LOAD: (usize, usize) = (3, 4);
/// Bytes of a zone's memory per key, free slots included. A key of an nginx zone takes as much.
pub(crate) const KEY_BYTES: usize = ENTRY_BYTES * LOAD.1 / LOAD.0;
/// Number of slots examined to find the least recently used key for an eviction.
const EVICTION_SCAN: usize = 32;

/// A key with its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HashedKey {
    /// Never 0, which marks a free slot.
    pub(super) hash: u64,
    pub(super) key: [u64; 3],
}

/// An entry holds the hash, the key, the excess with the time of the last call, and the time of the
/// last charge. All are plain integers, so zeroed memory is a table of free slots.
type Entry = [u64; ENTRY_BYTES / 8];

const HASH: usize = 0;
/// Index of the integer with the excess in the upper half and the time of the last call (ms,
/// truncated) in the lower half.
const EXCESS: usize = 4;
/// Index of the integer with the time of the last charge and the `UNREPORTED` bit, or with the
/// number of calls in flight.
const LAST: usize = 5;
/// Bit that marks a key as unreported. No time is this large.
const UNREPORTED: u64 = 1 << 63;

/// A table of keys.
#[derive(Debug)]
pub(super) struct Table {
    slots: Vec<Entry>,
    /// Index of the first used slot. Earlier slots are unused, so that the table begins on a huge
    /// page.
    first_slot: usize,
    /// Number of keys.
    pub(super) len: usize,
    /// Maximum number of keys.
    len_max: usize,
    /// Slot at which the next eviction scan starts.
    next_scan_slot: usize,
    /// Number of evicted keys.
    pub(super) evicted: u64,
}

impl Table {
    /// Creates a table for at most `keys_max` keys, but for at least one.
    pub(super) fn new(keys_max: usize) -> Table {
        let len_max = keys_max.max(1);
        // At least one slot is always free, so that every search ends.
        let count = (len_max * LOAD.1).div_ceil(LOAD.0).max(len_max + 1);
        let mut slots = vec![[0; ENTRY_BYTES / 8]; count + hint::spare::<Entry>(count)];
        let first_slot = hint::place_on_huge_pages(&mut slots, count);
        slots.truncate(first_slot + count);
        Table { slots, first_slot, len: 0, len_max, next_scan_slot: first_slot, evicted: 0 }
    }

    /// Returns the slot of a key.
    pub(super) fn find(&self, hashed_key: &HashedKey) -> Option<usize> {
        let mut slot = self.home_slot(hashed_key.hash);
        loop {
            let entry = &self.slots[slot];
            if entry[HASH] == 0 {
                return None;
            }
            if entry[HASH] == hashed_key.hash && entry[1..4] == hashed_key.key {
                return Some(slot);
            }
            slot = self.next_slot(slot);
        }
    }

    /// Prefetches the slot where a key's search begins, without waiting.
    pub(super) fn prefetch(&self, hashed_key: &HashedKey) {
        if let Some(entry) = self.slots.get(self.home_slot(hashed_key.hash)) {
            hint::prefetch(entry);
        }
    }

    /// Returns the state of the key in a slot.
    pub(super) fn state(&self, slot: usize) -> KeyState {
        let entry = &self.slots[slot];
        KeyState { excess: entry[EXCESS] >> 32, last: entry[LAST] & !UNREPORTED }
    }

    /// Returns true if the key in a slot was marked as unreported since its state was last stored.
    pub(super) fn is_unreported(&self, slot: usize) -> bool {
        self.slots[slot][LAST] & UNREPORTED != 0
    }

    /// Marks the key in a slot as unreported: Redis may not know its last charge.
    pub(super) fn mark_unreported(&mut self, slot: usize) {
        self.slots[slot][LAST] |= UNREPORTED;
    }

    /// Records the time of a call with the key in a slot. A rejected call has no other effect.
    pub(super) fn touch(&mut self, slot: usize, now: u64) {
        let entry = &mut self.slots[slot];
        entry[EXCESS] = (entry[EXCESS] & !u64::from(u32::MAX)) | u64::from(now as u32);
    }

    /// Stores the state of a key in `slot`, or in a new slot if `slot` is `None`. If the table is
    /// full, the least recently used of the examined keys is evicted. Returns the slot.
    pub(super) fn store(
        &mut self,
        hashed_key: &HashedKey,
        slot: Option<usize>,
        state: KeyState,
        now: u64,
    ) -> usize {
        let slot = slot.unwrap_or_else(|| {
            if self.len >= self.len_max {
                self.evict(now);
            }
            self.claim_slot(hashed_key)
        });
        // The configuration bounds a burst, and so every stored excess, to 32 bits.
        self.slots[slot][EXCESS] = (state.excess << 32) | u64::from(now as u32);
        self.slots[slot][LAST] = state.last & !UNREPORTED;
        slot
    }

    /// Adds a call in flight to a key. Returns false at `in_flight_max`, or if the table is full.
    pub(super) fn enter(&mut self, hashed_key: &HashedKey, in_flight_max: u64) -> bool {
        let slot = match self.find(hashed_key) {
            Some(slot) => slot,
            None if self.len >= self.len_max => return false,
            None => self.claim_slot(hashed_key),
        };
        let is_admitted = self.slots[slot][LAST] < in_flight_max;
        self.slots[slot][LAST] += u64::from(is_admitted);
        is_admitted
    }

    /// Removes a call in flight.
    pub(super) fn leave(&mut self, hashed_key: &HashedKey) {
        let Some(slot) = self.find(hashed_key) else { return };
        self.slots[slot][LAST] = self.slots[slot][LAST].saturating_sub(1);
        if self.slots[slot][LAST] == 0 {
            self.remove(slot);
        }
    }

    fn claim_slot(&mut self, hashed_key: &HashedKey) -> usize {
        let mut slot = self.home_slot(hashed_key.hash);
        while self.slots[slot][HASH] != 0 {
            slot = self.next_slot(slot);
        }
        let [first_word, second_word, third_word] = hashed_key.key;
        self.slots[slot] = [hashed_key.hash, first_word, second_word, third_word, 0, 0];
        self.len += 1;
        slot
    }

    fn evict(&mut self, now: u64) {
        let mut oldest: Option<(u32, usize)> = None;
        let mut slot = self.next_scan_slot;
        for _ in 0..EVICTION_SCAN.min(self.slot_count()) {
            let entry = &self.slots[slot];
            if entry[HASH] != 0 {
                let age = (now as u32).wrapping_sub(entry[EXCESS] as u32);
                if oldest.is_none_or(|(oldest_age, _)| age > oldest_age) {
                    oldest = Some((age, slot));
                }
            }
            slot = self.next_slot(slot);
        }
        self.next_scan_slot = slot;
        match oldest {
            Some((_, slot)) => {
                self.remove(slot);
                self.evicted += 1;
            }
            // A full table hardly ever has `EVICTION_SCAN` consecutive free slots.
            None => self.evict(now),
        }
    }

    /// Frees a slot and moves back the entries that collided with it.
    fn remove(&mut self, mut hole: usize) {
        let mut slot = hole;
        loop {
            slot = self.next_slot(slot);
            let hash = self.slots[slot][HASH];
            if hash == 0 {
                break;
            }
            if self.distance(self.home_slot(hash), slot) >= self.distance(hole, slot) {
                self.slots[hole] = self.slots[slot];
                hole = slot;
            }
        }
        self.slots[hole][HASH] = 0;
        self.len -= 1;
    }

    /// Returns the slot where the search for a hash begins: the upper bits of the hash, scaled to
    /// the number of slots (Lemire 2016, "A fast alternative to the modulo reduction").
    fn home_slot(&self, hash: u64) -> usize {
        self.first_slot + ((u128::from(hash) * self.slot_count() as u128) >> 64) as usize
    }

    /// Returns the number of slots for keys.
    fn slot_count(&self) -> usize {
        self.slots.len() - self.first_slot
    }

    fn next_slot(&self, slot: usize) -> usize {
        if slot + 1 == self.slots.len() { self.first_slot } else { slot + 1 }
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.slot_count() - from }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the table holds what a map would hold, for any insertions and removals, within its
    //! bound; and evicted keys are old. Method: the same random operations on it and on the
    //! standard library's map.

    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn hashed_key(number: u64) -> HashedKey {
        // Few distinct upper bits, so that keys collide and wrap around the end.
        HashedKey { hash: (number % 7).wrapping_mul(u64::MAX / 6) | 1, key: [number, 0, 0] }
    }

    fn state(excess: u64, last: u64) -> KeyState {
        KeyState { excess, last }
    }

    proptest! {
        #[test]
        fn it_has_the_content_of_a_map(steps in prop::collection::vec((0u64..40, 0u8..4), 1..300)) {
            let mut table = Table::new(64);
            let mut map = HashMap::new();
            for (now, (number, operation)) in steps.into_iter().enumerate() {
                let now = now as u64;
                let hashed_key = hashed_key(number);
                let slot = table.find(&hashed_key);
                prop_assert_eq!(slot.map(|slot| table.state(slot)), map.get(&number).copied());
                match (operation, slot) {
                    (0, Some(slot)) => {
                        table.remove(slot);
                        map.remove(&number);
                    }
                    (1, Some(slot)) => table.touch(slot, now),
                    _ => {
                        table.store(&hashed_key, slot, state(now * 3, now), now);
                        map.insert(number, state(now * 3, now));
                    }
                }
                prop_assert_eq!(table.len, map.len());
            }
            for (number, state) in map {
                let slot = table.find(&hashed_key(number)).unwrap();
                prop_assert_eq!(table.state(slot), state);
            }
        }
    }

    #[test]
    fn a_full_table_evicts_the_least_recently_called() {
        let mut table = Table::new(10);
        for number in 0..10 {
            table.store(&hashed_key(number), None, state(number, 0), number);
        }
        // Rejected calls count as calls: a client that is always rejected must not be forgotten.
        table.touch(table.find(&hashed_key(0)).unwrap(), 20);
        table.store(&hashed_key(100), None, state(0, 0), 21);
        assert_eq!((table.len, table.evicted), (10, 1));
        assert!(table.find(&hashed_key(1)).is_none(), "the oldest key was not evicted");
        assert!(table.find(&hashed_key(0)).is_some());
        for number in 200..1200 {
            table.store(&hashed_key(number), None, state(0, 0), number);
            assert!(table.find(&hashed_key(number)).is_some());
        }
        assert_eq!((table.len, table.evicted), (10, 1001));
    }

    #[test]
    fn calls_in_flight_are_counted_exactly_and_never_evicted() {
        let mut table = Table::new(2);
        let (a, b, c) = (hashed_key(1), hashed_key(2), hashed_key(3));
        assert!(table.enter(&a, 2) && table.enter(&a, 2) && !table.enter(&a, 2));
        assert!(table.enter(&b, 2));
        assert!(
            !table.enter(&c, 2),
            "the table is full, and a key with calls in flight must not be evicted"
        );
        table.leave(&b);
        assert!(table.enter(&c, 2));
        table.leave(&a);
        assert!(table.enter(&a, 2) && !table.enter(&a, 2));
        for hashed_key in [&a, &a, &c] {
            table.leave(hashed_key);
        }
        assert_eq!(table.len, 0);
        table.leave(&a);
        assert_eq!(table.len, 0);
    }

    #[test]
    fn the_smallest_table_works() {
        let mut table = Table::new(0);
        for number in 0..100 {
            table.store(&hashed_key(number), None, state(7, 0), number);
            assert_eq!(table.state(table.find(&hashed_key(number)).unwrap()), state(7, 0));
            assert_eq!(table.len, 1);
        }
    }
}
