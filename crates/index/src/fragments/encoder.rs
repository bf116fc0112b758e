//! Encodes JSON into fragments in one pass.
//!
//! The encoder copies the JSON that its cursor passes. It omits whitespace and replaces the values
//! of the block and the transaction by placeholders. The caller moves the cursor and takes the
//! copied bytes as a fragment. The bytes must be valid JSON. On other bytes the encoder returns an
//! error; it never panics and always ends.

use std::ops::Range;

use wire::json::cursor::{Cursor, Malformed, Visitor};
use wire::json::string::JsonString;

use super::context::{
    BLOCK_HASH, BlockContext, HASH, INDEX, NUMBER, TIMESTAMP, TransactionContext,
};

/// A position in raw JSON, and the copy of the JSON before it.
pub struct FragmentEncoder<'a, 'b> {
    cursor: Cursor<'a, Copier<'b>>,
}

/// Copies the JSON that the cursor passes.
struct Copier<'b> {
    out: Vec<u8>,
    /// Bytes before this offset have been copied or left out.
    copied: usize,
    block: &'b BlockContext,
    transaction: Option<TransactionContext>,
}

impl<'a, 'b> FragmentEncoder<'a, 'b> {
    /// Creates an encoder at the start of a value of this block.
    pub fn new(raw: &'a [u8], block: &'b BlockContext) -> FragmentEncoder<'a, 'b> {
        let copier = Copier { out: Vec::new(), copied: 0, block, transaction: None };
        FragmentEncoder { cursor: Cursor::with_visitor(raw, copier) }
    }

    /// Sets the transaction whose values get placeholders from here on; `None` for none.
    pub fn set_transaction(&mut self, transaction: Option<TransactionContext>) {
        self.cursor.visitor().transaction = transaction;
    }

    /// Returns the bytes that were copied since the last call.
    pub fn take(&mut self) -> Vec<u8> {
        let (raw, at) = (self.cursor.raw(), self.cursor.at());
        let copier = self.cursor.visitor();
        copier.copy(raw, at);
        // The clone has the right size, and the buffer keeps its capacity for the next fragment.
        let taken = copier.out.clone();
        copier.out.clear();
        taken
    }

    /// Drops the bytes that were copied since the last call of [`FragmentEncoder::take`].
    pub fn discard(&mut self) {
        let at = self.cursor.at();
        let copier = self.cursor.visitor();
        copier.out.clear();
        copier.copied = at;
    }

    /// Continues a fragment that was taken before.
    pub fn resume(&mut self, fragment: Vec<u8>) {
        let at = self.cursor.at();
        let copier = self.cursor.visitor();
        copier.out = fragment;
        copier.copied = at;
    }

    /// Returns the raw bytes from the next value on.
    pub fn rest(&self) -> &'a [u8] {
        self.cursor.rest()
    }

    /// Steps into the next value. Returns false if it is not an array.
    pub fn open_array(&mut self) -> bool {
        self.cursor.open(b'[')
    }

    /// Steps into the next value. Returns false if it is not an object.
    pub fn open_object(&mut self) -> bool {
        self.cursor.open(b'{')
    }

    /// Returns true if another element follows. Steps behind the array otherwise.
    ///
    /// # Errors
    /// If the JSON ends before the array does.
    pub fn next_element(&mut self) -> Result<bool, Malformed> {
        self.cursor.next_element()
    }

    /// Returns the name of the next member. Steps behind the object and returns `None` if there is
    /// none.
    ///
    /// # Errors
    /// If the JSON ends before the object does.
    pub fn next_name(&mut self) -> Result<Option<JsonString<'a>>, Malformed> {
        self.cursor.next_name()
    }

    /// Copies the next value, and returns its raw bytes.
    ///
    /// # Errors
    /// If the JSON ends before the value does.
    pub fn value(&mut self) -> Result<&'a [u8], Malformed> {
        self.cursor.value()
    }
}

impl Copier<'_> {
    fn copy(&mut self, raw: &[u8], to: usize) {
        self.out.extend_from_slice(&raw[self.copied..to]);
        self.copied = to;
    }

    /// Returns the placeholder for a text, if it is a value of the block or the transaction.
    #[inline]
    fn placeholder(&self, text: &[u8]) -> Option<u8> {
        let transaction = self.transaction.as_ref();
        match text.len() {
            66 if *text == self.block.hash => Some(BLOCK_HASH),
            66 if transaction.is_some_and(|of| *text == of.hash) => Some(HASH),
            3..=18 if *text == *self.block.number => Some(NUMBER),
            3..=18 if *text == *self.block.timestamp => Some(TIMESTAMP),
            3..=18 if transaction.is_some_and(|of| *text == *of.index) => Some(INDEX),
            _ => None,
        }
    }
}

impl Visitor for Copier<'_> {
    #[inline]
    fn string(&mut self, raw: &[u8], content: Range<usize>) {
        if let Some(placeholder) = self.placeholder(&raw[content.clone()]) {
            self.copy(raw, content.start);
            self.out.push(placeholder);
            self.copied = content.end;
        }
    }

    #[inline]
    fn whitespace(&mut self, raw: &[u8], span: Range<usize>) {
        self.copy(raw, span.start);
        self.copied = span.end;
    }
}
