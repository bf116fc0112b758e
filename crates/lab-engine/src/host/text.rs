//! Reads small text files of `/proc` and cgroups, and finds values in them by name.
//!
//! The procfs crate reads files with a fixed layout (stat, diskstats, net/dev). The files that this
//! module reads have about a hundred lines, and only a few lines are needed.

use std::fs;
use std::path::Path;

/// Returns the text of a file, or `None` if the file cannot be read. Many of these files exist only
/// on some kernels.
pub(super) fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Returns the number in the line that begins with `name`. Each line of the file is `name value` or
/// `name: value unit`. Returns `None` if no line has this name and a number.
pub(super) fn find_value(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| {
        let after_name = line.strip_prefix(name)?;
        let after_colon = after_name.strip_prefix(':').unwrap_or(after_name);
        // The space is required, so that "Active" does not match "Active(anon)".
        let value = after_colon.strip_prefix([' ', '\t'])?;
        value.split_whitespace().next()?.parse().ok()
    })
}

/// Returns the value of a field in a group. For each group, the file has a line of field names and
/// then a line of values (`/proc/net/snmp`, `/proc/net/netstat`). Both lines start with the group's
/// name. Returns `None` if the file lacks the group or the field, or if the value is not a number.
pub(super) fn find_column(text: &str, group: &str, field: &str) -> Option<f64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group)?.strip_prefix(':'));
    let (fields, values) = (lines.next()?, lines.next()?);
    let index = fields.split_whitespace().position(|word| word == field)?;
    values.split_whitespace().nth(index)?.parse().ok()
}

/// Returns the number after a key in a group's line: `group: key value key value`
/// (`/proc/net/sockstat`). Returns `None` if the file lacks the group or the key, or if the value
/// is not a number.
pub(super) fn find_pair(text: &str, group: &str, key: &str) -> Option<f64> {
    let pairs = text.lines().find_map(|line| line.strip_prefix(group)?.strip_prefix(':'))?;
    let mut words = pairs.split_whitespace();
    words.find(|word| *word == key)?;
    words.next()?.parse().ok()
}

/// Total stall time of one resource, in microseconds, from a file of the kernel's pressure stall
/// information (PSI, <https://docs.kernel.org/accounting/psi.html>).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StallMicros {
    /// Time during which at least one task waited for the resource.
    pub(super) some: f64,
    /// Time during which all tasks waited for the resource at once. It is zero if the kernel does
    /// not report it, and for the CPU of a whole host.
    pub(super) full: f64,
}

/// Parses a PSI file. Returns `None` if the file has no total for `some`.
pub(super) fn parse_stalls(text: &str) -> Option<StallMicros> {
    let total = |kind: &str| {
        let line = text.lines().find(|line| line.starts_with(kind))?;
        line.split_once("total=")?.1.trim().parse().ok()
    };
    Some(StallMicros { some: total("some ")?, full: total("full ").unwrap_or(0.0) })
}

#[cfg(test)]
mod tests;
