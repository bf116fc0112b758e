//! Every decision that a running nginx logs, made again by the pure rule: all must be equal, in the
//! code, in the excess to the thousandth and in the delay to the millisecond.
//!
//! The debug log has no milliseconds of its own, but nginx arms a timer in the same turn of its
//! event loop as it decides (for the delay, or for the kept connection), and logs the timer's
//! length and its end on its own clock: the difference is the instant that the decision saw.

use std::collections::HashMap;
use std::time::Duration;

use gateway::policy::limit::{
    Assessment, CALL, KeyState, LimitDecision, LimitTerms, Rate, assess, judge,
};

use super::arrivals::{Arrival, Kept, bursts, get, poisson, run, send};
use super::nginx::{KEEP_ALIVE_MS, Nginx};

/// A zone: its name, what its key is, nginx's rate, ours.
type Zone = (&'static str, &'static str, &'static str, Rate);

/// A limit of a location: zone, burst, delay (none is `nodelay`).
type Limit = (&'static str, u64, Option<u64>);

fn zones() -> [Zone; 8] {
    [
        ("second", "x_key", "10r/s", Rate::per_second(10)),
        ("fast", "x_key", "900r/s", Rate::per_second(900)),
        ("minute", "x_key", "240r/m", Rate::per_minute(240)),
        ("odd", "x_key", "100r/m", Rate::per_minute(100)),
        ("slow", "x_key", "7r/m", Rate::per_minute(7)),
        ("whole", "host", "30r/s", Rate::per_second(30)),
        ("other", "x_other", "20r/s", Rate::per_second(20)),
        ("one", "x_key", "1r/s", Rate::per_second(1)),
    ]
}

const LOCATIONS: [(&str, &[Limit]); 11] = [
    ("plain", &[("second", 0, Some(0))]),
    ("burst", &[("second", 5, Some(0))]),
    ("nodelay", &[("second", 5, None)]),
    ("part", &[("second", 8, Some(3))]),
    ("fast", &[("fast", 4, Some(2))]),
    ("minute", &[("minute", 6, None)]),
    ("odd", &[("odd", 2, Some(1))]),
    ("slow", &[("slow", 1, None)]),
    ("several", &[("second", 5, None), ("whole", 40, Some(10)), ("other", 4, None)]),
    ("around", &[("other", 6, Some(0)), ("one", 9, Some(2))]),
    ("dry", &[("second", 2, Some(0))]),
];

/// The place of a limit, the key in its zone, and what was looked at.
type LookedAt = (usize, (&'static str, String), (Assessment, LimitTerms));

/// One decision in the log.
#[derive(Debug, Default, Clone)]
struct Decision {
    location: String,
    keys: HashMap<String, String>,
    /// By limit: nginx's code and the excess.
    looks: Vec<(usize, i64, u64)>,
    now: u64,
    /// 0 if it went on at once.
    delay: u64,
}

#[test]
fn every_logged_decision_of_nginx_is_the_rules_own() {
    let zone_lines: String = zones()
        .iter()
        .map(|(name, key, rate, _)| {
            let variable = if *key == "host" { "host" } else { &format!("http_{key}") };
            format!("limit_req_zone ${variable} zone={name}:1m rate={rate};\n")
        })
        .collect();
    let locations: Vec<(&str, String)> = LOCATIONS
        .iter()
        .map(|(name, limits)| {
            let mut lines: String = limits.iter().map(line).collect();
            if *name == "dry" {
                lines.push_str("limit_req_dry_run on; ");
            }
            (*name, lines)
        })
        .collect();
    let locations: Vec<(&str, &str)> =
        locations.iter().map(|(name, lines)| (*name, lines.as_str())).collect();
    let Some(nginx) = Nginx::start(&zone_lines, &locations, "debug") else { return };
    run(arrive(&nginx));
    let decisions = decisions(&nginx.log());
    assert!(decisions.len() > 2000, "only {} decisions were logged", decisions.len());
    judge_all(&decisions);
}

fn line((zone, burst, delay): &Limit) -> String {
    let delay = match delay {
        None => " nodelay".to_owned(),
        Some(0) => String::new(),
        Some(delay) => format!(" delay={delay}"),
    };
    let burst = if *burst == 0 { String::new() } else { format!(" burst={burst}") };
    format!("limit_req zone={zone}{burst}{delay}; ")
}

/// Sends to every location random and crowded arrivals, some with a second key.
async fn arrive(nginx: &Nginx) {
    let length = Duration::from_secs(4);
    let kept = Kept::to(nginx.address);
    kept.open(50).await;
    let begin = tokio::time::Instant::now();
    let mut tasks = Vec::new();
    for (at, (location, _)) in LOCATIONS.iter().enumerate() {
        let seed = at as u64;
        let mut plan: Vec<Arrival> = poisson(seed, 4, 8.0, length);
        plan.extend(bursts(seed + 100, 2, 9, Duration::from_millis(700), length));
        for (number, arrival) in plan.into_iter().enumerate() {
            let kept = kept.clone();
            let other = if number % 3 == 0 { "X-Other: o\r\n" } else { "" };
            let request = get(location, &format!("X-Key: {location}-{}\r\n{other}", arrival.key));
            tasks.push(tokio::task::spawn_local(async move {
                tokio::time::sleep_until(begin + arrival.at).await;
                let mut stream = kept.take().await;
                send(&mut stream, &request).await;
                kept.answer(stream).await.0
            }));
        }
    }
    let mut statuses: HashMap<u16, usize> = HashMap::new();
    for task in tasks {
        *statuses.entry(task.await.unwrap()).or_default() += 1;
    }
    assert!(statuses[&200] > 300 && statuses[&429] > 300, "{statuses:?}");
}

/// Reads the decisions, in the order in which they were made.
fn decisions(log: &str) -> Vec<Decision> {
    let mut open: HashMap<&str, Decision> = HashMap::new();
    let mut made: Vec<Decision> = Vec::new();
    // By connection, the decision whose timer has not come yet.
    let mut untimed: HashMap<&str, usize> = HashMap::new();
    for line in log.lines() {
        let Some((_, rest)) = line.split_once("#") else { continue };
        let Some((connection, said)) =
            rest.split_once(": *").and_then(|(_, rest)| rest.split_once(' '))
        else {
            continue;
        };
        if let Some(request) = said.strip_prefix("http request line: \"GET /") {
            let location = request.split(' ').next().unwrap().to_owned();
            open.insert(connection, Decision { location, ..Decision::default() });
        } else if let Some(header) = said.strip_prefix("http header: \"") {
            let (name, value) = header.trim_end_matches('"').split_once(": ").unwrap();
            let name = name.to_ascii_lowercase().replace('-', "_");
            open.get_mut(connection).unwrap().keys.insert(name, value.to_owned());
        } else if let Some(looked) = said.strip_prefix("limit_req[") {
            let (limit, rest) = looked.split_once("]: ").unwrap();
            let (code, excess) = rest.split_once(' ').unwrap();
            let excess: u64 = excess.replace('.', "").parse().unwrap();
            let look = (limit.parse().unwrap(), code.parse().unwrap(), excess);
            let at = *untimed.entry(connection).or_insert_with(|| {
                made.push(open[connection].clone());
                made.len() - 1
            });
            made[at].looks.push(look);
        } else if let Some(timer) = said.strip_prefix("event timer add: ")
            && let Some(at) = untimed.remove(connection)
        {
            let mut numbers = timer.split(": ").nth(1).unwrap().split(':');
            let mut number = || numbers.next().unwrap().trim().parse::<u64>().unwrap();
            let (length, end) = (number(), number());
            made[at].now = end - length;
            made[at].delay = if length == KEEP_ALIVE_MS { 0 } else { length };
        }
    }
    assert!(untimed.is_empty(), "decisions without a time: {untimed:?}");
    made
}

/// Makes every decision again, in order.
fn judge_all(decisions: &[Decision]) {
    let zones = zones();
    let mut states: HashMap<(&'static str, String), KeyState> = HashMap::new();
    let mut counts: HashMap<(&str, &str), usize> = HashMap::new();
    for decision in decisions {
        let (name, limits) = LOCATIONS.iter().find(|(name, _)| *name == decision.location).unwrap();
        let mut looked: Vec<LookedAt> = Vec::new();
        for (place, (zone, burst, delay)) in limits.iter().enumerate() {
            let (_, key, _, rate) = zones.iter().find(|(name, ..)| name == zone).unwrap();
            let Some(key) = decision.keys.get(*key) else { continue };
            let at = (*zone, key.clone());
            let terms = LimitTerms {
                rate: *rate,
                burst: burst * CALL,
                delay: delay.map(|delay| delay * CALL),
            };
            let now = decision.now;
            let look = assess(states.get(&at).copied(), *rate, now, 1);
            looked.push((place, at, (look, terms)));
        }
        let judged: Vec<(Assessment, LimitTerms)> =
            looked.iter().map(|(.., judged)| *judged).collect();
        let judgement = judge(&judged);
        let refused = match judgement {
            LimitDecision::Refused { limit_index } => Some(limit_index),
            _ => None,
        };
        // nginx's codes: -3 refused, -2 to be charged once all have passed, 0 charged: the last.
        let due: Vec<(usize, i64, u64)> = looked
            .iter()
            .enumerate()
            .take(refused.map_or(usize::MAX, |at| at + 1))
            .map(|(at, (place, _, (look, _)))| {
                let code = match (refused == Some(at), *place == limits.len() - 1) {
                    (true, _) => -3,
                    (false, true) => 0,
                    (false, false) => -2,
                };
                (*place, code, look.excess)
            })
            .collect();
        assert_eq!(decision.looks, due, "{decision:?}");
        let delay = match judgement {
            // A dry run goes on at once.
            LimitDecision::Delayed { ms, .. } if *name != "dry" => ms,
            _ => 0,
        };
        assert_eq!(decision.delay, delay, "{decision:?}");
        if refused.is_none() {
            states.extend(looked.into_iter().map(|(_, at, (look, _))| (at, look.state)));
        }
        let outcome = match judgement {
            LimitDecision::Passed => "passed",
            LimitDecision::Delayed { .. } => "delayed",
            LimitDecision::Refused { .. } => "refused",
        };
        *counts.entry((*name, outcome)).or_default() += 1;
    }
    println!("{} decisions of nginx, all equal: {counts:?}", decisions.len());
    for (name, limits) in LOCATIONS {
        let waits = limits.iter().any(|(_, burst, delay)| delay.is_some_and(|d| d < *burst));
        for outcome in ["passed", "refused"].into_iter().chain(waits.then_some("delayed")) {
            assert!(counts.contains_key(&(name, outcome)), "no call of {name} was {outcome}");
        }
    }
}

#[test]
fn a_wrong_decision_is_found() {
    let decision = |now, excess| Decision {
        location: "plain".to_owned(),
        keys: HashMap::from([("x_key".to_owned(), "k".to_owned())]),
        looks: vec![(0, if excess > 0 { -3 } else { 0 }, excess)],
        now,
        delay: 0,
    };
    let caught = |decisions: Vec<Decision>| {
        std::panic::catch_unwind(|| judge_all(&decisions)).unwrap_err();
    };
    caught(vec![decision(1000, 0), decision(1050, 501)]);
    caught(vec![decision(1000, 0), decision(1050, 0)]);
}
