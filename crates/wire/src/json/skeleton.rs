//! The skeleton of an answer that comes in pieces: validated as it comes, and only what decides kept.
//!
//! A body of megabytes is nearly all `result`, into which nobody looks. Here it is passed over piece
//! by piece, each at a cost that its own length bounds, and `0` stands in its place. What is left,
//! the envelope with ids and errors, reads in `crates/wire/src/answer.rs` as the whole body would: the
//! same answers with other results, or a fault where there was one. `json.rs` has the same grammar
//! for bytes that lie together; tests hold the two against each other.

use super::DEPTH_CEILING;
use super::skip::Skim;
use super::text::Text;

#[cfg(test)]
mod tests;

/// Members of an answer whose values decide; they are kept as they are.
const DECIDING: [&[u8]; 2] = [b"id", b"error"];

/// No JSON text holds it anywhere, so that what is kept of a faulty text is faulty at the same place.
const FAULT: u8 = 0;

/// One text, in pieces of any size.
///
/// First [`Skeleton::feed`] for each piece, then [`Skeleton::kept`].
#[derive(Debug)]
pub struct Skeleton {
    kept: Vec<u8>,
    state: State,
    part: Part,
    /// Open arrays and objects, and a bit for each that tells whether it is an object.
    depth: usize,
    objects: [u64; DEPTH_CEILING / 64],
    /// Depth of the members of an answer: within one object, or in the objects of an array.
    members: usize,
    /// Where the value stands that is not part of the skeleton.
    level: usize,
    /// Where the last name of the skeleton begins in what is kept, its quote included.
    name: usize,
}

/// What the next byte belongs to.
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
    /// The colon behind a name.
    Colon,
    /// What follows a value in an array or object.
    After,
    /// Nothing: the text has ended.
    Done,
    /// A string; a name or a value.
    Text { name: bool, at: InText },
    /// A number.
    Number(InNumber),
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
    /// Whatever it is: the text is faulty.
    Faulty,
}

/// Where in a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InText {
    Plain,
    /// Behind a backslash.
    Escape,
    /// So many hexadecimal digits are still to come.
    Digits(u8),
    /// So many bytes of a character are still to come, the next of them within these bounds.
    Character {
        left: u8,
        min: u8,
        max: u8,
    },
}

/// Where in a number (RFC 8259, section 6).
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

/// What becomes of the bytes at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// They are kept, and white space is not.
    Skeleton,
    /// They belong to a value that decides and are kept as they are.
    Deciding,
    /// They belong to a value for which something else stands.
    Passed,
}

impl Default for Skeleton {
    fn default() -> Skeleton {
        Skeleton {
            kept: Vec::new(),
            state: State::Value,
            part: Part::Skeleton,
            depth: 0,
            objects: [0; DEPTH_CEILING / 64],
            members: usize::MAX,
            level: 0,
            name: 0,
        }
    }
}

