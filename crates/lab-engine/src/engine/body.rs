//! A response body that arrives in pieces. A short body is stored as a whole. A long body is
//! scanned piece by piece, and only its envelope is stored: the JSON-RPC response without the
//! content of its result.
//!
//! The cost of a piece depends only on its length, so a long response delays no other call.
//! `crates/lab-engine/src/engine/reader.rs` finds the end of the body.

use wire::json::envelope::EnvelopeScanner;

#[cfg(test)]
mod tests;

/// Maximum number of bytes of a short body, which is stored and parsed as a whole. Parsing a whole
/// body of this size takes about 10 µs, which is faster than scanning it piece by piece.
pub(crate) const WHOLE_BYTES_MAX: usize = 32 << 10;
/// Maximum number of bytes of a body that is stored for the comparison with the reference node. At
/// most 64 samples wait for the comparison, so they take at most 64 MB.
pub(crate) const SAMPLE_BYTES_MAX: usize = 1 << 20;
/// Maximum capacity of a buffer that is reused for the next response, in bytes.
const REUSED_BUFFER_MAX: usize = 64 << 10;

/// The part of a body that has arrived so far.
#[derive(Debug, Default)]
pub(crate) struct Body {
    /// All bytes so far; empty if only the envelope is stored.
    bytes: Vec<u8>,
    /// Number of bytes so far.
    length: usize,
    /// Scanner of a long body, which stores only the envelope. `None` for a short body.
    scanner: Option<Box<EnvelopeScanner>>,
    /// True if the body must be stored for the comparison with the reference node.
    sampled: bool,
}

/// A received body, or the part of it that has arrived so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedBody<'a> {
    /// The bytes to parse: the body, or the envelope of a long body.
    pub(crate) parsed: &'a [u8],
    /// All bytes of the body; `None` if only the envelope was stored.
    pub(crate) stored: Option<&'a [u8]>,
    /// Length of the body in bytes.
    pub(crate) length: usize,
}

/// The body exceeds the plan's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

impl Body {
    /// Prepares for the next body. Reuses a small buffer.
    pub(crate) fn reset(&mut self) {
        (self.length, self.scanner, self.sampled) = (0, None, false);
        if self.bytes.capacity() > REUSED_BUFFER_MAX {
            self.bytes = Vec::new();
        } else {
            self.bytes.clear();
        }
    }

    /// Requests that the next body is stored as a whole, for the comparison with the reference
    /// node. Must be called before the body arrives.
    pub(crate) fn store(&mut self) {
        self.sampled = true;
    }

    /// Prepares for a body of this length.
    pub(crate) fn expect_length(&mut self, length: usize) {
        if length > WHOLE_BYTES_MAX {
            self.start_scanner();
        } else {
            self.bytes.reserve(length);
        }
    }

    /// Appends a piece.
    ///
    /// # Errors
    /// Fails if the body gets longer than `bytes_max`.
    pub(crate) fn append(&mut self, piece: &[u8], bytes_max: usize) -> Result<(), TooLong> {
        if piece.len() > bytes_max.saturating_sub(self.length) {
            return Err(TooLong);
        }
        self.length += piece.len();
        if self.length > WHOLE_BYTES_MAX {
            self.start_scanner();
        }
        if let Some(scanner) = &mut self.scanner {
            scanner.feed(piece);
            if !self.sampled || self.length > SAMPLE_BYTES_MAX {
                self.bytes = Vec::new();
                return Ok(());
            }
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    /// Creates the scanner if there is none, and feeds it the bytes so far.
    fn start_scanner(&mut self) {
        if self.scanner.is_none() {
            let mut scanner = Box::<EnvelopeScanner>::default();
            scanner.feed(&self.bytes);
            self.scanner = Some(scanner);
        }
    }

    /// Returns the number of bytes so far.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Returns true if the body is long and therefore scanned piece by piece.
    pub(crate) fn is_long(&self) -> bool {
        self.scanner.is_some()
    }

    /// Returns the part of the body that has arrived so far.
    pub(crate) fn received(&self) -> ReceivedBody<'_> {
        ReceivedBody {
            parsed: self.scanner.as_ref().map_or(&self.bytes, |scanner| scanner.envelope()),
            stored: (self.bytes.len() == self.length).then_some(&self.bytes),
            length: self.length,
        }
    }
}

impl<'a> ReceivedBody<'a> {
    /// Returns a body that arrived in one piece.
    pub(crate) fn in_one_piece(body: &'a [u8]) -> ReceivedBody<'a> {
        ReceivedBody { parsed: body, stored: Some(body), length: body.len() }
    }
}
