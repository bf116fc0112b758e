//! The same arrivals to nginx and to the gateway at once: whoever passes, waits or is refused at
//! one does so at the other, but for calls that come so close to the instant at which the decision
//! changes that the two servers' clocks may see different milliseconds. Such differences are
//! counted and every one has to be explained by its distance from that instant.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use gateway::policy::limit::Rate;
use tokio::time::Instant;

use super::arrivals::{Arrival, Kept, bursts, get, poisson, run, send};
use super::nginx::Nginx;
use crate::support::scene::{Scene, Served, SimNode, body, polled_once};
use crate::support::stalls::Stalls;
use test_support::raw::post_with;

/// A limit that both servers get, and the calls that come.
struct Case {
    name: &'static str,
    rate: Rate,
    nginx_rate: &'static str,
    burst: u64,
    /// None is `nodelay`.
    delay: Option<u64>,
    plan: Vec<Arrival>,
}

/// Rates are low: the share of calls that come within a clock's grain of a change of the decision
/// grows with the rate, at any server.
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

/// How often it is tried to find both servers on time.
const TRIES: usize = 4;

/// What became of one call at one server.
#[derive(Debug, Clone, Copy)]
struct Seen {
    status: u16,
    took: Duration,
}

/// One call at both.
#[derive(Debug)]
struct Pair {
    key: String,
    planned: Duration,
    sent: Duration,
    nginx: Seen,
    weir: Seen,
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

    let scene = Scene::set();
    let [node] = scene.nodes(["a"]);
    let served: Vec<Served> = cases.iter().map(|case| gateway(&node, case)).collect();
    let weir: Vec<SocketAddr> =
        served.iter().map(|served| served.address.parse().unwrap()).collect();

    for attempt in 1..=TRIES {
        let (mut calls, mut differences, mut farthest) = (0, 0, 0.0f64);
        let stalls = Stalls::watch();
        let pairs = run(arrive(&cases, attempt, nginx.address, &weir));
        let stalled = stalls.worst();
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
        // Every difference is explained; that they are few can be seen only while both servers get
        // their cores.
        if differences * 1000 <= calls {
            return;
        }
    }
    panic!("more than 0.1 % of the calls differ in each of {TRIES} tries");
}

/// A gateway with a case's limit.
fn gateway(node: &SimNode, case: &Case) -> Served {
    let delay = match case.delay {
        None => "nodelay = true".to_owned(),
        Some(delay) => format!("delay = {delay}"),
    };
    let limit = format!(
        "[zone.z]\nkey = [\"header:x-key\"]\nrate = \"{}\"\n\
         [[limit]]\nzone = \"z\"\nburst = {}\n{delay}\n",
        case.nginx_rate, case.burst
    );
    let served = Served::start(&format!("{}{limit}{}", polled_once(""), node.entry("")));
    served.wait_for_head(Some(crate::support::scene::HEAD));
    served
}

/// Sends every plan to both servers at once.
async fn arrive(
    cases: &[Case],
    attempt: usize,
    nginx: SocketAddr,
    weir: &[SocketAddr],
) -> Vec<Vec<Pair>> {
    let nginx = Kept::to(nginx);
    nginx.open(200).await;
    let gateways: Vec<Kept> = weir.iter().map(|address| Kept::to(*address)).collect();
    for gateway in &gateways {
        gateway.open(50).await;
    }
    let begin = Instant::now() + Duration::from_millis(50);
    let mut tasks = Vec::new();
    for (case, weir) in cases.iter().zip(&gateways) {
        let of_case: Vec<_> = case
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
                    let (a, b) = tokio::join!(nginx.answer(first), weir.answer(second));
                    let seen = |(status, came): (u16, Instant)| Seen { status, took: came - sent };
                    Pair {
                        key,
                        planned: arrival.at,
                        sent: sent - begin,
                        nginx: seen(a),
                        weir: seen(b),
                    }
                })
            })
            .collect();
        tasks.push(of_case);
    }
    let mut all = Vec::new();
    for of_case in tasks {
        let mut pairs = Vec::new();
        for task in of_case {
            pairs.push(task.await.unwrap());
        }
        all.push(matched(pairs));
    }
    all
}

