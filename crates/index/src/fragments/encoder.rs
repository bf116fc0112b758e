//! Encodes JSON into fragments in one pass.
//!
//! The encoder copies the JSON that its cursor passes. It omits whitespace and replaces the values
//! of the block and the transaction by placeholders. The caller moves the cursor and takes the
//! copied bytes as a fragment. The input must be valid JSON. On any other input the cursor returns
//! errors, but it never panics and always ends.

use std::ops::Range;

use wire::json::cursor::{Cursor, Visitor};

use super::context::{
    BLOCK_HASH, BlockContext, NUMBER, TIMESTAMP, TRANSACTION_HASH, TRANSACTION_INDEX,
    TransactionContext,
};

/// A position in raw JSON, and the fragment of the JSON before that position.
pub struct FragmentEncoder<'a, 'b> {
    /// The position. The encoder copies all bytes that the cursor reads.
    pub(crate) cursor: Cursor<'a, Copier<'b>>,
}

/// Copies the JSON that the cursor passes.
pub(crate) struct Copier<'b> {
    /// The fragment so far.
    out: Vec<u8>,
    /// Bytes before this offset have been copied, replaced or omitted.
    done_to: usize,
    block: &'b BlockContext,
    /// The transaction whose values are replaced; `None` outside transactions.
    transaction: Option<TransactionContext>,
}

impl<'a, 'b> FragmentEncoder<'a, 'b> {
    /// Creates an encoder at the start of a value of this block.
    pub fn new(raw: &'a [u8], block: &'b BlockContext) -> FragmentEncoder<'a, 'b> {
        let copier = Copier { out: Vec::new(), done_to: 0, block, transaction: None };
        FragmentEncoder { cursor: Cursor::with_visitor(raw, copier) }
    }

    /// Sets the transaction whose values are replaced by placeholders from here on. With `None`,
    /// only the values of the block are replaced.
    pub fn set_transaction(&mut self, transaction: Option<TransactionContext>) {
        self.cursor.visitor().transaction = transaction;
    }

    /// Returns the bytes that were copied since the last call.
    pub fn take(&mut self) -> Vec<u8> {
        let (raw, offset) = (self.cursor.raw(), self.cursor.offset());
        let copier = self.cursor.visitor();
        copier.copy(raw, offset);
        // The clone has no spare capacity, and the buffer keeps its capacity for the next fragment.
        let fragment = copier.out.clone();
        copier.out.clear();
        fragment
    }

    /// Drops the bytes that were copied since the last call of [`FragmentEncoder::take`].
    pub fn discard(&mut self) {
        let offset = self.cursor.offset();
        let copier = self.cursor.visitor();
        copier.out.clear();
        copier.done_to = offset;
    }

    /// Continues a fragment that [`FragmentEncoder::take`] returned. Bytes that the cursor passed
    /// since then are omitted.
    pub fn resume(&mut self, fragment: Vec<u8>) {
        let offset = self.cursor.offset();
        let copier = self.cursor.visitor();
        copier.out = fragment;
        copier.done_to = offset;
    }
}

impl Copier<'_> {
    /// Copies the bytes from `done_to` up to `to`.
    fn copy(&mut self, raw: &[u8], to: usize) {
        self.out.extend_from_slice(&raw[self.done_to..to]);
        self.done_to = to;
    }

    /// Returns the placeholder for a text, or `None` if the text is not a value of the block or the
    /// transaction.
    #[inline]
    fn placeholder_for(&self, text: &[u8]) -> Option<u8> {
        let transaction = self.transaction.as_ref();
        // A hash has 66 characters, and a quantity of 64 bits has 3 to 18.
        match text.len() {
            66 if *text == self.block.hash => Some(BLOCK_HASH),
            66 if transaction.is_some_and(|context| *text == context.hash) => {
                Some(TRANSACTION_HASH)
            }
            3..=18 if *text == *self.block.number => Some(NUMBER),
            3..=18 if *text == *self.block.timestamp => Some(TIMESTAMP),
            3..=18 if transaction.is_some_and(|context| *text == *context.index) => {
                Some(TRANSACTION_INDEX)
            }
            _ => None,
        }
    }
}

impl Visitor for Copier<'_> {
    #[inline]
    fn string(&mut self, raw: &[u8], content: Range<usize>) {
        if let Some(placeholder) = self.placeholder_for(&raw[content.clone()]) {
            self.copy(raw, content.start);
            self.out.push(placeholder);
            self.done_to = content.end;
        }
    }

    #[inline]
    fn whitespace(&mut self, raw: &[u8], span: Range<usize>) {
        self.copy(raw, span.start);
        self.done_to = span.end;
    }
}
