//! Goal: permits go to the right calls, every wait ends, and the bound always holds. Method: one
//! queue in virtual time, first by hand, then with random pushes, takes and removals compared with
//! a plain list.

use super::*;

/// The flow of all calls in tests without flows.
const ONE: Flow = Flow::at(0);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn queue(calls_max: usize, share_kept: f64) -> Queue<u32> {
    Queue::new(QueueSettings { calls_max, wait_max: ms(1000), share_kept })
}

fn wait(queue: &mut Queue<u32>, now: u64, class: Class, item: u32) -> Key {
    match queue.push(ms(now), class, ONE, item) {
        PushResult::Queued(key) | PushResult::Replaced(key, _) => key,
        PushResult::Full(item) => panic!("{item} found no room"),
    }
}

fn next(queue: &mut Queue<u32>, now: u64) -> Option<u32> {
    queue.take(ms(now), true, &Shares::default(), 1).map(|(item, ..)| item)
}

#[test]
fn a_passing_queue_is_served_in_turn_and_a_standing_one_newest_first() {
    let mut own = queue(10, 0.1);
    wait(&mut own, 990, Class::Normal, 0);
    assert_eq!(next(&mut own, 999), Some(0));
    for item in 1..=4 {
        wait(&mut own, 1000, Class::Normal, item);
    }
    assert_eq!(next(&mut own, 1010), Some(1));
    assert_eq!(next(&mut own, 1090), Some(2));
    wait(&mut own, 1190, Class::Normal, 5);
    assert_eq!(next(&mut own, 1205), Some(5), "it has stood for more than 200 ms");
    assert_eq!(own.expired(ms(1211), true), Some((3, Class::Normal)));
    assert_eq!(own.expired(ms(1211), true), Some((4, Class::Normal)));
    assert_eq!(own.expired(ms(1211), true), None);
    wait(&mut own, 1212, Class::Normal, 6);
    wait(&mut own, 1213, Class::Normal, 7);
    assert_eq!(next(&mut own, 1220), Some(6), "it was empty in between");
}

#[test]
fn a_stall_of_the_upstreams_cuts_no_wait_short() {
    let mut own = queue(10, 0.1);
    wait(&mut own, 1000, Class::Normal, 0);
    assert_eq!(next(&mut own, 1001), Some(0));
    for item in 1..=3 {
        wait(&mut own, 1010, Class::Normal, item);
    }
    assert_eq!(own.expired(ms(1900), true), None, "nothing was served since");
    assert_eq!(next(&mut own, 1900), Some(1), "and it goes on in turn");
    assert_eq!(next(&mut own, 1905), Some(2));
    assert_eq!(own.expired(ms(2020), true), Some((3, Class::Normal)), "but no wait is endless");
}

