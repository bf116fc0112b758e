//! A validating scanner for a response that arrives in chunks. It keeps only the envelope: the
//! response with a short placeholder instead of its result.
//!
//! Nearly all bytes of a large body belong to `result`, which the caller does not read. The scanner
//! validates each chunk as it arrives and writes `0` in place of the result. `response.rs` parses
//! the envelope instead of the whole body. It returns the same responses except for their results,
//! or an error at the same offset. `scanner.rs` implements the same grammar for a whole text. Tests
//! compare both.

use super::fast_scanner::FastScanner;
use super::scanner::DEPTH_CEILING;
use super::string::JsonString;

#[cfg(test)]
mod tests;

/// The members of a response whose values the envelope contains.
const COPIED_MEMBERS: [&[u8]; 2] = [b"id", b"error"];

/// This byte stands for an invalid byte of the text, so the envelope is invalid at the same offset.
/// No JSON text contains it.
const INVALID: u8 = 0;

/// The scanner of one text. It holds the state between two chunks.
///
/// Call [`EnvelopeScanner::feed`] for each chunk, then [`EnvelopeScanner::envelope`].
#[derive(Debug)]
pub struct EnvelopeScanner {
    envelope: Vec<u8>,
    state: State,
    target: Target,
    /// The number of open arrays and objects.
    depth: usize,
    /// One bit per open array or object: 1 for an object.
    objects: [u64; DEPTH_CEILING / 64],
    /// The depth of a response's members: 1 in a single response, 2 in a batch.
    members_depth: usize,
    /// The depth of the value that is copied or replaced.
    value_depth: usize,
    /// The offset of the last name in the envelope, at its opening quote.
    name_offset: usize,
}

/// The state of the grammar: what the next byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A value.
    Value,
    /// The first value of an array, or its end.
    Element,
    /// The first name of an object, or its end.
    Member,
    /// A name.
    Name,
    /// The colon after a name.
    Colon,
    /// A comma or the end of the array or object.
    AfterValue,
    /// Only whitespace: the text is complete.
    Done,
    /// A string, which is a name or a value.
    String { is_name: bool, position: InString },
    /// A number.
    Number(InNumber),
    /// The rest of `true`, `false` or `null`.
    Literal(&'static [u8]),
    /// The text is invalid.
    Invalid,
}

/// A position in a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InString {
    Plain,
    /// After a backslash.
    Escape,
    /// Before this number of hexadecimal digits.
    Digits(u8),
    /// Before the last `left` bytes of a character. The next byte must be within these bounds.
    Character {
        left: u8,
        min: u8,
        max: u8,
    },
}

/// A position in a number (RFC 8259, section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InNumber {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

/// The target of the current bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// The envelope, without whitespace.
    Envelope,
    /// The envelope, with whitespace: the value of a member that the envelope contains.
    Member,
    /// Nowhere, because the envelope contains another value instead.
    Dropped,
}

impl Default for EnvelopeScanner {
    fn default() -> EnvelopeScanner {
        EnvelopeScanner {
            envelope: Vec::new(),
            state: State::Value,
            target: Target::Envelope,
            depth: 0,
            objects: [0; DEPTH_CEILING / 64],
            members_depth: usize::MAX,
            value_depth: 0,
            name_offset: 0,
        }
    }
}

impl EnvelopeScanner {
    /// Reads the next chunk. The cost is proportional to its length.
    pub fn feed(&mut self, bytes: &[u8]) {
        // Here the scanner only finds special bytes, so its limits do not matter.
        let mut fast = FastScanner::new(bytes, 0, 0);
        let mut offset = 0;
        while let Some(&byte) = bytes.get(offset) {
            offset = match self.state {
                State::Invalid => return,
                State::String { is_name, position } => {
                    self.read_string(&mut fast, offset, is_name, position)
                }
                State::Number(position) => self.read_number(byte, offset, position),
                State::Literal(rest) => self.read_literal(byte, offset, rest),
                _ if matches!(byte, b' ' | b'\n' | b'\r' | b'\t') => {
                    if self.target == Target::Member {
                        self.envelope.push(byte);
                    }
                    offset + 1
                }
                State::Value | State::Element => self.read_value(byte, offset),
                State::Member | State::Name => self.read_name(&mut fast, byte, offset),
                State::Colon => self.read_colon(byte, offset),
                State::AfterValue => self.read_after_value(byte, offset),
                State::Done => self.mark_invalid(offset),
            };
        }
    }

