//! Generates masking keys for the frames that a client sends.
//!
//! Clients of a gateway choose the parameters of calls. A client that could predict a masking key
//! could choose the bytes on the wire, so the keys are cryptographically random.

use std::cell::RefCell;

use super::MaskingKey;
use aws_lc_rs::rand;

/// Number of bytes per call to the system's random source. A call for a thousand keys takes about
/// as much time as a call for one key.
const DRAWN_BYTES: usize = 4096;

/// Unpredictable keys, generated in bulk. Holds the random bytes that are not used yet.
#[derive(Debug, Default)]
pub struct Keys(RefCell<Vec<u8>>);

impl Keys {
    /// Returns a new key; `None` if the system has no randomness.
    pub fn next(&self) -> Option<MaskingKey> {
        let mut drawn = self.0.borrow_mut();
        if drawn.len() < size_of::<MaskingKey>() {
            let mut bytes = vec![0; DRAWN_BYTES];
            rand::fill(&mut bytes).ok()?;
            *drawn = bytes;
        }
        let remaining = drawn.len() - size_of::<MaskingKey>();
        let key = drawn.last_chunk().copied();
        drawn.truncate(remaining);
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
        let drawn: std::collections::HashSet<MaskingKey> =
            (0..3 * DRAWN_BYTES / 4).map(|_| keys.next().unwrap()).collect();
        // Of 3,072 random keys, two may be equal by chance, but not more.
        assert!(drawn.len() > 3 * DRAWN_BYTES / 4 - 3);
    }
}
