//! Goal: lines keep their order whoever leaves from wherever. Method: random entering and leaving
//! beside a plain list.

use proptest::prelude::*;

use super::Waits;

#[test]
fn the_first_of_a_line_is_due_first() {
    let mut waits = Waits::new(3, &[10, 100]);
    waits.enter(0, 2, 5);
    waits.enter(0, 0, 6);
    waits.enter(1, 1, 6);
    assert_eq!((waits.until(0), waits.until(1)), (Some(15), Some(106)));
    assert_eq!(waits.due(0, 14), None);
    assert_eq!(waits.due(0, 20), Some((2, 15)));
    assert_eq!(waits.due(0, 20), Some((0, 16)));
    assert_eq!(waits.due(0, 20), None);
    waits.leave(0);
    assert_eq!(waits.until(0), None);
}

proptest! {
    #[test]
    fn lines_are_lists(steps in prop::collection::vec((0usize..3, 0u32..8), 1..200)) {
        let mut waits = Waits::new(8, &[7, 7]);
        let mut lists: [Vec<u32>; 2] = Default::default();
        for (now, &(action, worker)) in steps.iter().enumerate() {
            lists.iter_mut().for_each(|list| list.retain(|&other| other != worker));
            match action {
                2 => waits.leave(worker),
                line => {
                    waits.enter(line, worker, now as u64);
                    lists[line].push(worker);
                }
            }
        }
        for (line, list) in lists.iter().enumerate() {
            let mut left = Vec::new();
            while let Some((worker, _)) = waits.due(line, u64::MAX) {
                left.push(worker);
            }
            prop_assert_eq!(&left, list);
        }
    }
}
