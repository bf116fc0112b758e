//! Goal: a failing upstream is ejected quickly and readmitted by one probe, and a busy one is not
//! ejected. An upstream is *suspected* if it responds to no calls; its next poll decides. Method:
//! scripted outcomes in virtual time.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn settings() -> HealthSettings {
    HealthSettings {
        failures_max: 3,
        window: 10 * SECOND,
        window_calls_min: 10,
        failure_share_max: 0.5,
        backoff_min: SECOND,
        backoff_max: 60 * SECOND,
        pause: SECOND,
        pause_max: 30 * SECOND,
    }
}

fn upstream() -> UpstreamHealth {
    UpstreamHealth::new(settings())
}

/// Records this many failed calls. Returns the event of the last one.
fn fail(upstream: &mut UpstreamHealth, now: Duration, times: u32) -> Option<HealthEvent> {
    let mut last = None;
    for _ in 0..times {
        last = upstream.record_failure(now, Fault::Closed, 0);
    }
    last
}

#[test]
fn three_consecutive_failures_eject_an_upstream() {
    let mut upstream = upstream();
    assert_eq!(fail(&mut upstream, SECOND, 2), None);
    upstream.record_success(SECOND);
    assert_eq!(fail(&mut upstream, SECOND, 2), None);
    let out = HealthEvent::Ejected {
        backoff: SECOND,
        reason: EjectReason::ConsecutiveFailures(Fault::Closed),
    };
    assert_eq!(fail(&mut upstream, SECOND, 1), Some(out));
    assert_eq!(upstream.state(SECOND), HealthState::Ejected { until: 2 * SECOND });
    assert_eq!(fail(&mut upstream, SECOND, 5), None, "late failures add nothing");
}

#[test]
fn five_failures_of_ten_calls_eject_an_upstream() {
    let mut upstream = upstream();
    let mut out = None;
    for index in 0..10 {
        let now = SECOND * 100 + SECOND / 4 * index;
        assert_eq!(out, None);
        if index % 2 == 0 {
            upstream.record_success(now);
        } else {
            out = upstream.record_failure(now, Fault::Timeout, 0);
        }
    }
    let reason = EjectReason::FailureShare(Fault::Timeout);
    assert_eq!(out, Some(HealthEvent::Ejected { backoff: SECOND, reason }));
}

#[test]
fn old_failures_leave_the_window() {
    let mut upstream = upstream();
    for index in 0..5 {
        let now = SECOND * 100 + SECOND / 10 * index;
        upstream.record_success(now);
        assert_eq!(upstream.record_failure(now, Fault::Timeout, 0).is_some(), index == 4);
    }
    let mut upstream = super::UpstreamHealth::new(settings());
    for index in 0..200 {
        let now = SECOND * 100 + SECOND * 3 * index;
        upstream.record_success(now);
        assert_eq!(upstream.record_failure(now, Fault::Timeout, 0), None, "never ten in a window");
    }
}

#[test]
fn an_early_probe_may_begin_after_the_shortest_ejection() {
    let mut upstream = upstream();
    fail(&mut upstream, SECOND, 3);
    assert!(upstream.begin_due_probe(2 * SECOND));
    upstream.record_failed_probe(2 * SECOND, 0);
    let HealthState::Ejected { until } = upstream.state(2 * SECOND) else { panic!("not out") };
    assert_eq!(until, 4 * SECOND);
    assert!(!upstream.begin_early_probe(3 * SECOND - Duration::from_millis(1)));
    assert!(
        upstream.begin_early_probe(3 * SECOND) && !upstream.begin_early_probe(3 * SECOND),
        "one probe"
    );
    assert_eq!(upstream.record_probe(3 * SECOND), Some(HealthEvent::Readmitted));
}

#[test]
fn ejections_double_up_to_the_longest_and_reset() {
    let mut upstream = upstream();
    let mut now = SECOND;
    let mut backoffs = Vec::new();
    fail(&mut upstream, now, 3);
    for _ in 0..8 {
        let HealthState::Ejected { until } = upstream.state(now) else { panic!("not out") };
        backoffs.push((until - now).as_secs());
        assert!(!upstream.begin_due_probe(until - Duration::from_millis(1)));
        now = until;
        assert!(upstream.begin_due_probe(now) && !upstream.begin_due_probe(now), "one probe");
        assert_eq!(upstream.state(now), HealthState::Probing);
        upstream.record_failed_probe(now, 0);
    }
    assert_eq!(backoffs, [1, 2, 4, 8, 16, 32, 60, 60]);
    now += 60 * SECOND;
    assert!(upstream.begin_due_probe(now));
    assert_eq!(upstream.record_probe(now), Some(HealthEvent::Readmitted));
    assert_eq!(upstream.state(now), HealthState::Healthy);
    now += SECOND;
    let again = fail(&mut upstream, now, 3);
    assert!(matches!(again, Some(HealthEvent::Ejected { backoff, .. }) if backoff == 60 * SECOND));
    now += 60 * SECOND;
    assert!(upstream.begin_due_probe(now));
    upstream.record_probe(now);
    now += 61 * SECOND;
    let much_later = fail(&mut upstream, now, 3);
    assert!(matches!(much_later, Some(HealthEvent::Ejected { backoff, .. }) if backoff == SECOND));
}

#[test]
fn jitter_shortens_an_ejection_by_up_to_a_quarter() {
    for (random, expected) in [(0, 1000), (1 << 31, 875), (u64::from(u32::MAX), 750)] {
        let mut upstream = upstream();
        fail(&mut upstream, SECOND, 2);
        let event = upstream.record_failure(SECOND, Fault::Closed, random);
        let Some(HealthEvent::Ejected { backoff, .. }) = event else { panic!("not out") };
        assert_eq!(backoff.as_micros().div_ceil(1000), expected);
    }
}

