//! Invariants of the access-log format parser for arbitrary text, as functions for fuzzers.
//!
//! `fuzz/src/access_log.rs` calls these functions without a time limit. The test below calls them
//! for one second.

use super::format::{COMBINED, FORMAT_BYTES_MAX, Format, FormatFault};

/// Checks that a format survives printing and parsing.
///
/// # Panics
///
/// If the format changes.
pub(crate) fn format(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(format) = Format::parse(text) else { return };
    let printed = format.to_string();
    let reparsed = Format::parse(&printed);
    // Every name is printed in braces, so the printed text of a long format may exceed the length
    // limit.
    if reparsed != Err(FormatFault::Length) || printed.len() <= FORMAT_BYTES_MAX {
        assert_eq!(reparsed.as_ref(), Ok(&format), "a format is not printed as it was read");
    }
}

/// Returns the formats from which fuzzing starts.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let with_variables = "$msec|$remote_addr|${key}|$rpc_method|$status $http_x_team$upstream";
    ["json", "combined", COMBINED, with_variables].map(|text| text.as_bytes().to_vec()).into()
}

#[cfg(test)]
mod tests {
    //! Goal: a second of fuzzing in every test run.

    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_longest_format_grows_by_its_braces() {
        let names = FORMAT_BYTES_MAX / "$key".len();
        let longest = "$key".repeat(names);
        assert!(Format::parse(&longest).is_ok());
        format(longest.as_bytes());
        format("$key".repeat(names / 2).as_bytes());
    }

    #[test]
    fn one_second_of_mutations_holds() {
        let start = Instant::now();
        let go_on = &mut |_| start.elapsed() < Duration::from_secs(1);
        let random_seed = 4;
        let tried = wire::fuzz::mutate_all(&seeds(), format, random_seed, go_on);
        assert!(tried > 100, "only {tried} inputs in a second");
    }
}
