//! Sends the same requests to nginx and to the gateway at the same time. Both must pass, delay or
//! refuse the same requests.
//!
//! As time passes, a refused key becomes an allowed one at a certain instant. Near such an instant
//! the servers may decide differently, because their clocks may differ by a millisecond. The test
//! counts these differences, and checks that each is close enough to such an instant.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use gateway::policy::limit::Rate;
use tokio::time::Instant;

use super::arrivals::{Arrival, ConnectionPool, bursts, get, poisson, run, send};
use super::nginx::Nginx;
use crate::support::harness::{
    NEWEST_BLOCK, NodeRuntime, SimNode, TestGateway, body, chain_polled_once,
};
use crate::support::stall_detector::StallDetector;
use test_support::raw::post_with;

/// A limit of both servers, and the requests that the test sends.
struct Case {
    name: &'static str,
    rate: Rate,
    /// The same rate as nginx writes it.
    nginx_rate: &'static str,
    burst: u64,
    /// `None` means `nodelay`.
    delay: Option<u64>,
    plan: Vec<Arrival>,
}

/// The rates are low. With higher rates, more calls would be within a millisecond of an instant at
/// which the decision changes.
fn cases() -> Vec<Case> {
    let length = Duration::from_secs(5);
    let (minute, second) = (Rate::per_minute, Rate::per_second);
    let case = |name, rate, nginx_rate, burst, delay, plan| Case {
        name,
        rate,
        nginx_rate,
        burst,
        delay,
        plan,
    };
    vec![
        case("poisson", minute(15), "15r/m", 2, None, poisson(1, 200, 1.0, length)),
        case("noburst", minute(20), "20r/m", 0, Some(0), poisson(2, 150, 1.0, length)),
        case("waits", second(1), "1r/s", 3, Some(1), {
            bursts(3, 40, 6, Duration::from_millis(2900), length)
        }),
        case("bursts", second(2), "2r/s", 8, None, {
            bursts(4, 60, 20, Duration::from_millis(1900), length)
        }),
    ]
}

/// Maximum number of tries. A try fails if the machine delays one of the servers.
const TRIES: usize = 4;

/// The response of one server to a call.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    status: u16,
    took: Duration,
}

/// The responses of both servers to one call.
#[derive(Debug)]
struct Pair {
    key: String,
    /// The planned time of the call, from the start of the try.
    planned: Duration,
    /// The time at which the test sent the call, from the start of the try.
    sent: Duration,
    nginx: Outcome,
    weir: Outcome,
}

#[test]
fn nginx_and_the_gateway_decide_alike_side_by_side() {
    let cases = cases();
    let zones: String = cases
        .iter()
        .map(|case| {
            format!("limit_req_zone $http_x_key zone={}:1m rate={};\n", case.name, case.nginx_rate)
        })
        .collect();
    let lines: Vec<(&str, String)> = cases
        .iter()
        .map(|case| {
            let delay = match case.delay {
                None => " nodelay".to_owned(),
                Some(0) => String::new(),
                Some(delay) => format!(" delay={delay}"),
            };
            let burst =
                if case.burst == 0 { String::new() } else { format!(" burst={}", case.burst) };
            (case.name, format!("limit_req zone={}{burst}{delay};", case.name))
        })
        .collect();
    let locations: Vec<(&str, &str)> = lines.iter().map(|(name, line)| (*name, &**line)).collect();
    let Some(nginx) = Nginx::start(&zones, &locations, "error") else { return };

    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateways: Vec<TestGateway> = cases.iter().map(|case| start_gateway(&node, case)).collect();
    let weir: Vec<SocketAddr> =
        gateways.iter().map(|gateway| gateway.address.parse().unwrap()).collect();

    for attempt in 1..=TRIES {
        let (mut calls, mut differences, mut farthest) = (0, 0, 0.0f64);
        let stalls = StallDetector::start();
        let pairs = run(send_to_both(&cases, attempt, nginx.address, &weir));
        let stalled = stalls.longest_stall();
        for (case, pairs) in cases.iter().zip(pairs) {
            let refused = pairs.iter().filter(|pair| pair.nginx.status == 429).count();
            assert!(refused > pairs.len() / 10 && refused < pairs.len() * 9 / 10, "{}", case.name);
            calls += pairs.len();
            for distance in explain(case, &pairs, stalled) {
                differences += 1;
                farthest = farthest.max(distance);
            }
        }
        println!(
            "{calls} calls, {differences} decided differently, at most {farthest:.3} ms from where \
             the decision changes"
        );
        assert!(calls > 2000, "only {calls} calls");
        // Every difference is explained now. There must also be few, but only if the machine gave
        // both servers enough processor time.
        if differences * 1000 <= calls {
            return;
        }
    }
    panic!("more than 0.1 % of the calls differ in each of {TRIES} tries");
}

