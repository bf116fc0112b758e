//! Parses hashes and addresses in hexadecimal. The functions return `None` for any other text.

use crate::json::string::JsonString;

/// Parses `0x` and 64 hexadecimal digits.
pub fn parse_hash(text: &[u8]) -> Option<[u8; 32]> {
    parse_digits(text.strip_prefix(b"0x")?)
}

/// Parses `2 * N` hexadecimal digits.
pub fn parse_digits<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    // The values of all digits, combined by OR. The result exceeds 0xf if a digit is invalid.
    let mut combined = 0;
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let (high, low) = (NIBBLES[usize::from(pair[0])], NIBBLES[usize::from(pair[1])]);
        combined |= high | low;
        *byte = high << 4 | low & 0xf;
    }
    (combined < 0x10).then_some(bytes)
}

/// The value of each hexadecimal digit. Other bytes have the value 0xff.
const NIBBLES: [u8; 256] = {
    let mut table = [0xff; 256];
    let mut value = 0;
    while value < 16 {
        table[b"0123456789abcdef"[value] as usize] = value as u8;
        table[b"0123456789ABCDEF"[value] as usize] = value as u8;
        value += 1;
    }
    table
};

/// Reads a hash from a raw JSON string.
pub fn hash_from_value(raw: &[u8]) -> Option<[u8; 32]> {
    parse_hash(&JsonString::from_value(raw)?.decode())
}

/// Reads an address, `0x` and 40 hexadecimal digits, from a raw JSON string.
pub fn address_from_value(raw: &[u8]) -> Option<[u8; 20]> {
    parse_digits(JsonString::from_value(raw)?.decode().strip_prefix(b"0x")?)
}
