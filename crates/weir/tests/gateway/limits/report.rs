//! Runs the twelve settings of a public report on nginx's rate limits (seagiv/rpcstest, 2019). Each
//! setting runs against nginx and the gateway at the same time, with the same kind of load. The
//! successes and refusals per second must agree within 3 %.
//!
//! A worker sends a request, waits for the response (at most 5 s), pauses, and repeats. The report
//! paused for 100 ms, and its node took 2 ms for a call. Here a call takes almost no time, so the
//! pause is 102 ms. It varies at random by 20 %, because workers that a limit has delayed together
//! would otherwise stay together.
//!
//! Six settings have 100 workers. The other six have two workers and low rates: 240 per minute, and
//! each rate is twice the one before. `WEIR_REPORT_SECONDS=60` runs the full length of the report.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::arrivals::{get, read_status, run, send};
use super::nginx::Nginx;
use crate::support::harness::{
    NEWEST_BLOCK, NodeRuntime, SimNode, TestGateway, body, chain_polled_once,
};
use test_support::raw::post;

/// Average pause of a worker between a response and the next request.
const PAUSE: Duration = Duration::from_millis(102);
/// Maximum time that a worker waits for a response.
const PATIENCE: Duration = Duration::from_secs(5);
/// Default length of the run of one setting, in seconds.
const SECONDS: u64 = 3;
/// Number of settings with 100 workers that run at the same time. Each sends about 1,000 requests
/// per second to each server.
const CONCURRENT_SETTINGS: usize = 2;

/// Maximum number of runs of a setting until nginx and the gateway agree.
const TRIES: usize = 5;

/// The settings: requests per minute, burst, `nodelay`, number of workers.
const SETTINGS: [(u64, u64, bool, usize); 12] = [
    (240, 60, false, 100),
    (1_000_240, 60, false, 100),
    (58_900, 60, true, 100),
    (32_000, 60, true, 100),
    (32_000, 3_600, true, 100),
    (32_000, 13_600, true, 100),
    (240, 60, false, 2),
    (480, 60, false, 2),
    (960, 60, false, 2),
    (1_920, 60, false, 2),
    (3_840, 60, false, 2),
    (7_680, 60, false, 2),
];

/// The results of all workers at one server.
#[derive(Debug, Default, Clone, Copy)]
struct Results {
    /// Responses with status 200.
    answered: u64,
    /// Responses with status 429.
    refused: u64,
    /// Requests without a response within [`PATIENCE`].
    timed_out: u64,
}

#[test]
fn the_twelve_settings_of_the_report_come_out_as_with_nginx() {
    let seconds = std::env::var("WEIR_REPORT_SECONDS").ok().map(|text| text.parse().unwrap());
    let length = Duration::from_secs(seconds.unwrap_or(SECONDS));
    let names: Vec<String> = (0..SETTINGS.len()).map(|row| format!("r{row}")).collect();
    let zones: String = SETTINGS
        .iter()
        .zip(&names)
        .map(|((rate, ..), name)| {
            format!("limit_req_zone $binary_remote_addr zone={name}:1m rate={rate}r/m;\n")
        })
        .collect();
    let lines: Vec<String> = SETTINGS
        .iter()
        .zip(&names)
        .map(|((_, burst, nodelay, _), name)| {
            let nodelay = if *nodelay { " nodelay" } else { "" };
            format!("limit_req zone={name} burst={burst}{nodelay};")
        })
        .collect();
    let locations: Vec<(&str, &str)> =
        names.iter().zip(&lines).map(|(name, line)| (&**name, &**line)).collect();
    let Some(nginx) = Nginx::start(&zones, &locations, "error") else { return };
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateways: Vec<TestGateway> =
        SETTINGS.iter().map(|setting| start_gateway(&node, *setting)).collect();

    // The settings with many and with few workers.
    let mut many: Vec<usize> = (0..SETTINGS.len()).filter(|row| SETTINGS[*row].3 > 2).collect();
    let mut few: Vec<usize> = (0..SETTINGS.len()).filter(|row| SETTINGS[*row].3 <= 2).collect();
    let run_setting = |row: usize| {
        let gateway_address = gateways[row].address.parse().unwrap();
        run_both(nginx.address, gateway_address, names[row].clone(), SETTINGS[row].3, length)
    };
    let mut differing_count = SETTINGS.len();
    for _ in 0..TRIES {
        let results = run_settings(&many, &few, &run_setting);
        let differ: Vec<usize> = results
            .iter()
            .filter(|(row, results)| !agree(*row, *results, length))
            .map(|(row, _)| *row)
            .collect();
        differing_count = differ.len();
        if differing_count == 0 {
            break;
        }
        // Another program may have delayed one of the servers. So try again the settings that
        // differ. A real difference appears in each try.
        many.retain(|row| differ.contains(row));
        few.retain(|row| differ.contains(row));
    }
    assert_eq!(
        differing_count, 0,
        "settings that differ by more than 3 % in each of {TRIES} tries"
    );
}

