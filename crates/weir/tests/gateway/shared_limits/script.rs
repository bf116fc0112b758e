//! The script that judges in Redis decides as the rule does, charge by charge: the rule is given
//! the times that Redis saw.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use gateway::policy::limit::{
    CALL, KeyState, LimitDecision, LimitTerms, Rate, assess, judge, raise_excess,
};

use crate::support::redis_server::Redis;
use test_support::wait::pause;

const SCRIPT: &str = include_str!("../../../../gateway/src/cache/redis/zones.lua");

/// A connection that speaks RESP, one command after the other.
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

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn numbers(&mut self, words: &[String]) -> Vec<i64> {
        self.send(words);
        let head = self.line();
        let count: usize =
            head.strip_prefix('*').unwrap_or_else(|| panic!("{head}")).parse().unwrap();
        (0..count).map(|_| self.line().strip_prefix(':').unwrap().parse().unwrap()).collect()
    }
}

/// One zone of a call.
struct Asked {
    key: String,
    terms: LimitTerms,
    cost: u64,
    least: u64,
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

    fn asked(&mut self, zone: u64) -> Asked {
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
        let least = self.one_of(&[0, 0, 0, 0, 1, 999, 50_000]);
        Asked { key: format!("zone:{zone}:{}", self.below(4)), terms, cost, least }
    }
}

/// What the rule makes of a call at the time that Redis saw.
fn expect(kept: &mut HashMap<String, KeyState>, call: &[Asked], now: u64) -> Vec<i64> {
    for asked in call {
        let before = kept.get(&asked.key).copied();
        if let Some(state) = raise_excess(before, asked.terms.rate, now, asked.least) {
            kept.insert(asked.key.clone(), state);
        }
    }
    let looked: Vec<_> = call
        .iter()
        .map(|asked| {
            let state = kept.get(&asked.key).copied();
            (assess(state, asked.terms.rate, now, asked.cost), asked.terms)
        })
        .collect();
    let refused = match judge(&looked) {
        LimitDecision::Refused { limit_index } => limit_index + 1,
        _ => 0,
    };
    let mut said = vec![now as i64, refused as i64];
    for (asked, (looked, _)) in call.iter().zip(&looked) {
        if refused == 0 {
            kept.insert(asked.key.clone(), looked.state);
        }
        let state = kept.get(&asked.key);
        said.extend(state.map_or([-1, -1], |state| [state.excess as i64, state.last as i64]));
    }
    said
}

/// Whether both are the same: a key that Redis has let go has nothing in it any more.
fn alike(said: &[i64], due: &[i64], call: &[Asked]) -> bool {
    let now = said[0] as u64;
    let mut states = said[2..].chunks(2).zip(due[2..].chunks(2)).zip(call);
    said[..2] == due[..2]
        && states.all(|((said, due), asked)| {
            let drained = || {
                let state = KeyState { excess: due[0] as u64, last: due[1] as u64 };
                assess(Some(state), asked.terms.rate, now, 1).excess == 0
            };
            said == due || (said[0] == -1 && due[0] >= 0 && drained())
        })
}

#[test]
fn the_script_decides_as_the_rule() {
    let Some(redis) = Redis::start(&[]) else { return };
    let mut connection = Connection::open(&redis);
    let mut random = Random(0x5eed);
    let mut kept: HashMap<String, KeyState> = HashMap::new();
    let mut outcomes = [0u64; 2];
    for turn in 0..12_000u64 {
        // Some pauses, so that slow rates drain and Redis lets keys go.
        if turn % 200 == 0 {
            // Sleeps: slow rates drain and Redis lets keys expire.
            pause(Duration::from_millis(random.below(30)));
        }
        let zones = 1 + random.below(3);
        let first = random.below(6);
        let call: Vec<Asked> = (0..zones).map(|zone| random.asked((first + zone) % 6)).collect();
        let mut words = vec!["EVAL".to_owned(), SCRIPT.to_owned(), zones.to_string()];
        words.extend(call.iter().map(|asked| asked.key.clone()));
        for asked in &call {
            let terms = &asked.terms;
            let numbers = [terms.rate.thousandths(), terms.burst, asked.cost, asked.least];
            words.extend(numbers.map(|number| number.to_string()));
        }
        let said = connection.numbers(&words);
        let due = expect(&mut kept, &call, said[0] as u64);
        assert!(alike(&said, &due, &call), "turn {turn}: redis {said:?}, the rule {due:?}");
        outcomes[usize::from(said[1] != 0)] += 1;
    }
    assert!(outcomes.iter().all(|count| *count > 1000), "{outcomes:?}");
    // What has drained goes by itself, so that Redis's memory is bounded.
    let fast = redis.cli(&["--scan", "--pattern", "zone:5:*"]);
    assert_eq!(fast, "", "keys of a fast zone stayed");
}

#[test]
fn clocks_that_were_set_back_are_taken_as_by_the_rule() {
    let Some(redis) = Redis::start(&[]) else { return };
    let mut connection = Connection::open(&redis);
    let terms = LimitTerms { rate: Rate::per_second(1), burst: 5 * CALL, delay: None };
    let time = |connection: &mut Connection| {
        let asked =
            ["EVAL".to_owned(), "return {redis.call('TIME')[1] * 1000}".to_owned(), "0".to_owned()];
        connection.numbers(&asked)[0] as u64
    };
    for (at, ahead) in [1_000i64, 50_000, 59_000, 61_500, 3_600_000].into_iter().enumerate() {
        let key = format!("zone:0:{at}");
        let last = time(&mut connection).saturating_add_signed(ahead);
        let state = KeyState { excess: 3 * CALL, last };
        redis.cli(&["SET", &key, &format!("{} {last}", state.excess)]);
        let mut kept = HashMap::from([(key.clone(), state)]);
        let call = [Asked { key, terms, cost: 1, least: 0 }];
        let mut words = vec!["EVAL".to_owned(), SCRIPT.to_owned(), "1".to_owned()];
        words.push(call[0].key.clone());
        words.extend([terms.rate.thousandths(), terms.burst, 1, 0].map(|n| n.to_string()));
        let said = connection.numbers(&words);
        assert_eq!(said, expect(&mut kept, &call, said[0] as u64), "{ahead} ms ahead");
    }
}