    /// Returns the envelope of the text so far. The envelope is valid JSON if and only if the text
    /// so far is valid JSON.
    pub fn envelope(&self) -> &[u8] {
        &self.envelope
    }

    fn copy(&mut self, bytes: &[u8]) {
        if self.target != Target::Dropped {
            self.envelope.extend_from_slice(bytes);
        }
    }

    fn mark_invalid(&mut self, offset: usize) -> usize {
        self.envelope.push(INVALID);
        self.state = State::Invalid;
        offset
    }

    fn mark_invalid_in_string(&mut self, before: &[u8], offset: usize) -> usize {
        self.copy(before);
        self.mark_invalid(offset)
    }

    fn read_value(&mut self, byte: u8, offset: usize) -> usize {
        if byte == b']' && self.state == State::Element {
            return self.close(byte, offset);
        }
        if self.target == Target::Envelope {
            self.choose_target(byte);
        }
        self.state = match byte {
            b'{' | b'[' if self.depth == DEPTH_CEILING => return self.mark_invalid(offset),
            b'{' | b'[' => {
                let bit = 1 << (self.depth % 64);
                let word = &mut self.objects[self.depth / 64];
                *word = if byte == b'{' { *word | bit } else { *word & !bit };
                self.depth += 1;
                if byte == b'{' { State::Member } else { State::Element }
            }
            b'"' => State::String { is_name: false, position: InString::Plain },
            b't' => State::Literal(b"rue"),
            b'f' => State::Literal(b"alse"),
            b'n' => State::Literal(b"ull"),
            b'-' => State::Number(InNumber::Minus),
            b'0' => State::Number(InNumber::Zero),
            b'1'..=b'9' => State::Number(InNumber::Whole),
            _ => return self.mark_invalid(offset),
        };
        self.copy(&[byte]);
        offset + 1
    }

    /// Chooses where the next value is copied. `byte` is its first byte.
    fn choose_target(&mut self, byte: u8) {
        match (self.depth, byte) {
            (0, b'{') => self.members_depth = 1,
            (0, b'[') => self.members_depth = 2,
            (1, b'{') if self.members_depth == 2 => {}
            _ => {
                self.value_depth = self.depth;
                // A text that is neither an array nor an object is not a response. The envelope
                // contains it unchanged.
                if self.depth == 0 || (self.depth == self.members_depth && self.is_copied_member())
                {
                    self.target = Target::Member;
                } else {
                    // A response may have a result and an error if one of them is null.
                    self.envelope.extend_from_slice(if byte == b'n' { b"null" } else { b"0" });
                    self.target = Target::Dropped;
                }
            }
        }
    }

    /// Returns true if the envelope contains the value of the member whose name was read last. A
    /// colon follows that name in the envelope.
    fn is_copied_member(&self) -> bool {
        let name =
            self.envelope.get(self.name_offset + 1..self.envelope.len() - 2).unwrap_or_default();
        COPIED_MEMBERS.contains(&&*JsonString::new(name).decode())
    }

    /// Ends a value.
    fn end_value(&mut self) {
        self.state = if self.depth == 0 { State::Done } else { State::AfterValue };
        if self.depth == self.value_depth {
            self.target = Target::Envelope;
        }
    }

    fn close(&mut self, byte: u8, offset: usize) -> usize {
        self.copy(&[byte]);
        self.depth -= 1;
        self.end_value();
        offset + 1
    }

    fn read_name(&mut self, fast: &mut FastScanner<'_>, byte: u8, mut offset: usize) -> usize {
        match byte {
            b'"' => {
                if self.target == Target::Envelope {
                    self.name_offset = self.envelope.len();
                } else if self.target == Target::Dropped {
                    offset = fast.skip_string_members(offset);
                }
                self.copy(&[byte]);
                self.state = State::String { is_name: true, position: InString::Plain };
                offset + 1
            }
            b'}' if self.state == State::Member => self.close(byte, offset),
            _ => self.mark_invalid(offset),
        }
    }

    fn read_colon(&mut self, byte: u8, offset: usize) -> usize {
        if byte != b':' {
            return self.mark_invalid(offset);
        }
        self.copy(&[byte]);
        self.state = State::Value;
        offset + 1
    }

