//! Goal: the arithmetic is nginx's to the thousandth and the millisecond. Method: tables computed
//! by hand from nginx's source; a literal transcription of its C over random sequences; and
//! properties that hold for any limit. `crates/weir/tests/gateway/limits.rs` replays decisions
//! logged by a running nginx.

use proptest::prelude::*;

use super::*;

/// `burst` and `delay` are numbers of calls.
fn terms(rate: Rate, burst: u64, delay: Option<u64>) -> LimitTerms {
    LimitTerms { rate, burst: burst * CALL, delay: delay.map(|delay| delay * CALL) }
}

/// A zone with one key under one limit.
struct KeyOfZone {
    terms: LimitTerms,
    state: Option<KeyState>,
}

impl KeyOfZone {
    fn new(terms: LimitTerms) -> KeyOfZone {
        KeyOfZone { terms, state: None }
    }

    /// Decides about a call. Returns the excess with this call in thousandths, and the decision.
    fn call(&mut self, now: u64, cost: u64) -> (u64, LimitDecision) {
        let assessed = assess(self.state, self.terms.rate, now, cost);
        let decision = decide(&[(assessed, self.terms)]);
        if !matches!(decision, LimitDecision::Refused { .. }) {
            self.state = Some(assessed.state);
        }
        (assessed.excess, decision)
    }

    fn call_once(&mut self, now: u64) -> (u64, LimitDecision) {
        self.call(now, 1)
    }
}

const PASSED: LimitDecision = LimitDecision::Passed;
const REFUSED: LimitDecision = LimitDecision::Refused { limit_index: 0 };

fn delayed(ms: u64) -> LimitDecision {
    LimitDecision::Delayed { ms, limit_index: 0 }
}

#[test]
fn rates_are_integers_of_thousandths() {
    let per_minute = [1, 30, 60, 100, 240, 58_900].map(|calls| Rate::per_minute(calls).0);
    assert_eq!(per_minute, [16, 500, 1000, 1666, 4000, 981_666]);
    assert_eq!(Rate::per_second(10).thousandths(), 10_000);
}

#[test]
fn without_burst_one_call_passes_per_interval() {
    let mut key = KeyOfZone::new(terms(Rate::per_second(10), 0, Some(0)));
    assert_eq!(key.call_once(5000), (0, PASSED));
    assert_eq!(key.call_once(5000), (1000, REFUSED));
    assert_eq!(key.call_once(5099), (10, REFUSED));
    assert_eq!(key.call_once(5100), (0, PASSED));
    assert_eq!(key.call_once(9000), (0, PASSED), "an idle key saves nothing up");
    assert_eq!(key.call_once(9050), (500, REFUSED));
}

#[test]
fn calls_of_a_burst_wait_one_after_another() {
    let mut key = KeyOfZone::new(terms(Rate::per_second(10), 2, Some(0)));
    assert_eq!(key.call_once(0), (0, PASSED));
    assert_eq!(key.call_once(0), (1000, delayed(100)));
    assert_eq!(key.call_once(0), (2000, delayed(200)));
    assert_eq!(key.call_once(0), (3000, REFUSED));
    assert_eq!(key.call_once(50), (2500, REFUSED));
    assert_eq!(key.call_once(101), (1990, delayed(199)));
}

#[test]
fn with_nodelay_a_burst_passes_at_once_and_with_delay_a_part_of_it() {
    let mut key = KeyOfZone::new(terms(Rate::per_second(10), 2, None));
    let outcomes = [0; 4].map(|now| key.call_once(now).1);
    assert_eq!(outcomes, [PASSED, PASSED, PASSED, REFUSED]);
    let mut key = KeyOfZone::new(terms(Rate::per_second(10), 4, Some(2)));
    let outcomes = [0; 6].map(|now| key.call_once(now).1);
    assert_eq!(outcomes, [PASSED, PASSED, PASSED, delayed(100), delayed(200), REFUSED]);
}

#[test]
fn a_wait_of_less_than_a_millisecond_is_no_wait() {
    let mut key = KeyOfZone::new(terms(Rate::per_second(10_000), 5, Some(0)));
    assert_eq!(key.call_once(0), (0, PASSED));
    assert_eq!(key.call_once(0), (1000, PASSED), "a tenth of a millisecond");
}

