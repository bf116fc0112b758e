//! Goal: the load balancing algorithms produce the published sequences and shares. Method: small
//! tables, and counted choices with fixed hashes.

use super::*;
use std::time::Duration;

fn sequence(weights: &mut SmoothWeighted, count: usize) -> Vec<usize> {
    (0..count).map(|_| weights.pick(|_| true).unwrap()).collect()
}

/// The example of nginx's commit message for the algorithm: weights 5, 1, 1 give a a b a c a a.
#[test]
fn choices_are_spread_as_in_nginx() {
    let mut weights = SmoothWeighted::new(&[5, 1, 1], 1);
    assert_eq!(sequence(&mut weights, 7), [0, 0, 1, 0, 2, 0, 0]);
    assert_eq!(sequence(&mut weights, 7), [0, 0, 1, 0, 2, 0, 0]);
}

#[test]
fn failure_lowers_the_weight_and_choices_restore_it() {
    let mut weights = SmoothWeighted::new(&[4, 4], 2);
    weights.record_failure(0);
    weights.record_failure(0);
    assert_eq!(weights.states[0].effective, 0);
    weights.record_failure(0);
    assert_eq!(weights.states[0].effective, 0, "never below nothing");
    assert_eq!(sequence(&mut weights, 3), [1, 1, 0]);
    assert_eq!(weights.states[0].effective, 3);
    let later = sequence(&mut weights, 40);
    assert_eq!(weights.states[0].effective, 4);
    assert!(later.iter().filter(|&&upstream| upstream == 0).count() >= 18);
}

#[test]
fn bounded_choices_give_a_slow_upstream_no_more_than_its_share() {
    // The first upstream never responds. The others respond at once.
    let run = |bounded: bool| {
        let mut choices = SmoothWeighted::new(&[1, 1, 2], 0);
        let (mut held, mut responded) = (0, 0);
        for _ in 0..300 {
            // Ten calls are always in flight at the others.
            let loads = [held, 3, 7];
            let upstream = if bounded {
                choices.pick_bounded(&loads, |_| true)
            } else {
                choices.pick(|_| true)
            };
            if upstream == Some(0) { held += 1 } else { responded += 1 }
        }
        (held, responded)
    };
    let (held, responded) = run(true);
    assert!(held <= 5 && responded >= 295, "{held} held, {responded} answered");
    assert!(run(false).0 >= 70, "without a bound it holds a quarter of all calls");
}

#[test]
fn unusable_upstreams_are_never_chosen() {
    let mut weights = SmoothWeighted::new(&[3, 2, 1], 1);
    for _ in 0..12 {
        assert_ne!(weights.pick(|upstream| upstream != 0), Some(0));
    }
    assert_eq!(weights.pick(|_| false), None);
    assert_eq!(SmoothWeighted::new(&[], 1).pick(|_| true), None);
}

/// Returns the number of keys that each upstream gets.
fn count_keys(
    ring: &Ring,
    upstreams: usize,
    keys: u64,
    usable: impl Fn(usize) -> bool,
) -> Vec<usize> {
    let mut counts = vec![0; upstreams];
    for key in 0..keys {
        let upstream = ring.pick(hash64(&key.to_le_bytes()), &vec![0; upstreams], &usable);
        counts[upstream.unwrap()] += 1;
    }
    counts
}

#[test]
fn ring_shares_follow_the_weights() {
    let ring = Ring::new(&[("a", 1), ("b", 1), ("c", 2)], RING_BALANCE);
    let counts = count_keys(&ring, 3, 40_000, |_| true);
    for (count, expected) in counts.iter().zip([10_000.0, 10_000.0, 20_000.0]) {
        let ratio = *count as f64 / expected;
        assert!((0.8..1.2).contains(&ratio), "{counts:?}");
    }
}

#[test]
fn a_lost_upstream_moves_only_its_own_keys() {
    let ring = Ring::new(&[("a", 1), ("b", 1), ("c", 1)], RING_BALANCE);
    for key in 0..10_000_u64 {
        let key = hash64(&key.to_le_bytes());
        let upstream_before = ring.pick(key, &[0; 3], |_| true).unwrap();
        let upstream_after = ring.pick(key, &[0; 3], |upstream| upstream != 1).unwrap();
        assert!(upstream_before == upstream_after || upstream_before == 1);
    }
    assert_eq!(ring.pick(7, &[0; 3], |_| false), None);
}

