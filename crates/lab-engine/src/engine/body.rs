//! The body of an answer that comes in pieces: whole while it is short, its skeleton once it is long.
//!
//! What a piece costs is bounded by its length, so a long answer makes nobody else late. What HTTP
//! says of where a body ends is `crates/lab-engine/src/engine/reader.rs`'s.

use wire::json::envelope::EnvelopeScanner;

#[cfg(test)]
mod tests;

/// Bodies up to this are kept and judged at once, which is quicker: some 10 µs.
pub(crate) const WHOLE_BYTES_MAX: usize = 32 << 10;
/// A longer answer is not kept for comparison; with as many samples as may wait this is 64 MB.
pub(crate) const SAMPLE_BYTES_MAX: usize = 1 << 20;
/// A buffer that has grown beyond this is given up after the answer.
const BUFFER_KEPT_MAX: usize = 64 << 10;

/// A body as far as it has come.
#[derive(Debug, Default)]
pub(crate) struct Body {
    /// All of it, while that is kept.
    bytes: Vec<u8>,
    length: usize,
    skeleton: Option<Box<EnvelopeScanner>>,
    /// Whether it will be compared.
    sampled: bool,
}

/// A body that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Came<'a> {
    /// What is judged: the body, or its skeleton.
    pub(crate) judged: &'a [u8],
    /// The body, if it was kept.
    pub(crate) whole: Option<&'a [u8]>,
    /// Its bytes.
    pub(crate) length: usize,
}

/// It is longer than the plan allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

impl Body {
    /// Makes ready for the next one and keeps a small buffer.
    pub(crate) fn reset(&mut self) {
        (self.length, self.skeleton, self.sampled) = (0, None, false);
        if self.bytes.capacity() > BUFFER_KEPT_MAX {
            self.bytes = Vec::new();
        } else {
            self.bytes.clear();
        }
    }

    /// To be said before it comes: all is kept that may be compared.
    pub(crate) fn keep(&mut self) {
        self.sampled = true;
    }

    /// So many bytes will come.
    pub(crate) fn expect(&mut self, length: usize) {
        if length > WHOLE_BYTES_MAX {
            self.begin_skeleton();
        } else {
            self.bytes.reserve(length);
        }
    }

    /// Takes the next bytes, up to `bytes_max` of them all.
    ///
    /// # Errors
    /// If there are more.
    pub(crate) fn take(&mut self, piece: &[u8], bytes_max: usize) -> Result<(), TooLong> {
        if piece.len() > bytes_max.saturating_sub(self.length) {
            return Err(TooLong);
        }
        self.length += piece.len();
        if self.length > WHOLE_BYTES_MAX {
            self.begin_skeleton();
        }
        if let Some(skeleton) = &mut self.skeleton {
            skeleton.feed(piece);
            if !self.sampled || self.length > SAMPLE_BYTES_MAX {
                self.bytes = Vec::new();
                return Ok(());
            }
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    fn begin_skeleton(&mut self) {
        if self.skeleton.is_none() {
            let mut skeleton = Box::<EnvelopeScanner>::default();
            skeleton.feed(&self.bytes);
            self.skeleton = Some(skeleton);
        }
    }

    /// Bytes so far.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Whether it is judged piece by piece.
    pub(crate) fn is_long(&self) -> bool {
        self.skeleton.is_some()
    }

    /// What has come.
    pub(crate) fn came(&self) -> Came<'_> {
        Came {
            judged: self.skeleton.as_ref().map_or(&self.bytes, |skeleton| skeleton.envelope()),
            whole: (self.bytes.len() == self.length).then_some(&self.bytes),
            length: self.length,
        }
    }
}

impl<'a> Came<'a> {
    /// A body that lies in one piece where it was read.
    pub(crate) fn at_once(body: &'a [u8]) -> Came<'a> {
        Came { judged: body, whole: Some(body), length: body.len() }
    }
}
