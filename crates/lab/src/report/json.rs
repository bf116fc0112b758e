//! Writes readable, compact JSON. Each value of the outer two levels has its own line. A deeper
//! value, such as a second of a run or a sample of a host, is on the line of its parent.
//!
//! If every number had its own line, the file of a three-hour run would be three times as large.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use super::ReportFault;

/// Number of outer levels whose values have their own lines.
const LINE_LEVELS: usize = 2;

/// Returns the value as JSON with a final newline. `file` is the file name for the error.
pub(super) fn json(file: &'static str, value: &impl Serialize) -> Result<Vec<u8>, ReportFault> {
    let mut bytes = Vec::new();
    let mut writer = Serializer::with_formatter(&mut bytes, LineFormatter::default());
    value
        .serialize(&mut writer)
        .map_err(|error| ReportFault::Form { file, reason: error.to_string() })?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// A formatter that writes only the outer levels on separate lines.
#[derive(Default)]
struct LineFormatter {
    /// Number of open arrays and objects.
    depth: usize,
    /// True if the innermost open array or object has a value.
    has_value: bool,
}

impl LineFormatter {
    /// Writes the opening bracket of an array or object.
    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.has_value = false;
        writer.write_all(bracket)
    }

    /// Writes the closing bracket of an array or object.
    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.has_value && self.depth < LINE_LEVELS {
            self.new_line(writer)?;
        }
        self.has_value = true;
        writer.write_all(bracket)
    }

    /// Writes the separator before a value or a key.
    fn begin_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.has_value = true;
        if !first {
            writer.write_all(b",")?;
        }
        if self.depth <= LINE_LEVELS {
            return self.new_line(writer);
        }
        if first { Ok(()) } else { writer.write_all(b" ") }
    }

    /// Starts a line, indented by the depth.
    fn new_line<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| writer.write_all(b"  "))
    }
}

impl Formatter for LineFormatter {
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
        self.begin_value(writer, first)
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
        self.begin_value(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    //! The JSON parses to the value that was written, and is split into the intended lines.

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
