//! What can be changed on a running node, in Rust and as JSON over the admin port: how it sees the
//! chain, how fast it is, what it can carry and how it fails.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rpc::Keeping;

/// The most fault rules of a node.
pub const FAULTS_MAX: usize = 64;
/// The most methods that a node may have rates, latencies or refusals for.
pub const METHODS_MAX: usize = 1_024;

/// Everything that can be changed on a running node. The JSON form has the same names; times are in
/// milliseconds. The default is an honest, fast node without faults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// How many blocks the node stands behind the world's head.
    pub lag_blocks: u64,
    /// How long after a block's appearance the node sees it.
    #[serde(rename = "delay_ms", with = "crate::millis")]
    pub delay: Duration,
    /// How long after seeing a block the node has its logs and receipts.
    #[serde(rename = "index_delay_ms", with = "crate::millis")]
    pub index_delay: Duration,
    /// Some calls for logs and receipts reach another node behind the same address.
    pub inside: Option<Inside>,
    /// The node sees nothing above this head.
    pub frozen_at: Option<u64>,
    /// The node lies: it announces a head so many blocks above its own, with a made-up header.
    pub ahead_blocks: u64,
    /// What it keeps, and whose words it uses.
    pub keeping: Keeping,
    /// Time that every call takes.
    pub latency: Latency,
    /// Time that calls of one method take instead.
    pub method_latency: BTreeMap<String, Latency>,
    /// How many calls it can work on at once.
    pub capacity: Option<Capacity>,
    /// Rates by method; the name `*` is for all methods together that have no rate of their own.
    pub rates: BTreeMap<String, Rate>,
    /// Methods that it does not have.
    pub unsupported: BTreeSet<String>,
    /// Faults, tried in order; the first that strikes is the one.
    pub faults: Vec<FaultRule>,
    /// Over a WebSocket, messages come in fragments of so many bytes.
    pub fragment_bytes: Option<u32>,
    /// Over a WebSocket, pings are not answered.
    pub mute_to_pings: bool,
    /// Nothing is told to those who have subscribed.
    pub mute_subscriptions: bool,
}

/// A distribution of times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "shape", rename_all = "snake_case", deny_unknown_fields)]
pub enum Latency {
    /// No time at all.
    #[default]
    None,
    /// Always the same.
    Constant {
        /// The time.
        ms: f64,
    },
    /// Any time of a range with equal probability.
    Uniform {
        /// Shortest.
        low_ms: f64,
        /// Longest.
        high_ms: f64,
    },
    /// Exponential: the gaps of a Poisson process.
    Exponential {
        /// The mean.
        mean_ms: f64,
    },
    /// Log-normal: most calls near the median, a long tail.
    Lognormal {
        /// The median.
        median_ms: f64,
        /// Standard deviation of the logarithm; 1 puts the 99th percentile at 10 medians.
        sigma: f64,
    },
}

/// Another node behind the same address, as providers have. It ends ranges of logs at its own head.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inside {
    /// How many blocks it stands further behind.
    pub behind_blocks: u64,
    /// The share of calls for logs and receipts that reach it, from 0 to 1.
    pub share: f64,
}

/// A queue before a fixed number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capacity {
    /// How many calls are worked on at once.
    pub slots: u32,
    /// How long each takes, beside its latency.
    #[serde(rename = "service_ms", with = "crate::millis")]
    pub service: Duration,
    /// How many calls may wait; further ones are refused with an error.
    pub queue_max: u32,
}

/// A token bucket of one method.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Calls per second.
    pub per_second: f64,
    /// How many calls may come at once after a pause, at least 1.
    pub burst: f64,
    /// What happens above the rate.
    pub over: Over,
}

/// What happens to a call above the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Over {
    /// It waits for its turn.
    Queue,
    /// It is refused with a JSON-RPC error of this code.
    Error {
        /// The code, such as -32005.
        code: i64,
    },
    /// The whole request is refused with status 429.
    TooManyRequests {
        /// The seconds of `Retry-After`.
        retry_after_s: u64,
    },
    /// It is never answered.
    Hang,
}

/// When a fault strikes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRule {
    /// Which.
    pub fault: Fault,
    /// The share of requests that it strikes, from 0 to 1; all if not given.
    #[serde(default = "always")]
    pub share: f64,
    /// Only requests that hold a call of this method.
    #[serde(default)]
    pub method: Option<String>,
    /// Only so many times, counted from the last change of settings.
    #[serde(default)]
    pub times: Option<u64>,
}

fn always() -> f64 {
    1.0
}

impl FaultRule {
    /// A fault that strikes every request.
    #[must_use]
    pub fn always(fault: Fault) -> Self {
        Self { fault, share: always(), method: None, times: None }
    }
}

