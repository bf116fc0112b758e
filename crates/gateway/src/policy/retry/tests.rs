//! Goal: no call that must not be repeated is sent twice, and retries cannot multiply load. Method:
//! a table of verdicts (classified outcomes), of how much of the call was sent, and of whether the
//! method may be repeated; the budget in virtual time.

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const CLOSED: Verdict = Verdict::UpstreamFault(Fault::Closed);
const RATE_LIMITED: Verdict = Verdict::RateLimited { retry_after: None };

const REMAINING: Remaining = Remaining {
    attempts_made: 1,
    attempts_max: 3,
    reconnected: false,
    repeats: 0,
    time_left: Duration::from_secs(5),
    other_upstream: true,
};

/// Returns the number of retries that the budget allows.
fn available(budget: &RetryBudget, now: Duration) -> u64 {
    (budget.balance(now) / budget.price).max(0.0) as u64
}

const AT_ONCE: Decision = Decision::Another { pause: Duration::ZERO };

fn attempt(verdict: Verdict, sent: Sent) -> Attempt {
    Attempt { verdict, sent, on_reused_connection: false, has_reply: false, absence: None }
}

/// Decides with a budget of 20 % of the calls plus ten retries per second.
fn decide_with_budget(attempt: &Attempt, repeat: Repeat, remaining: &Remaining) -> Decision {
    let mut budget = RetryBudget::new(0.2, 10);
    decide(attempt, repeat, remaining, &mut budget, SECOND, 0)
}

#[test]
fn the_verdict_and_the_method_decide_what_may_be_sent_again() {
    use Repeat::{Broadcast, Never, Safe};
    let check = |verdict, sent, repeat, expected| {
        let decision = decide_with_budget(&attempt(verdict, sent), repeat, &REMAINING);
        assert_eq!(decision, expected, "{verdict:?} {sent:?} {repeat:?}");
    };
    for sent in [Sent::No, Sent::Maybe, Sent::Yes] {
        check(CLOSED, sent, Safe, AT_ONCE);
        check(CLOSED, sent, Broadcast, AT_ONCE);
        check(Verdict::UpstreamFault(Fault::Timeout), sent, Safe, AT_ONCE);
        check(Verdict::UpstreamFault(Fault::MissingState), sent, Safe, AT_ONCE);
        check(RATE_LIMITED, sent, Broadcast, AT_ONCE);
        check(Verdict::Unsupported, sent, Safe, AT_ONCE);
    }
    check(Verdict::UpstreamFault(Fault::Connect), Sent::No, Never, AT_ONCE);
    check(CLOSED, Sent::Maybe, Never, Decision::GiveUp);
    check(CLOSED, Sent::Yes, Never, Decision::GiveUp);
    check(RATE_LIMITED, Sent::Yes, Never, Decision::GiveUp);
    for verdict in [
        Verdict::Response,
        Verdict::DeterministicError,
        Verdict::AlreadyKnown,
        Verdict::NonceTooLow,
    ] {
        check(verdict, Sent::Yes, Safe, Decision::Return);
    }
}

#[test]
fn the_upstreams_own_error_is_returned_if_no_other_upstream_is_left() {
    let mut failed = attempt(Verdict::UpstreamFault(Fault::NotSynced), Sent::Yes);
    failed.has_reply = true;
    let alone = Remaining { other_upstream: false, ..REMAINING };
    assert_eq!(decide_with_budget(&failed, Repeat::Safe, &alone), Decision::Return);
    assert_eq!(decide_with_budget(&failed, Repeat::Safe, &REMAINING), AT_ONCE);
    let silent = attempt(CLOSED, Sent::Maybe);
    assert_eq!(decide_with_budget(&silent, Repeat::Safe, &alone), Decision::GiveUp);
}

#[test]
fn an_idle_connection_that_closes_during_a_call_is_replaced_once() {
    let mut closed = attempt(CLOSED, Sent::Maybe);
    closed.on_reused_connection = true;
    assert_eq!(decide_with_budget(&closed, Repeat::Safe, &REMAINING), Decision::Reconnect);
    assert_eq!(decide_with_budget(&closed, Repeat::Broadcast, &REMAINING), Decision::Reconnect);
    assert_eq!(decide_with_budget(&closed, Repeat::Never, &REMAINING), Decision::GiveUp);
    let again = Remaining { reconnected: true, ..REMAINING };
    assert_eq!(decide_with_budget(&closed, Repeat::Safe, &again), AT_ONCE);
    closed.sent = Sent::Yes;
    assert_eq!(decide_with_budget(&closed, Repeat::Safe, &REMAINING), AT_ONCE);
    closed.sent = Sent::No;
    assert_eq!(decide_with_budget(&closed, Repeat::Never, &REMAINING), Decision::Reconnect);
}

#[test]
fn the_retry_of_an_unsent_call_costs_no_budget() {
    let mut budget = RetryBudget::new(0.2, 0);
    let mut decide_after = |sent| {
        let attempt = attempt(Verdict::UpstreamFault(Fault::Connect), sent);
        decide(&attempt, Repeat::Safe, &REMAINING, &mut budget, Duration::ZERO, 0)
    };
    assert_eq!(decide_after(Sent::No), AT_ONCE);
    assert_eq!(decide_after(Sent::Maybe), Decision::GiveUp);
}

