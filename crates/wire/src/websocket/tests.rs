//! Goal: masking follows RFC 6455, section 5.3, at any offset. Method: a comparison with the
//! definition, byte by byte.

use super::*;

#[test]
fn masks_as_the_definition_says() {
    let key = [0x37, 0xfa, 0x21, 0x3d];
    for length in 0..40 {
        for offset in 0..9 {
            let plain: Vec<u8> = (0..length).collect();
            let mut masked = plain.clone();
            apply_mask(&mut masked, key, offset);
            let expected: Vec<u8> = plain
                .iter()
                .enumerate()
                .map(|(index, byte)| byte ^ key[(offset + index) % 4])
                .collect();
            assert_eq!(masked, expected, "{length} bytes at {offset}");
        }
    }
}
