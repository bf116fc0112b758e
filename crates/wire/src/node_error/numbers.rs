//! The numbers in error texts: limits and waits.

use std::time::Duration;

/// Longest wait that a text is believed to ask for. A longer one is a mistake or an attack.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Returns the numbers of a text that may be the maximum number of blocks of a call. If the text
/// names a range that would succeed, such as `[0x10, 0x1f]` or `with the range 16-31`, this is the
/// length of the range. Otherwise these are the numbers before the word `block` or `range`, or else
/// all numbers. A text may also state other numbers, such as that of the requested blocks. Returns
/// no number if the text is not about blocks.
pub fn read_range_limits(message: &str) -> Vec<u64> {
    let text = message.to_ascii_lowercase();
    if !["block", "range", "than size"].iter().any(|word| text.contains(word)) {
        return Vec::new();
    }
    if let Some(length) = suggested_range_length(&text) {
        return length.into_iter().collect();
    }
    let is_separator = |character: char| !(character.is_ascii_alphanumeric() || character == ',');
    let words: Vec<&str> = text.split(is_separator).filter(|word| !word.is_empty()).collect();
    let numbers = || {
        let number = |(index, word): (usize, &&str)| Some((index, parse_number(word)?));
        words.iter().enumerate().filter_map(number)
    };
    let counts_blocks = |index: usize| {
        let next_word = words.get(index + 1);
        next_word.is_some_and(|word| word.starts_with("block") || word.starts_with("range"))
    };
    let of_blocks: Vec<u64> =
        numbers().filter_map(|(index, number)| counts_blocks(index).then_some(number)).collect();
    if of_blocks.is_empty() { numbers().map(|(_, number)| number).collect() } else { of_blocks }
}

/// Returns true if a text names a range that would succeed. Such a range depends on the call, so it
/// says nothing about the limit for other calls.
pub fn suggests_range(message: &str) -> bool {
    suggested_range_length(&message.to_ascii_lowercase()).is_some()
}

/// Returns the length of the range that a text in lower case suggests. The inner `None` means that
/// the range cannot be read.
fn suggested_range_length(text: &str) -> Option<Option<u64>> {
    if let Some((_, rest)) = text.split_once("[0x") {
        return Some(hexadecimal_range_length(rest));
    }
    text.split_once("with the range ").map(|(_, rest)| decimal_range_length(rest))
}

/// Returns the maximum number of calls in a batch that a text states. Only the number after one of
/// some words is the maximum. A number before, such as a code or a status, is not.
pub fn read_batch_limit(message: &str) -> Option<usize> {
    let text = message.to_ascii_lowercase();
    let after = ["more than ", "limit ", "limit of ", "limit: ", "max ", "maximum ", "size "];
    after.iter().find_map(|word| {
        let (_, rest) = text.split_once(word)?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    })
}

/// Returns the wait that a text about a rate asks for, such as `retry in 10s`, `try again in 250ms`,
/// `retry in 10m0s` or `reset in 60 seconds`. At most a day.
pub fn read_wait(message: &str) -> Option<Duration> {
    let text = message.to_ascii_lowercase();
    let after = ["retry in ", "retry after ", "again in ", "again after ", "reset in ", "wait "];
    let (_, rest) = after.iter().find_map(|word| text.split_once(word))?;
    let mut rest = rest;
    let mut wait = None;
    // One amount after another, each with its unit: `10m0s`.
    while let Some((amount, unit_and_rest)) = split_number(rest) {
        let unit_and_rest = unit_and_rest.trim_start_matches(' ');
        let unit_end = unit_and_rest.find(|c: char| !c.is_ascii_alphabetic());
        let (unit, remaining) = unit_and_rest.split_at(unit_end.unwrap_or(unit_and_rest.len()));
        let seconds = match unit {
            "ms" | "millisecond" | "milliseconds" => 0.001,
            "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
            "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
            "h" | "hour" | "hours" => 3600.0,
            _ => break,
        };
        let total = wait.unwrap_or(0.0) + amount * seconds;
        wait = Some(total);
        rest = remaining;
    }
    let wait = Duration::try_from_secs_f64(wait?).unwrap_or(WAIT_MAX);
    Some(wait.min(WAIT_MAX))
}

/// Splits a decimal number off the beginning of a text.
fn split_number(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

/// Parses a number such as `1024`, `10,000` or `2k`.
fn parse_number(word: &str) -> Option<u64> {
    let word = word.replace(',', "");
    match word.strip_suffix('k') {
        Some(thousands) => thousands.parse::<u64>().ok()?.checked_mul(1000),
        None => word.parse().ok(),
    }
}

/// Returns the length of a range from the text after its first `0x`, such as `10, 0x1f]`.
fn hexadecimal_range_length(text: &str) -> Option<u64> {
    let (from, rest) = text.split_once(',')?;
    let to = rest.trim().strip_prefix("0x")?;
    let to: String = to.chars().take_while(char::is_ascii_hexdigit).collect();
    let from = u64::from_str_radix(from.trim(), 16).ok()?;
    u64::from_str_radix(&to, 16).ok()?.checked_sub(from)?.checked_add(1)
}

/// Returns the length of a range at the beginning of a text, such as `16-31`.
fn decimal_range_length(text: &str) -> Option<u64> {
    let (from, rest) = text.split_once('-')?;
    let to: String = rest.chars().take_while(char::is_ascii_digit).collect();
    to.parse::<u64>().ok()?.checked_sub(from.parse().ok()?)?.checked_add(1)
}
