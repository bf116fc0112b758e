//! The search finds the right block with few questions.

use proptest::prelude::*;

use super::*;

fn search(first: u64, differs: u64, common: Option<u64>) -> (Found, u32) {
    let mut search = Ancestor::new(first, differs);
    for asked in 0..200 {
        match search.next() {
            Found::Ask(number) => {
                assert!(number >= first && number < differs);
                search.told(number, common.is_some_and(|common| number <= common));
            }
            found => return (found, asked),
        }
    }
    panic!("it does not end");
}

#[test]
fn a_short_reorg_costs_few_questions() {
    assert_eq!(search(0, 1000, Some(999)), (Found::At(999), 1));
    assert_eq!(search(0, 1000, Some(998)), (Found::At(998), 3));
    assert_eq!(search(0, 1000, Some(0)).0, Found::At(0));
    assert_eq!(search(10, 10, None), (Found::Nothing, 0));
    assert_eq!(search(10, 30, None).0, Found::Nothing);
}

proptest! {
    #[test]
    fn it_is_found_whatever_it_is(first in 0u64..1000, length in 1u64..100_000, back in 0u64..100_000) {
        let differs = first + length;
        let common = differs.checked_sub(1 + back).filter(|common| *common >= first);
        let (found, asked) = search(first, differs, common);
        prop_assert_eq!(found, common.map_or(Found::Nothing, Found::At));
        prop_assert!(asked <= 2 * 18, "{} questions", asked);
    }
}