    fn read_after_value(&mut self, byte: u8, offset: usize) -> usize {
        let innermost = self.depth - 1;
        let is_object = self.objects[innermost / 64] >> (innermost % 64) & 1 == 1;
        self.state = match (byte, is_object) {
            (b',', true) => State::Name,
            (b',', false) => State::Value,
            (b'}', true) | (b']', false) => return self.close(byte, offset),
            _ => return self.mark_invalid(offset),
        };
        self.copy(&[byte]);
        offset + 1
    }

    fn read_literal(&mut self, byte: u8, offset: usize, rest: &'static [u8]) -> usize {
        match rest.split_first() {
            Some((expected, rest)) if *expected == byte => {
                self.copy(&[byte]);
                self.state = State::Literal(rest);
                if rest.is_empty() {
                    self.end_value();
                }
                offset + 1
            }
            _ => self.mark_invalid(offset),
        }
    }

    fn read_number(&mut self, byte: u8, offset: usize, position: InNumber) -> usize {
        use InNumber::{E, Exponent, Fraction, Minus, Point, Sign, Whole, Zero};
        let next = match (position, byte) {
            (Minus, b'0') => Zero,
            (Minus | Whole, b'0'..=b'9') => Whole,
            (Zero | Whole, b'.') => Point,
            (Point | Fraction, b'0'..=b'9') => Fraction,
            (Zero | Whole | Fraction, b'e' | b'E') => E,
            (E, b'+' | b'-') => Sign,
            (E | Sign | Exponent, b'0'..=b'9') => Exponent,
            // The number ended before the byte.
            (Zero | Whole | Fraction | Exponent, _) => {
                self.end_value();
                return offset;
            }
            _ => return self.mark_invalid(offset),
        };
        self.copy(&[byte]);
        self.state = State::Number(next);
        offset + 1
    }

    /// Reads a string up to its end or the end of the chunk.
    fn read_string(
        &mut self,
        fast: &mut FastScanner<'_>,
        start: usize,
        is_name: bool,
        mut position: InString,
    ) -> usize {
        let bytes = fast.bytes;
        let mut offset = start;
        loop {
            if position == InString::Plain {
                offset = fast.next_special(offset).min(bytes.len());
            }
            let Some(&byte) = bytes.get(offset) else { break };
            position = match (position, byte) {
                (InString::Plain, b'"') => {
                    self.copy(&bytes[start..=offset]);
                    if is_name {
                        self.state = State::Colon;
                    } else {
                        self.end_value();
                    }
                    return offset + 1;
                }
                (InString::Plain, b'\\') => InString::Escape,
                (InString::Plain, _) => match InString::after_first_byte(byte) {
                    Some(position) => position,
                    None => return self.mark_invalid_in_string(&bytes[start..offset], offset),
                },
                (InString::Escape, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                    InString::Plain
                }
                (InString::Escape, b'u') => InString::Digits(4),
                (InString::Digits(left), _) if byte.is_ascii_hexdigit() => match left {
                    1 => InString::Plain,
                    _ => InString::Digits(left - 1),
                },
                (InString::Character { left, min, max }, _) if (min..=max).contains(&byte) => {
                    match left {
                        1 => InString::Plain,
                        _ => InString::Character { left: left - 1, min: 0x80, max: 0xbf },
                    }
                }
                _ => return self.mark_invalid_in_string(&bytes[start..offset], offset),
            };
            offset += 1;
        }
        self.copy(&bytes[start..offset]);
        self.state = State::String { is_name, position };
        offset
    }
}

impl InString {
    /// Returns the state after the first byte of a character that is not ASCII (RFC 3629, section
    /// 4).
    fn after_first_byte(byte: u8) -> Option<InString> {
        let (left, min, max) = match byte {
            0xc2..=0xdf => (1, 0x80, 0xbf),
            0xe0 => (2, 0xa0, 0xbf),
            0xe1..=0xec | 0xee..=0xef => (2, 0x80, 0xbf),
            0xed => (2, 0x80, 0x9f),
            0xf0 => (3, 0x90, 0xbf),
            0xf1..=0xf3 => (3, 0x80, 0xbf),
            0xf4 => (3, 0x80, 0x8f),
            _ => return None,
        };
        Some(InString::Character { left, min, max })
    }
}
