//! Sends a call to both servers and compares the responses.
//!
//! If the responses differ, both servers are called again. A difference that persists counts. One
//! that goes away is *unsteady*, unless the chain's movement explains it: the response depends on
//! the head (the newest block), and the servers did not report the same head before and after the
//! calls.

use std::time::Duration;

use lab_model::results::equal::DifferenceClass;
use wire::family::Family;
use wire::response::parse_response;

use super::ComparedCall;
use crate::analysis::json_compare::all::{ClassifiedDifference, Sent, differences};
use crate::target::{Client, read_head_with};

/// Number of times that both servers are called again after a difference.
const REPEATS: u32 = 2;
/// Maximum number of attempts to compare responses at the same head.
const SAME_HEAD_ATTEMPTS: u32 = 20;
/// Wait between attempts at the same head.
const SAME_HEAD_WAIT: Duration = Duration::from_millis(250);
/// Maximum number of attempts while the status is 429.
const RATE_LIMITED_ATTEMPTS: u32 = 4;
/// First wait after status 429. Each further wait is twice as long.
const RATE_LIMITED_WAIT: Duration = Duration::from_millis(500);

/// The result of a call to both servers.
#[derive(Debug)]
pub(super) enum Outcome {
    /// At least one server responded. The list has the differences between the responses. It is
    /// empty if the responses are equal.
    Compared(Vec<ClassifiedDifference>),
    /// The responses differed in some attempts and were equal in others. The list has the
    /// differences of the first attempt that found any.
    Unsteady(Vec<ClassifiedDifference>),
    /// Neither server responded.
    Unanswered,
    /// The responses differ, but the heads of the servers were never the same for long enough. The
    /// call counts as unanswered.
    Unstable,
}

/// The two servers.
pub(super) struct Pair<'a> {
    pub(super) a: &'a Client,
    pub(super) b: &'a Client,
    pub(super) family: Family,
}

impl Pair<'_> {
    /// Sends a call to both servers. If the responses differ or neither server responds, sends it
    /// again, [`REPEATS`] times.
    pub(super) fn compare(&self, call: &ComparedCall) -> Outcome {
        let body = call.body();
        let first = self.compare_once(&body);
        if is_equal(&first) {
            return first;
        }
        if !call.names_its_block && !matches!(first, Outcome::Unanswered) {
            return self.compare_at_same_head(&body);
        }
        let mut attempts = vec![first];
        attempts.extend((0..REPEATS).map(|_| self.compare_once(&body)));
        judge(attempts)
    }

    /// Sends a call to both servers once and compares the responses.
    fn compare_once(&self, body: &[u8]) -> Outcome {
        let (left, right) = (send(self.a, body), send(self.b, body));
        if left.is_err() && right.is_err() {
            return Outcome::Unanswered;
        }
        Outcome::Compared(differences(&left, &right, ComparedCall::ID))
    }

    /// Compares the responses while both servers have the same head, until [`REPEATS`] + 1 attempts
    /// had the same head.
    fn compare_at_same_head(&self, body: &[u8]) -> Outcome {
        let read_heads =
            || (read_head_with(self.a, self.family), read_head_with(self.b, self.family));
        let (mut attempts, mut was_equal) = (Vec::new(), false);
        for _ in 0..SAME_HEAD_ATTEMPTS {
            let heads_before = read_heads();
            let outcome = self.compare_once(body);
            was_equal |= is_equal(&outcome);
            // Both servers had the same head before and after the calls, so the outcome counts.
            if heads_before.0 == heads_before.1 && heads_before == read_heads() {
                attempts.push(outcome);
            } else {
                std::thread::park_timeout(SAME_HEAD_WAIT);
            }
            if attempts.len() > REPEATS as usize {
                break;
            }
        }
        match attempts.is_empty() {
            false => judge(attempts),
            true if was_equal => Outcome::Compared(Vec::new()),
            true => Outcome::Unstable,
        }
    }
}

/// Returns true if the responses are equal.
fn is_equal(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Compared(found) if found.is_empty())
}

/// Judges several attempts at a call, between which the chain did not move. A server that did not
/// respond in one attempt has not responded wrongly.
fn judge(attempts: Vec<Outcome>) -> Outcome {
    let has_response = |outcome: &Outcome| match outcome {
        Outcome::Compared(found) => {
            found.iter().all(|difference| difference.class != DifferenceClass::NoResponse)
        }
        _ => false,
    };
    let (mut answered, mut others): (Vec<_>, Vec<_>) = attempts.into_iter().partition(has_response);
    if answered.is_empty() {
        return others.pop().unwrap_or(Outcome::Unanswered);
    }
    let is_steady = answered.iter().all(is_equal) || !answered.iter().any(is_equal);
    let first_difference = answered.iter().position(|outcome| !is_equal(outcome)).unwrap_or(0);
    match answered.swap_remove(first_difference) {
        Outcome::Compared(found) if !is_steady => Outcome::Unsteady(found),
        outcome => outcome,
    }
}

/// Sends a body to a server, and sends it again after status 429. Returns the body of a response
/// that is JSON-RPC or has a status of success. Otherwise returns the reason for the failure.
fn send(client: &Client, body: &[u8]) -> Sent {
    let mut wait = RATE_LIMITED_WAIT;
    for attempt in 1.. {
        let (status, response) = client.post(body).map_err(|fault| fault.reason.to_string())?;
        if status == 429 && attempt < RATE_LIMITED_ATTEMPTS {
            std::thread::park_timeout(wait);
            wait *= 2;
            continue;
        }
        let is_response = parse_response(&response, wire::json::DEPTH_CEILING).is_ok();
        return match is_response || (200..300).contains(&status) {
            true => Ok(response),
            false => Err(format!("HTTP status {status}: {}", client.message_of(&response))),
        };
    }
    Err("HTTP status 429".to_owned())
}
