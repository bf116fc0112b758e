//! The twelve settings of a public report on nginx's rate limits (seagiv/rpcstest, 2019), with its
//! kind of load, against nginx and the gateway at once: answers and refusals per second must agree
//! within 3 %.
//!
//! Workers send, wait for the answer, pause 100 ms, and give up after 5 s. The report's node took
//! 2 ms for a call; here nothing takes any time, so the pause is as much longer; it varies by a
//! fifth around that, so that workers who were held up together do not stay a crowd. Six settings
//! have 100 workers; the other six are slow rates doubling from 240 per minute, with two workers.
//! The full length is for `WEIR_REPORT_SECONDS=60`.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::arrivals::{get, run, send, status};
use super::nginx::Nginx;
use crate::support::scene::{Scene, Served, SimNode, body, polled_once};
use test_support::raw::post;

const PAUSE: Duration = Duration::from_millis(102);
const PATIENCE: Duration = Duration::from_secs(5);
/// Of one setting, where nothing else is asked for.
const SECONDS: u64 = 3;
/// Settings with many workers that run at a time: the load of one is 1,000 requests/s per server.
const AT_A_TIME: usize = 2;

/// How often settings that come out differently are tried.
const TRIES: usize = 5;

/// Requests per minute, burst, nodelay, workers.
const ROWS: [(u64, u64, bool, usize); 12] = [
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

/// What workers met: answers, refusals, and times given up.
#[derive(Debug, Default, Clone, Copy)]
struct Met {
    answered: u64,
    refused: u64,
    given_up: u64,
}

#[test]
fn the_twelve_settings_of_the_report_come_out_as_with_nginx() {
    let seconds = std::env::var("WEIR_REPORT_SECONDS").ok().map(|text| text.parse().unwrap());
    let length = Duration::from_secs(seconds.unwrap_or(SECONDS));
    let names: Vec<String> = (0..ROWS.len()).map(|row| format!("r{row}")).collect();
    let zones: String = ROWS
        .iter()
        .zip(&names)
        .map(|((rate, ..), name)| {
            format!("limit_req_zone $binary_remote_addr zone={name}:1m rate={rate}r/m;\n")
        })
        .collect();
    let lines: Vec<String> = ROWS
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
    let scene = Scene::set();
    let [node] = scene.nodes(["a"]);
    let gateways: Vec<Served> = ROWS.iter().map(|row| gateway(&node, *row)).collect();

    let many: Vec<usize> = (0..ROWS.len()).filter(|row| ROWS[*row].3 > 2).collect();
    let few: Vec<usize> = (0..ROWS.len()).filter(|row| ROWS[*row].3 <= 2).collect();
    let run_row = |row: usize| {
        let to = gateways[row].address.parse().unwrap();
        both(nginx.address, to, names[row].clone(), ROWS[row].3, length)
    };
    let mut apart = ROWS.len();
    let (mut many, mut few) = (many, few);
    for _ in 0..TRIES {
        let rows = try_rows(&many, &few, &run_row);
        let differ: Vec<usize> = rows
            .iter()
            .filter(|(row, met)| !agree(*row, *met, length))
            .map(|(row, _)| *row)
            .collect();
        apart = differ.len();
        if apart == 0 {
            break;
        }
        // Another program may have held up one of the servers: what is true shows again.
        many.retain(|row| differ.contains(row));
        few.retain(|row| differ.contains(row));
    }
    assert_eq!(apart, 0, "settings that differ by more than 3 % in each of {TRIES} tries");
}

/// Runs settings: those with many workers a few at a time, the others beside them.
fn try_rows<F>(
    many: &[usize],
    few: &[usize],
    run_row: &impl Fn(usize) -> F,
) -> Vec<(usize, (Met, Met))>
where
    F: Future<Output = (Met, Met)> + 'static,
{
    let (of_many, of_few) = run(async {
        let one_after_the_other = async {
            let mut met = Vec::new();
            for rows in many.chunks(AT_A_TIME) {
                met.extend(futures(rows.iter().map(|row| run_row(*row))).await);
            }
            met
        };
        let all = futures(few.iter().map(|row| run_row(*row)));
        tokio::join!(one_after_the_other, all)
    });
    many.iter().chain(few).copied().zip(of_many.into_iter().chain(of_few)).collect()
}

/// Prints what workers met at nginx and at the gateway; whether it agrees.
fn agree(row: usize, (theirs, ours): (Met, Met), length: Duration) -> bool {
    let (rate, burst, nodelay, workers) = ROWS[row];
    let per_second = |count: u64| count as f64 / length.as_secs_f64();
    // One more or less at each end of the time is no difference of rates, nor is one crowd of
    // workers that either server had to keep waiting for its turn on a core.
    let all = theirs.answered + theirs.refused;
    let slack = (all as f64 * 0.01).max(2.0);
    let near =
        |nginx: u64, weir: u64| weir.abs_diff(nginx) as f64 <= (nginx as f64 * 0.03).max(slack);
    let agree = near(theirs.answered, ours.answered) && near(theirs.refused, ours.refused);
    println!(
        "{rate:>7} r/m, burst {burst:>5}{}, {workers:>3} workers: nginx {:>6.1} / {:>6.1} per s, \
         weir {:>6.1} / {:>6.1}, given up {} and {}{}",
        if nodelay { ", nodelay" } else { "         " },
        per_second(theirs.answered),
        per_second(theirs.refused),
        per_second(ours.answered),
        per_second(ours.refused),
        theirs.given_up,
        ours.given_up,
        if agree { "" } else { ": APART" },
    );
    agree
}

/// A gateway with the limit of a setting.
fn gateway(node: &SimNode, (rate, burst, nodelay, _): (u64, u64, bool, usize)) -> Served {
    let limit = format!(
        "[zone.z]\nkey = [\"client\"]\nrate = \"{rate}r/m\"\n\
         [[limit]]\nzone = \"z\"\nburst = {burst}\nnodelay = {nodelay}\n"
    );
    let served = Served::start(&format!("{}{limit}{}", polled_once(""), node.entry("")));
    served.wait_for_head(Some(crate::support::scene::HEAD));
    served
}

/// The same workers at both servers.
async fn both(
    nginx: SocketAddr,
    weir: SocketAddr,
    location: String,
    workers: usize,
    length: Duration,
) -> (Met, Met) {
    let to_nginx: Rc<[u8]> = get(&location, "").into();
    let to_weir: Rc<[u8]> = post("/", &body("eth_blockNumber", "[]")).into();
    tokio::join!(work(nginx, to_nginx, workers, length), work(weir, to_weir, workers, length))
}

async fn work(address: SocketAddr, request: Rc<[u8]>, workers: usize, length: Duration) -> Met {
    let met = Rc::new(RefCell::new(Met::default()));
    let end = Instant::now() + length;
    let tasks: Vec<_> = (0..workers)
        .map(|worker| {
            let (met, request) = (Rc::clone(&met), Rc::clone(&request));
            tokio::task::spawn_local(async move {
                // Sleeps: together they would come as one crowd ever after.
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
                    match tokio::time::timeout(patience, status(&mut stream)).await {
                        Ok(200) => met.borrow_mut().answered += 1,
                        Ok(429) => met.borrow_mut().refused += 1,
                        Ok(other) => panic!("status {other}"),
                        Err(_) => {
                            met.borrow_mut().given_up += 1;
                            continue;
                        }
                    }
                    connection = Some(stream);
                    // Sleeps: the pause is a part of the report's load.
                    tokio::time::sleep(PAUSE.mul_f64(random.random_range(0.8..1.2))).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    met.take()
}

/// All of some futures at once, on this thread.
async fn futures<F>(all: impl Iterator<Item = F>) -> Vec<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let tasks: Vec<_> = all.map(tokio::task::spawn_local).collect();
    let mut done = Vec::new();
    for task in tasks {
        done.push(task.await.unwrap());
    }
    done
}
