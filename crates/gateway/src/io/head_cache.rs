//! A cache of parsed HTTP heads, so that identical bytes are not parsed twice. A *head* is the
//! first line of a message and its headers.
//!
//! A client library sends nearly the same head with every request. An upstream sends nearly the
//! same head with every response. Only the length and the date vary. The parsed form depends only
//! on the bytes, so two equal heads have the same parsed form. `downstream/head.rs` and
//! `upstream/http1.rs` contain the parsers.

/// Maximum number of bytes of a cached head. Usual heads have a few hundred bytes. A longer head,
/// for example with cookies or tokens, takes as much time to compare as to parse.
const HEAD_BYTES_MAX: usize = 1024;

/// A small cache of one thread. `T` is the parsed form of a head.
#[derive(Debug)]
pub(crate) struct HeadCache<T> {
    slots: Vec<Option<Entry<T>>>,
}

#[derive(Debug)]
struct Entry<T> {
    head: Box<[u8]>,
    parsed: T,
}

impl<T> HeadCache<T> {
    /// Creates an empty cache with `heads_max` slots.
    pub(crate) fn new(heads_max: usize) -> HeadCache<T> {
        HeadCache { slots: (0..heads_max).map(|_| None).collect() }
    }

    /// Looks up the head at the start of `bytes`. Returns its length in bytes and its parsed form;
    /// `None` if the head is not cached.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<(usize, &T)> {
        let entry = self.slots.get(self.slot_index(bytes))?.as_ref()?;
        bytes.starts_with(&entry.head).then_some((entry.head.len(), &entry.parsed))
    }

    /// Caches the parsed form of the head at the start of `bytes`. `head_bytes` is the length of
    /// the head with its empty line.
    pub(crate) fn insert(&mut self, bytes: &[u8], head_bytes: usize, parsed: T) {
        let index = self.slot_index(bytes);
        if let Some(slot) = self.slots.get_mut(index)
            && head_bytes <= HEAD_BYTES_MAX
        {
            *slot = Some(Entry { head: bytes[..head_bytes].into(), parsed });
        }
    }

    /// Returns the index of the slot for `bytes`. The index depends only on the number of bytes. A
    /// head usually arrives together with its whole body and contains the length of the body. So
    /// equal numbers of bytes usually mean equal heads.
    fn slot_index(&self, bytes: &[u8]) -> usize {
        bytes.len() % self.slots.len().max(1)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: only a byte-for-byte equal head is found.

    use super::*;

    #[test]
    fn only_an_equal_head_is_found() {
        let mut cache = HeadCache::new(4);
        // The heads `A: 1` and `A: 2` have 8 bytes with their empty line.
        assert_eq!(cache.find(b"A: 1\r\n\r\nbody"), None);
        cache.insert(b"A: 1\r\n\r\nbody", 8, 'a');
        assert_eq!(cache.find(b"A: 1\r\n\r\nbody"), Some((8, &'a')));
        assert_eq!(cache.find(b"A: 1\r\n\r\nydob"), Some((8, &'a')));
        assert_eq!(cache.find(b"A: 2\r\n\r\nbody"), None);
        assert_eq!(cache.find(b"A: 1\r\nB: 2\r\n"), None);
        assert_eq!(cache.find(b""), None);
        cache.insert(b"A: 2\r\n\r\nbody", 8, 'b');
        assert_eq!(cache.find(b"A: 1\r\n\r\nbody"), None);
        assert_eq!(cache.find(b"A: 2\r\n\r\nbody"), Some((8, &'b')));
    }

    #[test]
    fn the_cache_is_bounded() {
        let mut cache = HeadCache::new(1);
        let long = [b'a'; HEAD_BYTES_MAX + 1];
        cache.insert(&long, long.len(), ());
        assert_eq!(cache.find(&long), None);
        let mut empty = HeadCache::new(0);
        empty.insert(b"A", 1, ());
        assert_eq!(empty.find(b"A"), None);
    }
}