/// Starts a gateway with the limit of a case.
fn start_gateway(node: &SimNode, case: &Case) -> TestGateway {
    let delay = match case.delay {
        None => "nodelay = true".to_owned(),
        Some(delay) => format!("delay = {delay}"),
    };
    let limit = format!(
        "[zone.z]\nkey = [\"header:x-key\"]\nrate = \"{}\"\n\
         [[limit]]\nzone = \"z\"\nburst = {}\n{delay}\n",
        case.nginx_rate, case.burst
    );
    let text = format!("{}{limit}{}", chain_polled_once(""), node.to_toml(""));
    let gateway = TestGateway::start(&text);
    gateway.wait_for_head(Some(NEWEST_BLOCK));
    gateway
}

/// Sends the plans of all cases to both servers at the same time. Returns the pairs by case.
async fn send_to_both(
    cases: &[Case],
    attempt: usize,
    nginx: SocketAddr,
    weir: &[SocketAddr],
) -> Vec<Vec<Pair>> {
    let nginx = ConnectionPool::new(nginx);
    nginx.open(200).await;
    let gateways: Vec<ConnectionPool> =
        weir.iter().map(|address| ConnectionPool::new(*address)).collect();
    for gateway in &gateways {
        gateway.open(50).await;
    }
    let begin = Instant::now() + Duration::from_millis(50);
    let mut tasks = Vec::new();
    for (case, weir) in cases.iter().zip(&gateways) {
        let case_tasks: Vec<_> = case
            .plan
            .iter()
            .cloned()
            .map(|arrival| {
                let key = format!("{attempt}-{}", arrival.key);
                let to_nginx = get(case.name, &format!("X-Key: {key}\r\n"));
                let line = format!("X-Key: {key}\r\n");
                let to_weir = post_with("/", &line, &body("eth_blockNumber", "[]"));
                let (nginx, weir) = (nginx.clone(), weir.clone());
                tokio::task::spawn_local(async move {
                    tokio::time::sleep_until(begin + arrival.at).await;
                    let mut first = nginx.take().await;
                    let mut second = weir.take().await;
                    let sent = Instant::now();
                    send(&mut first, &to_nginx).await;
                    send(&mut second, &to_weir).await;
                    let (nginx_response, weir_response) =
                        tokio::join!(nginx.read_response(first), weir.read_response(second));
                    let to_outcome = |(status, received_at): (u16, Instant)| Outcome {
                        status,
                        took: received_at - sent,
                    };
                    Pair {
                        key,
                        planned: arrival.at,
                        sent: sent - begin,
                        nginx: to_outcome(nginx_response),
                        weir: to_outcome(weir_response),
                    }
                })
            })
            .collect();
        tasks.push(case_tasks);
    }
    let mut all = Vec::new();
    for case_tasks in tasks {
        let mut pairs = Vec::new();
        for task in case_tasks {
            pairs.push(task.await.unwrap());
        }
        all.push(pair_bursts_in_order(pairs));
    }
    all
}

/// Sorts the pairs by their sending time. The calls of a burst use different connections, so the
/// two servers may receive them in different orders. So this function sorts the responses of each
/// server to a burst, and pairs them again.
fn pair_bursts_in_order(mut pairs: Vec<Pair>) -> Vec<Pair> {
    pairs.sort_by(|a, b| (a.planned, &a.key, a.sent).cmp(&(b.planned, &b.key, b.sent)));
    for burst_pairs in pairs.chunk_by_mut(|a, b| a.key == b.key && a.planned == b.planned) {
        let mut nginx: Vec<Outcome> = burst_pairs.iter().map(|pair| pair.nginx).collect();
        let mut weir: Vec<Outcome> = burst_pairs.iter().map(|pair| pair.weir).collect();
        nginx.sort_by_key(|outcome| (outcome.status, outcome.took));
        weir.sort_by_key(|outcome| (outcome.status, outcome.took));
        for ((pair, nginx), weir) in burst_pairs.iter_mut().zip(nginx).zip(weir) {
            (pair.nginx, pair.weir) = (nginx, weir);
        }
    }
    pairs
}