#[test]
fn slow_rates_drain_in_whole_thousandths() {
    // 16 thousandths per second: 62,500 ms for a call.
    let mut key = KeyOfZone::new(terms(Rate::per_minute(1), 0, Some(0)));
    assert_eq!(key.call_once(0).1, PASSED);
    assert_eq!(key.call_once(60_000), (40, REFUSED));
    assert_eq!(key.call_once(62_499), (1, REFUSED));
    assert_eq!(key.call_once(62_500), (0, PASSED));
}

#[test]
fn the_time_of_the_last_charge_moves_only_with_the_clock() {
    let mut key = KeyOfZone::new(terms(Rate::per_second(1), 9, None));
    key.call_once(1000);
    assert_eq!(key.call_once(1001), (999, PASSED));
    assert_eq!(key.state, Some(KeyState { excess: 999, charged_at_ms: 1001 }));
    assert_eq!(key.call_once(1001), (1999, PASSED));
    assert_eq!(key.state, Some(KeyState { excess: 1999, charged_at_ms: 1001 }));
    key.terms.burst = 0;
    assert_eq!(key.call_once(1500), (2500, REFUSED));
    assert_eq!(
        key.state,
        Some(KeyState { excess: 1999, charged_at_ms: 1001 }),
        "a refusal changed the state"
    );
}

#[test]
fn a_small_step_back_drains_nothing_and_a_large_one_drains_one_millisecond() {
    let rate = Rate::per_second(1000);
    let state = Some(KeyState { excess: 5000, charged_at_ms: 100_000 });
    let back = |now| assess(state, rate, now, 1);
    assert_eq!(
        back(99_999),
        ChargedState { excess: 6000, state: KeyState { excess: 6000, charged_at_ms: 100_000 } }
    );
    assert_eq!(
        back(40_000),
        ChargedState { excess: 6000, state: KeyState { excess: 6000, charged_at_ms: 100_000 } }
    );
    // The clock went back more than a minute: one millisecond counts as passed, and the new clock
    // is used.
    assert_eq!(
        back(39_999),
        ChargedState { excess: 5000, state: KeyState { excess: 5000, charged_at_ms: 39_999 } }
    );
}

#[test]
fn several_limits_charge_all_or_nothing() {
    let slow = terms(Rate::per_second(1), 1, Some(0));
    let fast = terms(Rate::per_second(10), 0, Some(0));
    let fresh = |terms: LimitTerms| (assess(None, terms.rate, 0, 1), terms);
    let full = |terms: LimitTerms, excess| {
        (assess(Some(KeyState { excess, charged_at_ms: 0 }), terms.rate, 0, 1), terms)
    };
    assert_eq!(decide(&[fresh(slow), fresh(fast)]), PASSED);
    assert_eq!(decide(&[full(slow, 0), full(fast, 0)]), LimitDecision::Refused { limit_index: 1 });
    assert_eq!(
        decide(&[full(slow, 1000), full(fast, 0)]),
        LimitDecision::Refused { limit_index: 0 }
    );
    assert_eq!(
        decide(&[full(slow, 0), fresh(fast)]),
        LimitDecision::Delayed { ms: 1000, limit_index: 0 }
    );
    assert_eq!(decide(&[]), PASSED);
}

#[test]
fn the_longest_wait_counts_and_the_last_of_equal_waits() {
    let each = |rate| {
        let terms = terms(Rate::per_second(rate), 9, Some(0));
        (assess(Some(KeyState { excess: 0, charged_at_ms: 0 }), terms.rate, 0, 1), terms)
    };
    assert_eq!(
        decide(&[each(10), each(2), each(5)]),
        LimitDecision::Delayed { ms: 500, limit_index: 1 }
    );
    assert_eq!(decide(&[each(5), each(5)]), LimitDecision::Delayed { ms: 200, limit_index: 1 });
}

#[test]
fn a_call_with_a_cost_counts_as_that_many_calls_at_once() {
    let terms = terms(Rate::per_second(10), 75, None);
    let mut single_calls = KeyOfZone::new(terms);
    let mut split_calls = KeyOfZone::new(terms);
    for (now, cost) in [(0, 20), (0, 30), (1000, 26), (1000, 4), (5000, 10), (60_000, 76)] {
        let (excess, decision) = single_calls.call(now, cost);
        assert_eq!(decision, PASSED, "{cost} at {now}");
        let last_split = (0..cost).map(|_| split_calls.call_once(now)).last();
        assert_eq!(last_split, Some((excess, PASSED)), "{cost} at {now}");
        assert_eq!(single_calls.state, split_calls.state);
    }
    assert_eq!(KeyOfZone::new(terms).call(0, 77).1, REFUSED, "more than the burst holds");
}

