//! The Lua script in Redis decides each call like the Rust functions, which get the times that
//! Redis reports.
//!
//! A zone's key has an *excess*: each call adds its cost, and the excess drains at the zone's rate.
//! A call is rejected if the excess would exceed the burst.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use gateway::policy::limit::{
    CALL, KeyState, LimitDecision, LimitTerms, Rate, assess, decide, raise_excess,
};

use crate::support::redis_server::Redis;
use test_support::wait::pause;

const SCRIPT: &str = include_str!("../../../../gateway/src/cache/redis/zones.lua");

/// A connection to Redis that sends one command at a time.
struct Connection(BufReader<TcpStream>);

impl Connection {
    fn open(redis: &Redis) -> Connection {
        let stream = TcpStream::connect(("127.0.0.1", redis.port)).unwrap();
        stream.set_nodelay(true).unwrap();
        Connection(BufReader::new(stream))
    }

    fn send(&mut self, words: &[String]) {
        let mut text = format!("*{}\r\n", words.len());
        for word in words {
            text.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Sends a command and returns its response, a list of integers.
    fn run(&mut self, words: &[String]) -> Vec<i64> {
        self.send(words);
        let header = self.read_line();
        let count: usize =
            header.strip_prefix('*').unwrap_or_else(|| panic!("{header}")).parse().unwrap();
        (0..count).map(|_| self.read_line().strip_prefix(':').unwrap().parse().unwrap()).collect()
    }
}

/// The charge of one call in one zone.
struct Charge {
    key: String,
    terms: LimitTerms,
    cost: u64,
    /// The excess of the key is raised to at least this value before the decision.
    excess_min: u64,
}

/// Random numbers that are the same in each run: xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    fn random_charge(&mut self, zone: u64) -> Charge {
        let rates = [
            Rate::per_minute(1),
            Rate::per_second(1),
            Rate::per_second(30),
            Rate::per_second(700),
            Rate::per_second(20_000),
            Rate::per_second(1_000_000_000),
        ];
        let terms = LimitTerms {
            rate: rates[zone as usize % rates.len()],
            burst: self.one_of(&[0, 1, 7, 300, 4_000_000]) * CALL,
            delay: None,
        };
        let cost = self.one_of(&[1, 1, 1, 2, 75]);
        let excess_min = self.one_of(&[0, 0, 0, 0, 1, 999, 50_000]);
        Charge { key: format!("zone:{zone}:{}", self.below(4)), terms, cost, excess_min }
    }
}

/// Decides a call in Rust at the time that Redis reported. Returns what the script must return: the
/// time, the rejecting zone's index from 1 (0 if none), and each key's excess and last time.
fn expected_decision(
    states: &mut HashMap<String, KeyState>,
    call: &[Charge],
    now: u64,
) -> Vec<i64> {
    for charge in call {
        let before = states.get(&charge.key).copied();
        if let Some(state) = raise_excess(before, charge.terms.rate, now, charge.excess_min) {
            states.insert(charge.key.clone(), state);
        }
    }
    let assessments: Vec<_> = call
        .iter()
        .map(|charge| {
            let state = states.get(&charge.key).copied();
            (assess(state, charge.terms.rate, now, charge.cost), charge.terms)
        })
        .collect();
    let rejecting_zone = match decide(&assessments) {
        LimitDecision::Refused { limit_index } => limit_index + 1,
        _ => 0,
    };
    let mut decision = vec![now as i64, rejecting_zone as i64];
    for (charge, (assessment, _)) in call.iter().zip(&assessments) {
        if rejecting_zone == 0 {
            states.insert(charge.key.clone(), assessment.state);
        }
        let state = states.get(&charge.key);
        decision.extend(
            state.map_or([-1, -1], |state| [state.excess as i64, state.charged_at_ms as i64]),
        );
    }
    decision
}

