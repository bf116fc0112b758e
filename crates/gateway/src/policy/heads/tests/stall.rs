//! Goal: a head that stands still although upstreams report new blocks is reported once, with the
//! reason, and no other head is. Method: scripted polls in virtual time.

use super::*;

/// Polls one upstream each second for this many seconds, without its headers.
fn poll_without_headers(net: &mut Net, seconds: u64) {
    for second in 1..=seconds {
        net.now += Duration::from_secs(1);
        let step = net.tracker.observe(0, net.now, A.poll_at(100 + 2 * second));
        net.events.extend(step.events);
        net.tracker.forget_header_requests(0);
    }
}

fn stalls(net: &Net) -> Vec<StallReason> {
    let events = net.events.iter();
    let reason = |event: &HeadEvent| match event {
        HeadEvent::HeadStalled(stall) => Some(stall.reason),
        _ => None,
    };
    events.filter_map(reason).collect()
}

#[test]
fn missing_headers_are_reported_within_seconds() {
    let mut net = Net::with(1, |settings| settings.block_time = Duration::from_millis(500));
    net.poll(0, A, 100);
    poll_without_headers(&mut net, 5);
    assert!(stalls(&net).is_empty());
    poll_without_headers(&mut net, 8);
    assert_eq!(stalls(&net), [StallReason::Unlinked], "it is reported once");
    let stall = net.tracker.view().stall.unwrap();
    assert_eq!((stall.upstream, stall.number), (0, 116));
    net.poll(0, A, 117).assert_head(Some((A, 117)));
    assert_eq!(net.tracker.view().stall, None);
    assert!(net.has(HeadEvent::HeadResumed));
}

#[test]
fn an_implausible_head_of_most_upstreams_is_reported() {
    let mut net = Net::new(2);
    net.poll(0, A, 100).poll(1, A, 100);
    for second in 1..8 {
        net.wait(1).poll(0, A, 100_000 + second).poll(1, A, 100);
    }
    assert_eq!(stalls(&net), [StallReason::Implausible]);
}

#[test]
fn a_head_that_moves_or_one_upstream_of_three_is_no_stall() {
    let mut net = Net::new(3);
    for number in 100..160 {
        net.wait(1).poll(0, A, number).poll(1, A, number);
        net.poll(2, fork(b'r', 0), number + 1_000_000);
    }
    for second in 0..20 {
        net.wait(1).poll(0, A, 159).poll(1, A, 159);
        net.poll(2, fork(b'r', 0), 1_000_160 + second);
    }
    // Blocks come every twelve seconds, and one of two upstreams has them first.
    let mut slow = Net::with(2, |settings| settings.block_time = Duration::from_secs(12));
    for second in 0..240 {
        slow.now += Duration::from_millis(800);
        slow.poll(0, A, 100 + second / 12).poll(1, A, 100 + second.saturating_sub(8) / 12);
    }
    assert_eq!((stalls(&net), stalls(&slow)), (Vec::new(), Vec::new()));
}
