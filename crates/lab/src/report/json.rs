//! Writes readable, compact JSON. Each value of the outer two levels has its own line. A deeper
//! value, such as a second of a run or a sample of a host, is on the line of its parent.
//!
//! If every number had its own line, the file would be twice as large: 92 MB become 180 MB for a run
//! of three hours whose host is watched.

use serde::Serialize;

use super::ReportFault;

/// Number of outer levels whose values have their own lines.
const LINE_LEVELS: usize = 2;

/// Returns the value as JSON with a final newline. `file` is the file name for the error.
pub(super) fn json(file: &'static str, value: &impl Serialize) -> Result<Vec<u8>, ReportFault> {
    let compact = serde_json::to_vec(value)
        .map_err(|error| ReportFault::Form { file, reason: error.to_string() })?;
    Ok(split_lines(&compact))
}

/// Splits compact JSON into lines.
fn split_lines(compact: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(compact.len() + compact.len() / 8);
    let start_line = |text: &mut Vec<u8>, depth: usize| {
        text.push(b'\n');
        text.resize(text.len() + 2 * depth, b' ');
    };
    let mut depth = 0;
    let (mut in_string, mut is_escaped) = (false, false);
    for (index, &byte) in compact.iter().enumerate() {
        if !in_string && matches!(byte, b']' | b'}') {
            depth -= 1;
            let is_empty = matches!(compact[index - 1], b'[' | b'{');
            if !is_empty && depth < LINE_LEVELS {
                start_line(&mut text, depth);
            }
        }
        text.push(byte);
        match byte {
            b'"' if !is_escaped => in_string = !in_string,
            _ if in_string => {}
            b':' => text.push(b' '),
            b',' if depth > LINE_LEVELS => text.push(b' '),
            b',' => start_line(&mut text, depth),
            b'[' | b'{' => {
                depth += 1;
                let is_empty = matches!(compact[index + 1], b']' | b'}');
                if !is_empty && depth <= LINE_LEVELS {
                    start_line(&mut text, depth);
                }
            }
            _ => {}
        }
        is_escaped = in_string && byte == b'\\' && !is_escaped;
    }
    text.push(b'\n');
    text
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
            "e": {"f": "\"\n", "g": [[1], [2]]}, "i": "\\\\", "j": ":[,{",
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
              },
              "i": "\\\\",
              "j": ":[,{"
            }
        "#]]
        .assert_eq(std::str::from_utf8(&bytes).unwrap());
    }
}