/// Returns true if both decisions are equal. Redis may have expired a key that has drained.
fn is_equal(actual: &[i64], expected: &[i64], call: &[Charge]) -> bool {
    let now = actual[0] as u64;
    let mut states = actual[2..].chunks(2).zip(expected[2..].chunks(2)).zip(call);
    actual[..2] == expected[..2]
        && states.all(|((actual, expected), charge)| {
            let is_drained = || {
                let state =
                    KeyState { excess: expected[0] as u64, charged_at_ms: expected[1] as u64 };
                assess(Some(state), charge.terms.rate, now, 1).excess == 0
            };
            actual == expected || (actual[0] == -1 && expected[0] >= 0 && is_drained())
        })
}

#[test]
fn the_script_decides_as_the_rust_functions() {
    let Some(redis) = Redis::start(&[]) else { return };
    let mut connection = Connection::open(&redis);
    let mut random = Random(0x5eed);
    let mut states: HashMap<String, KeyState> = HashMap::new();
    let mut outcomes = [0u64; 2];
    for round in 0..12_000u64 {
        if round % 200 == 0 {
            // Sleeps: slow rates drain and Redis lets keys expire.
            pause(Duration::from_millis(random.below(30)));
        }
        let zones = 1 + random.below(3);
        let first = random.below(6);
        let call: Vec<Charge> =
            (0..zones).map(|zone| random.random_charge((first + zone) % 6)).collect();
        let mut words = vec!["EVAL".to_owned(), SCRIPT.to_owned(), zones.to_string()];
        words.extend(call.iter().map(|charge| charge.key.clone()));
        for charge in &call {
            let terms = &charge.terms;
            let numbers = [terms.rate.thousandths(), terms.burst, charge.cost, charge.excess_min];
            words.extend(numbers.map(|number| number.to_string()));
        }
        let actual = connection.run(&words);
        let expected = expected_decision(&mut states, &call, actual[0] as u64);
        assert!(
            is_equal(&actual, &expected, &call),
            "turn {round}: redis {actual:?}, Rust {expected:?}"
        );
        outcomes[usize::from(actual[1] != 0)] += 1;
    }
    assert!(outcomes.iter().all(|count| *count > 1000), "{outcomes:?}");
    // Drained keys expire, so that Redis's memory is bounded.
    let fast = redis.cli(&["--scan", "--pattern", "zone:5:*"]);
    assert_eq!(fast, "", "keys of a fast zone have not expired");
}

#[test]
fn the_script_treats_times_in_the_future_as_the_rust_functions() {
    let Some(redis) = Redis::start(&[]) else { return };
    let mut connection = Connection::open(&redis);
    let terms = LimitTerms { rate: Rate::per_second(1), burst: 5 * CALL, delay: None };
    let time = |connection: &mut Connection| {
        let command =
            ["EVAL".to_owned(), "return {redis.call('TIME')[1] * 1000}".to_owned(), "0".to_owned()];
        connection.run(&command)[0] as u64
    };
    for (at, ahead) in [1_000i64, 50_000, 59_000, 61_500, 3_600_000].into_iter().enumerate() {
        let key = format!("zone:0:{at}");
        let last = time(&mut connection).saturating_add_signed(ahead);
        let state = KeyState { excess: 3 * CALL, charged_at_ms: last };
        redis.cli(&["SET", &key, &format!("{} {last}", state.excess)]);
        let mut states = HashMap::from([(key.clone(), state)]);
        let call = [Charge { key, terms, cost: 1, excess_min: 0 }];
        let mut words = vec!["EVAL".to_owned(), SCRIPT.to_owned(), "1".to_owned()];
        words.push(call[0].key.clone());
        words.extend([terms.rate.thousandths(), terms.burst, 1, 0].map(|n| n.to_string()));
        let actual = connection.run(&words);
        assert_eq!(
            actual,
            expected_decision(&mut states, &call, actual[0] as u64),
            "{ahead} ms ahead"
        );
    }
}
