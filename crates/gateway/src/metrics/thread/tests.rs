//! Goal: sums over threads lose nothing, and no number falls when the configuration changes.

use std::sync::Arc;
use std::time::Duration;

use wire::family::Family;

use super::{ChainLabel, Counters, Labels, REMOVED_MAX};
use crate::call::CacheStatus;
use crate::metrics::label::{AttemptOutcome, LimitOutcome, RefusedStatus};
use crate::policy::overload::{Class, Shed};

/// Returns the labels of chains and of their upstreams. Each chain has a group `all` and a zone
/// with the chain's name.
pub(crate) fn labels(chains: &[&str], upstreams: &[(&str, &str)]) -> Labels {
    let chain = |name: &&str| ChainLabel { name: (*name).into(), family: Family::Bitcoin };
    let pair = |(chain, name): &(&str, &str)| [Arc::from(*chain), Arc::from(*name)];
    Labels {
        chains: chains.iter().map(chain).collect(),
        upstreams: upstreams.iter().map(pair).collect(),
        groups: chains.iter().map(|name| pair(&(name, "all"))).collect(),
        zones: chains.iter().map(|name| [Arc::from(*name)]).collect(),
        ..Labels::default()
    }
}

#[test]
fn every_number_is_added_up_over_threads() {
    let labels = labels(&["a", "b"], &[("a", "one"), ("b", "two")]);
    let threads: Vec<Arc<Counters>> = (0..3).map(|_| Arc::new(Counters::new(&labels))).collect();
    for (index, thread) in threads.iter().enumerate() {
        let count = index as u64 + 1;
        for _ in 0..count {
            thread.record_connection_opened();
            thread.methods[0][2].record_call(CacheStatus::Hit, Duration::from_micros(150));
            thread.method(1, None).record_call(CacheStatus::Bypass, Duration::from_millis(3));
            thread.upstreams[1].record_attempt(AttemptOutcome::Failed, Duration::from_millis(2));
            thread.record_refusal(413);
            thread.record_refusal(599);
        }
        thread.record_connection_closed();
        thread.upstreams[1].in_flight.set(count);
        thread.groups[0].shed[Class::Low][Shed::Late].add(count);
        thread.groups[1].waited[Class::High].observe(Duration::from_millis(count));
        thread.redis.latency.observe(Duration::from_micros(count));
        thread.shared_limits.breakers_opened.add(count);
        thread.record_limit_outcome(1, LimitOutcome::Delayed);
    }

    let sum = Counters::sum(&threads);
    assert_eq!((sum.connections_accepted.get(), sum.connections_open.get()), (6, 3));
    let hits = &sum.methods[0][2];
    assert_eq!((hits.answered[CacheStatus::Hit].get(), hits.calls()), (6, 6));
    let unknown = &sum.methods[1].last().unwrap();
    assert_eq!((unknown.calls(), unknown.latency.sum_micros.get()), (6, 18_000));
    assert_eq!(
        (sum.count_calls_with(CacheStatus::Hit), sum.count_calls_with(CacheStatus::Miss)),
        (6, 0)
    );
    let upstream = &sum.upstreams[1];
    assert_eq!(upstream.attempts[AttemptOutcome::Failed].get(), 6);
    assert_eq!((upstream.attempts.total(), upstream.latency.count()), (6, 6));
    assert_eq!((upstream.in_flight.get(), sum.upstreams[0].attempts.total()), (6, 0));
    let refused = &sum.requests_refused;
    assert_eq!((refused[RefusedStatus::BodyTooLarge].get(), refused.total()), (6, 12));
    assert_eq!(refused[RefusedStatus::Other].get(), 6, "an unlisted status counts as 500");
    assert_eq!(sum.groups[0].shed[Class::Low][Shed::Late].get(), 6);
    assert_eq!(sum.groups[1].waited[Class::High].count(), 3);
    assert_eq!((sum.redis.latency.count(), sum.shared_limits.breakers_opened.get()), (3, 6));
    assert_eq!(sum.zones[1].calls[LimitOutcome::Delayed].get(), 3);
}

#[test]
fn a_label_continues_its_counters_after_a_change_of_order_and_after_its_removal() {
    let first = labels(&["a", "b"], &[("a", "one"), ("b", "two")]);
    let counters = Counters::new(&first);
    counters.requests.add(5);
    counters.methods[1][0].record_call(CacheStatus::Hit, Duration::ZERO);
    let attempts = |counters: &Counters, index: usize| counters.upstreams[index].attempts.total();
    counters.upstreams[0].attempts[AttemptOutcome::Ok].add(3);
    counters.upstreams[1].attempts[AttemptOutcome::Ok].add(4);
    counters.methods[0][0].record_call(CacheStatus::Miss, Duration::ZERO);
    counters.record_limit_outcome(1, LimitOutcome::Passed);

    let second = labels(&["b"], &[("b", "two"), ("b", "one")]);
    let after = counters.after_reload(&second);
    assert_eq!(after.requests.get(), 5);
    assert_eq!(after.methods[0][0].calls(), 1);
    assert_eq!((attempts(&after, 0), attempts(&after, 1)), (4, 0), "(b, one) is new");
    assert_eq!(after.zones[0].calls[LimitOutcome::Passed].get(), 1);
    let sum = Counters::sum(&[Arc::new(after)]);
    assert_eq!(sum.count_calls_with(CacheStatus::Miss), 1, "a removed chain stays in the sum");
    let after = counters.after_reload(&second);
    // A call that began before the change ends after it.
    counters.upstreams[0].attempts[AttemptOutcome::Ok].add(1);

    let third = after.after_reload(&first);
    assert_eq!((attempts(&third, 0), attempts(&third, 1)), (4, 4));
    assert!(third.methods.removed.is_empty());
    assert_eq!(third.upstreams.removed.len(), 1);
}

#[test]
fn a_chain_of_another_family_is_another_chain() {
    let mut labels = labels(&["a"], &[]);
    let counters = Counters::new(&labels);
    counters.methods[0][0].record_call(CacheStatus::Hit, Duration::ZERO);
    labels.chains[0].family = Family::Harmony;
    let after = counters.after_reload(&labels);
    assert_eq!(after.methods[0][0].calls(), 0);
    assert_eq!(after.methods[0].len(), labels.chains[0].methods().count());
}

#[test]
fn the_memory_for_removed_objects_is_bounded() {
    let mut counters = Counters::new(&labels(&["a"], &[]));
    for number in 0..2 * REMOVED_MAX {
        counters = counters.after_reload(&labels(&["a"], &[("a", &number.to_string())]));
    }
    assert_eq!(counters.upstreams.removed.len(), REMOVED_MAX);
}
