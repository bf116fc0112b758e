//! Reads small text files of `/proc` and cgroups: lines of `name value`, and PSI.
//!
//! The procfs crate reads files with a fixed layout (stat, diskstats, net/dev). These files have
//! about a hundred lines, of which a few are read by name.

use std::fs;
use std::path::Path;

/// Returns the file's text, or `None` if it cannot be read. Many of these files exist on some
/// kernels only.
pub(super) fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Returns the first number after `name` in a file of `name value` or `name: value unit` lines.
pub(super) fn find_value(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        let rest = rest.strip_prefix(':').unwrap_or(rest);
        // "Active" must not match "Active(anon)".
        let rest = rest.strip_prefix([' ', '\t'])?;
        rest.split_whitespace().next()?.parse().ok()
    })
}

/// Returns the value of `field` in the group `name`. The file has a line of field names followed by
/// a line of values, each starting with the group's name (`/proc/net/snmp`, `/proc/net/netstat`).
pub(super) fn find_column(text: &str, name: &str, field: &str) -> Option<f64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let (fields, values) = (lines.next()?, lines.next()?);
    let index = fields.split_whitespace().position(|word| word == field)?;
    values.split_whitespace().nth(index)?.parse().ok()
}

/// Returns the number after a key in a line of `key value key value` (`/proc/net/sockstat`).
pub(super) fn find_pair(text: &str, line: &str, key: &str) -> Option<f64> {
    let rest = text.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'))?;
    let mut words = rest.split_whitespace();
    words.find(|word| *word == key)?;
    words.next()?.parse().ok()
}

/// Total stall time of one resource in a PSI file, in microseconds.
/// <https://docs.kernel.org/accounting/psi.html>
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StallMicros {
    /// Time during which at least one task waited for the resource.
    pub(super) some: f64,
    /// Time during which all tasks waited for it at once. Zero on kernels that do not report it,
    /// and for the CPU of a whole host.
    pub(super) full: f64,
}

/// Parses a PSI file.
pub(super) fn parse_stalls(text: &str) -> Option<StallMicros> {
    let total = |kind: &str| {
        let line = text.lines().find(|line| line.starts_with(kind))?;
        line.split_once("total=")?.1.trim().parse().ok()
    };
    Some(StallMicros { some: total("some ")?, full: total("full ").unwrap_or(0.0) })
}

#[cfg(test)]
mod tests;
