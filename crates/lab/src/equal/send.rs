//! Sends a call to both servers and compares the responses.
//!
//! A difference counts only if the responses also differ when both servers are called again. If the
//! response depends on the head (the newest block), both servers must also report the same head
//! before and after the calls.

use std::time::Duration;

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
    /// Sends a call to both servers. While the responses differ or neither server responds, sends
    /// it again, at most [`REPEATS`] times.
    pub(super) fn compare(&self, call: &ComparedCall) -> Outcome {
        let body = call.body();
        let mut outcome = self.compare_once(&body);
        for _ in 0..REPEATS {
            match &outcome {
                Outcome::Compared(found_differences) if found_differences.is_empty() => {
                    return outcome;
                }
                _ => outcome = self.compare_once(&body),
            }
        }
        match &outcome {
            Outcome::Compared(found_differences)
                if !found_differences.is_empty() && !call.names_its_block =>
            {
                self.compare_at_same_head(&body)
            }
            _ => outcome,
        }
    }

    /// Sends a call to both servers once and compares the responses.
    fn compare_once(&self, body: &[u8]) -> Outcome {
        let (left, right) = (send(self.a, body), send(self.b, body));
        if left.is_err() && right.is_err() {
            return Outcome::Unanswered;
        }
        Outcome::Compared(differences(&left, &right, ComparedCall::ID))
    }

    /// Compares the responses while both servers have the same head.
    fn compare_at_same_head(&self, body: &[u8]) -> Outcome {
        let read_heads =
            || (read_head_with(self.a, self.family), read_head_with(self.b, self.family));
        for _ in 0..SAME_HEAD_ATTEMPTS {
            let heads_before = read_heads();
            let outcome = self.compare_once(body);
            match &outcome {
                Outcome::Compared(found_differences) if found_differences.is_empty() => {
                    return outcome;
                }
                // Both servers had the same head before and after the calls, so the difference
                // counts.
                _ if heads_before.0 == heads_before.1 && heads_before == read_heads() => {
                    return outcome;
                }
                _ => std::thread::park_timeout(SAME_HEAD_WAIT),
            }
        }
        Outcome::Unstable
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
            false => Err(format!("HTTP status {status}")),
        };
    }
    Err("HTTP status 429".to_owned())
}
