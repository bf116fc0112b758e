//! Goal: whatever happens to Redis, the gateways that share a zone together pass no more than the
//! zone's rate and one burst, plus one burst for each time that Redis loses its data. Redis gets no
//! needless requests. Method: several gateways, and a simulated Redis built from the functions of
//! `policy/limit.rs`, in virtual time, with outages, lost responses and data loss.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;
use crate::config::Config;
use crate::metrics::label::LimitJudge;
use crate::metrics::thread::Labels;
use crate::policy::limit::{CALL, raise_excess};

/// Time of the first call in ms, by the clock that limits use.
const START: u64 = 1 << 40;
/// Longest wait for Redis in ms.
const TIMEOUT: u64 = 20;
/// A shared zone with a rate of 100 calls per second and a single key.
const ZONE: &str = "[zone.z]\nkey = [\"chain\"]\nrate = \"100r/s\"\nshared = true\n";

fn config(gateways: u64, limits: &str) -> Config {
    let text = format!(
        "[[upstream]]\nurl = \"http://127.0.0.1:8545\"\n[redis]\nurl = \"redis://127.0.0.1\"\n\
         gateways = {gateways}\ntimeout = \"{TIMEOUT}ms\"\n{limits}"
    );
    let config = Config::from_text("test", &text, Path::new(""), &|_| None);
    config.unwrap_or_else(|faults| panic!("{faults}"))
}

/// A simulated Redis: the policy functions replace the script that a real Redis runs.
#[derive(Default)]
struct SimulatedRedis {
    keys: HashMap<(usize, [u8; 16]), KeyState>,
    /// Milliseconds by which the clock of Redis is ahead of the clock of limits.
    clock_offset: u64,
}

impl SimulatedRedis {
    fn judge(&mut self, query: &SharedLimitQuery, now: u64) -> RedisDecision {
        let now = now + self.clock_offset;
        let key_of = |query: &SharedZoneQuery| (query.zone, query.digest);
        for query in query.zones.iter() {
            let before = self.keys.get(&key_of(query)).copied();
            if let Some(state) = raise_excess(before, query.terms.rate, now, query.known_excess) {
                self.keys.insert(key_of(query), state);
            }
        }
        let assessed = query.zones.iter().map(|query| {
            let state = self.keys.get(&key_of(query)).copied();
            (assess(state, query.terms.rate, now, query.cost), query.terms)
        });
        let assessed: Vec<_> = assessed.collect();
        let refused = match decide(&assessed) {
            LimitDecision::Refused { limit_index } => Some(limit_index),
            _ => None,
        };
        if refused.is_none() {
            for (query, (assessed, _)) in query.zones.iter().zip(&assessed) {
                self.keys.insert(key_of(query), assessed.state);
            }
        }
        let states =
            query.zones.iter().map(|query| self.keys.get(&key_of(query)).copied()).collect();
        RedisDecision { redis_now_ms: now, refused, states }
    }
}

struct Gateway {
    limits: Limits,
    counters: Counters,
    /// Number of gateways among which this gateway divides the rate.
    divisor: Arc<AtomicU64>,
}

impl Gateway {
    fn new(config: &Config) -> Gateway {
        let gateways = config.redis.as_ref().and_then(|redis| redis.gateways);
        let divisor = Arc::new(AtomicU64::new(gateways.unwrap()));
        Gateway {
            limits: Limits::new(None, config, &divisor).unwrap(),
            counters: Counters::new(&Labels::of(config)),
            divisor,
        }
    }

    fn group(gateways: u64, limits: &str) -> Vec<Gateway> {
        let config = config(gateways, limits);
        (0..gateways).map(|_| Gateway::new(&config)).collect()
    }

    /// Returns the outcome of a call: `.` passes, a number waits that many ms, `x` is rejected.
    fn call(&self, redis: Option<&mut SimulatedRedis>, now: u64) -> String {
        let limited_call = limited_call();
        let charge = match self.limits.charge(&limited_call, now, &self.counters) {
            Charge::AskRedis(query) => {
                let decision = redis.map(|redis| redis.judge(&query, now));
                self.limits.apply_decision(
                    &query,
                    decision.as_ref(),
                    &limited_call,
                    now,
                    &self.counters,
                )
            }
            other => other,
        };
        match charge {
            Charge::Pass => ".".to_owned(),
            Charge::Wait(wait) => wait.as_millis().to_string(),
            Charge::Refuse(_) => "x".to_owned(),
            Charge::AskRedis(_) => "?".to_owned(),
        }
    }

    /// Returns the number of calls that Redis, the local share, and the copy of the state decided.
    fn calls_by_judge(&self) -> [u64; 3] {
        let calls = &self.counters.shared_limits.calls;
        [LimitJudge::Redis, LimitJudge::Share, LimitJudge::Memory].map(|judge| calls[judge].get())
    }