/// A way to fail. Unless said otherwise it strikes the whole request, batch or single.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// The connection is closed before any byte of an answer.
    Close,
    /// The connection is reset (TCP RST) before any byte of an answer.
    Reset,
    /// Half of the body is sent, then the connection is closed.
    Truncate,
    /// An HTML page with status 200, as a provider's front end sends.
    Html,
    /// The answer has another id; in a batch, every one.
    WrongId,
    /// The answer's object has its id twice; in a batch, the first two items have one id.
    DuplicateId,
    /// Status 429.
    TooManyRequests {
        /// The seconds of `Retry-After`.
        retry_after_s: u64,
    },
    /// A JSON-RPC error in the words of the node's client, for every call.
    Error {
        /// Which.
        error: ErrorKind,
    },
    /// Both `result` and `error`.
    ResultAndError,
    /// Neither `result` nor `error`.
    NeitherResultNorError,
    /// A body that is not JSON, with status 200.
    NotJson,
    /// Status 503 with an empty body.
    Unavailable,
    /// The body comes slowly.
    SlowBody {
        /// Its speed; at least 1.
        bytes_per_second: u32,
    },
    /// No answer ever; the connection stays open.
    Hang,
}

/// Errors that real clients answer, worded by [`Keeping::client`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// Too many calls.
    LimitExceeded,
    /// The block is not known (yet).
    HeaderNotFound,
    /// The state was pruned.
    MissingTrieNode,
    /// The call ran too long.
    ExecutionTimeout,
}

/// Settings that cannot be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SettingsFault {
    /// A share outside its range.
    #[error("share {0}: allowed are 0 to 1")]
    Share(f64),
    /// A rate outside its range.
    #[error(
        "rate {per_second} per second with burst {burst}: both must be finite, the rate above 0, the burst at least 1"
    )]
    Rate {
        /// Calls per second.
        per_second: f64,
        /// Burst.
        burst: f64,
    },
    /// A time outside its range.
    #[error("latency {0:?}: times must be finite, not negative, and in rising order")]
    Latency(Latency),
    /// A capacity without workers.
    #[error("capacity of 0 slots: at least 1")]
    Slots,
    /// A body that never ends.
    #[error("slow body at 0 bytes per second: at least 1")]
    BodySpeed,
    /// Too many entries of one kind.
    #[error("{count} {what}, at most {allowed} are allowed")]
    Count {
        /// What there is too much of.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        allowed: usize,
    },
}

impl Settings {
    /// Whether a call can be answered at once, without any of the delays and faults.
    pub(super) fn is_plain(&self) -> bool {
        self.latency == Latency::None
            && self.method_latency.is_empty()
            && self.capacity.is_none()
            && self.rates.is_empty()
            && self.faults.is_empty()
    }

    /// Checks what the types do not.
    ///
    /// # Errors
    /// The first value that cannot be.
    pub fn check(&self) -> Result<(), SettingsFault> {
        let counts = [
            ("faults", self.faults.len(), FAULTS_MAX),
            ("rates", self.rates.len(), METHODS_MAX),
            ("method latencies", self.method_latency.len(), METHODS_MAX),
            ("unsupported methods", self.unsupported.len(), METHODS_MAX),
        ];
        for (what, count, allowed) in counts {
            if count > allowed {
                return Err(SettingsFault::Count { what, count, allowed });
            }
        }
        for rule in &self.faults {
            if !(0.0..=1.0).contains(&rule.share) {
                return Err(SettingsFault::Share(rule.share));
            }
            if rule.fault == (Fault::SlowBody { bytes_per_second: 0 }) {
                return Err(SettingsFault::BodySpeed);
            }
        }
        match self.inside {
            Some(Inside { share, .. }) if !(0.0..=1.0).contains(&share) => {
                return Err(SettingsFault::Share(share));
            }
            _ => {}
        }
        for rate in self.rates.values() {
            let (per_second, burst) = (rate.per_second, rate.burst);
            let possible = per_second.is_finite() && burst.is_finite();
            if !possible || per_second <= 0.0 || burst < 1.0 {
                return Err(SettingsFault::Rate { per_second, burst });
            }
        }
        for latency in self.method_latency.values().chain([&self.latency]) {
            if !latency.is_possible() {
                return Err(SettingsFault::Latency(*latency));
            }
        }
        match self.capacity {
            Some(Capacity { slots: 0, .. }) => Err(SettingsFault::Slots),
            _ => Ok(()),
        }
    }
}

impl Latency {
    fn is_possible(&self) -> bool {
        let time = |ms: f64| ms.is_finite() && ms >= 0.0;
        match *self {
            Self::None => true,
            Self::Constant { ms } => time(ms),
            Self::Uniform { low_ms, high_ms } => time(low_ms) && time(high_ms) && low_ms <= high_ms,
            Self::Exponential { mean_ms } => time(mean_ms),
            Self::Lognormal { median_ms, sigma } => time(median_ms) && time(sigma),
        }
    }
}
