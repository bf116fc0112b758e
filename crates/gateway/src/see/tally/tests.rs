//! Goal: sums over threads lose nothing, and quantiles lie where the latencies do.

use std::sync::Arc;
use std::time::Duration;

use super::{Spread, Tally};
use crate::front::answer::Mark;
use crate::see::counters::{Counters, Latencies};

#[test]
fn every_number_is_added_up_over_threads() {
    let threads: Vec<Arc<Counters>> =
        (0..3).map(|_| Arc::new(Counters::of_sizes(&[2, 1], 2))).collect();
    for (index, thread) in threads.iter().enumerate() {
        let more = index as u64 + 1;
        for _ in 0..more {
            thread.connection_opened();
            thread.methods[0][2].answered(Mark::Hit, Duration::from_micros(150));
            thread.methods[1][0].answered(Mark::Bypass, Duration::from_millis(3));
            thread.attempt(1, Duration::from_millis(2), true);
            thread.refused(413);
        }
        thread.connection_closed();
        thread.methods[1][0].errors.add(more);
        thread.methods[1][0].failed.add(2 * more);
        thread.nodes[1].in_flight.set(more);
        thread.nodes[1].rate_limited.add(more);
        thread.nodes[0].connects.add(more);
        let counts = [
            &thread.connections_refused,
            &thread.websockets_opened,
            &thread.subscriptions_begun,
            &thread.notices_sent,
            &thread.requests,
            &thread.batches,
            &thread.calls_refused,
            &thread.notifications,
            &thread.retries,
            &thread.second_opinions,
            &thread.hedges,
            &thread.hedges_won,
            &thread.fills,
            &thread.fills_refused,
            &thread.flights,
        ];
        for (times, count) in counts.into_iter().enumerate() {
            count.add(more * (10 + times as u64));
        }
    }

    let tally = Tally::of(&threads);
    assert_eq!((tally.connections_accepted, tally.connections_open), (6, 3));
    assert_eq!(tally.methods[0][2].answered, [6, 0, 0, 0]);
    assert_eq!(tally.methods[1][0].answered, [0, 0, 0, 6]);
    assert_eq!((tally.methods[1][0].errors, tally.methods[1][0].failed), (6, 12));
    assert_eq!((tally.calls(), tally.answered(Mark::Hit), tally.answered(Mark::Miss)), (12, 6, 0));
    assert_eq!(tally.methods[1][0].latency.sum_micros, 6 * 3000);
    let node = &tally.nodes[1];
    assert_eq!((node.attempts, node.failed, node.rate_limited, node.in_flight), (6, 6, 6, 6));
    assert_eq!((tally.nodes[0].connects, tally.nodes[0].attempts), (6, 0));
    assert_eq!(
        tally.refused.iter().filter(|refused| refused.1 > 0).collect::<Vec<_>>(),
        [&(413, 6)]
    );
    let sums = [
        tally.connections_refused,
        tally.websockets_opened,
        tally.subscriptions_begun,
        tally.notices_sent,
        tally.requests,
        tally.batches,
        tally.calls_refused,
        tally.notifications,
        tally.retries,
        tally.second_opinions,
        tally.hedges,
        tally.hedges_won,
        tally.fills,
        tally.fills_refused,
        tally.flights,
    ];
    assert_eq!(sums, std::array::from_fn(|times| 6 * (10 + times as u64)));
}

#[test]
fn quantiles_lie_in_the_bucket_of_their_latency() {
    let latencies = Latencies::default();
    assert_eq!(Spread::default().quantile_ms(0.5), None);
    for _ in 0..99 {
        latencies.observe(Duration::from_micros(300));
    }
    latencies.observe(Duration::from_millis(70));
    let mut spread = Spread::default();
    spread.add(&latencies);
    let at = |share| spread.quantile_ms(share).unwrap();
    assert!((0.2..=0.4).contains(&at(0.5)), "p50 is {}", at(0.5));
    assert!((0.2..=0.4).contains(&at(0.99)), "p99 is {}", at(0.99));
    assert!((51.2..=102.4).contains(&at(0.999)), "p99.9 is {}", at(0.999));
    latencies.observe(Duration::from_secs(60));
    let mut spread = Spread::default();
    spread.add(&latencies);
    assert_eq!(spread.quantile_ms(1.0), Some(13107.2), "beyond the last bound");
}