    /// Returns the numbers of calls in a zone that passed, were delayed and were rejected, then the
    /// numbers of calls that a dry run would have delayed and rejected.
    fn outcomes(&self, zone: usize) -> Vec<u64> {
        self.counters.zones[zone].calls.iter().map(|(_, count)| count.get()).collect()
    }
}

fn limited_call() -> LimitedCall<'static> {
    let client = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let name = "eth_call";
    LimitedCall {
        client,
        chain: 0,
        chain_name: "c",
        name,
        method: None,
        headers: &[],
        grant: None,
        prefetched: None,
    }
}

/// Returns the configuration of [`ZONE`] with a limit of this burst.
fn burst(calls: u64) -> String {
    format!("{ZONE}[[limit]]\nzone = \"z\"\nburst = {calls}\nnodelay = true\n")
}

#[test]
fn gateways_share_one_count_and_a_certain_rejection_needs_no_request() {
    let gateways = Gateway::group(2, &burst(2));
    let mut redis = SimulatedRedis { clock_offset: 12_345, ..SimulatedRedis::default() };
    let mut call = |index: usize, now| gateways[index].call(Some(&mut redis), START + now);
    assert_eq!([call(0, 0), call(1, 0), call(0, 0)].concat(), "...");
    assert_eq!([call(0, 0), call(1, 0), call(1, 0)].concat(), "xxx");
    // The first gateway rejects by the state that Redis returned to its last call. The second has
    // an older state, so it first asks Redis once.
    assert_eq!(gateways[0].calls_by_judge(), [2, 0, 1]);
    assert_eq!(gateways[1].calls_by_judge(), [2, 0, 1]);
    assert_eq!(call(0, 8), "x");
    assert_eq!(gateways[0].calls_by_judge(), [2, 0, 2]);
    // One millisecond before the call would pass, the gateway sends a request although Redis
    // rejects the call. The clocks tick at different instants, so the gateway is not certain.
    assert_eq!(call(0, 9), "x");
    assert_eq!(gateways[0].calls_by_judge(), [3, 0, 2]);
    assert_eq!(call(0, 10), ".");
    assert_eq!(gateways[0].outcomes(0), [3, 0, 3, 0, 0]);
}

#[test]
fn slow_requests_do_not_lower_the_rate() {
    let gateways = Gateway::group(2, &burst(10));
    let mut redis = SimulatedRedis::default();
    let (gateway, limited_call) = (&gateways[0], limited_call());
    let mut passed = 0;
    // Calls arrive at ten times the rate, and every other request is slow.
    for now in START..START + 1000 {
        let Charge::AskRedis(query) = gateway.limits.charge(&limited_call, now, &gateway.counters)
        else {
            continue;
        };
        let decision = redis.judge(&query, now + if passed % 2 == 0 { 0 } else { TIMEOUT });
        let settled = gateway.limits.apply_decision(
            &query,
            Some(&decision),
            &limited_call,
            now,
            &gateway.counters,
        );
        passed += u64::from(matches!(settled, Charge::Pass));
    }
    assert!((110..=112).contains(&passed), "{passed}");
}

#[test]
fn without_redis_each_gateway_continues_with_its_share() {
    let gateways = Gateway::group(2, &burst(10));
    let mut redis = SimulatedRedis::default();
    for _ in 0..11 {
        assert_eq!(gateways[0].call(Some(&mut redis), START), ".");
    }
    // The key is at its limit in the first gateway, which continues at half the rate.
    let call_without_redis = |index: usize, now| gateways[index].call(None, START + now);
    let passed = (0..1000).filter(|now| call_without_redis(0, *now) == ".").count();
    assert_eq!(passed, 50);
    // The second gateway has no state of the key, so it allows half of the burst and half of the
    // rate.
    let passed = (0..1000).filter(|now| call_without_redis(1, *now) == ".").count();
    assert_eq!(passed, 6 + 49);
    // Redis has lost its data. The first request reports the excess of the key.
    let mut empty = SimulatedRedis::default();
    let passed_again =
        (0..20).filter(|_| gateways[0].call(Some(&mut empty), START + 1000) == ".").count();
    assert!(passed_again <= 2, "{passed_again} passed at once");
    assert_eq!(gateways[0].outcomes(0)[0], 11 + 50 + passed_again as u64);
}

