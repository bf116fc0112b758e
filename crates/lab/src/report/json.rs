//! Writes readable, compact JSON: values of the outer two levels have their own lines, and deeper
//! values (a second of a run, a sample of a host) are written on one line.
//!
//! With a line for every number, the file of a three-hour run would be three times as large.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use super::ReportFault;

/// Levels whose values have their own lines.
const LEVELS: usize = 2;

/// Returns the value as JSON with a final newline. `file` is the file name in the error.
pub(super) fn json(file: &'static str, value: &impl Serialize) -> Result<Vec<u8>, ReportFault> {
    let mut bytes = Vec::new();
    let mut writer = Serializer::with_formatter(&mut bytes, Lines::default());
    value
        .serialize(&mut writer)
        .map_err(|error| ReportFault::Form { file, reason: error.to_string() })?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// State of the formatter.
#[derive(Default)]
struct Lines {
    depth: usize,
    /// True if the innermost open array or object has a value.
    filled: bool,
}

impl Lines {
    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.filled && self.depth < LEVELS {
            self.line(writer)?;
        }
        self.filled = true;
        writer.write_all(bracket)
    }

    fn next<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.filled = true;
        if !first {
            writer.write_all(b",")?;
        }
        if self.depth <= LEVELS {
            return self.line(writer);
        }
        if first { Ok(()) } else { writer.write_all(b" ") }
    }

    fn line<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| writer.write_all(b"  "))
    }
}

impl Formatter for Lines {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    //! The JSON has the same value and the intended lines.

    use expect_test::expect;
    use serde_json::{Value, json as value};

    #[test]
    fn outer_levels_have_lines_and_inner_ones_do_not() {
        let all = value!({
            "a": [], "b": {}, "c": 1.5,
            "d": [{"x": [1, 2, {}], "y": null}, {"x": []}],
            "e": {"f": "\"\n", "g": [[1], [2]]},
        });
        let bytes = super::json("result.json", &all).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&bytes).unwrap(), all);
        expect![[r#"
            {
              "a": [],
              "b": {},
              "c": 1.5,
              "d": [
                {"x": [1, 2, {}], "y": null},
                {"x": []}
              ],
              "e": {
                "f": "\"\n",
                "g": [[1], [2]]
              }
            }
        "#]]
        .assert_eq(std::str::from_utf8(&bytes).unwrap());
    }
}
