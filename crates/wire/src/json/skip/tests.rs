//! Goal: the quick pass and the cursor agree on every text. Method: a table of odd values, and
//! every recorded text damaged at many places, through both.

use super::*;
use crate::json::Scan;

fn both_agree(text: &[u8], depth: usize) {
    let mut scan = Scan::new(text, depth);
    let slow = scan.value().ok().map(|_| scan.at());
    let first = past_space(text, 0);
    let quick =
        if text.starts_with(b"\xef\xbb\xbf") { None } else { end_of_value(text, first, depth) };
    assert_eq!(quick, slow, "{}", String::from_utf8_lossy(text));
}

#[test]
fn odd_values_are_passed_alike() {
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
    ];
    for value in values {
        both_agree(value.as_bytes(), 5);
    }
    both_agree(b"\"\xff\"", 5);
    both_agree(b"\"\xc3\"", 5);
}

#[test]
fn damaged_texts_are_passed_alike() {
    let long = format!(
        r#"{{"a":"0x{}","b":[{{"c":"\n{}","d":-1.5e3}},null,true],"é":"{}"}}"#,
        "0f".repeat(40),
        "x".repeat(70),
        "ü".repeat(20)
    );
    let mut tried = 0;
    for at in 0..long.len() {
        both_agree(&long.as_bytes()[..at], 8);
        for byte in [b'"', b'\\', b'{', b'}', b',', b' ', 0x1f, 0x80, 0xff, b'0'] {
            let mut damaged = long.clone().into_bytes();
            damaged[at] = byte;
            both_agree(&damaged, 8);
            tried += 1;
        }
    }
    assert!(tried > 1000, "{tried}");
}

#[test]
fn the_end_of_a_plain_run_is_exact_at_every_place_and_byte() {
    for length in 0..70usize {
        for odd in 0..=255u8 {
            let mut run = vec![b'a'; length];
            run.push(odd);
            run.extend_from_slice(&[b'b'; 20]);
            run.push(b'"');
            let plain = !matches!(odd, b'"' | b'\\' | 0..0x20 | 0x80..);
            let end = if plain { length + 21 } else { length };
            assert_eq!(text::plain_end(&run, 0), end, "{odd} at {length}");
        }
    }
}