#[test]
fn retries_end_without_attempts_time_or_upstreams() {
    let failed = attempt(CLOSED, Sent::Yes);
    for remaining in [
        Remaining { attempts_made: 3, ..REMAINING },
        Remaining { other_upstream: false, ..REMAINING },
        Remaining { time_left: Duration::ZERO, ..REMAINING },
        Remaining { attempts_made: 2, time_left: Duration::from_millis(10), ..REMAINING },
    ] {
        assert_eq!(
            decide_with_budget(&failed, Repeat::Safe, &remaining),
            Decision::GiveUp,
            "{remaining:?}"
        );
    }
}

/// The third of three upstreams gets the call at once if the first two say nothing about its load.
#[test]
fn a_second_retry_waits_only_after_an_upstream_that_took_the_call() {
    let second = Remaining { attempts_made: 2, ..REMAINING };
    let connect = attempt(Verdict::UpstreamFault(Fault::Connect), Sent::No);
    assert_eq!(decide_with_budget(&connect, Repeat::Safe, &second), AT_ONCE);
    let limited = attempt(RATE_LIMITED, Sent::Yes);
    assert_eq!(decide_with_budget(&limited, Repeat::Safe, &second), AT_ONCE);
    let pause = Duration::from_millis(10);
    let closed = decide_with_budget(&attempt(CLOSED, Sent::Yes), Repeat::Safe, &second);
    assert_eq!(closed, Decision::Another { pause });
}

#[test]
fn pauses_grow_and_stay_bounded() {
    let millis = |attempts, random| compute_backoff(attempts, random).as_millis();
    assert_eq!([1, 2, 3, 4, 5, 6, 7, 90].map(|n| millis(n, 0)), [0, 10, 20, 40, 80, 160, 160, 160]);
    assert_eq!(millis(90, u64::MAX), 320);
}

#[test]
fn the_budget_is_a_share_of_recent_calls_and_a_rate() {
    let mut budget = RetryBudget::new(0.2, 0);
    assert!(!budget.withdraw(SECOND));
    for _ in 0..1000 {
        budget.deposit(SECOND);
    }
    assert_eq!(available(&budget, SECOND), 200);
    let allowed = (0..1000).filter(|_| budget.withdraw(SECOND)).count();
    assert_eq!(allowed, 200);
    for _ in 0..1000 {
        budget.deposit(2 * SECOND);
    }
    assert_eq!(available(&budget, 11 * SECOND), 200);
    assert_eq!(available(&budget, 12 * SECOND), 0, "deposits vanish after ten seconds");

    let mut budget = RetryBudget::new(0.2, 10);
    let allowed = (0..1000).filter(|_| budget.withdraw(SECOND)).count();
    assert_eq!(allowed, 100, "ten seconds of the rate at once");
    assert!(!budget.withdraw(2 * SECOND));
    assert_eq!(available(&budget, 11 * SECOND), 100);
}

#[test]
fn retries_do_not_multiply_an_overload() {
    let mut budget = RetryBudget::new(0.2, 10);
    let failed = attempt(CLOSED, Sent::Yes);
    let mut retries = 0;
    for call in 0..10_000_u64 {
        let now = Duration::from_millis(call);
        budget.deposit(now);
        let decision = decide(&failed, Repeat::Safe, &REMAINING, &mut budget, now, call);
        retries += u32::from(matches!(decision, Decision::Another { .. }));
    }
    assert!((2000..=2100).contains(&retries), "{retries}");
}

#[test]
fn the_same_upstream_is_called_again_for_what_the_chain_has() {
    let again = Decision::Again { pause: ABSENCE_PAUSE };
    let decide_about = |absence, remaining: &Remaining| {
        let mut failed = attempt(Verdict::UpstreamFault(Fault::NotSynced), Sent::Yes);
        (failed.has_reply, failed.absence) = (true, Some(absence));
        decide_with_budget(&failed, Repeat::Safe, remaining)
    };
    let known = Absence::Known { is_recent: true };
    let alone = Remaining { other_upstream: false, ..REMAINING };
    assert_eq!(decide_about(known, &REMAINING), AT_ONCE, "another upstream is better");
    assert_eq!(decide_about(known, &Remaining { attempts_made: 3, ..REMAINING }), again);
    assert_eq!(decide_about(known, &alone), again);
    for (absence, repeats, expected) in [
        (known, 15, again),
        (known, 16, Decision::Return),
        (Absence::Possible { is_recent: true }, 1, again),
        (Absence::Possible { is_recent: true }, 2, Decision::Return),
        (Absence::Known { is_recent: false }, 0, Decision::Return),
        (Absence::Unknown, 0, Decision::Return),
    ] {
        let remaining = Remaining { repeats, ..alone };
        assert_eq!(decide_about(absence, &remaining), expected, "{absence:?} {repeats}");
    }
    let retries_off = Remaining { attempts_max: 1, ..alone };
    assert_eq!(decide_about(known, &retries_off), Decision::Return);
    let late = Remaining { time_left: ABSENCE_PAUSE, ..alone };
    assert_eq!(decide_about(known, &late), Decision::Return);
}

#[test]
fn a_retry_because_of_missing_state_costs_no_budget() {
    for (fault, costs) in [(Fault::MissingState, false), (Fault::Limit, true)] {
        let mut budget = RetryBudget::new(0.2, 10);
        let before = available(&budget, SECOND);
        let refused = attempt(Verdict::UpstreamFault(fault), Sent::Yes);
        let decision = decide(&refused, Repeat::Safe, &REMAINING, &mut budget, SECOND, 0);
        assert_eq!(decision, AT_ONCE, "{fault:?}");
        assert_eq!(available(&budget, SECOND) < before, costs, "{fault:?}");
    }
}
