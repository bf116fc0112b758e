//! Goal: a search finds the last common block with few comparisons. Method: cases written by hand,
//! and random chains.

use proptest::prelude::*;

use super::*;

/// Runs a search and returns its last step and the number of comparisons. `common` is the last
/// common block, if any.
fn search(first: u64, different: u64, common: Option<u64>) -> (SearchStep, u32) {
    let mut search = AncestorSearch::new(first, different);
    for comparisons in 0..200 {
        match search.next_step() {
            SearchStep::Compare(number) => {
                assert!(number >= first && number < different);
                search.record(number, common.is_some_and(|common| number <= common));
            }
            found => return (found, comparisons),
        }
    }
    panic!("the search does not end");
}

#[test]
fn a_short_reorg_takes_few_comparisons() {
    assert_eq!(search(0, 1000, Some(999)), (SearchStep::Found(999), 1));
    assert_eq!(search(0, 1000, Some(998)), (SearchStep::Found(998), 3));
    assert_eq!(search(0, 1000, Some(0)).0, SearchStep::Found(0));
    assert_eq!(search(10, 10, None), (SearchStep::NoCommonBlock, 0));
    assert_eq!(search(10, 30, None).0, SearchStep::NoCommonBlock);
}

proptest! {
    #[test]
    fn any_common_block_is_found(first in 0u64..1000, length in 1u64..100_000, distance in 0u64..100_000) {
        let different = first + length;
        let common = different.checked_sub(1 + distance).filter(|common| *common >= first);
        let (found, comparisons) = search(first, different, common);
        prop_assert_eq!(found, common.map_or(SearchStep::NoCommonBlock, SearchStep::Found));
        prop_assert!(comparisons <= 2 * 18, "{} comparisons", comparisons);
    }
}
