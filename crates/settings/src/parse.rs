//! Parses a TOML text into a tree of values.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::diagnostic::Severity;
use crate::report::{Location, Report};
use crate::syntax::{Item, Member, Tree};

/// Parses the file's root table. Reports an error and returns `None` if the text is not TOML.
pub(crate) fn parse(text: &str, bytes_max: usize, report: &mut Report<'_>) -> Option<Vec<Member>> {
    if text.len() > bytes_max {
        let message = format!("the file has {} bytes", text.len());
        report.error_without_value(
            &Location::default(),
            message,
            format!("at most {bytes_max} bytes"),
        );
        return None;
    }
    let (table, errors) = DeTable::parse_recoverable(text);
    if let (false, Some(start)) = (errors.is_empty(), find_yaml(text)) {
        let location = Location { span: Some(start..start), ..Location::default() };
        let message = "this is YAML; a configuration is TOML".to_owned();
        report.push(&location, Severity::Error, false, message, None);
        return None;
    }
    let mut last_line = None;
    for error in &errors {
        let span = error.span().unwrap_or(text.len()..text.len());
        // One mistake often causes several errors, so only the first error of a line is reported.
        let line = text.bytes().take(span.start).filter(|byte| *byte == b'\n').count();
        if last_line.replace(line) != Some(line) {
            let location = Location { span: Some(span), ..Location::default() };
            let message = format!("not toml: {}", error.message());
            let has_value = false;
            report.push(&location, Severity::Error, has_value, message, None);
        }
    }
    errors.is_empty().then(|| read_members(table.get_ref()))
}

/// Returns the position of the first line that is neither empty nor a comment if it begins a YAML
/// document: `---`, or a name and a colon, as in `server:` or `threads: 2`.
fn find_yaml(text: &str) -> Option<usize> {
    let is_content = |line: &&str| !matches!(line.trim_start().chars().next(), None | Some('#'));
    let line = text.lines().find(is_content)?;
    let is_name = |name: &str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
    };
    let is_entry = line.split_once(':').is_some_and(|(name, value)| {
        is_name(name) && (value.trim().is_empty() || value.starts_with(' '))
    });
    let is_yaml = line.trim_end() == "---" || is_entry;
    is_yaml.then(|| line.as_ptr() as usize - text.as_ptr() as usize)
}

/// Converts a table to its members, in the order of the text.
fn read_members(table: &DeTable<'_>) -> Vec<Member> {
    let mut members: Vec<Member> = table
        .iter()
        .map(|(key, value)| Member {
            key: key.get_ref().to_string(),
            span: key.span(),
            item: read_item(value),
        })
        .collect();
    members.sort_by_key(|member| member.span.start);
    members
}

fn read_item(value: &Spanned<DeValue<'_>>) -> Item {
    let tree = match value.get_ref() {
        DeValue::String(text) => Tree::String(text.to_string()),
        DeValue::Integer(number) => {
            let digits = number.as_str();
            // The value type reports a number beyond `i128` as out of range.
            match i128::from_str_radix(digits.trim_start_matches('+'), number.radix()) {
                Ok(number) => Tree::Integer(number.to_string()),
                Err(_) => Tree::Integer(digits.to_owned()),
            }
        }
        DeValue::Float(number) => Tree::Float(number.as_str().trim_start_matches('+').to_owned()),
        DeValue::Boolean(boolean) => Tree::Bool(*boolean),
        DeValue::Datetime(time) => Tree::DateTime(time.to_string()),
        DeValue::Array(list) => Tree::List(list.iter().map(read_item).collect()),
        DeValue::Table(table) => Tree::Table(read_members(table)),
    };
    Item { span: value.span(), tree }
}
