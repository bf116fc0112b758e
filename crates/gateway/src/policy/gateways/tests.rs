//! Goal: a gateway never assumes fewer gateways than may run. Method: replies and losses in virtual
//! time.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Returns a reply of a Redis that has recorded heartbeats for this many seconds.
fn reply(gateways: u64, recorded_secs: u64) -> HeartbeatReply {
    HeartbeatReply { gateways, recorded_for: SECOND * recorded_secs as u32 }
}

/// Returns a gateway that has counted three gateways at second 100.
fn counted_three() -> Membership {
    let mut membership = Membership::new(None, 10);
    membership.record_reply(reply(3, 60), SECOND * 100);
    assert_eq!((membership.gateways(), membership.source()), (3, GatewayCountSource::Counted));
    membership
}

#[test]
fn the_assumed_number_applies_until_the_first_reliable_reply() {
    let mut membership = Membership::new(None, 10);
    let assumed = |membership: &Membership| {
        assert_eq!(membership.source(), GatewayCountSource::Assumed);
        membership.gateways()
    };
    assert_eq!(assumed(&membership), 10);
    membership.record_loss();
    assert_eq!(assumed(&membership), 10);
    // Redis has just started, so other gateways may follow.
    for second in 0..4 {
        membership.record_reply(reply(1, second), SECOND * second as u32);
        assert_eq!(assumed(&membership), 10);
    }
    membership.record_reply(reply(12, 4), SECOND * 4);
    assert_eq!(assumed(&membership), 12);
    membership.record_reply(reply(2, 5), SECOND * 5);
    assert_eq!((membership.gateways(), membership.source()), (2, GatewayCountSource::Counted));
}

#[test]
fn the_first_gateway_counts_itself_at_once() {
    let mut membership = Membership::new(None, 10);
    membership.record_reply(reply(1, 0), SECOND);
    assert_eq!((membership.gateways(), membership.source()), (1, GatewayCountSource::Counted));
    // Redis has recorded heartbeats for too short a time, so the number can only rise.
    for (second, gateways, expected) in [(1, 3, 3), (2, 1, 3)] {
        membership.record_reply(reply(gateways, second), SECOND * (second as u32 + 1));
        assert_eq!(membership.gateways(), expected);
    }
    membership.record_reply(reply(2, 5), SECOND * 6);
    assert_eq!(membership.gateways(), 2);
}

#[test]
fn a_joining_gateway_counts_at_once_if_redis_knows_all_others() {
    counted_three();
}

#[test]
fn the_number_follows_every_reply_while_contact_lasts() {
    let mut membership = counted_three();
    for (second, gateways) in [(101, 5), (102, 2), (103, 1), (104, 4)] {
        membership.record_reply(reply(gateways, 60), SECOND * second);
        assert_eq!(membership.gateways(), gateways);
        assert_eq!(membership.source(), GatewayCountSource::Counted);
    }
}

#[test]
fn without_contact_the_number_stays_and_after_reconnecting_it_only_rises_at_first() {
    let mut membership = counted_three();
    membership.record_loss();
    assert_eq!((membership.gateways(), membership.source()), (3, GatewayCountSource::LastCounted));
    // This gateway is the first that is connected again.
    for (second, gateways, expected) in [(200, 1, 3), (202, 4, 4), (204, 1, 4)] {
        membership.record_reply(reply(gateways, 600), SECOND * second);
        assert_eq!(membership.gateways(), expected, "second {second}");
        assert_eq!(membership.source(), GatewayCountSource::LastCounted);
    }
    membership.record_reply(reply(2, 600), SECOND * 205);
    assert_eq!((membership.gateways(), membership.source()), (2, GatewayCountSource::Counted));
}

#[test]
fn a_second_loss_starts_the_wait_again() {
    let mut membership = counted_three();
    membership.record_loss();
    membership.record_reply(reply(1, 600), SECOND * 200);
    membership.record_loss();
    membership.record_reply(reply(1, 600), SECOND * 204);
    membership.record_reply(reply(1, 600), SECOND * 208);
    assert_eq!(membership.gateways(), 3);
    membership.record_reply(reply(1, 600), SECOND * 209);
    assert_eq!(membership.gateways(), 1);
}

#[test]
fn after_redis_lost_its_data_the_number_only_rises_at_first() {
    let mut membership = counted_three();
    membership.record_reply(reply(1, 0), SECOND * 101);
    assert_eq!((membership.gateways(), membership.source()), (3, GatewayCountSource::LastCounted));
    membership.record_reply(reply(1, 5), SECOND * 106);
    assert_eq!((membership.gateways(), membership.source()), (1, GatewayCountSource::Counted));
}

#[test]
fn a_configured_number_takes_precedence_while_counting_continues() {
    let mut membership = Membership::new(Some(7), 10);
    membership.record_reply(reply(3, 60), SECOND * 100);
    assert_eq!((membership.gateways(), membership.source()), (7, GatewayCountSource::Configured));
    membership.configure(None, 10);
    assert_eq!((membership.gateways(), membership.source()), (3, GatewayCountSource::Counted));
    membership.configure(Some(2), 10);
    assert_eq!(membership.gateways(), 2);
}

#[test]
fn the_number_is_never_zero() {
    let mut membership = Membership::new(None, 0);
    assert_eq!(membership.gateways(), 1);
    membership.record_reply(reply(0, 60), SECOND);
    assert_eq!(membership.gateways(), 1);
}
