//! Goal: permits go to the right calls, every wait ends, and the bound always holds. A *permit*
//! allows one call to be in flight, a *class* is the priority of a call, and a *flow* is the calls
//! of one client to similar methods. Method: one queue in virtual time, first by hand, then with
//! random pushes, takes and removals compared with a plain list.

use super::*;

/// The flow of all calls in tests that need only one flow.
const FLOW: Flow = Flow::from_index(0);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn new_queue(calls_max: usize, share_kept: f64) -> Queue<u32> {
    Queue::new(QueueSettings { calls_max, wait_max: ms(1000), share_kept })
}

/// Pushes a call that must find room.
fn push_waiting(queue: &mut Queue<u32>, now: u64, class: Class, item: u32) -> QueueKey {
    match queue.push(ms(now), class, FLOW, item) {
        PushResult::Queued(key) | PushResult::Replaced(key, _) => key,
        PushResult::Full(item) => panic!("{item} found no room"),
    }
}

/// Takes the call that gets the only free permit, while the upstreams are overloaded.
fn take_next(queue: &mut Queue<u32>, now: u64) -> Option<u32> {
    queue.take(ms(now), true, &Shares::default(), 1).map(|(item, ..)| item)
}

#[test]
fn a_short_lived_queue_is_served_oldest_first_and_a_standing_one_newest_first() {
    let mut queue = new_queue(10, 0.1);
    push_waiting(&mut queue, 990, Class::Normal, 0);
    assert_eq!(take_next(&mut queue, 999), Some(0));
    for item in 1..=4 {
        push_waiting(&mut queue, 1000, Class::Normal, item);
    }
    assert_eq!(take_next(&mut queue, 1010), Some(1));
    assert_eq!(take_next(&mut queue, 1090), Some(2));
    push_waiting(&mut queue, 1190, Class::Normal, 5);
    assert_eq!(take_next(&mut queue, 1205), Some(5), "it has stood for more than 200 ms");
    assert_eq!(queue.take_expired(ms(1211), true), Some((3, Class::Normal)));
    assert_eq!(queue.take_expired(ms(1211), true), Some((4, Class::Normal)));
    assert_eq!(queue.take_expired(ms(1211), true), None);
    push_waiting(&mut queue, 1212, Class::Normal, 6);
    push_waiting(&mut queue, 1213, Class::Normal, 7);
    assert_eq!(take_next(&mut queue, 1220), Some(6), "it was empty in between");
}

#[test]
fn calls_do_not_expire_while_upstreams_stall() {
    let mut queue = new_queue(10, 0.1);
    push_waiting(&mut queue, 1000, Class::Normal, 0);
    assert_eq!(take_next(&mut queue, 1001), Some(0));
    for item in 1..=3 {
        push_waiting(&mut queue, 1010, Class::Normal, item);
    }
    assert_eq!(queue.take_expired(ms(1900), true), None, "nothing was served since");
    assert_eq!(take_next(&mut queue, 1900), Some(1), "and it goes on in turn");
    assert_eq!(take_next(&mut queue, 1905), Some(2));
    assert_eq!(
        queue.take_expired(ms(2020), true),
        Some((3, Class::Normal)),
        "but no wait is endless"
    );
}