#[test]
fn a_rate_limit_is_a_pause_and_no_failure() {
    let mut upstream = upstream();
    let now = 5 * SECOND;
    for _ in 0..50 {
        upstream.record_rate_limit(now, None);
    }
    assert_eq!(
        upstream.state(now),
        HealthState::Paused { until: now + PAUSE_MIN },
        "one refusal of many"
    );
    assert_eq!(upstream.state(6 * SECOND), HealthState::Healthy);
    let event = upstream.record_rate_limit(7 * SECOND, Some(500 * SECOND));
    let until = 37 * SECOND;
    assert_eq!(event, Some(HealthEvent::Paused { until }));
    assert_eq!(upstream.record_rate_limit(8 * SECOND, None), None, "never shorter");
    assert_eq!(upstream.state(8 * SECOND), HealthState::Paused { until });
}

#[test]
fn pauses_grow_with_each_rejection_and_restart_after_a_success() {
    let mut upstream = upstream();
    let mut now = 5 * SECOND;
    for ms in [50, 100, 200, 400, 800, 1000, 1000] {
        upstream.record_rate_limit(now, None);
        let until = now + Duration::from_millis(ms);
        assert_eq!(upstream.state(now), HealthState::Paused { until });
        now = until;
    }
    upstream.record_success(now);
    upstream.record_rate_limit(now, None);
    assert_eq!(upstream.state(now), HealthState::Paused { until: now + PAUSE_MIN });
}

#[test]
fn failed_polls_eject_an_upstream_and_successful_polls_do_not_offset_failed_calls() {
    let mut upstream = upstream();
    assert_eq!(upstream.record_failed_poll(SECOND, 0), None);
    assert_eq!(upstream.record_failed_poll(SECOND, 0), None);
    let out = upstream.record_failed_poll(SECOND, 0);
    assert!(matches!(out, Some(HealthEvent::Ejected { reason: EjectReason::FailedPolls, .. })));

    let mut upstream = super::UpstreamHealth::new(settings());
    for _ in 0..2 {
        upstream.record_failure(SECOND, Fault::Closed, 0);
        upstream.record_poll();
    }
    assert!(upstream.record_failure(SECOND, Fault::Closed, 0).is_some());
}

#[test]
fn faults_about_missing_data_and_limits_are_no_failures() {
    let mut upstream = upstream();
    for fault in [Fault::MissingState, Fault::NotSynced, Fault::Limit] {
        for _ in 0..100 {
            assert_eq!(upstream.record_failure(SECOND, fault, 0), None);
        }
    }
    assert_eq!(upstream.state(SECOND), HealthState::Healthy);
}

#[test]
fn the_upstreams_in_the_best_state_are_usable() {
    let (healthy, lagging, probing) =
        (HealthState::Healthy, HealthState::Lagging, HealthState::Probing);
    let ejected = HealthState::Ejected { until: SECOND };
    let paused = |seconds| HealthState::Paused { until: SECOND * seconds };
    let check = |states: &[HealthState], upstreams: &[u16], paused_until: Option<Duration>| {
        let mut out = vec![77];
        assert_eq!(select_usable(states, &mut out), paused_until);
        assert_eq!(out, upstreams);
    };
    check(&[healthy, ejected, healthy], &[0, 2], None);
    check(&[paused(1), lagging, ejected], &[1], None);
    check(&[ejected, probing], &[1], None);
    check(&[ejected, paused(3), ejected], &[0, 2], None);
    check(&[paused(3), paused(2)], &[0, 1], Some(2 * SECOND));
    check(&[], &[], None);
}

#[test]
fn a_suspected_upstream_gets_no_calls_until_a_poll_succeeds() {
    let mut upstream = upstream();
    assert_eq!(upstream.suspect(SECOND, 0), Some(HealthEvent::Suspected));
    assert_eq!(upstream.state(SECOND), HealthState::Probing);
    assert_eq!(upstream.suspect(SECOND, 0), None, "it is suspected already");
    assert_eq!(upstream.record_poll(), Some(HealthEvent::Cleared));
    assert_eq!(upstream.state(SECOND), HealthState::Healthy);
}

#[test]
fn a_suspected_upstream_that_misses_a_poll_is_ejected() {
    let mut upstream = upstream();
    upstream.suspect(SECOND, 0);
    let out = HealthEvent::Ejected { backoff: SECOND, reason: EjectReason::FailedPolls };
    assert_eq!(upstream.record_failed_poll(SECOND, 0), Some(out));
}

#[test]
fn an_upstream_that_responds_only_to_polls_is_ejected_for_longer_each_time() {
    let mut upstream = upstream();
    upstream.suspect(SECOND, 0);
    upstream.record_poll();
    let out = |backoff| Some(HealthEvent::Ejected { backoff, reason: EjectReason::PollsOnly });
    assert_eq!(upstream.suspect(2 * SECOND, 0), out(SECOND));
    assert!(upstream.begin_due_probe(3 * SECOND));
    assert_eq!(upstream.record_probe(3 * SECOND), Some(HealthEvent::Readmitted));
    assert_eq!(upstream.suspect(4 * SECOND, 0), out(2 * SECOND), "a probe is no call");
}

#[test]
fn a_successful_call_ends_all_suspicion() {
    let mut upstream = upstream();
    for index in 1..10 {
        let now = 20 * index * SECOND;
        assert_eq!(upstream.suspect(now, 0), Some(HealthEvent::Suspected));
        upstream.record_poll();
        upstream.record_success(now);
    }
}
