//! Goal: queues of deadlines keep their order when any entry is removed. Method: random insertions
//! and removals, compared with a plain list.

use proptest::prelude::*;

use super::Deadlines;

#[test]
fn the_first_entry_of_a_queue_expires_first() {
    // Three workers, and two queues with the timeouts 10 and 100.
    let mut deadlines = Deadlines::new(3, &[10, 100]);
    // The arguments are the queue, the worker and the present time.
    deadlines.set(0, 2, 5);
    deadlines.set(0, 0, 6);
    deadlines.set(1, 1, 6);
    assert_eq!((deadlines.earliest(0), deadlines.earliest(1)), (Some(15), Some(106)));
    assert_eq!(deadlines.take_expired(0, 14), None);
    assert_eq!(deadlines.take_expired(0, 20), Some((2, 15)));
    assert_eq!(deadlines.take_expired(0, 20), Some((0, 16)));
    assert_eq!(deadlines.take_expired(0, 20), None);
    deadlines.remove(0);
    assert_eq!(deadlines.earliest(0), None);
}

#[test]
fn a_stop_extends_the_deadlines_before_it_and_keeps_their_order() {
    let mut deadlines = Deadlines::new(3, &[100]);
    for (worker, now) in [(0, 0), (1, 50), (2, 295)] {
        deadlines.set(0, worker, now);
    }
    deadlines.extend(0, 9, 300);
    assert_eq!(deadlines.earliest(0), Some(100), "a short stop extends nothing");
    // A stop from 60 to 300; worker 2 has sent after it.
    deadlines.extend(0, 240, 300);
    assert_eq!(deadlines.take_expired(0, 339), None);
    assert_eq!(deadlines.take_expired(0, 340), Some((0, 100)));
    assert_eq!(deadlines.take_expired(0, 390), Some((1, 150)));
    assert_eq!(deadlines.take_expired(0, 399), None);
    assert_eq!(deadlines.take_expired(0, 400), Some((2, 395)));
}

proptest! {
    #[test]
    fn queues_equal_lists(steps in prop::collection::vec((0usize..3, 0u32..8), 1..200)) {
        let mut deadlines = Deadlines::new(8, &[7, 7]);
        let mut lists: [Vec<u32>; 2] = Default::default();
        for (now, &(action, worker)) in steps.iter().enumerate() {
            lists.iter_mut().for_each(|list| list.retain(|&other| other != worker));
            match action {
                2 => deadlines.remove(worker),
                queue => {
                    deadlines.set(queue, worker, now as u64);
                    lists[queue].push(worker);
                }
            }
        }
        for (queue, list) in lists.iter().enumerate() {
            let mut expired = Vec::new();
            while let Some((worker, _)) = deadlines.take_expired(queue, u64::MAX) {
                expired.push(worker);
            }
            prop_assert_eq!(&expired, list);
        }
    }
}
