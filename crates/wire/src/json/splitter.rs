//! Splits a stream of JSON values. Nodes write such a stream on a local socket, with or without
//! whitespace between the values.
//!
//! The splitter finds the end of an object or array by its brackets and strings and validates
//! nothing else. It continues where the last chunk ended, so it reads each byte of a long value
//! only once.

use super::string;

/// The state between two chunks of a stream.
#[derive(Debug, Clone, Default)]
pub struct Splitter {
    /// Number of open brackets.
    depth: u64,
    /// True if the next byte belongs to a string.
    in_string: bool,
    /// True if the next byte belongs to an escape sequence.
    escaped: bool,
}

/// The content of the start of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// A value ends after this number of bytes. The next value follows.
    End(usize),
    /// The chunk ends within a value.
    Incomplete,
    /// The chunk is whitespace between values.
    Whitespace,
}

/// The byte at this offset begins neither an object nor an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnexpectedByte(pub usize);

impl Splitter {
    /// Reads the next chunk of the stream up to the end of a value. Call it again with the bytes
    /// behind that end.
    ///
    /// # Errors
    /// If a value of the stream is neither an object nor an array.
    pub fn next(&mut self, chunk: &[u8]) -> Result<Split, UnexpectedByte> {
        let mut at = 0;
        if self.depth == 0 {
            let space = |byte: &u8| matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
            let Some(start) = chunk.iter().position(|byte| !space(byte)) else {
                return Ok(Split::Whitespace);
            };
            if !matches!(chunk[start], b'{' | b'[') {
                return Err(UnexpectedByte(start));
            }
            self.depth = 1;
            at = start + 1;
        }
        while at < chunk.len() {
            if self.in_string {
                at = self.skip_string(chunk, at);
                continue;
            }
            match chunk[at] {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Ok(Split::End(at + 1));
                    }
                }
                _ => {}
            }
            at += 1;
        }
        Ok(Split::Incomplete)
    }

    /// Skips the rest of a string, or the rest of the chunk if the string does not end in it.
    fn skip_string(&mut self, chunk: &[u8], mut at: usize) -> usize {
        if self.escaped {
            self.escaped = false;
            at += 1;
        }
        while at < chunk.len() {
            at = string::find_special(chunk, at);
            match chunk.get(at) {
                Some(b'"') => {
                    self.in_string = false;
                    return at + 1;
                }
                Some(b'\\') if at + 1 == chunk.len() => {
                    self.escaped = true;
                    return at + 1;
                }
                Some(b'\\') => at += 2,
                _ => at += 1,
            }
        }
        at.min(chunk.len())
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the stream is split at the ends of its values, whatever the chunks are.

    use super::*;

    fn values(stream: &[u8], step: usize) -> Result<Vec<Vec<u8>>, Vec<Vec<u8>>> {
        let mut splitter = Splitter::default();
        let mut values = vec![Vec::new()];
        for mut chunk in stream.chunks(step) {
            loop {
                match splitter.next(chunk) {
                    Ok(Split::End(end)) => {
                        values.last_mut().unwrap().extend_from_slice(&chunk[..end]);
                        values.push(Vec::new());
                        chunk = &chunk[end..];
                    }
                    Ok(Split::Incomplete) => {
                        values.last_mut().unwrap().extend_from_slice(chunk);
                        break;
                    }
                    Ok(Split::Whitespace) => break,
                    Err(_) => return Err(values),
                }
            }
        }
        Ok(values.iter().map(|value| value.trim_ascii().to_vec()).collect())
    }

    fn check(stream: &str, expected: &[&str]) {
        for step in 1..=stream.len() {
            let read = values(stream.as_bytes(), step).unwrap();
            let read: Vec<_> =
                read.iter().map(|value| std::str::from_utf8(value).unwrap()).collect();
            assert_eq!(read, expected, "in chunks of {step}");
        }
    }

    #[test]
    fn splits_values() {
        check("{}\n[]\n", &["{}", "[]", ""]);
        check(
            "{\"a\":{\"b\":[1,2]}}{\"c\":1} \r\n\t[",
            &["{\"a\":{\"b\":[1,2]}}", "{\"c\":1}", "["],
        );
        check(
            r#"{"a":"}]{[","b":"\"}","c":"\\"}{"d":"\\\"\u007d"}"#,
            &[r#"{"a":"}]{[","b":"\"}","c":"\\"}"#, r#"{"d":"\\\"\u007d"}"#, ""],
        );
        check("{\"x\":\"\u{fc}\u{1f49b}}\"}", &["{\"x\":\"\u{fc}\u{1f49b}}\"}", ""]);
    }

    #[test]
    fn rejects_other_values() {
        for stream in ["1", "{} x", "{}]", "\"a\"", "\u{feff}{}", "{}}"] {
            for step in 1..=stream.len() {
                assert!(values(stream.as_bytes(), step).is_err(), "{stream}");
            }
        }
    }

    #[test]
    fn agrees_with_the_scanner_on_valid_values() {
        let texts = [r#"{"a":[{},[[]],"\\\\\"",{"b":"]"}]}"#, r#"["\"","[",{"":{}}]"#];
        for text in texts {
            assert!(crate::json::validate(text.as_bytes(), 64).is_ok());
            let split = Splitter::default().next(text.as_bytes());
            assert_eq!(split, Ok(Split::End(text.len())));
        }
    }
}
