//! Clients that send calls at a planned rate and record each outcome.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{BURST, RATE};
use crate::support::open_loop::{KeepAliveConnection, StopGuard, call_body};

/// Number of clients whose calls count for the shared limit. Together they send more calls than the
/// limit allows.
const LIMITED: u32 = 20;
/// Number of clients without a limit.
const UNLIMITED: u32 = 10;

/// One call.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) started: Instant,
    pub(super) ended: Instant,
    pub(super) outcome: Outcome,
}

/// The outcome of a call.
#[derive(Debug, PartialEq)]
pub(super) enum Outcome {
    /// The response has a result. The call is not limited.
    Unlimited,
    /// The response has a result. The call counts for the shared limit.
    Passed,
    /// The shared limit rejected the call.
    Rejected,
    Failed(String),
}

/// Sends `rate` calls per second while `scenario` runs. Returns all calls.
pub(super) fn run_under_load(target: &str, rate: u32, scenario: impl FnOnce()) -> Vec<Record> {
    let interval = Duration::from_secs(1) * (LIMITED + UNLIMITED) / rate;
    let stop = AtomicBool::new(false);
    let calls = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for number in 0..LIMITED + UNLIMITED {
            let (stop, calls) = (&stop, &calls);
            scope.spawn(move || {
                let records = run_client(target, number, interval, stop);
                calls.lock().extend(records);
            });
        }
        // Stops the clients even if the scenario panics.
        let _stop = StopGuard(&stop);
        scenario();
    });
    calls.into_inner()
}

/// Sends the calls of one client until `stop` is set.
fn run_client(target: &str, number: u32, interval: Duration, stop: &AtomicBool) -> Vec<Record> {
    let header_lines = if number < LIMITED { "X-Tenant: a\r\n" } else { "" };
    let mut connection = KeepAliveConnection::default();
    let mut records = Vec::new();
    let began = Instant::now() + interval * number / (LIMITED + UNLIMITED);
    for call_number in 0u32.. {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let planned = began + interval * call_number;
        while let Some(wait) = planned.checked_duration_since(Instant::now()) {
            std::thread::park_timeout(wait); // Sleeps: the planned rate.
        }
        let started = Instant::now();
        let response = connection.call(target, header_lines, &call_body(number, call_number));
        let outcome =
            match response {
                Ok((head, body))
                    if head.starts_with("http/1.1 200") && body.contains("\"result\"") =>
                {
                    if number < LIMITED { Outcome::Passed } else { Outcome::Unlimited }
                }
                Ok((head, _)) if head.starts_with("http/1.1 429") && number < LIMITED => {
                    Outcome::Rejected
                }
                Ok((head, body)) => Outcome::Failed(format!("{head}{body}")),
                Err(error) => Outcome::Failed(error.to_string()),
            };
        records.push(Record { started, ended: Instant::now(), outcome });
    }
    records
}

/// Returns the least number of calls that a correct limit lets pass between two instants. Applies
/// the limit again to the recorded calls, and assumes that the burst is used up at `from`.
pub(super) fn passed_min(calls: &[Record], from: Instant, to: Instant) -> f64 {
    let is_limited = |call: &&Record| matches!(call.outcome, Outcome::Passed | Outcome::Rejected);
    let ends = calls.iter().filter(is_limited).map(|call| call.ended);
    let mut ends: Vec<Instant> = ends.filter(|end| (from..to).contains(end)).collect();
    ends.sort_unstable();
    let (mut excess, mut last, mut passed) = (BURST, from, 0u32);
    for end in ends {
        excess = (excess - (end - last).as_secs_f64() * RATE).max(0.0);
        last = end;
        if excess + 1.0 <= BURST {
            excess += 1.0;
            passed += 1;
        }
    }
    f64::from(passed)
}
