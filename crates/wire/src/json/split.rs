//! Cutting a stream of JSON values apart, as nodes write them on a local socket: one after the other,
//! perhaps with whitespace between them.
//!
//! It finds where an object or array ends by its brackets and strings, and validates nothing else; the
//! values are read by `json.rs` afterwards. It goes on where the last piece ended, so that a long value
//! is looked at once.

use super::text;

/// Where in the stream the next byte stands.
#[derive(Debug, Clone, Default)]
pub struct Splitter {
    /// Open brackets.
    depth: u64,
    in_string: bool,
    /// The next byte belongs to an escape.
    escaped: bool,
}

/// What the start of a piece is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// So many bytes end a value. What comes behind them belongs to the next one.
    Ends(usize),
    /// The piece ends within a value.
    Within,
    /// There is only whitespace between values.
    Between,
}

/// The byte at this offset can begin no object or array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoValue(pub usize);

impl Splitter {
    /// Looks at the next piece of the stream, up to the end of a value. To be called again with what is
    /// behind that end.
    ///
    /// # Errors
    /// If something other than objects and arrays is in the stream; where it begins.
    pub fn next(&mut self, piece: &[u8]) -> Result<Cut, NoValue> {
        let mut at = 0;
        if self.depth == 0 {
            let space = |byte: &u8| matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
            let Some(start) = piece.iter().position(|byte| !space(byte)) else {
                return Ok(Cut::Between);
            };
            if !matches!(piece[start], b'{' | b'[') {
                return Err(NoValue(start));
            }
            self.depth = 1;
            at = start + 1;
        }
        while at < piece.len() {
            if self.in_string {
                at = self.pass_string(piece, at);
                continue;
            }
            match piece[at] {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Ok(Cut::Ends(at + 1));
                    }
                }
                _ => {}
            }
            at += 1;
        }
        Ok(Cut::Within)
    }

    /// Passes the rest of a string, or what is there of it.
    fn pass_string(&mut self, piece: &[u8], mut at: usize) -> usize {
        if self.escaped {
            self.escaped = false;
            at += 1;
        }
        while at < piece.len() {
            at = text::plain_end(piece, at);
            match piece.get(at) {
                Some(b'"') => {
                    self.in_string = false;
                    return at + 1;
                }
                Some(b'\\') if at + 1 == piece.len() => {
                    self.escaped = true;
                    return at + 1;
                }
                Some(b'\\') => at += 2,
                _ => at += 1,
            }
        }
        at.min(piece.len())
    }
}

#[cfg(test)]
mod tests {
    //! Goal: values are cut apart where they end, however the stream is cut into pieces.

    use super::*;

    fn values(stream: &[u8], step: usize) -> Result<Vec<Vec<u8>>, Vec<Vec<u8>>> {
        let mut splitter = Splitter::default();
        let mut values = vec![Vec::new()];
        for mut piece in stream.chunks(step) {
            loop {
                match splitter.next(piece) {
                    Ok(Cut::Ends(end)) => {
                        values.last_mut().unwrap().extend_from_slice(&piece[..end]);
                        values.push(Vec::new());
                        piece = &piece[end..];
                    }
                    Ok(Cut::Within) => {
                        values.last_mut().unwrap().extend_from_slice(piece);
                        break;
                    }
                    Ok(Cut::Between) => break,
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
            assert_eq!(read, expected, "in pieces of {step}");
        }
    }

    #[test]
    fn cuts_values_apart() {
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
    fn takes_nothing_else() {
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
            assert!(crate::json::check(text.as_bytes(), 64).is_ok());
            let cut = Splitter::default().next(text.as_bytes());
            assert_eq!(cut, Ok(Cut::Ends(text.len())));
        }
    }
}
