//! Properties that hold for any text as an access log format, as functions for fuzzers.
//!
//! `fuzz/src/access_log.rs` calls them without a time limit, and the test below for a second in
//! every check.

use super::format::{COMBINED, FORMAT_BYTES_MAX, Format, FormatFault};

/// Checks that a format survives printing and parsing.
///
/// # Panics
///
/// If it does not.
pub(crate) fn format(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(format) = Format::parse(text) else { return };
    let printed = format.to_string();
    let reparsed = Format::parse(&printed);
    // Every name is printed in braces, which may make the longest formats too long.
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
    //! Goal: a second of fuzzing in every check.

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
        let tried = wire::fuzz::mutate_all(&seeds(), format, 4, go_on);
        assert!(tried > 100, "only {tried} inputs in a second");
    }
}
