//! The keys of one shard of a zone, in a flat table of fixed size. A zone counts calls by key, such
//! as a client address, and a shard is a part of a zone with its own lock (`limits/zone.rs`). A
//! lookup costs one CPU cache miss. A flood of new keys does not enlarge the table.
//!
//! The table uses open addressing with linear probing and backward-shift deletion. It allocates
//! nothing after the start, and the system commits memory only for used pages.
//!
//! The state of a key (`policy/limit.rs`) is its *excess* and the time of its last charge. The
//! excess is the number of calls by which the key is ahead of the allowed rate. A *charge* adds a
//! call to the excess.

use crate::policy::limit::KeyState;

mod hint;

/// Longest key, in bytes, that is stored unchanged. A longer key is stored as its digest.
pub(super) const KEY_BYTES_INLINE: usize = 23;
/// Number of bytes of an entry.
const ENTRY_BYTES: usize = 48;
/// Number of keys per [`LOAD_SLOTS`] slots at the maximum load factor. In a fuller table, runs of
/// used slots grow long.
const LOAD_KEYS: usize = 3;
/// Number of slots for [`LOAD_KEYS`] keys.
const LOAD_SLOTS: usize = 4;
/// Number of bytes of a zone's memory per key, including the key's part of the free slots. An nginx
/// zone needs the same number of bytes per key.
pub(crate) const ZONE_BYTES_PER_KEY: usize = ENTRY_BYTES * LOAD_SLOTS / LOAD_KEYS;
/// Number of slots examined to find the least recently used key for an eviction.
const EVICTION_SCAN_SLOTS: usize = 32;

/// A key with its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HashedKey {
    /// Never 0, because a hash of 0 marks a free slot.
    pub(super) hash: u64,
    /// The bytes of the key, or of its digest.
    pub(super) key: [u64; 3],
}

/// A key with its state, as six integers:
///
/// - `hash`: the hash; 0 in a free slot, so zeroed memory is an empty table.
/// - `key`: the three integers of [`HashedKey::key`].
/// - `excess_and_last_call`: the result of [`pack_excess`]; 0 in a zone of concurrency limits.
/// - `last_charge`: the time of the last charge in ms, with the [`UNREPORTED`] bit. In a zone of
///   concurrency limits, this integer is `in_flight`: the number of calls in flight.
///
/// An entry is an array and not a struct, because `vec!` would write zeros into each struct. For
/// arrays of integers, `vec!` gets zeroed memory from the system. The code reads an entry by
/// patterns, such as `[hash, ..]`, which use the names above.
type Entry = [u64; ENTRY_BYTES / 8];

/// Bit that marks a key as unreported. A time in ms is never large enough to use this bit.
const UNREPORTED: u64 = 1 << 63;

/// A table of keys.
#[derive(Debug)]
pub(super) struct Table {
    /// The entries by slot.
    slots: Vec<Entry>,
    /// Index of the first slot for keys, which begins on a huge page. Earlier slots stay unused.
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
    /// Creates a table for at most `keys_max` keys. The table has room for at least one key.
    pub(super) fn new(keys_max: usize) -> Table {
        let len_max = keys_max.max(1);
        // At least one slot is always free, so that every search ends.
        let slot_count = (len_max * LOAD_SLOTS).div_ceil(LOAD_KEYS).max(len_max + 1);
        let spare_slots = hint::spare_count::<Entry>(slot_count);
        let mut slots = vec![[0; ENTRY_BYTES / 8]; slot_count + spare_slots];
        let first_slot = hint::place_on_huge_pages(&mut slots, slot_count);
        slots.truncate(first_slot + slot_count);
        Table { slots, first_slot, len: 0, len_max, next_scan_slot: first_slot, evicted: 0 }
    }

    /// Returns the slot of a key; `None` if the table does not hold the key.
    pub(super) fn find(&self, hashed_key: &HashedKey) -> Option<usize> {
        let mut slot = self.home_slot(hashed_key.hash);
        loop {
            let [hash, key @ .., _, _] = &self.slots[slot];
            if *hash == 0 {
                return None;
            }
            if *hash == hashed_key.hash && *key == hashed_key.key {
                return Some(slot);
            }
            slot = self.next_slot(slot);
        }
    }

