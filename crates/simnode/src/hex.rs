//! Hexadecimal text in the two forms that an Ethereum node prints: quantities without leading
//! zeros, and byte strings with two digits per byte.

use alloy_primitives::{Address, B256, U256};

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Appends bytes as `"0x…"`, with quotes.
pub(crate) fn push_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(bytes.len() * 2 + 4);
    out.extend_from_slice(b"\"0x");
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 15)]);
    }
    out.push(b'"');
}

/// Appends a number as `"0x…"`, with quotes and without leading zeros.
pub(crate) fn push_quantity(out: &mut Vec<u8>, number: u128) {
    out.extend_from_slice(b"\"0x");
    let digits = (128 - number.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        out.push(DIGITS[(number >> (digit * 4)) as usize & 15]);
    }
    out.push(b'"');
}

/// Appends a 256-bit number as `"0x…"`, with quotes and without leading zeros.
pub(crate) fn push_quantity_wide(out: &mut Vec<u8>, number: U256) {
    match u128::try_from(number) {
        Ok(small) => push_quantity(out, small),
        Err(_) => out.extend_from_slice(format!("\"{number:#x}\"").as_bytes()),
    }
}

/// Reads the bytes of `0x…` text. Returns `None` if `0x` or a digit is missing, or if a digit is
/// invalid.
pub(crate) fn read_bytes(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))?.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    digits
        .chunks_exact(2)
        .map(|pair| Some(digit_value(pair[0])? << 4 | digit_value(pair[1])?))
        .collect()
}

/// Reads a 32-byte hash from `0x…` text.
pub(crate) fn read_hash(text: &str) -> Option<B256> {
    let mut bytes = [0; 32];
    read_exactly(text, &mut bytes).then(|| B256::from(bytes))
}

/// Reads a 20-byte address from `0x…` text in any case.
pub(crate) fn read_address(text: &str) -> Option<Address> {
    let mut bytes = [0; 20];
    read_exactly(text, &mut bytes).then(|| Address::from(bytes))
}

/// Reads `0x…` text into `bytes`. Returns false if the text has no `0x`, another number of bytes or
/// an invalid digit.
fn read_exactly(text: &str, bytes: &mut [u8]) -> bool {
    let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) else {
        return false;
    };
    if digits.len() != bytes.len() * 2 {
        return false;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        let (Some(high), Some(low)) = (digit_value(pair[0]), digit_value(pair[1])) else {
            return false;
        };
        *byte = high << 4 | low;
    }
    true
}

/// Reads a quantity as geth does: `0x`, no leading zeros, at most 64 bits.
pub(crate) fn read_quantity(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))?;
    let has_leading_zero = digits.len() > 1 && digits.starts_with('0');
    // `from_str_radix` would accept a sign.
    if digits.is_empty() || has_leading_zero || digits.starts_with('+') {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

fn digit_value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}
