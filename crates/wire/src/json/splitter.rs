//! Splits a stream of JSON values. Nodes write such a stream on a Unix socket, with or without
//! whitespace between the values.
//!
//! The splitter finds the end of an object or array by its brackets and strings, and validates
//! nothing else. The splitter keeps its state between chunks, so it reads each byte of a long value
//! only once.

use super::string;

/// The state between two chunks of a stream.
#[derive(Debug, Clone, Default)]
pub struct Splitter {
    /// Number of open brackets.
    depth: u64,
    /// True if the next byte belongs to a string.
    in_string: bool,
    /// True if the last chunk ended after a backslash, so the next byte is escaped.
    escaped: bool,
}

/// The result of reading a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// A value ends after this number of bytes. The next value follows.
    End(usize),
    /// The chunk ends within a value.
    Incomplete,
    /// The chunk is whitespace between values.
    Whitespace,
}

/// A syntax error: the value at this offset is neither an object nor an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnexpectedByte(pub usize);

impl Splitter {
    /// Reads the next chunk of the stream up to the end of a value. If a value ends, call this
    /// function again with the bytes after that end.
    ///
    /// # Errors
    /// If a value of the stream is neither an object nor an array.
    pub fn next(&mut self, chunk: &[u8]) -> Result<Split, UnexpectedByte> {
        let mut offset = 0;
        if self.depth == 0 {
            let is_whitespace = |byte: &u8| matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
            let Some(start) = chunk.iter().position(|byte| !is_whitespace(byte)) else {
                return Ok(Split::Whitespace);
            };
            if !matches!(chunk[start], b'{' | b'[') {
                return Err(UnexpectedByte(start));
            }
            self.depth = 1;
            offset = start + 1;
        }
        while offset < chunk.len() {
            if self.in_string {
                offset = self.skip_string(chunk, offset);
                continue;
            }
            match chunk[offset] {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Ok(Split::End(offset + 1));
                    }
                }
                _ => {}
            }
            offset += 1;
        }
        Ok(Split::Incomplete)
    }

    /// Skips the rest of a string, or the rest of the chunk if the string does not end in it.
    fn skip_string(&mut self, chunk: &[u8], mut offset: usize) -> usize {
        if self.escaped {
            self.escaped = false;
            offset += 1;
        }
        while offset < chunk.len() {
            offset = string::find_special(chunk, offset);
            match chunk.get(offset) {
                Some(b'"') => {
                    self.in_string = false;
                    return offset + 1;
                }
                Some(b'\\') if offset + 1 == chunk.len() => {
                    self.escaped = true;
                    return offset + 1;
                }
                Some(b'\\') => offset += 2,
                _ => offset += 1,
            }
        }
        offset.min(chunk.len())
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the stream is split at the ends of its values, for chunks of any size.

    use super::*;

    /// Splits a stream that arrives in chunks of `chunk_bytes`. Returns the values before an
    /// unexpected byte as error.
    fn split_stream(stream: &[u8], chunk_bytes: usize) -> Result<Vec<Vec<u8>>, Vec<Vec<u8>>> {
        let mut splitter = Splitter::default();
        let mut values = vec![Vec::new()];
        for mut chunk in stream.chunks(chunk_bytes) {
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
        for chunk_bytes in 1..=stream.len() {
            let values = split_stream(stream.as_bytes(), chunk_bytes).unwrap();
            let values: Vec<_> =
                values.iter().map(|value| std::str::from_utf8(value).unwrap()).collect();
            assert_eq!(values, expected, "in chunks of {chunk_bytes}");
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
            for chunk_bytes in 1..=stream.len() {
                assert!(split_stream(stream.as_bytes(), chunk_bytes).is_err(), "{stream}");
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