#[test]
fn better_classes_go_first_and_worse_ones_keep_their_share() {
    let mut own = queue(1000, 0.1);
    for item in 0..200 {
        wait(&mut own, 0, Class::High, item);
        wait(&mut own, 0, Class::Low, 1000 + item);
    }
    let taken: Vec<u32> = (0..100).filter_map(|_| next(&mut own, 1)).collect();
    let low = taken.iter().filter(|item| **item >= 1000).count();
    assert_eq!((taken.len(), low), (100, 10));
    assert_eq!(taken[..9], [0, 1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn a_full_queue_sheds_the_worst_and_the_oldest_of_it() {
    let mut own = queue(3, 0.1);
    wait(&mut own, 0, Class::Normal, 1);
    wait(&mut own, 1, Class::Low, 2);
    wait(&mut own, 2, Class::Low, 3);
    assert!(matches!(
        own.push(ms(3), Class::High, ONE, 4),
        PushResult::Replaced(_, (2, Class::Low))
    ));
    assert!(matches!(
        own.push(ms(4), Class::Low, ONE, 5),
        PushResult::Replaced(_, (3, Class::Low))
    ));
    assert!(matches!(
        own.push(ms(5), Class::Normal, ONE, 6),
        PushResult::Replaced(_, (5, Class::Low))
    ));
    assert_eq!(own.push(ms(6), Class::Low, ONE, 7), PushResult::Full(7));
    assert_eq!(own.len(), 3);
    assert_eq!(
        queue(0, 0.1).push(ms(0), Class::High, ONE, 1),
        PushResult::Full(1),
        "no queue at all"
    );
}

#[test]
fn the_flow_with_the_fewest_calls_in_flight_goes_first() {
    let (mut own, mut shares) = (queue(10, 0.1), Shares::default());
    let (busy, idle) = (Flow::at(1), Flow::at(2));
    (0..3).for_each(|_| shares.enter(Class::Normal, busy));
    let mut push = |now, flow, item| {
        assert!(matches!(own.push(ms(now), Class::Normal, flow, item), PushResult::Queued(_)))
    };
    push(0, busy, 1);
    push(1, busy, 2);
    push(2, idle, 3);
    push(3, idle, 4);
    let mut order = Vec::new();
    while let Some((item, ..)) = own.take(ms(10), false, &shares, 5) {
        shares.enter(Class::Normal, if item < 3 { busy } else { idle });
        order.push(item);
    }
    assert_eq!(order, [3, 4, 1, 2]);
}

#[test]
fn of_equal_flows_the_one_that_has_waited_longest_goes_first() {
    let mut own = queue(10, 0.1);
    for item in 0..4_u32 {
        let flow = Flow::at(9 - item as usize);
        assert!(matches!(
            own.push(ms(u64::from(item)), Class::Normal, flow, item),
            PushResult::Queued(_)
        ));
    }
    let order: Vec<_> = std::iter::from_fn(|| next(&mut own, 10)).collect();
    assert_eq!(order, [0, 1, 2, 3]);
}

#[test]
fn permits_reserved_for_a_flow_go_to_no_other() {
    let (mut own, mut shares) = (queue(10, 0.1), Shares::default());
    let (slow, fast) = (Flow::at(1), Flow::at(2));
    (0..6).for_each(|_| shares.enter(Class::Normal, slow));
    (0..2).for_each(|_| shares.enter(Class::Normal, fast));
    (0..2).for_each(|_| shares.leave(fast));
    shares.renew(ms(1), 8);
    let mut take = |class, flow| {
        own.push(ms(1), class, flow, 1);
        let taken = own.take(ms(2), false, &shares, 2).is_some();
        while own.take(ms(2), false, &Shares::default(), 9).is_some() {}
        taken
    };
    assert!(!take(Class::Normal, slow));
    assert!(take(Class::Normal, fast));
    assert!(!take(Class::Normal, Flow::at(3)), "who is new waits for a place that is spare");
    assert!(take(Class::High, Flow::at(3)), "nothing is kept from a better class");
}

#[test]
fn a_full_queue_sheds_of_the_flow_with_the_most_waiting_calls() {
    let mut own = queue(4, 0.1);
    let (many, few) = (Flow::at(1), Flow::at(2));
    for (flow, item) in [(few, 1), (many, 2), (many, 3), (many, 4)] {
        assert!(matches!(own.push(ms(0), Class::Normal, flow, item), PushResult::Queued(_)));
    }
    let pushed = own.push(ms(1), Class::Normal, few, 5);
    assert!(matches!(pushed, PushResult::Replaced(_, (2, Class::Normal))), "{pushed:?}");
}

#[test]
fn a_removed_call_frees_its_entry_at_any_position() {
    let mut random = 1_u64;
    let mut next_random = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let (mut own, shares) = (queue(50, 0.1), Shares::default());
    let mut waiting: Vec<(Key, u32)> = Vec::new();
    for item in 0..20_000 {
        let now = ms(u64::from(item) / 10);
        match next_random() % 4 {
            0 | 1 => {
                let class = Class::ALL[(next_random() % 3) as usize];
                let flow = Flow::at(next_random() as usize % 5);
                match own.push(now, class, flow, item) {
                    PushResult::Queued(key) => waiting.push((key, item)),
                    PushResult::Replaced(key, (shed, _)) => {
                        waiting.retain(|(_, own)| *own != shed);
                        waiting.push((key, item));
                    }
                    PushResult::Full(_) => assert_eq!(waiting.len(), 50),
                }
            }
            2 if !waiting.is_empty() => {
                let at = next_random() as usize % waiting.len();
                let (key, item) = waiting.swap_remove(at);
                assert_eq!(own.remove(key), Some(item));
            }
            _ => {
                while let Some((shed, _)) = own.expired(now, true) {
                    waiting.retain(|(_, own)| *own != shed);
                }
                let taken = own.take(now, true, &shares, 1).map(|(item, ..)| item);
                assert_eq!(taken.is_none(), waiting.is_empty());
                waiting.retain(|(_, own)| Some(*own) != taken);
            }
        }
        assert_eq!(own.len(), waiting.len());
    }
    assert!(own.entries.len() <= 50, "entries are used again");
}
