//! Reading the small text files of `/proc` and cgroups: lines of `name value`, and PSI.
//!
//! For the files that have a shape of their own (stat, diskstats, net/dev) the procfs crate is
//! used; these here are read by name, since each has a hundred lines of which a few are wanted.

use std::fs;
use std::path::Path;

/// The whole file, or nothing if it cannot be read: many of these exist on some kernels only.
pub(super) fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// The first number after `name` in a file of `name value` or `name: value unit` lines.
pub(super) fn value(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        let rest = rest.strip_prefix(':').unwrap_or(rest);
        // "Active" must not find "Active(anon)".
        let rest = rest.strip_prefix([' ', '\t'])?;
        rest.split_whitespace().next()?.parse().ok()
    })
}

/// The value of `field` in the group `name` of a file that writes a line of field names and under it
/// a line of values, both beginning with the group's name (`/proc/net/snmp`, `/proc/net/netstat`).
pub(super) fn column(text: &str, name: &str, field: &str) -> Option<f64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let (fields, values) = (lines.next()?, lines.next()?);
    let place = fields.split_whitespace().position(|word| word == field)?;
    values.split_whitespace().nth(place)?.parse().ok()
}

/// The number after a key in a line of `key value key value` (`/proc/net/sockstat`).
pub(super) fn pair(text: &str, line: &str, key: &str) -> Option<f64> {
    let rest = text.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'))?;
    let mut words = rest.split_whitespace();
    words.find(|word| *word == key)?;
    words.next()?.parse().ok()
}

/// Microseconds of stall from a PSI file: of some tasks, and of all of them. "Full" is absent on some
/// kernels and then zero, as it is for the CPU of a whole host.
/// <https://docs.kernel.org/accounting/psi.html>
pub(super) fn stalls(text: &str) -> Option<(f64, f64)> {
    let total = |kind: &str| {
        let line = text.lines().find(|line| line.starts_with(kind))?;
        line.split_once("total=")?.1.trim().parse().ok()
    };
    Some((total("some ")?, total("full ").unwrap_or(0.0)))
}

#[cfg(test)]
mod tests;