    /// Prefetches the slot where the search for a key begins, without waiting.
    pub(super) fn prefetch(&self, hashed_key: &HashedKey) {
        if let Some(entry) = self.slots.get(self.home_slot(hashed_key.hash)) {
            hint::prefetch(entry);
        }
    }

    /// Returns the state of the key in a slot.
    pub(super) fn state(&self, slot: usize) -> KeyState {
        let [.., excess_and_last_call, last_charge] = self.slots[slot];
        KeyState { excess: excess_and_last_call >> 32, charged_at_ms: last_charge & !UNREPORTED }
    }

    /// Returns true if the key in a slot was marked as unreported since its state was last stored.
    pub(super) fn is_unreported(&self, slot: usize) -> bool {
        let [.., last_charge] = self.slots[slot];
        last_charge & UNREPORTED != 0
    }

    /// Marks the key in a slot as unreported: Redis may not know the key's last charge.
    pub(super) fn mark_unreported(&mut self, slot: usize) {
        let [.., last_charge] = &mut self.slots[slot];
        *last_charge |= UNREPORTED;
    }

    /// Records that the key in a slot was used by a call now, which protects the key from eviction.
    /// A rejected call has no other effect on its key.
    pub(super) fn touch(&mut self, slot: usize, now_ms: u64) {
        let [.., excess_and_last_call, _] = &mut self.slots[slot];
        *excess_and_last_call = pack_excess(*excess_and_last_call >> 32, now_ms);
    }

    /// Stores the state of a key and returns its slot. `slot` is the key's slot; `None` adds the
    /// key. In a full table, a new key evicts one that was not used recently.
    pub(super) fn store(
        &mut self,
        hashed_key: &HashedKey,
        slot: Option<usize>,
        state: KeyState,
        now_ms: u64,
    ) -> usize {
        let slot = slot.unwrap_or_else(|| {
            if self.len >= self.len_max {
                self.evict(now_ms);
            }
            self.claim_slot(hashed_key)
        });
        let [.., excess_and_last_call, last_charge] = &mut self.slots[slot];
        *excess_and_last_call = pack_excess(state.excess, now_ms);
        *last_charge = state.charged_at_ms & !UNREPORTED;
        slot
    }

    /// Counts a call in flight for a key. Returns false if the key already has `in_flight_max`
    /// calls in flight, or if the key is new and the table is full.
    pub(super) fn add_in_flight(&mut self, hashed_key: &HashedKey, in_flight_max: u64) -> bool {
        let slot = match self.find(hashed_key) {
            Some(slot) => slot,
            None if self.len >= self.len_max => return false,
            None => self.claim_slot(hashed_key),
        };
        let [.., in_flight] = &mut self.slots[slot];
        let is_admitted = *in_flight < in_flight_max;
        *in_flight += u64::from(is_admitted);
        is_admitted
    }

    /// Ends a call in flight of a key. Removes the key if it has no further calls in flight.
    pub(super) fn remove_in_flight(&mut self, hashed_key: &HashedKey) {
        let Some(slot) = self.find(hashed_key) else { return };
        let [.., in_flight] = &mut self.slots[slot];
        *in_flight = in_flight.saturating_sub(1);
        if *in_flight == 0 {
            self.remove(slot);
        }
    }

    /// Adds a key with an empty state and returns its slot. The table must not be full.
    fn claim_slot(&mut self, hashed_key: &HashedKey) -> usize {
        let mut slot = self.home_slot(hashed_key.hash);
        while self.hash_in(slot) != 0 {
            slot = self.next_slot(slot);
        }
        let [first_word, second_word, third_word] = hashed_key.key;
        self.slots[slot] = [hashed_key.hash, first_word, second_word, third_word, 0, 0];
        self.len += 1;
        slot
    }