/// The state of a key at one server, calculated from that server's responses.
#[derive(Debug, Clone, Copy)]
struct KeyState {
    /// Calls above the rate, in thousandths of a call.
    excess: f64,
    /// Time of the last call that passed, in ms.
    last: f64,
    /// Maximum error of `last`, in ms.
    slack: f64,
}

/// Finds the calls that the servers decided differently. For each, returns the time in ms between
/// the call and the instant at which the decision changes.
///
/// # Panics
///
/// If such a time is longer than clocks and sockets explain.
fn explain(case: &Case, pairs: &[Pair], stalled: Duration) -> Vec<f64> {
    // In thousandths of a call per ms.
    let rate = case.rate.thousandths() as f64 / 1000.0;
    let burst = (case.burst * 1000) as f64;
    let mut key_states: HashMap<&str, [Option<KeyState>; 2]> = HashMap::new();
    // Keys for which one server has passed one call more than the other. The value is the index of
    // that server, and the time between that call and the change of the decision.
    let mut apart: HashMap<&str, (usize, f64)> = HashMap::new();
    let mut distances = Vec::new();
    for pair in pairs {
        let now = pair.sent.as_secs_f64() * 1000.0;
        let states = key_states.entry(&pair.key).or_default();
        let excess = |state: Option<KeyState>| {
            state.map_or(0.0, |key_state| {
                (key_state.excess - rate * (now - key_state.last) + 1000.0).max(0.0)
            })
        };
        let passed = [pair.nginx, pair.weir].map(|outcome| {
            assert!(matches!(outcome.status, 200 | 429), "{pair:?}");
            outcome.status == 200
        });
        // The longest time in ms between the sending and a server's decision. It is the response
        // time without the delay that the limit causes.
        let mut decision_delay = [0.0; 2];
        for (decision_delay, (state, outcome)) in
            decision_delay.iter_mut().zip(states.iter().zip([pair.nginx, pair.weir]))
        {
            let wait = match case.delay {
                Some(delay) if outcome.status == 200 => {
                    ((excess(*state) - (delay * 1000) as f64) / rate).max(0.0)
                }
                _ => 0.0,
            };
            *decision_delay = (outcome.took.as_secs_f64() * 1000.0 - wait).max(0.0);
        }
        if passed[0] != passed[1] {
            let more = usize::from(passed[1]);
            let distance = match apart.remove(&*pair.key) {
                // The other server has now passed one call more, which ends the earlier difference.
                Some((other, distance)) => {
                    assert_ne!(other, more, "{pair:?} widens a difference");
                    distance
                }
                None => {
                    let distance = states.map(|state| (excess(state) - burst).abs() / rate);
                    let distance = distance[0].min(distance[1]);
                    // Three causes allow a distance. A clock of whole ms may be wrong by one at
                    // both ends of a span. A server decides at an unknown time between the sending
                    // and the response. If a server stalls after it has read its clock, it uses an
                    // old time.
                    let since = states.map(|state| state.map_or(0.0, |key_state| key_state.slack));
                    let stall_ms = stalled.as_secs_f64() * 1000.0;
                    let slack = 2.0
                        + stall_ms
                        + decision_delay[0].max(decision_delay[1])
                        + since[0].max(since[1]);
                    assert!(distance < slack, "{distance} ms away, at most {slack}: {pair:?}");
                    apart.insert(&pair.key, (more, distance));
                    distance
                }
            };
            distances.push(distance);
        } else if passed[0] && case.delay.is_some() && !apart.contains_key(&*pair.key) {
            // The rate is one call per second. So if the servers counted differently, the delays
            // would differ by a second.
            let difference = pair.nginx.took.abs_diff(pair.weir.took);
            assert!(difference < Duration::from_millis(800), "the delays differ: {pair:?}");
        }
        for ((state, passed), decision_delay) in states.iter_mut().zip(passed).zip(decision_delay) {
            if passed {
                let excess = excess(*state);
                // The next span begins where this one ends. So only the start of the first span has
                // an error.
                let slack = state
                    .filter(|_| excess > 0.0)
                    .map_or(decision_delay, |key_state| key_state.slack);
                *state = Some(KeyState { excess, last: now, slack });
            }
        }
    }
    distances
}
