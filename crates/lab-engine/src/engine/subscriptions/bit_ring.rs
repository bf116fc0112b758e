//! A ring of bits that marks which of the latest blocks or logs a connection received.

/// One bit for each of the latest `64 * WORDS` numbers of an ascending sequence. A number shares
/// its bit with the number that is `64 * WORDS` lower. So the caller must clear the bit before it
/// uses the bit for a higher number.
#[derive(Debug)]
pub(super) struct BitRing<const WORDS: usize>([u64; WORDS]);

impl<const WORDS: usize> Default for BitRing<WORDS> {
    fn default() -> BitRing<WORDS> {
        BitRing([0; WORDS])
    }
}

impl<const WORDS: usize> BitRing<WORDS> {
    pub(super) fn set(&mut self, number: u64) {
        let (word, bit) = position(number, WORDS);
        self.0[word] |= bit;
    }

    pub(super) fn clear(&mut self, number: u64) {
        let (word, bit) = position(number, WORDS);
        self.0[word] &= !bit;
    }

    pub(super) fn is_set(&self, number: u64) -> bool {
        let (word, bit) = position(number, WORDS);
        self.0[word] & bit != 0
    }
}

/// Returns the index of the word that has the number's bit, and a mask for the bit.
fn position(number: u64, words: usize) -> (usize, u64) {
    ((number / 64) as usize % words, 1 << (number % 64))
}
