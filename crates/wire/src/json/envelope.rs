//! A validating scanner for a response that arrives in chunks. The scanner stores only the envelope
//! of the response. In the envelope, a short placeholder replaces each value except `id` and
//! `error`. Whitespace outside of these two values is omitted.
//!
//! Nearly all bytes of a large body belong to `result`, which the caller does not read. The scanner
//! validates each chunk as it arrives and writes a short value of the same type in place of the
//! result. `response.rs` then parses the envelope instead of the whole body. The parser then returns the same responses as for
//! the whole body, except for their results, or an error of the same kind. `scanner.rs` implements
//! the same grammar for a text that is completely in memory. Tests compare both.

use super::fast_scanner::FastScanner;
use super::scanner::DEPTH_CEILING;
use super::string::JsonString;

#[cfg(test)]
mod tests;

/// The members of a response whose values the envelope contains.
const COPIED_MEMBERS: [&[u8]; 2] = [b"id", b"error"];

/// The scanner appends this byte to the envelope when it finds an invalid byte in the text. JSON
/// never contains this byte, so a parser rejects the envelope too.
const INVALID: u8 = 0;

/// Returns the placeholder of a value from the value's first byte. It has the type of the value, so
/// that callers can check it. A response may have both a result and an error if one of them is
/// null, so the placeholder of null must be null. A long text is assumed to be bytes in
/// hexadecimal, as the results of nodes are.
fn placeholder_of(first_byte: u8) -> &'static [u8] {
    match first_byte {
        b'n' => b"null",
        b'{' => b"{}",
        b'[' => b"[]",
        b'"' => b"\"0x\"",
        b't' | b'f' => b"true",
        _ => b"0",
    }
}

/// The scanner of one text. It holds the state between two chunks.
///
/// Call [`EnvelopeScanner::feed`] for each chunk, then [`EnvelopeScanner::envelope`].
#[derive(Debug)]
pub struct EnvelopeScanner {
    envelope: Vec<u8>,
    state: State,
    copy_mode: CopyMode,
    /// The number of open arrays and objects.
    depth: usize,
    /// One bit per open array or object: 0 for an array, 1 for an object.
    object_bits: [u64; DEPTH_CEILING / 64],
    /// The depth of a response's members: 1 in a single response, and 2 in a batch. Before the
    /// first value, it is `usize::MAX`.
    members_depth: usize,
    /// The depth of the value that is copied unchanged or replaced by a placeholder.
    value_depth: usize,
    /// The offset in the envelope of the last copied name, at its opening quote.
    name_offset: usize,
}

/// The state of the grammar: the part of JSON that may come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A value.
    Value,
    /// The first value of an array, or the end of the array.
    FirstElement,
    /// The first name of an object, or the end of the object.
    FirstName,
    /// A name after a comma.
    NextName,
    /// The colon after a name.
    Colon,
    /// A comma or the end of the array or object.
    AfterValue,
    /// Only whitespace: the text is complete.
    Done,
    /// The inside of a string. `is_name` is true if the string is the name of a member.
    String { is_name: bool, position: StringPosition },
    /// Another byte of a number, or the byte after the number.
    Number(NumberPosition),
    /// The next bytes of `true`, `false` or `null`.
    Literal(&'static [u8]),
    /// The text is invalid.
    Invalid,
}

/// The position between two bytes of a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StringPosition {
    /// Between two characters.
    Plain,
    /// After a backslash.
    Escape,
    /// Within `\uXXXX`, before this number of hexadecimal digits.
    Digits(u8),
    /// Within a character that is not ASCII, before its last `remaining` bytes. The next byte must
    /// lie between `min` and `max`.
    Character { remaining: u8, min: u8, max: u8 },
}

/// The position between two bytes of a number, named after the last byte (RFC 8259, section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NumberPosition {
    /// After the minus of the whole number.
    Minus,
    /// After a leading `0`, which no further digit may follow.
    Zero,
    /// After a digit before the decimal point.
    Whole,
    /// After the decimal point.
    Point,
    /// After a digit behind the decimal point.
    Fraction,
    /// After the `e` of the exponent.
    E,
    /// After the sign of the exponent.
    Sign,
    /// After a digit of the exponent.
    Exponent,
}

/// How the scanner treats the current bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyMode {
    /// The bytes are copied to the envelope without whitespace.
    Compact,
    /// The bytes are copied to the envelope with whitespace. They belong to the value of one of the
    /// [`COPIED_MEMBERS`].
    Verbatim,
    /// The bytes are not copied. The envelope contains a placeholder instead.
    Skip,
}

impl Default for EnvelopeScanner {
    fn default() -> EnvelopeScanner {
        EnvelopeScanner {
            envelope: Vec::new(),
            state: State::Value,
            copy_mode: CopyMode::Compact,
            depth: 0,
            object_bits: [0; DEPTH_CEILING / 64],
            members_depth: usize::MAX,
            value_depth: 0,
            name_offset: 0,
        }
    }
}

