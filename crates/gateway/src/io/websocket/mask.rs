//! Masks the payloads of client frames (RFC 6455, section 5.3). `keys.rs` generates the keys.

/// A masking key.
pub(crate) type Key = [u8; 4];

/// Masks or unmasks `bytes`, which start at `offset` in their payload.
pub(crate) fn apply(bytes: &mut [u8], key: Key, offset: usize) {
    let mut rotated_key = key;
    rotated_key.rotate_left(offset % key.len());
    let word = u64::from(u32::from_ne_bytes(rotated_key));
    let word = word << 32 | word;
    let mut words = bytes.chunks_exact_mut(8);
    for chunk in &mut words {
        let masked = u64::from_ne_bytes(chunk.try_into().expect("chunks are 8 bytes long")) ^ word;
        chunk.copy_from_slice(&masked.to_ne_bytes());
    }
    for (byte, key) in words.into_remainder().iter_mut().zip(rotated_key.iter().cycle()) {
        *byte ^= key;
    }
}

#[cfg(test)]
mod tests {
    //! Goal: masking follows RFC 6455, section 5.3, at any offset.

    use super::*;

    #[test]
    fn masks_as_the_definition_says() {
        let key = [0x37, 0xfa, 0x21, 0x3d];
        for length in 0..40 {
            for offset in 0..9 {
                let plain: Vec<u8> = (0..length).collect();
                let mut masked = plain.clone();
                apply(&mut masked, key, offset);
                let expected: Vec<u8> =
                    plain.iter().enumerate().map(|(i, b)| b ^ key[(offset + i) % 4]).collect();
                assert_eq!(masked, expected, "{length} bytes at {offset}");
            }
        }
    }
}
