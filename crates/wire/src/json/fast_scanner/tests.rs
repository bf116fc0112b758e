//! Goal: the fast scanner and the scanner agree on every text. Method: a table of difficult values,
//! a long text with errors at many offsets, and random texts (`scanner/tests.rs`), through both.

use super::*;
#[cfg(target_arch = "x86_64")]
use crate::json::simd;
use crate::json::{DEPTH_CEILING, Scanner};

/// Compares both scanners. The fast scanner may give up on a text whose names it checks, but must
/// then leave its state unchanged.
pub(in crate::json) fn assert_scanners_agree(text: &[u8], depth: usize) {
    for names_depth_max in [0, 1, DEPTH_CEILING] {
        let mut scanner = Scanner::with_names_depth(text, depth, names_depth_max);
        scanner.is_slow = true;
        let expected_end = scanner.value().ok().map(|_| scanner.offset());
        let mut fast = FastScanner::new(text, depth, names_depth_max);
        let end = fast.end_of_value(skip_whitespace(text, 0), 0);
        let printed = String::from_utf8_lossy(text);
        if end.is_some() || names_depth_max == 0 {
            assert_eq!(end, expected_end, "{printed}");
        }
        let repeated = end.and(scanner.take_repeated());
        assert_eq!(fast.repeated_offset, repeated, "{printed}");
        assert_eq!(fast.names.len(), 0, "{printed}");
        // The scanner also reads values on which the fast scanner gave up.
        let mut scanner = Scanner::with_names_depth(text, depth, names_depth_max);
        assert_eq!(scanner.value().ok().map(|_| scanner.offset()), expected_end, "{printed}");
    }
}

#[test]
fn difficult_values_are_read_alike() {
    let values = [
        "",
        " ",
        "{",
        "[",
        "\"",
        "{}",
        "[]",
        "[,]",
        "[1,]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{,}",
        "{\"a\" : [ 1 , 2 ] }",
        "true",
        "tru",
        "nulls",
        "-",
        "-0",
        "0",
        "00",
        "01",
        "1.",
        "1.5",
        ".5",
        "1e",
        "1e+",
        "1e+5",
        "1E-05",
        "-1.0e10x",
        "\"\\u00e9\"",
        "\"\\u00g9\"",
        "\"\\x\"",
        "\"\u{e9}\"",
        "\"a\u{0}b\"",
        "[[[[[1]]]]]",
        "[[[[[[1]]]]]]",
        "{\"a\":{\"b\":[{}]}}",
        "{\"a\":1,\"a\":2}",
        "{\"a\":{\"b\":1,\"b\":2}}",
        "{\"a\":{\"b\":1,\"b\":x}}",
        "{\"a\":{\"b\":1},\"a\":2}",
        "{\"a\":1,\"\\u0061\":2}",
    ];
    for value in values {
        assert_scanners_agree(value.as_bytes(), 5);
    }
    assert_scanners_agree(b"\"\xff\"", 5);
    assert_scanners_agree(b"\"\xc3\"", 5);
}

#[test]
fn damaged_texts_are_read_alike() {
    let text = format!(
        r#"{{"a":"0x{}","b":[{{"c":"\n{}","d":-1.5e3}},null,true],"é":"{}"}}"#,
        "0f".repeat(40),
        "x".repeat(70),
        "ü".repeat(20)
    );
    let mut count = 0;
    for offset in 0..text.len() {
        assert_scanners_agree(&text.as_bytes()[..offset], 8);
        for byte in [b'"', b'\\', b'{', b'}', b',', b' ', 0x1f, 0x80, 0xff, b'0'] {
            let mut damaged = text.clone().into_bytes();
            damaged[offset] = byte;
            assert_scanners_agree(&damaged, 8);
            count += 1;
        }
    }
    assert!(count > 1000, "{count}");
}

#[test]
fn the_fast_scanner_reads_simple_values() {
    let names = |count: usize| {
        let members: Vec<String> =
            (0..count).map(|index| format!("\"n{index}\":[{index}]")).collect();
        format!("{{{}}}", members.join(","))
    };
    for (text, is_simple) in [
        (names(NAMES_MAX), true),
        (names(NAMES_MAX + 1), false),
        (format!("[{}]", vec![names(20); 50].join(" , ")), true),
        (r#"{"to":"0xab","data":"é\n"}"#.to_owned(), true),
        (r#"{"\u0061":1}"#.to_owned(), false),
    ] {
        let mut fast = FastScanner::new(text.as_bytes(), 8, DEPTH_CEILING);
        assert_eq!(fast.end_of_value(0, 0), is_simple.then_some(text.len()), "{text}");
        assert_scanners_agree(text.as_bytes(), 8);
    }
}

#[test]
fn blocks_have_a_bit_for_each_special_byte() {
    for seed in 0..=255u8 {
        let bytes: Vec<u8> = (0..300)
            .map(|offset: u32| (offset as u8).wrapping_mul(37).wrapping_add(seed) % 251)
            .collect();
        for offset in (0..=300).step_by(7) {
            for length in [0, 1, 63, 64, 65, 100, 128, 300] {
                let input = &bytes[..length];
                let expected = portable::find_special_block(input, offset);
                assert_eq!(find_special_block(input, offset), expected, "{offset} {input:?}");
                #[cfg(target_arch = "x86_64")]
                assert_eq!(
                    simd::find_special_block_baseline(input, offset),
                    expected,
                    "{offset} {input:?}"
                );
            }
        }
    }
    for length in [0, 1, 63, 64, 65, 127, 128, 130] {
        let run = vec![b'a'; length];
        for offset in 0..=length {
            assert_eq!(
                FastScanner::new(&run, 1, 1).next_special(offset),
                length,
                "{offset} of {length}"
            );
        }
    }
}

#[test]
fn the_first_special_byte_is_found_at_every_offset() {
    for length in 0..70usize {
        for byte in 0..=255u8 {
            let mut run = vec![b'a'; length];
            run.push(byte);
            run.extend_from_slice(&[b'b'; 20]);
            run.push(b'"');
            let is_plain = !matches!(byte, b'"' | b'\\' | 0..0x20 | 0x80..);
            let end = if is_plain { length + 21 } else { length };
            assert_eq!(string::find_special(&run, 0), end, "{byte} at {length}");
            assert_eq!(FastScanner::new(&run, 1, 1).next_special(0), end, "{byte} at {length}");
        }
    }
}