impl EnvelopeScanner {
    /// Reads the next chunk. The cost is proportional to its length.
    pub fn feed(&mut self, bytes: &[u8]) {
        // The fast scanner only finds special bytes here, so its depth limits do not matter.
        let mut fast_scanner = FastScanner::new(bytes, 0, 0);
        let mut offset = 0;
        while let Some(&byte) = bytes.get(offset) {
            offset = match self.state {
                State::Invalid => return,
                State::String { is_name, position } => {
                    self.read_string(&mut fast_scanner, offset, is_name, position)
                }
                State::Number(position) => self.read_number(byte, offset, position),
                State::Literal(missing) => self.read_literal(byte, offset, missing),
                _ if matches!(byte, b' ' | b'\n' | b'\r' | b'\t') => {
                    if self.copy_mode == CopyMode::Verbatim {
                        self.envelope.push(byte);
                    }
                    offset + 1
                }
                State::Value | State::FirstElement => self.read_value(byte, offset),
                State::FirstName | State::NextName => {
                    self.read_name(&mut fast_scanner, byte, offset)
                }
                State::Colon => self.read_colon(byte, offset),
                State::AfterValue => self.read_after_value(byte, offset),
                State::Done => self.mark_invalid(offset),
            };
        }
    }

    /// Returns the envelope of the chunks so far. The envelope is valid JSON if and only if the
    /// chunks so far are valid JSON.
    pub fn envelope(&self) -> &[u8] {
        &self.envelope
    }

    /// Appends bytes to the envelope, unless they are skipped.
    fn copy(&mut self, bytes: &[u8]) {
        if self.copy_mode != CopyMode::Skip {
            self.envelope.extend_from_slice(bytes);
        }
    }

    /// Marks the envelope as invalid, and returns the unchanged offset. Further bytes of the text
    /// are ignored.
    fn mark_invalid(&mut self, offset: usize) -> usize {
        self.envelope.push(INVALID);
        self.state = State::Invalid;
        offset
    }

    /// Copies the valid part of a string, and marks the envelope as invalid after that part.
    fn mark_invalid_in_string(&mut self, valid_part: &[u8], offset: usize) -> usize {
        self.copy(valid_part);
        self.mark_invalid(offset)
    }

    /// Reads the first byte of a value. Like every `read_` function, returns the offset of the next
    /// byte to read.
    fn read_value(&mut self, byte: u8, offset: usize) -> usize {
        if byte == b']' && self.state == State::FirstElement {
            return self.close(byte, offset);
        }
        if self.copy_mode == CopyMode::Compact {
            self.choose_copy_mode(byte);
        }
        self.state = match byte {
            b'{' | b'[' if self.depth == DEPTH_CEILING => return self.mark_invalid(offset),
            b'{' | b'[' => {
                let bit = 1 << (self.depth % 64);
                let word = &mut self.object_bits[self.depth / 64];
                *word = if byte == b'{' { *word | bit } else { *word & !bit };
                self.depth += 1;
                if byte == b'{' { State::FirstName } else { State::FirstElement }
            }
            b'"' => State::String { is_name: false, position: StringPosition::Plain },
            b't' => State::Literal(b"rue"),
            b'f' => State::Literal(b"alse"),
            b'n' => State::Literal(b"ull"),
            b'-' => State::Number(NumberPosition::Minus),
            b'0' => State::Number(NumberPosition::Zero),
            b'1'..=b'9' => State::Number(NumberPosition::Whole),
            _ => return self.mark_invalid(offset),
        };
        self.copy(&[byte]);
        offset + 1
    }

    /// Chooses the copy mode of the next value. `byte` is the first byte of the value.
    fn choose_copy_mode(&mut self, byte: u8) {
        match (self.depth, byte) {
            (0, b'{') => self.members_depth = 1,
            (0, b'[') => self.members_depth = 2,
            // A response of a batch.
            (1, b'{') if self.members_depth == 2 => {}
            _ => {
                self.value_depth = self.depth;
                // A text that is neither an array nor an object is not a response. The scanner
                // copies such a text unchanged.
                if self.depth == 0 || (self.depth == self.members_depth && self.is_copied_member())
                {
                    self.copy_mode = CopyMode::Verbatim;
                } else {
                    self.envelope.extend_from_slice(placeholder_of(byte));
                    self.copy_mode = CopyMode::Skip;
                }
            }
        }
    }

    /// Returns true if the envelope contains the value of the member whose name was read last.
    fn is_copied_member(&self) -> bool {
        // The envelope ends with the name's closing quote and a colon.
        let name_end = self.envelope.len() - 2;
        let name = self.envelope.get(self.name_offset + 1..name_end).unwrap_or_default();
        COPIED_MEMBERS.contains(&&*JsonString::new(name).decode())
    }

    /// Ends a value. After a copied or replaced value, compact copying resumes.
    fn end_value(&mut self) {
        self.state = if self.depth == 0 { State::Done } else { State::AfterValue };
        if self.depth == self.value_depth {
            self.copy_mode = CopyMode::Compact;
        }
    }

