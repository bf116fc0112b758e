//! Lists come back as they were noted; keys never change.

use proptest::prelude::*;

use super::*;

#[test]
fn keys_are_what_files_hold() {
    assert_eq!(address_key(&[0; 20]), ADDRESS_ZERO);
    assert_eq!(topic_key(0, &[0; 32]), TOPIC_ZERO);
    assert_ne!(topic_key(0, &[1; 32]), topic_key(1, &[1; 32]));
}

const ADDRESS_ZERO: i64 = 2313170499306226200;
const TOPIC_ZERO: i64 = -8744814939176351535;

#[test]
fn keys_of_like_values_differ() {
    let mut seen = std::collections::HashSet::new();
    for byte in 0..=255u8 {
        for at in 0..32 {
            let mut topic = [0; 32];
            topic[at] = byte;
            for position in 0..4 {
                seen.insert(topic_key(position, &topic));
            }
        }
    }
    assert_eq!(seen.len(), 4 * (255 * 32 + 1));
}

#[test]
fn a_place_tells_block_and_transaction() {
    assert_eq!(parts(place(24_000_000, 1_500)), (24_000_000, 1_500));
    assert!(place(5, INDEX_MAX) < place(6, 0));
}

#[test]
fn a_list_that_is_cut_off_ends() {
    assert_eq!(places(5, &[0x80]).collect::<Vec<_>>(), [5]);
    assert_eq!(places(5, &[0xff; 40]).count(), 1);
}

proptest! {
    #[test]
    fn lists_come_back(mut noted in prop::collection::vec(0..1i64 << 50, 1..200)) {
        let mut lists = Lists::default();
        noted.sort_unstable();
        for place in &noted {
            lists.note(1, *place);
        }
        noted.dedup();
        let rows = lists.drain();
        prop_assert_eq!(rows.len(), 1);
        let back: Vec<i64> = places(rows[0].1, &rows[0].2).collect();
        prop_assert_eq!(&back, &noted);
        prop_assert_eq!(&pack(&noted), &rows[0].2);
    }
}