#[test]
fn extreme_values_saturate() {
    let terms = terms(Rate::per_second(u64::MAX), 0, Some(0));
    let state = Some(KeyState { excess: u64::from(u32::MAX), charged_at_ms: 0 });
    assert_eq!(assess(state, terms.rate, u64::MAX / 4, 1).excess, 0);
    assert!(assess(state, Rate::per_minute(0), 1, u64::MAX).excess > terms.burst);
    assert_eq!(find_retry_ms(state, terms, 0, u64::MAX, 1), None);
}

/// Repeats nginx's C code line by line, for a request with one zone. `lr` is the state of the key.
/// Returns true if the request passes, and the excess.
fn nginx(lr: &mut Option<(i64, i64)>, rate: i64, burst: i64, now: i64) -> (bool, i64) {
    let Some((lr_excess, lr_last)) = lr.as_mut() else {
        *lr = Some((0, now));
        return (true, 0);
    };
    let mut ms = now - *lr_last;
    if ms < -60000 {
        ms = 1;
    } else if ms < 0 {
        ms = 0;
    }
    let mut excess = *lr_excess - rate * ms / 1000 + 1000;
    if excess < 0 {
        excess = 0;
    }
    if excess > burst {
        return (false, excess);
    }
    *lr_excess = excess;
    if ms != 0 {
        *lr_last = now;
    }
    (true, excess)
}

proptest! {
    #[test]
    fn the_arithmetic_is_that_of_nginx(
        rate in 1u64..2_000_000,
        burst in 0u64..100_000,
        steps in prop::collection::vec((-70_000i64..10_000, 1usize..5), 1..60),
    ) {
        let mut key = KeyOfZone::new(LimitTerms { rate: Rate(rate), burst, delay: None });
        let (mut lr, mut now) = (None, 10_000_000i64);
        for (step, calls) in steps {
            // Time moves mostly forward. The steps back are small and large, because nginx treats
            // these differently.
            now += if step % 5 == 0 { step } else { step.rem_euclid(500) };
            for _ in 0..calls {
                let (passed, excess) = nginx(&mut lr, rate as i64, burst as i64, now);
                let (ours, decision) = key.call_once(now as u64);
                prop_assert_eq!(ours as i64, excess);
                prop_assert_eq!(decision == PASSED, passed);
                let state =
                    key.state.map(|state| (state.excess as i64, state.charged_at_ms as i64));
                prop_assert_eq!(state, lr);
            }
        }
    }

    #[test]
    fn a_retry_passes_at_the_reported_time_and_not_before(
        rate in 1u64..100_000,
        burst in 0u64..20_000,
        excess in 0u64..20_000,
        since in 0u64..3000,
        cost in 1u64..8,
    ) {
        let terms = LimitTerms { rate: Rate(rate), burst, delay: None };
        let state = Some(KeyState { excess, charged_at_ms: 1000 });
        let now = 1000 + since;
        let passes = |now| assess(state, terms.rate, now, cost).excess <= burst;
        match find_retry_ms(state, terms, now, cost, 1) {
            None => prop_assert!((cost - 1) * CALL > burst),
            Some(0) => prop_assert!(passes(now)),
            Some(ms) => prop_assert!(passes(now + ms) && !passes(now + ms - 1)),
        }
    }

    #[test]
    fn no_more_calls_pass_than_rate_and_burst_allow(
        rate in 1u64..1000,
        burst in 0u64..50,
        gaps in prop::collection::vec(0u64..30, 1..400),
    ) {
        let mut key = KeyOfZone::new(terms(Rate::per_second(rate), burst, None));
        let (mut now, mut passed) = (0, 0);
        for gap in gaps {
            now += gap;
            passed += u64::from(key.call_once(now).1 == PASSED);
        }
        prop_assert!(passed <= 1 + burst + rate * now / 1000, "{passed} in {now} ms");
    }
}