    /// Ends an array or object.
    fn close(&mut self, byte: u8, offset: usize) -> usize {
        self.copy(&[byte]);
        self.depth -= 1;
        self.end_value();
        offset + 1
    }

    fn read_name(
        &mut self,
        fast_scanner: &mut FastScanner<'_>,
        byte: u8,
        mut offset: usize,
    ) -> usize {
        match byte {
            b'"' => {
                if self.copy_mode == CopyMode::Compact {
                    self.name_offset = self.envelope.len();
                } else if self.copy_mode == CopyMode::Skip {
                    offset = fast_scanner.skip_string_members(offset);
                }
                self.copy(&[byte]);
                self.state = State::String { is_name: true, position: StringPosition::Plain };
                offset + 1
            }
            b'}' if self.state == State::FirstName => self.close(byte, offset),
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
        let innermost_depth = self.depth - 1;
        let is_object = self.object_bits[innermost_depth / 64] >> (innermost_depth % 64) & 1 == 1;
        self.state = match (byte, is_object) {
            (b',', true) => State::NextName,
            (b',', false) => State::Value,
            (b'}', true) | (b']', false) => return self.close(byte, offset),
            _ => return self.mark_invalid(offset),
        };
        self.copy(&[byte]);
        offset + 1
    }

    fn read_literal(&mut self, byte: u8, offset: usize, missing: &'static [u8]) -> usize {
        match missing.split_first() {
            Some((expected, missing)) if *expected == byte => {
                self.copy(&[byte]);
                self.state = State::Literal(missing);
                if missing.is_empty() {
                    self.end_value();
                }
                offset + 1
            }
            _ => self.mark_invalid(offset),
        }
    }

    fn read_number(&mut self, byte: u8, offset: usize, position: NumberPosition) -> usize {
        use NumberPosition::{E, Exponent, Fraction, Minus, Point, Sign, Whole, Zero};
        let next = match (position, byte) {
            (Minus, b'0') => Zero,
            (Minus | Whole, b'0'..=b'9') => Whole,
            (Zero | Whole, b'.') => Point,
            (Point | Fraction, b'0'..=b'9') => Fraction,
            (Zero | Whole | Fraction, b'e' | b'E') => E,
            (E, b'+' | b'-') => Sign,
            (E | Sign | Exponent, b'0'..=b'9') => Exponent,
            // The number ended before this byte, which is read again in the next state.
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

    /// Reads a string from `start` up to its end or the end of the chunk.
    fn read_string(
        &mut self,
        fast_scanner: &mut FastScanner<'_>,
        start: usize,
        is_name: bool,
        mut position: StringPosition,
    ) -> usize {
        let bytes = fast_scanner.bytes;
        let mut offset = start;
        loop {
            if position == StringPosition::Plain {
                offset = fast_scanner.next_special(offset).min(bytes.len());
            }
            let Some(&byte) = bytes.get(offset) else { break };
            position = match (position, byte) {
                (StringPosition::Plain, b'"') => {
                    self.copy(&bytes[start..=offset]);
                    if is_name {
                        self.state = State::Colon;
                    } else {
                        self.end_value();
                    }
                    return offset + 1;
                }
                (StringPosition::Plain, b'\\') => StringPosition::Escape,
                (StringPosition::Plain, _) => match StringPosition::after_first_byte(byte) {
                    Some(position) => position,
                    None => return self.mark_invalid_in_string(&bytes[start..offset], offset),
                },
                (
                    StringPosition::Escape,
                    b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't',
                ) => StringPosition::Plain,
                (StringPosition::Escape, b'u') => StringPosition::Digits(4),
                (StringPosition::Digits(remaining), _) if byte.is_ascii_hexdigit() => {
                    match remaining {
                        1 => StringPosition::Plain,
                        _ => StringPosition::Digits(remaining - 1),
                    }
                }
                (StringPosition::Character { remaining, min, max }, _)
                    if (min..=max).contains(&byte) =>
                {
                    match remaining {
                        1 => StringPosition::Plain,
                        _ => StringPosition::Character {
                            remaining: remaining - 1,
                            min: 0x80,
                            max: 0xbf,
                        },
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

impl StringPosition {
    /// Returns the position after the first byte of a character that is not ASCII (RFC 3629,
    /// section 4). Returns `None` if no character starts with this byte.
    fn after_first_byte(byte: u8) -> Option<StringPosition> {
        let (remaining, min, max) = match byte {
            0xc2..=0xdf => (1, 0x80, 0xbf),
            0xe0 => (2, 0xa0, 0xbf),
            0xe1..=0xec | 0xee..=0xef => (2, 0x80, 0xbf),
            0xed => (2, 0x80, 0x9f),
            0xf0 => (3, 0x90, 0xbf),
            0xf1..=0xf3 => (3, 0x80, 0xbf),
            0xf4 => (3, 0x80, 0x8f),
            _ => return None,
        };
        Some(StringPosition::Character { remaining, min, max })
    }
}