/// Runs settings. Of those with many workers, [`CONCURRENT_SETTINGS`] run at a time. Meanwhile, all
/// settings with few workers run together.
fn run_settings<F>(
    many: &[usize],
    few: &[usize],
    run_setting: &impl Fn(usize) -> F,
) -> Vec<(usize, (Results, Results))>
where
    F: Future<Output = (Results, Results)> + 'static,
{
    let (of_many, of_few) = run(async {
        let all_of_many = async {
            let mut results = Vec::new();
            for rows in many.chunks(CONCURRENT_SETTINGS) {
                results.extend(join_all(rows.iter().map(|row| run_setting(*row))).await);
            }
            results
        };
        let all_of_few = join_all(few.iter().map(|row| run_setting(*row)));
        tokio::join!(all_of_many, all_of_few)
    });
    many.iter().chain(few).copied().zip(of_many.into_iter().chain(of_few)).collect()
}

/// Prints the results at nginx and at the gateway. Returns true if they agree.
fn agree(row: usize, (nginx, weir): (Results, Results), length: Duration) -> bool {
    let (rate, burst, nodelay, workers) = SETTINGS[row];
    let per_second = |count: u64| count as f64 / length.as_secs_f64();
    // A difference of two requests, or of 1 % of all, has causes other than the rates. A request at
    // the start or the end may count at one server only. A server may also wait for a core while
    // several workers send.
    let total = nginx.answered + nginx.refused;
    let slack = (total as f64 * 0.01).max(2.0);
    let is_close = |nginx_count: u64, weir_count: u64| {
        let allowed = (nginx_count as f64 * 0.03).max(slack);
        weir_count.abs_diff(nginx_count) as f64 <= allowed
    };
    let agree = is_close(nginx.answered, weir.answered) && is_close(nginx.refused, weir.refused);
    println!(
        "{rate:>7} r/m, burst {burst:>5}{}, {workers:>3} workers: nginx {:>6.1} / {:>6.1} per s, \
         weir {:>6.1} / {:>6.1}, given up {} and {}{}",
        if nodelay { ", nodelay" } else { "         " },
        per_second(nginx.answered),
        per_second(nginx.refused),
        per_second(weir.answered),
        per_second(weir.refused),
        nginx.timed_out,
        weir.timed_out,
        if agree { "" } else { ": APART" },
    );
    agree
}

/// Starts a gateway with the limit of a setting.
fn start_gateway(
    node: &SimNode,
    (rate, burst, nodelay, _): (u64, u64, bool, usize),
) -> TestGateway {
    let limit = format!(
        "[zone.z]\nkey = [\"client\"]\nrate = \"{rate}r/m\"\n\
         [[limit]]\nzone = \"z\"\nburst = {burst}\nnodelay = {nodelay}\n"
    );
    let text = format!("{}{limit}{}", chain_polled_once(""), node.to_toml(""));
    let gateway = TestGateway::start(&text);
    gateway.wait_for_head(Some(NEWEST_BLOCK));
    gateway
}

/// Runs the same load against both servers.
async fn run_both(
    nginx: SocketAddr,
    weir: SocketAddr,
    location: String,
    workers: usize,
    length: Duration,
) -> (Results, Results) {
    let to_nginx: Rc<[u8]> = get(&location, "").into();
    let to_weir: Rc<[u8]> = post("/", &body("eth_blockNumber", "[]")).into();
    tokio::join!(
        run_workers(nginx, to_nginx, workers, length),
        run_workers(weir, to_weir, workers, length)
    )
}

/// Runs workers against one server for `length`.
async fn run_workers(
    address: SocketAddr,
    request: Rc<[u8]>,
    workers: usize,
    length: Duration,
) -> Results {
    let results = Rc::new(RefCell::new(Results::default()));
    let end = Instant::now() + length;
    let tasks: Vec<_> = (0..workers)
        .map(|worker| {
            let (results, request) = (Rc::clone(&results), Rc::clone(&request));
            tokio::task::spawn_local(async move {
                // Sleeps: the workers start spread over one pause.
                tokio::time::sleep(PAUSE.mul_f64(worker as f64 / workers as f64)).await;
                let mut random = StdRng::seed_from_u64(worker as u64);
                let mut connection: Option<TcpStream> = None;
                while Instant::now() < end {
                    let mut stream = match connection.take() {
                        Some(stream) => stream,
                        None => TcpStream::connect(address).await.unwrap(),
                    };
                    send(&mut stream, &request).await;
                    let patience = PATIENCE.min(end.saturating_duration_since(Instant::now()));
                    match tokio::time::timeout(patience, read_status(&mut stream)).await {
                        Ok(200) => results.borrow_mut().answered += 1,
                        Ok(429) => results.borrow_mut().refused += 1,
                        Ok(other) => panic!("status {other}"),
                        Err(_) => {
                            results.borrow_mut().timed_out += 1;
                            continue;
                        }
                    }
                    connection = Some(stream);
                    // Sleeps: the pause is part of the report's load.
                    tokio::time::sleep(PAUSE.mul_f64(random.random_range(0.8..1.2))).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    results.take()
}

/// Runs futures concurrently on this thread and returns their outputs in order.
async fn join_all<F>(futures: impl Iterator<Item = F>) -> Vec<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let tasks: Vec<_> = futures.map(tokio::task::spawn_local).collect();
    let mut outputs = Vec::new();
    for task in tasks {
        outputs.push(task.await.unwrap());
    }
    outputs
}
