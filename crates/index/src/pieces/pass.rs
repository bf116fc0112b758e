//! One pass over JSON that cuts it into pieces: nothing is read twice, however deep it stands.
//!
//! The pass copies what it steps over, without whitespace and without what the block and the
//! transaction give; who reads takes what was copied so far. The bytes have been validated before:
//! on others the pass ends early, but it never panics and always ends.

use wire::json::text::Text;
use wire::json::walk;

use super::{BLOCK_HASH, HASH, INDEX, NUMBER, OfBlock, OfTransaction, TIME};

/// A place within raw JSON, and what has been copied of it.
pub struct Pass<'a, 'b> {
    raw: &'a [u8],
    at: usize,
    /// Up to here it has been copied, or left out.
    copied: usize,
    out: Vec<u8>,
    block: &'b OfBlock,
    of: Option<OfTransaction>,
}

/// The JSON ends where it should not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("JSON that ends too early")]
pub struct Ends;

impl<'a, 'b> Pass<'a, 'b> {
    /// At the beginning of a value.
    pub fn new(raw: &'a [u8], block: &'b OfBlock) -> Pass<'a, 'b> {
        Pass { raw, at: 0, copied: 0, out: Vec::new(), block, of: None }
    }

    /// What follows is of this transaction, or of the block as a whole.
    pub fn of(&mut self, of: Option<OfTransaction>) {
        self.of = of;
    }

    /// What was copied since it was taken before.
    pub fn take(&mut self) -> Vec<u8> {
        self.copy();
        // A copy of the right size: what is written into keeps its room for the next piece.
        let taken = self.out.clone();
        self.out.clear();
        taken
    }

    /// Forgets what was copied since it was taken before.
    pub fn forget(&mut self) {
        self.out.clear();
        self.copied = self.at;
    }

    /// Goes on with copying behind this.
    pub fn go_on(&mut self, out: Vec<u8>) {
        self.out = out;
        self.copied = self.at;
    }

    /// What stands here and behind it.
    pub fn rest(&self) -> &'a [u8] {
        self.raw.get(self.at..).unwrap_or_default()
    }

    /// Steps into the array that stands here; false if something else does.
    pub fn open_array(&mut self) -> bool {
        self.open(b'[')
    }

    /// Steps into the object that stands here; false if something else does.
    pub fn open_object(&mut self) -> bool {
        self.open(b'{')
    }

    fn open(&mut self, bracket: u8) -> bool {
        let opens = self.peek() == Some(bracket);
        self.at += usize::from(opens);
        opens
    }

    /// Whether another element follows, at which it stands then; otherwise it stands behind the
    /// array.
    ///
    /// # Errors
    /// If the JSON ends before.
    pub fn element(&mut self) -> Result<bool, Ends> {
        match self.peek().ok_or(Ends)? {
            b']' | b'}' => {
                self.at += 1;
                Ok(false)
            }
            b',' => {
                self.at += 1;
                self.peek().map(|_| true).ok_or(Ends)
            }
            _ => Ok(true),
        }
    }

    /// The name of the member that follows, at whose value it stands then; none behind the object.
    ///
    /// # Errors
    /// If the JSON ends before.
    pub fn member(&mut self) -> Result<Option<Text<'a>>, Ends> {
        if !self.element()? {
            return Ok(None);
        }
        let start = self.at;
        let (end, escaped) = walk::skip_string(self.raw, start).ok_or(Ends)?;
        self.at = end;
        let colon = self.peek() == Some(b':');
        self.at += usize::from(colon);
        self.peek().ok_or(Ends)?;
        Ok(Some(Text { raw: &self.raw[start + 1..end - 1], escaped }))
    }

    /// Steps over the value that stands here, which is returned as it was.
    ///
    /// # Errors
    /// If the JSON ends before.
    pub fn value(&mut self) -> Result<&'a [u8], Ends> {
        let first = self.peek().ok_or(Ends)?;
        let start = self.at;
        match first {
            b'"' => self.string()?,
            b'{' | b'[' => self.nested()?,
            _ => self.literal(),
        }
        Ok(&self.raw[start..self.at])
    }

    fn nested(&mut self) -> Result<(), Ends> {
        let mut depth = 0usize;
        loop {
            match self.peek().ok_or(Ends)? {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Ok(());
            }
        }
    }

    fn literal(&mut self) {
        let rest = &self.raw[self.at..];
        let ends = |byte: &u8| matches!(byte, b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t');
        self.at += rest.iter().position(ends).unwrap_or(rest.len());
    }

    fn string(&mut self) -> Result<(), Ends> {
        let start = self.at + 1;
        let (end, _) = walk::skip_string(self.raw, self.at).ok_or(Ends)?;
        self.at = end;
        if let Some(mark) = self.mark(&self.raw[start..end - 1]) {
            self.out.extend_from_slice(&self.raw[self.copied..start]);
            self.out.push(mark);
            self.copied = end - 1;
        }
        Ok(())
    }

    /// What stands for a text that the block or the transaction gives.
    fn mark(&self, text: &[u8]) -> Option<u8> {
        let of = self.of.as_ref();
        match text.len() {
            66 if *text == self.block.hash => Some(BLOCK_HASH),
            66 if of.is_some_and(|of| *text == of.hash) => Some(HASH),
            3..=18 if *text == *self.block.number => Some(NUMBER),
            3..=18 if *text == *self.block.time => Some(TIME),
            3..=18 if of.is_some_and(|of| *text == *of.index) => Some(INDEX),
            _ => None,
        }
    }

    /// The next byte that is no whitespace, which is left out.
    fn peek(&mut self) -> Option<u8> {
        let byte = *self.raw.get(self.at)?;
        if byte > b' ' { Some(byte) } else { self.behind_space() }
    }

    #[cold]
    fn behind_space(&mut self) -> Option<u8> {
        self.copy();
        while matches!(self.raw.get(self.at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
        self.copied = self.at;
        self.raw.get(self.at).copied()
    }

    fn copy(&mut self) {
        self.out.extend_from_slice(&self.raw[self.copied..self.at]);
        self.copied = self.at;
    }
}
