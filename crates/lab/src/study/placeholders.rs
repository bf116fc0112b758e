//! Placeholders in the texts of study files, such as `{weir}` and `{dir}`. Studies of load runs also
//! have `{port.NAME}` and `{case.NAME}`.
//!
//! A placeholder is a name in braces: lower-case letters, digits, `.`, `-` and `_`, beginning with
//! a letter. Other braces, such as those of configuration files, remain unchanged.

use std::collections::BTreeMap;

/// Prefix of the placeholders that stand for free ports.
const PORT_PREFIX: &str = "port.";
/// Prefix of the placeholders that stand for values of a case.
const CASE_PREFIX: &str = "case.";
/// The placeholders of load studies without a prefix.
pub(in crate::study) const NAMES: [&str; 3] = ["dir", "variant", "weir"];

/// Returns the names of the placeholders in a text, in order.
pub(in crate::study) fn names(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split('{').skip(1).filter_map(|part| part.split_once('}'));
    parts.map(|(name, _)| name).filter(|name| is_name(name))
}

/// Returns true if a text in braces is the name of a placeholder.
fn is_name(name: &str) -> bool {
    let is_allowed = |letter: char| {
        letter.is_ascii_lowercase() || letter.is_ascii_digit() || "._-".contains(letter)
    };
    name.starts_with(|letter: char| letter.is_ascii_lowercase()) && name.chars().all(is_allowed)
}

/// Returns `NAME` for the placeholder `port.NAME`, or `None` for other placeholders.
pub(in crate::study) fn port_name(name: &str) -> Option<&str> {
    name.strip_prefix(PORT_PREFIX).filter(|port| !port.is_empty())
}

/// Returns true if a placeholder has the form `case.NAME`.
pub(in crate::study) fn is_case_value(name: &str) -> bool {
    name.starts_with(CASE_PREFIX)
}

/// Returns the placeholder `case.NAME` of a value.
pub(in crate::study) fn case_placeholder(value: &str) -> String {
    format!("{CASE_PREFIX}{value}")
}

/// Returns true if a placeholder has a value in every load study.
pub(in crate::study) fn is_known(name: &str) -> bool {
    NAMES.contains(&name) || port_name(name).is_some()
}

/// Values of placeholders, by name.
pub(in crate::study) type PlaceholderValues = BTreeMap<String, String>;

/// Replaces the placeholders that have a value. Values are inserted as they are, so placeholders in
/// them remain.
pub(in crate::study) fn replace(text: &str, values: &PlaceholderValues) -> String {
    let mut replaced = String::with_capacity(text.len());
    let mut remaining = text;
    while let Some(start) = remaining.find('{') {
        replaced.push_str(&remaining[..start]);
        remaining = &remaining[start..];
        let name = remaining[1..].split_once('}').map(|(name, _)| name);
        match name.and_then(|name| Some((name, values.get(name)?))) {
            Some((name, value)) => {
                replaced.push_str(value);
                let braces = 2;
                remaining = &remaining[name.len() + braces..];
            }
            None => {
                replaced.push('{');
                remaining = &remaining[1..];
            }
        }
    }
    replaced.push_str(remaining);
    replaced
}

/// Applies [`replace`] to each word of a command line.
pub(in crate::study) fn replace_all(words: &[String], values: &PlaceholderValues) -> Vec<String> {
    words.iter().map(|word| replace(word, values)).collect()
}

/// Replaces every placeholder by a port number, so that the syntax of the address can be checked.
pub(in crate::study) fn replace_by_port(text: &str) -> String {
    const ANY_PORT: &str = "1";
    let values = names(text).map(|name| (name.to_owned(), ANY_PORT.to_owned()));
    replace(text, &values.collect())
}

/// Returns the placeholder `port.NAME` of a port.
pub(in crate::study) fn port_placeholder(port: &str) -> String {
    format!("{PORT_PREFIX}{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_replaced_and_other_braces_stay() {
        let values: PlaceholderValues = [("dir", "/d"), ("port.a", "81"), ("x", "{dir}")]
            .map(|(k, v)| (k.into(), v.into()))
            .into();
        let text = "http { listen {port.a}; root {dir}/www; } {\"a\":{port.b}} {x} {dir";
        let expected = "http { listen 81; root /d/www; } {\"a\":{port.b}} {dir} {dir";
        assert_eq!(replace(text, &values), expected);
        assert_eq!(names(text).collect::<Vec<_>>(), ["port.a", "dir", "port.b", "x"]);
        assert_eq!(names("{\"a\":{port.b}}").collect::<Vec<_>>(), ["port.b"]);
        assert!(is_known("port.b") && is_known("dir") && !is_known("port.") && !is_known("x"));
    }
}
