//! Generates masking keys.
//!
//! Clients choose the parameters of calls. A client that could predict a key could choose the bytes
//! on the wire, so keys are cryptographically random.

use std::cell::RefCell;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};

use crate::io::websocket::mask::Key;

/// Number of bytes drawn per call to the random source. A thousand keys cost about as much as one
/// key.
const DRAWN_BYTES: usize = 4096;

/// Unpredictable keys, drawn in bulk.
#[derive(Debug)]
pub(crate) struct Keys(RefCell<Drawn>);

#[derive(Debug)]
struct Drawn {
    bytes: Vec<u8>,
    source: SystemRandom,
}

impl Default for Keys {
    fn default() -> Keys {
        Keys(RefCell::new(Drawn { bytes: Vec::new(), source: SystemRandom::new() }))
    }
}

impl Keys {
    /// Returns a fresh key, or `None` if the system has no randomness.
    pub(crate) fn next(&self) -> Option<Key> {
        let mut drawn = self.0.borrow_mut();
        if drawn.bytes.len() < size_of::<Key>() {
            let mut bytes = vec![0; DRAWN_BYTES];
            drawn.source.fill(&mut bytes).ok()?;
            drawn.bytes = bytes;
        }
        let remaining = drawn.bytes.len() - size_of::<Key>();
        let key = drawn.bytes.last_chunk().copied();
        drawn.bytes.truncate(remaining);
        key
    }
}

#[cfg(test)]
mod tests {
    //! Goal: keys do not repeat.

    use super::*;

    #[test]
    fn keys_are_fresh() {
        let keys = Keys::default();
        let drawn: std::collections::HashSet<Key> =
            (0..3 * DRAWN_BYTES / 4).map(|_| keys.next().unwrap()).collect();
        // Of 3,072 random keys, two may be equal by chance, but not more.
        assert!(drawn.len() > 3 * DRAWN_BYTES / 4 - 3);
    }
}