#[test]
fn higher_classes_go_first_and_lower_ones_keep_their_share() {
    let mut queue = new_queue(1000, 0.1);
    for item in 0..200 {
        push_waiting(&mut queue, 0, Class::High, item);
        push_waiting(&mut queue, 0, Class::Low, 1000 + item);
    }
    let taken: Vec<u32> = (0..100).filter_map(|_| take_next(&mut queue, 1)).collect();
    let low = taken.iter().filter(|item| **item >= 1000).count();
    assert_eq!((taken.len(), low), (100, 10));
    assert_eq!(taken[..9], [0, 1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn a_full_queue_sheds_the_oldest_call_of_the_lowest_class() {
    let mut queue = new_queue(3, 0.1);
    push_waiting(&mut queue, 0, Class::Normal, 1);
    push_waiting(&mut queue, 1, Class::Low, 2);
    push_waiting(&mut queue, 2, Class::Low, 3);
    assert!(matches!(
        queue.push(ms(3), Class::High, FLOW, 4),
        PushResult::Replaced(_, (2, Class::Low))
    ));
    assert!(matches!(
        queue.push(ms(4), Class::Low, FLOW, 5),
        PushResult::Replaced(_, (3, Class::Low))
    ));
    assert!(matches!(
        queue.push(ms(5), Class::Normal, FLOW, 6),
        PushResult::Replaced(_, (5, Class::Low))
    ));
    assert_eq!(queue.push(ms(6), Class::Low, FLOW, 7), PushResult::Full(7));
    assert_eq!(queue.len, 3);
    assert_eq!(
        new_queue(0, 0.1).push(ms(0), Class::High, FLOW, 1),
        PushResult::Full(1),
        "no queue at all"
    );
}

#[test]
fn the_flow_with_the_fewest_calls_in_flight_goes_first() {
    let (mut queue, mut shares) = (new_queue(10, 0.1), Shares::default());
    let (busy, idle) = (Flow::from_index(1), Flow::from_index(2));
    (0..3).for_each(|_| shares.take_permit(Class::Normal, busy));
    let mut push = |now, flow, item| {
        assert!(matches!(queue.push(ms(now), Class::Normal, flow, item), PushResult::Queued(_)))
    };
    push(0, busy, 1);
    push(1, busy, 2);
    push(2, idle, 3);
    push(3, idle, 4);
    let mut order = Vec::new();
    while let Some((item, ..)) = queue.take(ms(10), false, &shares, 5) {
        shares.take_permit(Class::Normal, if item < 3 { busy } else { idle });
        order.push(item);
    }
    assert_eq!(order, [3, 4, 1, 2]);
}

#[test]
fn of_equal_flows_the_one_that_has_waited_longest_goes_first() {
    let mut queue = new_queue(10, 0.1);
    for item in 0..4_u32 {
        let flow = Flow::from_index(9 - item as usize);
        assert!(matches!(
            queue.push(ms(u64::from(item)), Class::Normal, flow, item),
            PushResult::Queued(_)
        ));
    }
    let order: Vec<_> = std::iter::from_fn(|| take_next(&mut queue, 10)).collect();
    assert_eq!(order, [0, 1, 2, 3]);
}

#[test]
fn a_permit_reserved_for_a_flow_goes_to_no_other_flow() {
    let (mut queue, mut shares) = (new_queue(10, 0.1), Shares::default());
    let (slow, fast) = (Flow::from_index(1), Flow::from_index(2));
    (0..6).for_each(|_| shares.take_permit(Class::Normal, slow));
    (0..2).for_each(|_| shares.take_permit(Class::Normal, fast));
    (0..2).for_each(|_| shares.return_permit(fast));
    shares.divide_permits(ms(1), 8);
    let mut take = |class, flow| {
        queue.push(ms(1), class, flow, 1);
        let taken = queue.take(ms(2), false, &shares, 2).is_some();
        while queue.take(ms(2), false, &Shares::default(), 9).is_some() {}
        taken
    };
    assert!(!take(Class::Normal, slow));
    assert!(take(Class::Normal, fast));
    assert!(
        !take(Class::Normal, Flow::from_index(3)),
        "who is new waits for a place that is spare"
    );
    assert!(take(Class::High, Flow::from_index(3)), "nothing is kept from a higher class");
}

#[test]
fn a_full_queue_sheds_a_call_of_the_flow_with_the_most_waiting_calls() {
    let mut queue = new_queue(4, 0.1);
    let (many, few) = (Flow::from_index(1), Flow::from_index(2));
    for (flow, item) in [(few, 1), (many, 2), (many, 3), (many, 4)] {
        assert!(matches!(queue.push(ms(0), Class::Normal, flow, item), PushResult::Queued(_)));
    }
    let pushed = queue.push(ms(1), Class::Normal, few, 5);
    assert!(matches!(pushed, PushResult::Replaced(_, (2, Class::Normal))), "{pushed:?}");
}

#[test]
fn a_call_can_be_removed_at_any_position() {
    let mut random = 1_u64;
    let mut next_random = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let (mut queue, shares) = (new_queue(50, 0.1), Shares::default());
    let mut waiting: Vec<(QueueKey, u32)> = Vec::new();
    // Of four steps on average, two push a call, one removes a call, and one takes a call.
    for item in 0..20_000 {
        let now = ms(u64::from(item) / 10);
        match next_random() % 4 {
            0 | 1 => {
                let class = Class::ALL[(next_random() % 3) as usize];
                let flow = Flow::from_index(next_random() as usize % 5);
                match queue.push(now, class, flow, item) {
                    PushResult::Queued(key) => waiting.push((key, item)),
                    PushResult::Replaced(key, (shed, _)) => {
                        waiting.retain(|(_, item)| *item != shed);
                        waiting.push((key, item));
                    }
                    PushResult::Full(_) => assert_eq!(waiting.len(), 50),
                }
            }
            2 if !waiting.is_empty() => {
                let index = next_random() as usize % waiting.len();
                let (key, item) = waiting.swap_remove(index);
                assert_eq!(queue.remove(key), Some(item));
            }
            _ => {
                while let Some((shed, _)) = queue.take_expired(now, true) {
                    waiting.retain(|(_, item)| *item != shed);
                }
                let taken = queue.take(now, true, &shares, 1).map(|(item, ..)| item);
                assert_eq!(taken.is_none(), waiting.is_empty());
                waiting.retain(|(_, queue)| Some(*queue) != taken);
            }
        }
        assert_eq!(queue.len, waiting.len());
    }
}
