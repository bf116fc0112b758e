//! Goal: an upstream that syncs neither serves nor holds back the head of one that does not.
//! Method: upstreams at block 0, or that say that they sync, in all orders of their first polls.

use super::*;

#[test]
fn an_upstream_at_block_0_waits_for_the_first_polls_of_the_others() {
    let mut net = Net::new(2);
    net.poll(0, A, 0).assert_head(None);
    assert_eq!(net.upstream(0).head, None, "it gets no calls");
    net.poll(1, A, 5000).assert_head(Some((A, 5000)));
    net.poll(0, A, 0).poll(1, A, 5001).assert_head(Some((A, 5001)));
    assert!(!net.upstream(0).at_head && net.upstream(1).at_head);
    assert!(net.events.iter().all(|event| !matches!(event, HeadEvent::HeadImplausible { .. })));
}

#[test]
fn a_failed_poll_or_some_time_ends_the_wait() {
    let mut net = Net::new(2);
    net.poll(0, A, 0).miss(1, 1).assert_head(Some((A, 0)));
    let mut net = Net::new(2);
    net.poll(0, A, 0).wait(5).poll(0, A, 0).assert_head(Some((A, 0)));
    // The healthy upstream is served as soon as it responds.
    net.poll(1, A, 5000).assert_head(Some((A, 5000)));
    net.poll(0, A, 0).poll(1, A, 5001).assert_head(Some((A, 5001)));
    let mut net = Net::new(1);
    net.poll(0, A, 0).assert_head(Some((A, 0)));
}

#[test]
fn an_upstream_that_says_that_it_syncs_holds_nothing_back() {
    for syncing in 1..=2 {
        let mut net = Net::new(syncing + 1);
        for upstream in 0..syncing {
            net.tracker.set_syncing(upstream, true);
            net.poll(upstream, A, 1000).assert_head(None);
        }
        for step in 0..20 {
            net.poll_final(syncing, 5000 + step, 4900).assert_head(Some((A, 5000 + step)));
            for upstream in 0..syncing {
                net.poll_final(upstream, 1000 + 30 * step, 900);
                assert!(!net.upstream(upstream).at_head);
            }
            assert_eq!(net.tracker.view().finalized, Some(4900));
        }
    }
}

#[test]
fn an_upstream_at_block_0_never_replaces_the_head_of_a_dead_one() {
    let mut net = Net::new(2);
    net.poll(0, A, 0).poll(1, A, 5000).poll(1, A, 5001);
    net.miss(1, 5);
    for _ in 0..20 {
        net.poll(0, A, 0).assert_head(None);
    }
    net.poll(1, A, 5003).assert_head(Some((A, 5003)));
}

#[test]
fn a_node_that_starts_again_at_block_0_is_followed_if_it_is_alone() {
    let mut net = Net::new(1);
    for number in 10..=20 {
        net.poll(0, A, number);
    }
    let b = Chain { branch: b'b', fork: 0 };
    for number in 0..4 {
        net.poll(0, b, number);
    }
    net.assert_head(Some((b, 3)));
}

#[test]
fn all_upstreams_may_sync() {
    let mut net = Net::new(2);
    for upstream in 0..2 {
        net.tracker.set_syncing(upstream, true);
        net.poll(upstream, A, 1000);
    }
    for number in 1001..1020 {
        net.poll(0, A, number).poll(1, A, number).assert_head(Some((A, number)));
    }
}