    /// Evicts the least recently used of the keys in the next [`EVICTION_SCAN_SLOTS`] slots.
    fn evict(&mut self, now_ms: u64) {
        // The least recently used key so far: the time since its last use in ms, and its slot.
        let mut oldest: Option<(u32, usize)> = None;
        let mut slot = self.next_scan_slot;
        for _ in 0..EVICTION_SCAN_SLOTS.min(self.slot_count()) {
            let [hash, .., excess_and_last_call, _] = &self.slots[slot];
            if *hash != 0 {
                let last_call_ms = *excess_and_last_call as u32;
                let age = (now_ms as u32).wrapping_sub(last_call_ms);
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
            // All scanned slots were free. This is rare: a full table hardly ever has so many
            // consecutive free slots.
            None => self.evict(now_ms),
        }
    }

    /// Frees a slot. A search ends at a free slot, so it would not find a later entry whose search
    /// passes the freed slot. Such entries move back.
    fn remove(&mut self, mut hole: usize) {
        let mut slot = hole;
        loop {
            slot = self.next_slot(slot);
            let hash = self.hash_in(slot);
            if hash == 0 {
                break;
            }
            if self.distance(self.home_slot(hash), slot) >= self.distance(hole, slot) {
                self.slots[hole] = self.slots[slot];
                hole = slot;
            }
        }
        let [hash, ..] = &mut self.slots[hole];
        *hash = 0;
        self.len -= 1;
    }

    /// Returns the hash of the key in a slot; 0 if the slot is free.
    fn hash_in(&self, slot: usize) -> u64 {
        let [hash, ..] = self.slots[slot];
        hash
    }

    /// Returns the slot where the search for a hash begins. A multiplication scales the hash to the
    /// number of slots (Lemire 2016, "A fast alternative to the modulo reduction").
    fn home_slot(&self, hash: u64) -> usize {
        self.first_slot + ((u128::from(hash) * self.slot_count() as u128) >> 64) as usize
    }

    /// Returns the number of slots for keys.
    fn slot_count(&self) -> usize {
        self.slots.len() - self.first_slot
    }

    /// Returns the slot after `slot`. The first slot for keys follows the last slot.
    fn next_slot(&self, slot: usize) -> usize {
        if slot + 1 == self.slots.len() { self.first_slot } else { slot + 1 }
    }

    /// Returns the number of steps from one slot to another in the direction of a search.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.slot_count() - from }
    }
}

/// Packs the excess of a key and the time of its last call into one integer. The upper half is the
/// excess, which fits 32 bits because the configuration limits the burst. The lower half is the
/// lower 32 bits of the time in ms.
fn pack_excess(excess: u64, last_call_ms: u64) -> u64 {
    (excess << 32) | u64::from(last_call_ms as u32)
}

#[cfg(test)]
mod tests {
    //! Goal: after any insertions and removals, the table holds what a map would hold, within its
    //! bound. Evicted keys are old. Method: the same random operations on the table and on the
    //! standard library's map.

    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn hashed_key(number: u64) -> HashedKey {
        // Few distinct upper bits, so that keys collide and wrap around the end.
        HashedKey { hash: (number % 7).wrapping_mul(u64::MAX / 6) | 1, key: [number, 0, 0] }
    }

    fn state(excess: u64, charged_at_ms: u64) -> KeyState {
        KeyState { excess, charged_at_ms }
    }

    proptest! {
        #[test]
        fn the_table_equals_a_map(steps in prop::collection::vec((0u64..40, 0u8..4), 1..300)) {
            let mut table = Table::new(64);
            let mut map = HashMap::new();
            for (now_ms, (number, operation)) in steps.into_iter().enumerate() {
                let now_ms = now_ms as u64;
                let hashed_key = hashed_key(number);
                let slot = table.find(&hashed_key);
                prop_assert_eq!(slot.map(|slot| table.state(slot)), map.get(&number).copied());
                match (operation, slot) {
                    (0, Some(slot)) => {
                        table.remove(slot);
                        map.remove(&number);
                    }
                    (1, Some(slot)) => table.touch(slot, now_ms),
                    _ => {
                        table.store(&hashed_key, slot, state(now_ms * 3, now_ms), now_ms);
                        map.insert(number, state(now_ms * 3, now_ms));
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
    fn a_full_table_evicts_the_least_recently_used_key() {
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
        assert!(
            table.add_in_flight(&a, 2) && table.add_in_flight(&a, 2) && !table.add_in_flight(&a, 2)
        );
        assert!(table.add_in_flight(&b, 2));
        assert!(
            !table.add_in_flight(&c, 2),
            "the table is full, and a key with calls in flight must not be evicted"
        );
        table.remove_in_flight(&b);
        assert!(table.add_in_flight(&c, 2));
        table.remove_in_flight(&a);
        assert!(table.add_in_flight(&a, 2) && !table.add_in_flight(&a, 2));
        for hashed_key in [&a, &a, &c] {
            table.remove_in_flight(hashed_key);
        }
        assert_eq!(table.len, 0);
        table.remove_in_flight(&a);
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