#[test]
fn one_hot_key_cannot_overload_an_upstream() {
    let ring = Ring::new(&[("a", 1), ("b", 1), ("c", 1), ("d", 1)], RING_BALANCE);
    let mut loads = [0_u32; 4];
    for _ in 0..100 {
        let upstream = ring.pick(42, &loads, |_| true).unwrap();
        loads[upstream] += 1;
    }
    let load_max = (RING_BALANCE * 100.0 / 4.0).ceil() as u32;
    assert!(loads.iter().all(|&load| load <= load_max), "{loads:?}");
    assert_eq!(loads.iter().sum::<u32>(), 100);
}

#[test]
fn a_ring_of_huge_weights_stays_bounded() {
    let ring = Ring::new(&[("a", u32::MAX), ("b", 1), ("c", u32::MAX)], RING_BALANCE);
    assert!(ring.points.len() as u64 <= RING_POINTS_MAX + 3);
    assert!(ring.points.iter().any(|point| point.upstream == 1));
}

#[test]
fn latency_rises_at_once_and_falls_slowly() {
    let second = Duration::from_secs;
    let mut upstream = PeakEwma::new(second(0), EWMA_START);
    upstream.observe(second(1), Duration::from_millis(500));
    assert!((upstream.cost(second(1), 0, Duration::ZERO) - 0.5).abs() < 1e-9);
    assert!((upstream.cost(second(1), 3, Duration::ZERO) - 2.0).abs() < 1e-9);
    upstream.observe(second(2), Duration::from_millis(10));
    let after_one = upstream.cost(second(2), 0, Duration::ZERO);
    assert!((0.44..0.5).contains(&after_one), "{after_one}");
    upstream.observe(second(40), Duration::from_millis(10));
    let settled = upstream.cost(second(40), 0, Duration::ZERO);
    assert!((0.01..0.025).contains(&settled), "{settled}");
    assert!(upstream.cost(second(140), 0, Duration::ZERO) < 1e-5, "idle upstreams are tried again");
}

#[test]
fn the_cheaper_of_two_is_picked() {
    let costs = [5.0, 1.0, 3.0];
    let mut counts = [0; 3];
    for call in 0..3000_u64 {
        let random = hash64(&call.to_le_bytes());
        let upstream =
            pick_two(random, &[0, 1, 2], |_| false, |upstream| costs[usize::from(upstream)]);
        counts[usize::from(upstream.unwrap())] += 1;
    }
    assert_eq!(counts[0], 0, "the dearest never wins a pair");
    assert!((1800..2200).contains(&counts[1]), "{counts:?}");
}

#[test]
fn tried_upstreams_are_skipped_while_others_remain() {
    for call in 0..200_u64 {
        let random = hash64(&call.to_le_bytes());
        let only_two = pick_two(random, &[0, 1, 2, 3], |upstream| upstream != 2, |_| 1.0);
        assert_eq!(only_two, Some(2));
        assert_eq!(pick_two(random, &[4], |_| false, |_| 1.0), Some(4));
        assert_eq!(pick_two(random, &[4], |_| true, |_| 1.0), None);
        assert_eq!(pick_two(random, &[], |_| false, |_| 1.0), None);
    }
}

#[test]
fn a_repeated_call_goes_to_the_cheapest_remaining_upstream() {
    for call in 0..200_u64 {
        let random = hash64(&call.to_le_bytes());
        let cost = |upstream| [1.0, 100.0, 2.0][usize::from(upstream)];
        assert_eq!(pick_two(random, &[0, 1, 2], |upstream| upstream == 0, cost), Some(2));
    }
}

#[test]
fn backups_are_used_only_if_no_primary_is_usable() {
    let order = TierOrder::new(&[1, 0, 0, 7]);
    let check = |usable: &[u16], expected: &[u16]| {
        let mut out = vec![9];
        order.fill_candidates(|upstream| usable.contains(&upstream), &mut out);
        assert_eq!(out, expected);
    };
    check(&[0, 1, 2, 3], &[1, 2]);
    check(&[0, 2, 3], &[2]);
    check(&[0, 3], &[0]);
    check(&[3], &[3]);
    check(&[], &[]);
}