#[test]
fn the_longest_wait_of_all_zones_applies() {
    let limits = format!(
        "{ZONE}[zone.own]\nkey = [\"client\"]\nrate = \"10r/s\"\n\
         [[limit]]\nzone = \"z\"\nburst = 50\n[[limit]]\nzone = \"own\"\nburst = 2\ndelay = 1\n"
    );
    let gateways = Gateway::group(2, &limits);
    let mut redis = SimulatedRedis::default();
    let outcomes: Vec<String> = (0..5).map(|_| gateways[0].call(Some(&mut redis), START)).collect();
    assert_eq!(outcomes.join(" "), ". 10 100 x x");
    // A call rejected by a local zone is not charged in Redis, which gets no request.
    assert_eq!(gateways[0].calls_by_judge(), [3, 0, 0]);
    assert_eq!(gateways[0].outcomes(0), [2, 1, 0, 0, 0]);
    assert_eq!(gateways[0].outcomes(1), [2, 1, 2, 0, 0]);
    assert_eq!(gateways[1].call(Some(&mut redis), START), "30");
    // Without Redis, the gateway judges both zones itself.
    assert_eq!(gateways[1].call(None, START + 1), "48");
}

#[test]
fn a_dry_run_uses_the_share_and_sends_no_requests() {
    let limits = format!("{ZONE}[[limit]]\nzone = \"z\"\nburst = 3\ndry_run = true\n");
    let gateways = Gateway::group(2, &limits);
    for _ in 0..5 {
        assert_eq!(gateways[0].call(None, START), ".");
    }
    assert_eq!(gateways[0].outcomes(0), [1, 0, 0, 1, 3]);
    assert_eq!(gateways[0].calls_by_judge(), [0, 0, 0]);
}

/// An event at one instant.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A gateway receives calls.
    Calls {
        gateway: usize,
        count: usize,
        /// Of every ten responses of Redis, the number that arrive in time.
        responses_in_ten: u64,
    },
    /// True if Redis is reachable.
    Redis(bool),
    /// Redis loses its data during an outage.
    DataLost,
    /// This many milliseconds pass.
    Time(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let calls = (0usize..3, 1usize..30, prop_oneof![3 => Just(10u64), 1 => 0u64..10]).prop_map(
        |(gateway, count, responses_in_ten)| Step::Calls { gateway, count, responses_in_ten },
    );
    let step = prop_oneof![
        12 => calls,
        1 => any::<bool>().prop_map(Step::Redis),
        1 => Just(Step::DataLost),
        12 => (0u64..60).prop_map(Step::Time),
    ];
    prop::collection::vec(step, 1..400)
}

#[test]
fn the_share_follows_the_number_of_gateways() {
    let gateway = &Gateway::group(4, &burst(20))[0];
    let passed = |seconds: std::ops::Range<u64>| {
        let mut times = (START + seconds.start * 1000..START + seconds.end * 1000).step_by(2);
        times.by_ref().filter(|now| gateway.call(None, *now) == ".").count()
    };
    passed(0..1); // The burst.
    assert!((249..=251).contains(&passed(1..11)));
    // Two of four gateways stop. The excess of the key stays.
    gateway.divisor.store(2, Ordering::Relaxed);
    assert!((498..=502).contains(&passed(11..21)));
    gateway.divisor.store(5, Ordering::Relaxed);
    assert!((199..=201).contains(&passed(21..31)));
}

proptest! {
    #[test]
    fn gateways_together_keep_the_rate_whatever_happens_to_redis(
        steps in steps(),
        burst_calls in 0u64..40,
        clock_offset in prop_oneof![Just(0u64), Just(1 << 41)],
    ) {
        let gateways = Gateway::group(3, &burst(burst_calls));
        let mut redis = SimulatedRedis { clock_offset, ..SimulatedRedis::default() };
        let (mut redis_up, mut now, mut passed, mut number) = (true, START, 0u64, 0u64);
        let (mut outages, mut data_losses) = (0, 0);
        for step in steps {
            match step {
                Step::Time(ms) => now += ms,
                Step::Redis(is_up) => {
                    outages += u64::from(redis_up && !is_up);
                    redis_up = is_up;
                }
                Step::DataLost => {
                    if !redis_up {
                        data_losses += u64::from(!redis.keys.is_empty());
                        redis.keys.clear();
                    }
                }
                Step::Calls { gateway, count, responses_in_ten } => {
                    outages += u64::from(redis_up && responses_in_ten < 10);
                    for _ in 0..count {
                        number += 1;
                        let has_response = redis_up && (number * 7) % 10 < responses_in_ten;
                        let redis = has_response.then_some(&mut redis);
                        passed += u64::from(gateways[gateway].call(redis, now) == ".");
                    }
                }
            }
            // In an outage, a gateway may have an old state of a key. So each outage allows further
            // calls: a share of the burst and one call for each other gateway. The recovery allows
            // as many again, because Redis has drained the key meanwhile and the first request may
            // not report the calls of other gateways. Each loss of data allows one more burst, as
            // documented.
            let drained = (now - START) * 100 / 1000;
            let passed_max = drained
                + (1 + data_losses) * (1 + burst_calls)
                + outages * 2 * (2 * burst_calls / 3 + 3);
            prop_assert!(passed <= passed_max, "{passed} of at most {passed_max} after {} ms", now - START);
        }
        prop_assert!(burst_calls * CALL < u64::from(u32::MAX));
    }
}
