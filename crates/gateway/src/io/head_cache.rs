//! What the last HTTP heads were found to say, so that the same bytes are not taken apart again.
//!
//! A client's library sends one head with every request, and an upstream one with every answer;
//! what differs is the length, and now and then a date. What a head says follows from its bytes
//! alone, so a head that is the same byte for byte says the same. Reading heads is done by
//! `downstream/head.rs` and `upstream/http1.rs`; this only remembers.

/// A longer head is read each time. Heads of clients and upstreams have a few hundred bytes; those
/// with long cookies or tokens are as dear to compare as to read.
const HEAD_BYTES_MAX: usize = 1024;

/// The meanings of a few heads of one thread.
#[derive(Debug)]
pub(crate) struct HeadCache<T> {
    places: Vec<Option<Known<T>>>,
}

#[derive(Debug)]
struct Known<T> {
    head: Box<[u8]>,
    meaning: T,
}

impl<T> HeadCache<T> {
    /// Nothing known, with room for `heads_max` heads.
    pub(crate) fn new(heads_max: usize) -> HeadCache<T> {
        HeadCache { places: (0..heads_max).map(|_| None).collect() }
    }

    /// The head that `bytes` begin with, if it is known: its length, and what it says.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<(usize, &T)> {
        let known = self.places.get(self.place(bytes))?.as_ref()?;
        bytes.starts_with(&known.head).then_some((known.head.len(), &known.meaning))
    }

    /// Remembers what the head says that the first `head_bytes` of `bytes` are: all of it, up to
    /// and with its empty line.
    pub(crate) fn keep(&mut self, bytes: &[u8], head_bytes: usize, meaning: T) {
        let place = self.place(bytes);
        if let Some(place) = self.places.get_mut(place)
            && head_bytes <= HEAD_BYTES_MAX
        {
            *place = Some(Known { head: bytes[..head_bytes].into(), meaning });
        }
    }

    /// A head mostly comes together with its whole body, whose length it names: so messages of one
    /// length mostly have one head.
    fn place(&self, bytes: &[u8]) -> usize {
        bytes.len() % self.places.len().max(1)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: only a head that is the same to the last byte is found again.

    use super::*;

    #[test]
    fn the_same_head_is_recalled_and_no_other() {
        let mut recall = HeadCache::new(4);
        assert_eq!(recall.find(b"A: 1\r\n\r\nbody"), None);
        recall.keep(b"A: 1\r\n\r\nbody", 8, 'a');
        assert_eq!(recall.find(b"A: 1\r\n\r\nbody"), Some((8, &'a')));
        assert_eq!(recall.find(b"A: 1\r\n\r\nydob"), Some((8, &'a')));
        assert_eq!(recall.find(b"A: 2\r\n\r\nbody"), None);
        assert_eq!(recall.find(b"A: 1\r\nB: 2\r\n"), None);
        assert_eq!(recall.find(b""), None);
        recall.keep(b"A: 2\r\n\r\nbody", 8, 'b');
        assert_eq!(recall.find(b"A: 1\r\n\r\nbody"), None);
        assert_eq!(recall.find(b"A: 2\r\n\r\nbody"), Some((8, &'b')));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut recall = HeadCache::new(1);
        let long = [b'a'; HEAD_BYTES_MAX + 1];
        recall.keep(&long, long.len(), ());
        assert_eq!(recall.find(&long), None);
        let mut none = HeadCache::new(0);
        none.keep(b"A", 1, ());
        assert_eq!(none.find(b"A"), None);
    }
}
