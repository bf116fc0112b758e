//! Functions for fuzzers. They check properties of request limits that hold for any rates, bursts
//! and times of calls.
//!
//! `fuzz/src/limit.rs` calls these functions without a time limit. The test below tries 20,000
//! inputs each time.

use crate::policy::limit::{
    CALL, ChargedState, KeyState, LimitDecision, LimitTerms, Rate, assess, assess_share, decide,
    find_retry_ms, raise_excess, remaining_excess,
};

/// Maximum number of calls per input, because every interval between two calls is checked.
const ARRIVALS_MAX: usize = 160;
/// Number of bytes of an input's header, which encodes the terms (rate, burst and delay) of the
/// zones:
///
/// - byte 0: the number of zones, [`CLOCK_MAY_GO_BACK`] and [`GATEWAYS_SHARE`]
/// - bytes 1 and 2: the rate of the first zone; bytes 2 and 3, and 3 and 4: those of the others
/// - byte 4: the unit of the burst, and in the upper half the number of gateways
/// - byte 5: the burst
/// - byte 6: the delay
/// - byte 7: the start time
const HEADER_BYTES: usize = 8;
/// Header flag: the clock may go back.
const CLOCK_MAY_GO_BACK: u8 = 0x80;
/// Header flag: several gateways share the zones.
const GATEWAYS_SHARE: u8 = 0x40;
/// Number of bytes that encode the arrival of one call. Bytes 0 and 1 have the time since the last
/// call, byte 2 the cost, and byte 3 the flags below and, in its upper half, the excess that
/// another gateway reports.
const ARRIVAL_BYTES: usize = 4;
/// Arrival flag: the time since the last call is long.
const LONG_STEP: u8 = 1;
/// Arrival flag: the clock goes back, if it may.
const STEP_BACK: u8 = 2;
/// Arrival flag: another gateway reports an excess.
const REPORTS_EXCESS: u8 = 4;
/// Largest rate that the configuration allows.
const RATE_MAX: u64 = 1_000_000_000;
/// Largest burst that the configuration allows.
const BURST_MAX: u64 = 4_000_000;

/// A zone with its limit and a single key.
struct Zone {
    terms: LimitTerms,
    gateways: u64,
    state: Option<KeyState>,
    passed: Vec<PassedCall>,
}

/// A call that passed.
struct PassedCall {
    time_ms: u64,
    cost: u64,
}

/// Decodes bytes as the terms of up to three zones, followed by the arrivals of calls. Judges the
/// calls and checks each decision.
///
/// # Panics
///
/// If a property does not hold.
pub(crate) fn limit(bytes: &[u8]) {
    let Some((header, arrival_bytes)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return };
    let (arrivals, _) = arrival_bytes.as_chunks::<ARRIVAL_BYTES>();
    let count = usize::from(header[0] % 3) + 1;
    let mut zones: Vec<Zone> = (0..count).map(|index| build_zone(header, index)).collect();
    let clock_goes_back = header[0] & CLOCK_MAY_GO_BACK != 0;
    let mut now: u64 = u64::from(header[7]) << 33;
    for &[step_low, step_high, cost, flags] in arrivals.iter().take(ARRIVALS_MAX) {
        let step = u64::from(u16::from_le_bytes([step_low, step_high]));
        let step = if flags & LONG_STEP != 0 { step << 10 } else { step & 0xff };
        now = if clock_goes_back && flags & STEP_BACK != 0 {
            now.saturating_sub(step)
        } else {
            now.saturating_add(step)
        };
        if flags & REPORTS_EXCESS != 0 {
            raise_known_excess(&mut zones, now, u64::from(flags >> 4) * CALL);
        }
        judge_call(&mut zones, now, u64::from(cost % 80) + 1, !clock_goes_back);
    }
    if !clock_goes_back {
        zones.iter().for_each(assert_rate);
    }
}

fn build_zone(header: &[u8; HEADER_BYTES], index: usize) -> Zone {
    let seed = u64::from(u16::from_le_bytes([header[1 + index], header[2 + index]]));
    let rate = match seed % 3 {
        0 => Rate::per_minute(seed + 1),
        1 => Rate::per_second(seed + 1),
        _ => Rate::per_second((seed << 14).clamp(1, RATE_MAX)),
    };
    let burst = match header[4] % 3 {
        0 => u64::from(header[5]) % 8,
        1 => u64::from(header[5]),
        _ => (u64::from(header[5]) << 14).min(BURST_MAX),
    };
    let delay = (header[6] & 1 == 1).then(|| u64::from(header[6] >> 1) * CALL);
    let gateways = if header[0] & GATEWAYS_SHARE == 0 { 1 } else { u64::from(header[4] >> 4) + 1 };
    let terms = LimitTerms { rate, burst: burst * CALL, delay };
    Zone { terms, gateways, state: None, passed: Vec::new() }
}

/// Raises the excess of the key in each zone to at least `known_excess`, as if another gateway had
/// reported it.
fn raise_known_excess(zones: &mut [Zone], now: u64, known_excess: u64) {
    for zone in zones {
        let known_excess = known_excess.min(zone.terms.burst);
        let state = raise_excess(zone.state, zone.terms.rate, now, known_excess);
        let remaining = state.map_or(0, |state| remaining_excess(state, zone.terms.rate, now));
        let excess_before =
            zone.state.map_or(0, |state| remaining_excess(state, zone.terms.rate, now));
        let expected = excess_before.max(known_excess);
        assert_eq!(remaining, expected, "the excess is not the larger of the two");
        zone.state = state;
    }
}

