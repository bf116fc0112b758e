//! Repeats every decision in the log of a running nginx with the gateway's limit function. nginx's
//! code, the excess in thousandths of a call, and the delay in milliseconds must all be equal.
//!
//! The function needs the time of the decision in milliseconds, but the lines of nginx's debug log
//! have no milliseconds. In the same iteration of its event loop, nginx sets a timer: for the
//! delay, or for the keep-alive connection. It logs the timer's length and end. The end minus the
//! length is the time of the decision.

use std::collections::HashMap;
use std::time::Duration;

use gateway::policy::limit::{
    CALL, ChargedState, KeyState, LimitDecision, LimitTerms, Rate, assess, decide,
};

use super::arrivals::{Arrival, ConnectionPool, bursts, get, poisson, run, send};
use super::nginx::{KEEP_ALIVE_MS, Nginx};

/// A zone: its name, the name of its key, its rate as nginx writes it, its rate for the gateway.
type Zone = (&'static str, &'static str, &'static str, Rate);

/// A limit of a location: zone, burst, and delay. Without a delay, the limit is `nodelay`.
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

/// The position of a limit in its location, the zone with the key, and the assessment of the limit.
type LimitAssessment = (usize, (&'static str, String), (ChargedState, LimitTerms));

/// A decision in nginx's log.
#[derive(Debug, Default, Clone)]
struct Decision {
    location: String,
    keys: HashMap<String, String>,
    /// For each limit that nginx assessed: its position, nginx's code, and the excess in
    /// thousandths of a call.
    assessments: Vec<(usize, i64, u64)>,
    /// Time of the decision on nginx's clock, in ms.
    now: u64,
    /// In ms. It is 0 if nginx did not delay the request.
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
            let mut lines: String = limits.iter().map(config_line).collect();
            if *name == "dry" {
                lines.push_str("limit_req_dry_run on; ");
            }
            (*name, lines)
        })
        .collect();
    let locations: Vec<(&str, &str)> =
        locations.iter().map(|(name, lines)| (*name, lines.as_str())).collect();
    let Some(nginx) = Nginx::start(&zone_lines, &locations, "debug") else { return };
    run(send_requests(&nginx));
    let decisions = decisions(&nginx.log());
    assert!(decisions.len() > 2000, "only {} decisions were logged", decisions.len());
    repeat_decisions(&decisions);
}

/// The configuration of a limit in nginx.
fn config_line((zone, burst, delay): &Limit) -> String {
    let delay = match delay {
        None => " nodelay".to_owned(),
        Some(0) => String::new(),
        Some(delay) => format!(" delay={delay}"),
    };
    let burst = if *burst == 0 { String::new() } else { format!(" burst={burst}") };
    format!("limit_req zone={zone}{burst}{delay}; ")
}

/// Sends requests at random times, and bursts of requests, to every location. Every third request
/// has a second key.
async fn send_requests(nginx: &Nginx) {
    let length = Duration::from_secs(4);
    let pool = ConnectionPool::new(nginx.address);
    pool.open(50).await;
    let begin = tokio::time::Instant::now();
    let mut tasks = Vec::new();
    for (number, (location, _)) in LOCATIONS.iter().enumerate() {
        let seed = number as u64;
        let mut plan: Vec<Arrival> = poisson(seed, 4, 8.0, length);
        plan.extend(bursts(seed + 100, 2, 9, Duration::from_millis(700), length));
        for (arrival_number, arrival) in plan.into_iter().enumerate() {
            let pool = pool.clone();
            let other = if arrival_number % 3 == 0 { "X-Other: o\r\n" } else { "" };
            let request = get(location, &format!("X-Key: {location}-{}\r\n{other}", arrival.key));
            tasks.push(tokio::task::spawn_local(async move {
                tokio::time::sleep_until(begin + arrival.at).await;
                let mut stream = pool.take().await;
                send(&mut stream, &request).await;
                pool.read_response(stream).await.0
            }));
        }
    }
    let mut statuses: HashMap<u16, usize> = HashMap::new();
    for task in tasks {
        *statuses.entry(task.await.unwrap()).or_default() += 1;
    }
    assert!(statuses[&200] > 300 && statuses[&429] > 300, "{statuses:?}");
}

/// Parses the decisions in nginx's log, in their order.
fn decisions(log: &str) -> Vec<Decision> {
    // By connection: the current request.
    let mut open: HashMap<&str, Decision> = HashMap::new();
    let mut parsed: Vec<Decision> = Vec::new();
    // By connection: the position in `parsed` of a decision whose timer the log has not had yet.
    let mut untimed: HashMap<&str, usize> = HashMap::new();
    for line in log.lines() {
        let Some((_, after_pid)) = line.split_once("#") else { continue };
        let Some((connection, message)) =
            after_pid.split_once(": *").and_then(|(_, rest)| rest.split_once(' '))
        else {
            continue;
        };
        if let Some(request) = message.strip_prefix("http request line: \"GET /") {
            let location = request.split(' ').next().unwrap().to_owned();
            open.insert(connection, Decision { location, ..Decision::default() });
        } else if let Some(header) = message.strip_prefix("http header: \"") {
            let (name, value) = header.trim_end_matches('"').split_once(": ").unwrap();
            let name = name.to_ascii_lowercase().replace('-', "_");
            open.get_mut(connection).unwrap().keys.insert(name, value.to_owned());
        } else if let Some(assessed) = message.strip_prefix("limit_req[") {
            let (limit, rest) = assessed.split_once("]: ").unwrap();
            let (code, excess) = rest.split_once(' ').unwrap();
            let excess: u64 = excess.replace('.', "").parse().unwrap();
            let assessment = (limit.parse().unwrap(), code.parse().unwrap(), excess);
            let at = *untimed.entry(connection).or_insert_with(|| {
                parsed.push(open[connection].clone());
                parsed.len() - 1
            });
            parsed[at].assessments.push(assessment);
        } else if let Some(timer) = message.strip_prefix("event timer add: ")
            && let Some(at) = untimed.remove(connection)
        {
            let mut numbers = timer.split(": ").nth(1).unwrap().split(':');
            let mut number = || numbers.next().unwrap().trim().parse::<u64>().unwrap();
            let (length, end) = (number(), number());
            parsed[at].now = end - length;
            parsed[at].delay = if length == KEEP_ALIVE_MS { 0 } else { length };
        }
    }
    assert!(untimed.is_empty(), "decisions without a time: {untimed:?}");
    parsed
}

/// Repeats every decision with the gateway's limit function, in order. Panics if one differs.
fn repeat_decisions(decisions: &[Decision]) {
    let zones = zones();
    let mut states: HashMap<(&'static str, String), KeyState> = HashMap::new();
    let mut counts: HashMap<(&str, &str), usize> = HashMap::new();
    for decision in decisions {
        let (name, limits) = LOCATIONS.iter().find(|(name, _)| *name == decision.location).unwrap();
        let mut assessed: Vec<LimitAssessment> = Vec::new();
        for (position, (zone, burst, delay)) in limits.iter().enumerate() {
            let (_, key, _, rate) = zones.iter().find(|(name, ..)| name == zone).unwrap();
            let Some(key) = decision.keys.get(*key) else { continue };
            let zone_key = (*zone, key.clone());
            let terms = LimitTerms {
                rate: *rate,
                burst: burst * CALL,
                delay: delay.map(|delay| delay * CALL),
            };
            let now = decision.now;
            let assessment = assess(states.get(&zone_key).copied(), *rate, now, 1);
            assessed.push((position, zone_key, (assessment, terms)));
        }
        let assessments: Vec<(ChargedState, LimitTerms)> =
            assessed.iter().map(|(.., assessment)| *assessment).collect();
        let limit_decision = decide(&assessments);
        let refused = match limit_decision {
            LimitDecision::Refused { limit_index } => Some(limit_index),
            _ => None,
        };
        // nginx's codes: -3 means refused. -2 means passed, and nginx charges the call if all
        // limits pass. 0 means passed and charged, for the last limit.
        let expected: Vec<(usize, i64, u64)> = assessed
            .iter()
            .enumerate()
            .take(refused.map_or(usize::MAX, |index| index + 1))
            .map(|(index, (position, _, (assessment, _)))| {
                let code = match (refused == Some(index), *position == limits.len() - 1) {
                    (true, _) => -3,
                    (false, true) => 0,
                    (false, false) => -2,
                };
                (*position, code, assessment.excess)
            })
            .collect();
        assert_eq!(decision.assessments, expected, "{decision:?}");
        let delay = match limit_decision {
            // A dry run does not delay.
            LimitDecision::Delayed { ms, .. } if *name != "dry" => ms,
            _ => 0,
        };
        assert_eq!(decision.delay, delay, "{decision:?}");
        if refused.is_none() {
            states.extend(
                assessed
                    .into_iter()
                    .map(|(_, zone_key, (assessment, _))| (zone_key, assessment.state)),
            );
        }
        let outcome = match limit_decision {
            LimitDecision::Passed => "passed",
            LimitDecision::Delayed { .. } => "delayed",
            LimitDecision::Refused { .. } => "refused",
        };
        *counts.entry((*name, outcome)).or_default() += 1;
    }
    println!("{} decisions of nginx, all equal: {counts:?}", decisions.len());
    for (name, limits) in LOCATIONS {
        let can_delay = limits.iter().any(|(_, burst, delay)| delay.is_some_and(|d| d < *burst));
        for outcome in ["passed", "refused"].into_iter().chain(can_delay.then_some("delayed")) {
            assert!(counts.contains_key(&(name, outcome)), "no call of {name} was {outcome}");
        }
    }
}

#[test]
fn a_wrong_decision_is_found() {
    let decision = |now, excess| Decision {
        location: "plain".to_owned(),
        keys: HashMap::from([("x_key".to_owned(), "k".to_owned())]),
        assessments: vec![(0, if excess > 0 { -3 } else { 0 }, excess)],
        now,
        delay: 0,
    };
    let assert_found = |decisions: Vec<Decision>| {
        std::panic::catch_unwind(|| repeat_decisions(&decisions)).unwrap_err();
    };
    assert_found(vec![decision(1000, 0), decision(1050, 501)]);
    assert_found(vec![decision(1000, 0), decision(1050, 0)]);
}
