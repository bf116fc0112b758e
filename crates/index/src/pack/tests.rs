//! Pieces come back, and damaged ones are told.

use super::*;

fn samples(count: usize) -> Vec<Vec<u8>> {
    let piece = |at: usize| {
        format!(r#"{{"blockHash":"0xabab","from":"0x{at:040x}","gas":"0x{at:x}","input":"0x"}}"#)
    };
    (0..count).map(|at| piece(at * 7919).into_bytes()).collect()
}

fn there_and_back(dictionaries: &[Dictionary], piece: &[u8]) -> usize {
    let packed = Packer::new(dictionaries).unwrap().pack(Kind::Transaction, piece).unwrap();
    let mut out = b"old".to_vec();
    Unpacker::new(dictionaries).unwrap().unpack(&mut out, &packed).unwrap();
    assert_eq!(out, piece);
    packed.len()
}

#[test]
fn a_dictionary_makes_short_pieces_small() {
    let piece = &samples(1000)[999];
    let without = there_and_back(&[], piece);
    let trained = train(Kind::Transaction, &samples(500));
    let with = there_and_back(std::slice::from_ref(&trained), piece);
    assert!(with * 2 < without, "{with} of {without}");
    let few = train(Kind::Transaction, &samples(5));
    assert!(there_and_back(std::slice::from_ref(&few), piece) * 2 < without);
    // A newer one packs; the older one still unpacks what is its own.
    let old = Packer::new(std::slice::from_ref(&few)).unwrap().pack(Kind::Transaction, piece);
    let mut out = Vec::new();
    Unpacker::new(&[few, trained]).unwrap().unpack(&mut out, &old.unwrap()).unwrap();
    assert_eq!(&out, piece);
}

#[test]
fn pieces_of_any_length_come_back() {
    for length in [0, 1, 255, 256, 70_000, 3_000_000] {
        there_and_back(&[], &vec![b'x'; length]);
    }
}

#[test]
fn damage_is_told() {
    let packed = Packer::new(&[]).unwrap().pack(Kind::Block, &[7; 5000]).unwrap();
    let mut unpacker = Unpacker::new(&[]).unwrap();
    let mut out = Vec::new();
    for bad in [&[][..], &[9][..], &[0][..], &packed[..packed.len() - 1], &[0, 1, 2, 3, 4, 5, 6]] {
        assert!(unpacker.unpack(&mut out, bad).is_err(), "{bad:?}");
    }
    unpacker.unpack(&mut out, &packed).unwrap();
}