/// Judges one call in all zones and checks the decision.
fn judge_call(zones: &mut [Zone], now: u64, cost: u64, clock_never_goes_back: bool) {
    let assessed: Vec<(ChargedState, LimitTerms)> = zones
        .iter()
        .map(|zone| {
            let Zone { terms, gateways, state, .. } = zone;
            let assessed = assess_share(*state, terms.rate, now, cost, *gateways);
            let unshared = assess(*state, terms.rate, now, cost);
            assert!(assessed.excess >= unshared.excess, "a share allows more than the whole rate");
            (assessed, *terms)
        })
        .collect();
    let decision = decide(&assessed);
    let over_limit = assessed.iter().position(|(assessed, terms)| assessed.excess > terms.burst);
    match decision {
        LimitDecision::Refused { limit_index } => {
            assert_eq!(over_limit, Some(limit_index), "another zone rejects the call")
        }
        LimitDecision::Passed | LimitDecision::Delayed { .. } => assert_eq!(over_limit, None),
    }
    if let LimitDecision::Delayed { ms, limit_index } = decision {
        let terms = assessed[limit_index].1;
        assert!(ms >= 1 && ms <= terms.burst.saturating_mul(1000) / terms.rate.thousandths());
    }
    for (zone, (assessed, terms)) in zones.iter_mut().zip(&assessed) {
        assert_retry_time(zone, assessed, now, cost, clock_never_goes_back);
        if over_limit.is_none() {
            assert!(assessed.state.excess <= terms.burst, "the stored excess exceeds the burst");
            zone.state = Some(assessed.state);
            zone.passed.push(PassedCall { time_ms: now, cost });
        }
    }
}

/// Checks that a rejected call passes at the reported time, and not before.
fn assert_retry_time(
    zone: &Zone,
    assessed: &ChargedState,
    now: u64,
    cost: u64,
    clock_never_goes_back: bool,
) {
    let Zone { terms, gateways, state, .. } = zone;
    let passes =
        |time: u64| assess_share(*state, terms.rate, time, cost, *gateways).excess <= terms.burst;
    let retry_ms = find_retry_ms(*state, *terms, now, cost, *gateways);
    assert_eq!(retry_ms == Some(0), assessed.excess <= terms.burst);
    match retry_ms {
        Some(ms @ 1..) if clock_never_goes_back => {
            assert!(
                passes(now.saturating_add(ms)),
                "the call is rejected again at the reported time"
            );
            assert!(
                ms == 1 || !passes(now + ms - 1),
                "the call would pass before the reported time"
            );
        }
        None => assert!(!passes(now.saturating_add(1 << 50)), "the call would pass later"),
        _ => {}
    }
}

/// Checks each interval between two passed calls. The calls that passed in the interval must not
/// exceed the burst plus the excess that drains in the interval plus one call.
fn assert_rate(zone: &Zone) {
    for (index, first) in zone.passed.iter().enumerate() {
        let mut units = 0u64;
        for last in &zone.passed[index..] {
            units = units.saturating_add(last.cost);
            let (start, end) = (first.time_ms, last.time_ms);
            let drained = zone.terms.rate.thousandths().saturating_mul(end - start) / 1000;
            let passed_max = zone.terms.burst.saturating_add(drained);
            let passed_max = passed_max.saturating_add(CALL * zone.gateways);
            let passed = units.saturating_mul(CALL * zone.gateways);
            assert!(
                passed <= passed_max,
                "{units} of at most {passed_max} thousandths in {} ms",
                end - start
            );
        }
    }
}

/// Returns the inputs from which fuzzing starts.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let headers: [[u8; HEADER_BYTES]; 5] = [
        [0, 10, 0, 0, 0, 5, 0, 0],
        [1, 30, 7, 1, 1, 200, 9, 1],
        [2, 255, 255, 255, 2, 255, 1, 255],
        [0x42, 9, 200, 3, 0x31, 40, 0, 2],
        [0x80, 100, 0, 0, 1, 9, 4, 9],
    ];
    let arrivals: [&[u8]; 3] = [
        &[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 200, 0, 0, 0],
        &[9, 0, 74, 0x54, 3, 1, 1, 1, 255, 255, 79, 3, 0, 0, 0, 0],
        &[50, 0, 0, 0, 50, 0, 0, 2, 255, 0, 0, 3, 0, 0, 0, 0xf4],
    ];
    let mut seeds = Vec::new();
    for header in headers {
        for arrivals in arrivals {
            seeds.push([&header[..], &arrivals.repeat(12)].concat());
        }
    }
    seeds
}

/// Mutates the seeds while `go_on` returns true. Returns the number of inputs.
pub(crate) fn mutate(seed: u64, go_on: &mut dyn FnMut(u64) -> bool) -> u64 {
    wire::fuzz::mutate_all(&seeds(), limit, seed, go_on)
}

#[cfg(test)]
mod tests {
    //! Goal: some fuzzing in every check, from seeds in which calls pass and are rejected.

    use super::*;

    #[test]
    fn mutated_inputs_keep_the_properties() {
        seeds().iter().for_each(|seed| limit(seed));
        let tried = mutate(5, &mut |tried| tried < 20_000);
        assert!(tried >= 20_000, "only {tried} inputs");
    }
}
