//! Goal: decoding restores encoded posting lists, and keys never change. Method: keys from existing
//! files, and random lists.

use proptest::prelude::*;

use super::*;

#[test]
fn keys_are_those_of_existing_files() {
    assert_eq!(address_key(&[0; 20]), 2313170499306226200);
    assert_eq!(topic_key(0, &[0; 32]), -8744814939176351535);
    assert_ne!(topic_key(0, &[1; 32]), topic_key(1, &[1; 32]));
}

#[test]
fn keys_of_similar_topics_differ() {
    let mut keys = std::collections::HashSet::new();
    for byte in 0..=255u8 {
        for index in 0..32 {
            let mut topic = [0; 32];
            topic[index] = byte;
            for topic_index in 0..4 {
                keys.insert(topic_key(topic_index, &topic));
            }
        }
    }
    assert_eq!(keys.len(), 4 * (255 * 32 + 1));
}

#[test]
fn a_position_holds_block_and_index() {
    assert_eq!(block_and_index(position(24_000_000, 1_500)), (24_000_000, 1_500));
    assert!(position(5, INDEX_MAX) < position(6, 0));
}

#[test]
fn decoding_a_truncated_list_ends() {
    assert_eq!(decode(5, &[0x80]).collect::<Vec<_>>(), [5]);
    assert_eq!(decode(5, &[0xff; 40]).count(), 1);
}

proptest! {
    #[test]
    fn lists_survive_encoding(mut positions in prop::collection::vec(0..1i64 << 50, 1..200)) {
        let mut lists = PostingLists::default();
        positions.sort_unstable();
        for position in &positions {
            lists.add(1, *position);
        }
        positions.dedup();
        let rows = lists.drain();
        prop_assert_eq!(rows.len(), 1);
        let decoded: Vec<i64> = decode(rows[0].first, &rows[0].rest).collect();
        prop_assert_eq!(&decoded, &positions);
        prop_assert_eq!(&encode_rest(&positions), &rows[0].rest);
    }
}
