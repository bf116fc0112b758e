//! Numbers of JSON-RPC: parses and writes hexadecimal quantities and decimals of 64 bits. Larger
//! numbers stay text throughout the project.

use crate::json::string::JsonString;

/// Parses a canonical quantity: `0x` and hexadecimal digits without leading zeros. Zero is `0x0`
/// (execution-apis `src/schemas/base-types.yaml`, `uint64`).
pub fn parse(text: &[u8]) -> Option<u64> {
    let digits = text.strip_prefix(b"0x")?;
    if digits.len() > 1 && digits[0] == b'0' {
        return None;
    }
    parse_digits(digits)
}

/// Parses a quantity with or without leading zeros. Some nodes write and accept leading zeros.
pub fn parse_lenient(text: &[u8]) -> Option<u64> {
    let digits = text.strip_prefix(b"0x")?;
    let leading_zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    match &digits[leading_zeros..] {
        [] if leading_zeros > 0 => Some(0),
        significant_digits => parse_digits(significant_digits),
    }
}

/// Parses 1 to 16 hexadecimal digits.
fn parse_digits(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0, |sum, digit| {
        (*digit as char).to_digit(16).map(|digit| sum << 4 | u64::from(digit))
    })
}

/// Parses a decimal number of 64 bits without sign and leading zeros.
pub fn parse_decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || (text.len() > 1 && text[0] == b'0') {
        return None;
    }
    text.iter().try_fold(0u64, |sum, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// Reads a number from a raw JSON value. The value is a string with a quantity, which may have
/// leading zeros, or a decimal number. Harmony's `hmyv2_` methods and Bitcoin have decimal numbers.
/// Returns `None` for other values.
pub fn from_value(raw: &[u8]) -> Option<u64> {
    match JsonString::from_value(raw) {
        Some(text) => parse_lenient(&text.decode()),
        None => parse_decimal(raw),
    }
}

/// Appends the canonical quantity, without quotes.
pub fn write(out: &mut Vec<u8>, number: u64) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend_from_slice(b"0x");
    let digit_count = (64 - number.leading_zeros()).div_ceil(4).max(1);
    for index in (0..digit_count).rev() {
        out.push(DIGITS[(number >> (index * 4) & 0xf) as usize]);
    }
}

/// The decimal digits of a number.
#[derive(Debug, Clone, Copy)]
pub struct Decimal {
    /// The digits, followed by zero bytes. 2^64 - 1 has 20 digits.
    digits: [u8; 20],
    digit_count: u8,
}

impl Decimal {
    /// Formats `number`.
    pub fn new(number: u64) -> Decimal {
        let mut buffer = itoa::Buffer::new();
        let text = buffer.format(number).as_bytes();
        let mut digits = [0u8; 20];
        digits[..text.len()].copy_from_slice(text);
        Decimal { digits, digit_count: text.len() as u8 }
    }

    /// Returns the digits, without leading zeros.
    pub fn as_bytes(&self) -> &[u8] {
        &self.digits[..usize::from(self.digit_count)]
    }
}

/// Appends the number in decimal.
pub fn write_decimal(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests;