/// The pairs in the order of their sending. Calls of one key at one instant come over connections
/// of their own, in any order at either server: so the outcomes of such a crowd are matched in
/// order.
fn matched(mut pairs: Vec<Pair>) -> Vec<Pair> {
    pairs.sort_by(|a, b| (a.planned, &a.key, a.sent).cmp(&(b.planned, &b.key, b.sent)));
    for crowd in pairs.chunk_by_mut(|a, b| a.key == b.key && a.planned == b.planned) {
        let mut nginx: Vec<Seen> = crowd.iter().map(|pair| pair.nginx).collect();
        let mut weir: Vec<Seen> = crowd.iter().map(|pair| pair.weir).collect();
        nginx.sort_by_key(|seen| (seen.status, seen.took));
        weir.sort_by_key(|seen| (seen.status, seen.took));
        for ((pair, nginx), weir) in crowd.iter_mut().zip(nginx).zip(weir) {
            (pair.nginx, pair.weir) = (nginx, weir);
        }
    }
    pairs
}

/// What one server keeps of a key, by its own outcomes, in real numbers: thousandths and ms.
#[derive(Debug, Clone, Copy)]
struct Kept1 {
    excess: f64,
    last: f64,
    /// By how much the instant may be off from which on the excess was counted.
    slack: f64,
}

/// The distances in ms from the change of the decision, of the calls that were decided differently.
///
/// # Panics
/// If one of them came farther from it than clocks and sockets explain.
fn explain(case: &Case, pairs: &[Pair], stalled: Duration) -> Vec<f64> {
    // Thousandths per ms.
    let rate = case.rate.thousandths() as f64 / 1000.0;
    let burst = (case.burst * 1000) as f64;
    let mut kept: HashMap<&str, [Option<Kept1>; 2]> = HashMap::new();
    // Of keys whose states differ: who has charged one more, and how far from the change that was.
    let mut apart: HashMap<&str, (usize, f64)> = HashMap::new();
    let mut distances = Vec::new();
    for pair in pairs {
        let now = pair.sent.as_secs_f64() * 1000.0;
        let states = kept.entry(&pair.key).or_default();
        let excess = |state: Option<Kept1>| {
            state.map_or(0.0, |kept| (kept.excess - rate * (now - kept.last) + 1000.0).max(0.0))
        };
        let passed = [pair.nginx, pair.weir].map(|seen| {
            assert!(matches!(seen.status, 200 | 429), "{pair:?}");
            seen.status == 200
        });
        // How long a server may have taken to look at it: all of the time that it was not told to
        // wait.
        let mut unseen = [0.0; 2];
        for (unseen, (state, seen)) in
            unseen.iter_mut().zip(states.iter().zip([pair.nginx, pair.weir]))
        {
            let wait = match case.delay {
                Some(delay) if seen.status == 200 => {
                    ((excess(*state) - (delay * 1000) as f64) / rate).max(0.0)
                }
                _ => 0.0,
            };
            *unseen = (seen.took.as_secs_f64() * 1000.0 - wait).max(0.0);
        }
        if passed[0] != passed[1] {
            let more = usize::from(passed[1]);
            let distance = match apart.remove(&*pair.key) {
                // The other one passes what the first had passed before: the same difference, its
                // end.
                Some((other, distance)) => {
                    assert_ne!(other, more, "{pair:?} widens a difference");
                    distance
                }
                None => {
                    let distance = states.map(|state| (excess(state) - burst).abs() / rate);
                    let distance = distance[0].min(distance[1]);
                    // A clock of whole ms may be off by one at both ends of a span; and a request
                    // is seen some time between when it was sent and when its answer came. A server
                    // that was held up between reading its clock and the request knows an older
                    // time.
                    let since = states.map(|state| state.map_or(0.0, |kept| kept.slack));
                    let held_up = stalled.as_secs_f64() * 1000.0;
                    let slack = 2.0 + held_up + unseen[0].max(unseen[1]) + since[0].max(since[1]);
                    assert!(distance < slack, "{distance} ms away, at most {slack}: {pair:?}");
                    apart.insert(&pair.key, (more, distance));
                    distance
                }
            };
            distances.push(distance);
        } else if passed[0] && case.delay.is_some() && !apart.contains_key(&*pair.key) {
            // A turn is a second.
            let apart = pair.nginx.took.abs_diff(pair.weir.took);
            assert!(apart < Duration::from_millis(800), "they wait differently: {pair:?}");
        }
        for ((state, passed), unseen) in states.iter_mut().zip(passed).zip(unseen) {
            if passed {
                let excess = excess(*state);
                // Later spans begin where this one ends, so that only the first one's start counts.
                let slack = state.filter(|_| excess > 0.0).map_or(unseen, |kept| kept.slack);
                *state = Some(Kept1 { excess, last: now, slack });
            }
        }
    }
    distances
}
