//! Goal: decompression restores compressed fragments, and damaged fragments are errors. Method:
//! fragments of all lengths, with and without dictionaries.

use super::*;

fn samples(count: usize) -> Vec<Vec<u8>> {
    let fragment = |number: usize| {
        format!(
            r#"{{"blockHash":"0xabab","from":"0x{number:040x}","gas":"0x{number:x}","input":"0x"}}"#
        )
    };
    (0..count).map(|number| fragment(number * 7919).into_bytes()).collect()
}

/// Compresses and decompresses a fragment, and returns its compressed length.
fn round_trip(dictionaries: &[Dictionary], fragment: &[u8]) -> usize {
    let mut compressor = Compressor::new(dictionaries).unwrap();
    let compressed = compressor.compress(FragmentKind::Transaction, fragment).unwrap();
    let mut out = b"old".to_vec();
    Decompressor::new(dictionaries).unwrap().decompress(&mut out, &compressed).unwrap();
    assert_eq!(out, fragment);
    compressed.len()
}

#[test]
fn a_dictionary_halves_short_fragments() {
    let kind = FragmentKind::Transaction;
    let fragment = &samples(1000)[999];
    let length_without = round_trip(&[], fragment);
    let trained_dictionary = train(kind, &samples(500));
    let length_with = round_trip(std::slice::from_ref(&trained_dictionary), fragment);
    assert!(length_with * 2 < length_without, "{length_with} of {length_without}");
    let small_dictionary = train(kind, &samples(5));
    assert!(round_trip(std::slice::from_ref(&small_dictionary), fragment) * 2 < length_without);
    // A newer dictionary compresses, and the older one still decompresses its own fragments.
    let old_fragment =
        Compressor::new(std::slice::from_ref(&small_dictionary)).unwrap().compress(kind, fragment);
    let mut out = Vec::new();
    Decompressor::new(&[small_dictionary, trained_dictionary])
        .unwrap()
        .decompress(&mut out, &old_fragment.unwrap())
        .unwrap();
    assert_eq!(&out, fragment);
}

#[test]
fn fragments_of_any_length_survive() {
    for length in [0, 1, 255, 256, 70_000, 3_000_000] {
        round_trip(&[], &vec![b'x'; length]);
    }
}

#[test]
fn damaged_fragments_are_errors() {
    let compressed =
        Compressor::new(&[]).unwrap().compress(FragmentKind::Block, &[7; 5000]).unwrap();
    let mut decompressor = Decompressor::new(&[]).unwrap();
    let mut out = Vec::new();
    for damaged in
        [&[][..], &[9][..], &[0][..], &compressed[..compressed.len() - 1], &[0, 1, 2, 3, 4, 5, 6]]
    {
        assert!(decompressor.decompress(&mut out, damaged).is_err(), "{damaged:?}");
    }
    decompressor.decompress(&mut out, &compressed).unwrap();
}