impl Skeleton {
    /// Takes the next bytes. What this costs is bounded by their number.
    pub fn feed(&mut self, bytes: &[u8]) {
        // Nothing is nested in its eyes: only the places of odd bytes are asked for.
        let mut skim = Skim::new(bytes, 0, 0);
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            at = match self.state {
                State::Faulty => return,
                State::Text { name, at: within } => self.text(&mut skim, at, name, within),
                State::Number(within) => self.number(byte, at, within),
                State::Word(rest) => self.word(byte, at, rest),
                _ if matches!(byte, b' ' | b'\n' | b'\r' | b'\t') => {
                    if self.part == Part::Deciding {
                        self.kept.push(byte);
                    }
                    at + 1
                }
                State::Value | State::Element => self.value(byte, at),
                State::Member | State::Name => self.name(&mut skim, byte, at),
                State::Colon => self.colon(byte, at),
                State::After => self.after(byte, at),
                State::Done => self.fault(at),
            };
        }
    }

    /// What is left of the text so far. It is a JSON text if and only if the text so far is one.
    pub fn kept(&self) -> &[u8] {
        &self.kept
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.part != Part::Passed {
            self.kept.extend_from_slice(bytes);
        }
    }

    fn fault(&mut self, at: usize) -> usize {
        self.kept.push(FAULT);
        self.state = State::Faulty;
        at
    }

    fn fault_in_text(&mut self, before: &[u8], at: usize) -> usize {
        self.keep(before);
        self.fault(at)
    }

    fn value(&mut self, byte: u8, at: usize) -> usize {
        if byte == b']' && self.state == State::Element {
            return self.close(byte, at);
        }
        if self.part == Part::Skeleton {
            self.begin(byte);
        }
        self.state = match byte {
            b'{' | b'[' if self.depth == DEPTH_CEILING => return self.fault(at),
            b'{' | b'[' => {
                let bit = 1 << (self.depth % 64);
                let word = &mut self.objects[self.depth / 64];
                *word = if byte == b'{' { *word | bit } else { *word & !bit };
                self.depth += 1;
                if byte == b'{' { State::Member } else { State::Element }
            }
            b'"' => State::Text { name: false, at: InText::Plain },
            b't' => State::Word(b"rue"),
            b'f' => State::Word(b"alse"),
            b'n' => State::Word(b"ull"),
            b'-' => State::Number(InNumber::Minus),
            b'0' => State::Number(InNumber::Zero),
            b'1'..=b'9' => State::Number(InNumber::Whole),
            _ => return self.fault(at),
        };
        self.keep(&[byte]);
        at + 1
    }

    /// Decides what becomes of a value that begins with this byte, in the skeleton.
    fn begin(&mut self, byte: u8) {
        match (self.depth, byte) {
            (0, b'{') => self.members = 1,
            (0, b'[') => self.members = 2,
            (1, b'{') if self.members == 2 => {}
            _ => {
                self.level = self.depth;
                // A text that is no array or object answers nothing, and is not worth a case.
                if self.depth == 0 || (self.depth == self.members && self.decides()) {
                    self.part = Part::Deciding;
                } else {
                    // An answer may hold a result and an error if one of them is null.
                    self.kept.extend_from_slice(if byte == b'n' { b"null" } else { b"0" });
                    self.part = Part::Passed;
                }
            }
        }
    }

    /// Whether the value belongs to a name that decides; the name and a colon were kept last.
    fn decides(&self) -> bool {
        let name = self.kept.get(self.name + 1..self.kept.len() - 2).unwrap_or_default();
        DECIDING.contains(&&*Text::of(name).decode())
    }

    /// A value has ended.
    fn end(&mut self) {
        self.state = if self.depth == 0 { State::Done } else { State::After };
        if self.depth == self.level {
            self.part = Part::Skeleton;
        }
    }

    fn close(&mut self, byte: u8, at: usize) -> usize {
        self.keep(&[byte]);
        self.depth -= 1;
        self.end();
        at + 1
    }

    fn name(&mut self, skim: &mut Skim<'_>, byte: u8, mut at: usize) -> usize {
        match byte {
            b'"' => {
                if self.part == Part::Skeleton {
                    self.name = self.kept.len();
                } else if self.part == Part::Passed {
                    at = skim.past_plain_members(at);
                }
                self.keep(&[byte]);
                self.state = State::Text { name: true, at: InText::Plain };
                at + 1
            }
            b'}' if self.state == State::Member => self.close(byte, at),
            _ => self.fault(at),
        }
    }

    fn colon(&mut self, byte: u8, at: usize) -> usize {
        if byte != b':' {
            return self.fault(at);
        }
        self.keep(&[byte]);
        self.state = State::Value;
        at + 1
    }

    fn after(&mut self, byte: u8, at: usize) -> usize {
        let last = self.depth - 1;
        let object = self.objects[last / 64] >> (last % 64) & 1 == 1;
        self.state = match (byte, object) {
            (b',', true) => State::Name,
            (b',', false) => State::Value,
            (b'}', true) | (b']', false) => return self.close(byte, at),
            _ => return self.fault(at),
        };
        self.keep(&[byte]);
        at + 1
    }

    fn word(&mut self, byte: u8, at: usize, rest: &'static [u8]) -> usize {
        match rest.split_first() {
            Some((wanted, rest)) if *wanted == byte => {
                self.keep(&[byte]);
                self.state = State::Word(rest);
                if rest.is_empty() {
                    self.end();
                }
                at + 1
            }
            _ => self.fault(at),
        }
    }

    fn number(&mut self, byte: u8, at: usize, within: InNumber) -> usize {
        use InNumber::{E, Exponent, Fraction, Minus, Point, Sign, Whole, Zero};
        let next = match (within, byte) {
            (Minus, b'0') => Zero,
            (Minus | Whole, b'0'..=b'9') => Whole,
            (Zero | Whole, b'.') => Point,
            (Point | Fraction, b'0'..=b'9') => Fraction,
            (Zero | Whole | Fraction, b'e' | b'E') => E,
            (E, b'+' | b'-') => Sign,
            (E | Sign | Exponent, b'0'..=b'9') => Exponent,
            // The byte is no part of the number.
            (Zero | Whole | Fraction | Exponent, _) => {
                self.end();
                return at;
            }
            _ => return self.fault(at),
        };
        self.keep(&[byte]);
        self.state = State::Number(next);
        at + 1
    }

    /// Goes on in a string, up to its end or that of the piece.
    fn text(&mut self, skim: &mut Skim<'_>, begin: usize, name: bool, mut within: InText) -> usize {
        let bytes = skim.bytes;
        let mut at = begin;
        loop {
            if within == InText::Plain {
                at = skim.next_odd(at).min(bytes.len());
            }
            let Some(&byte) = bytes.get(at) else { break };
            within = match (within, byte) {
                (InText::Plain, b'"') => {
                    self.keep(&bytes[begin..=at]);
                    if name {
                        self.state = State::Colon;
                    } else {
                        self.end();
                    }
                    return at + 1;
                }
                (InText::Plain, b'\\') => InText::Escape,
                (InText::Plain, _) => match InText::after_lead(byte) {
                    Some(within) => within,
                    None => return self.fault_in_text(&bytes[begin..at], at),
                },
                (InText::Escape, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                    InText::Plain
                }
                (InText::Escape, b'u') => InText::Digits(4),
                (InText::Digits(left), _) if byte.is_ascii_hexdigit() => match left {
                    1 => InText::Plain,
                    _ => InText::Digits(left - 1),
                },
                (InText::Character { left, min, max }, _) if (min..=max).contains(&byte) => {
                    match left {
                        1 => InText::Plain,
                        _ => InText::Character { left: left - 1, min: 0x80, max: 0xbf },
                    }
                }
                _ => return self.fault_in_text(&bytes[begin..at], at),
            };
            at += 1;
        }
        self.keep(&bytes[begin..at]);
        self.state = State::Text { name, at: within };
        at
    }
}

impl InText {
    /// What follows the first byte of a character that is not ASCII (RFC 3629, section 4).
    fn after_lead(byte: u8) -> Option<InText> {
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
        Some(InText::Character { left, min, max })
    }
}
