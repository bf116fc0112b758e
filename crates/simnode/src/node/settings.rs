//! The settings of a running node: its view of the simulated chain, its speed, its capacity and its
//! faults. A view is the part of the chain that the node has. Rust code or JSON over the admin port
//! can change the settings.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rpc::Retention;

/// Maximum number of fault rules of a node.
pub const FAULTS_MAX: usize = 64;
/// Maximum number of methods in each of `rates`, `method_latency` and `unsupported`.
pub const METHODS_MAX: usize = 1_024;

/// The settings of a node. The JSON form has the same names, with times in milliseconds. The
/// default is an honest, fast node without faults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Number of blocks by which the node lags behind the head (newest block) of the whole chain.
    pub lag_blocks: u64,
    /// Time from the creation of a block until the node has it.
    #[serde(rename = "delay_ms", with = "crate::millis")]
    pub delay: Duration,
    /// Time from the end of `delay` until the node has the logs and receipts of the block.
    #[serde(rename = "index_delay_ms", with = "crate::millis")]
    pub index_delay: Duration,
    /// A second backend that serves a share of the calls.
    pub inside: Option<SecondBackend>,
    /// The number of the newest block of the frozen view; `None` if the view is not frozen.
    pub frozen_at: Option<u64>,
    /// Number of blocks by which the announced head is above the node's real head. Above 0, the
    /// node lies.
    pub ahead_blocks: u64,
    /// The data that the node retains, and the client software that it imitates.
    pub keeping: Retention,
    /// Latency of every call.
    pub latency: Latency,
    /// Latency by method. It replaces `latency` for this method.
    pub method_latency: BTreeMap<String, Latency>,
    /// The workers of the node and their queue; `None` for no limit.
    pub capacity: Option<Capacity>,
    /// Rate limits by method. Methods without their own limit share the limit named `*`.
    pub rates: BTreeMap<String, Rate>,
    /// Methods that the node rejects as unknown.
    pub unsupported: BTreeSet<String>,
    /// Fault rules in order. The first one that applies decides the fault.
    pub faults: Vec<FaultRule>,
    /// Bytes per fragment of a WebSocket message; `None` for unfragmented messages.
    pub fragment_bytes: Option<u32>,
    /// True if the node does not respond to WebSocket pings.
    pub mute_to_pings: bool,
    /// True if the node sends no notifications to subscribers.
    pub mute_subscriptions: bool,
    /// Faults of the notifications to subscribers.
    pub notifications: NotificationFaults,
}

/// Faults of notifications. The notifications of each subscription are numbered from 1, and the
/// number of a notification decides its faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NotificationFaults {
    /// Time by which every notification is delayed.
    #[serde(rename = "delay_ms", with = "crate::millis")]
    pub delay: Duration,
    /// The node loses every n-th notification.
    pub lose_every: Option<NonZeroU64>,
    /// The node sends every n-th notification twice, except a notification that it loses.
    pub double_every: Option<NonZeroU64>,
}

impl NotificationFaults {
    /// Returns how often the notification with this number is sent.
    pub(crate) fn copies(&self, number: u64) -> usize {
        let is_nth = |every: Option<NonZeroU64>| {
            every.is_some_and(|every| number.is_multiple_of(every.get()))
        };
        if is_nth(self.lose_every) { 0 } else { 1 + usize::from(is_nth(self.double_every)) }
    }
}

/// A distribution of times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "shape", rename_all = "snake_case", deny_unknown_fields)]
pub enum Latency {
    /// No latency.
    #[default]
    None,
    /// A constant time.
    Constant {
        /// The time.
        ms: f64,
    },
    /// A uniform distribution.
    Uniform {
        /// The shortest time.
        low_ms: f64,
        /// The longest time.
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

/// A second backend behind the same address, as RPC providers have. If a call requests logs beyond
/// the second backend's head, the second backend returns the logs up to its head, without an error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecondBackend {
    /// Number of blocks by which the second backend lags behind the node.
    pub behind_blocks: u64,
    /// The share of calls that the second backend serves, from 0 to 1.
    pub share: f64,
    /// True if the second backend serves calls of all methods, and false if only calls for logs and
    /// receipts.
    #[serde(default)]
    pub all_methods: bool,
}

/// A fixed number of workers with a queue.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capacity {
    /// Number of workers.
    pub slots: u32,
    /// Time that a worker spends on a call, in addition to the call's latency.
    #[serde(rename = "service_ms", with = "crate::millis")]
    pub service: Duration,
    /// Maximum number of waiting calls. Further calls get an error.
    pub queue_max: u32,
}

/// A token bucket of one method.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Calls per second.
    pub per_second: f64,
    /// Maximum number of calls at once after a pause; at least 1.
    pub burst: f64,
    /// The action for calls above the rate.
    pub over: RateLimitAction,
}

/// The action for a call above the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum RateLimitAction {
    /// The call waits for a token.
    Queue,
    /// The call gets a JSON-RPC error.
    Error {
        /// The code, such as -32005.
        code: i64,
    },
    /// The whole request gets status 429.
    TooManyRequests {
        /// The seconds of `Retry-After`.
        retry_after_s: u64,
    },
    /// The call gets no response.
    Hang,
}

/// A fault and the requests to which it applies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRule {
    /// The fault.
    pub fault: Fault,
    /// The share of the requests to which the rule applies, from 0 to 1; 1 by default.
    #[serde(default = "always")]
    pub share: f64,
    /// If set, the rule applies only to requests with a call of this method.
    #[serde(default)]
    pub method: Option<String>,
    /// If set, the maximum number of times that the rule applies after a change of settings.
    #[serde(default)]
    pub times: Option<u64>,
}

fn always() -> f64 {
    1.0
}

impl FaultRule {
    /// Returns a rule that applies to every request.
    #[must_use]
    pub fn always(fault: Fault) -> Self {
        Self { fault, share: always(), method: None, times: None }
    }
}

/// A fault. A fault applies to the whole request, single or batch, if the fault's description does
/// not say otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// The connection is closed before any byte of the response.
    Close,
    /// The connection is reset (TCP RST) before any byte of the response.
    Reset,
    /// Half of the body is sent, then the connection is closed.
    Truncate,
    /// The response is an HTML page with status 200, as the front end of an RPC provider may send.
    Html,
    /// The response has another id. In a batch, every item has another id.
    WrongId,
    /// The response object has its id twice. In a batch, the first two items have the same id.
    DuplicateId,
    /// The response has status 429.
    TooManyRequests {
        /// The seconds of `Retry-After`.
        retry_after_s: u64,
    },
    /// Every call gets an error in the words of the client software that the node imitates.
    Error {
        /// The kind of error.
        error: ErrorKind,
    },
    /// The response has both `result` and `error`.
    ResultAndError,
    /// The response has neither `result` nor `error`.
    NeitherResultNorError,
    /// The body is not JSON; the status is 200.
    NotJson,
    /// The response has status 503 and an empty body.
    Unavailable,
    /// The body is sent at a limited speed.
    SlowBody {
        /// The speed; at least 1.
        bytes_per_second: u32,
    },
    /// No response is sent; the connection stays open.
    Hang,
}

/// Errors of real clients, worded by [`Retention::client`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// A rate limit is exceeded.
    LimitExceeded,
    /// The block is unknown; it may not exist yet.
    HeaderNotFound,
    /// The state was pruned.
    MissingTrieNode,
    /// The call ran too long.
    ExecutionTimeout,
}

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SettingsError {
    /// A share is outside its range.
    #[error("share {0}: allowed are 0 to 1")]
    Share(f64),
    /// A rate is outside its range.
    #[error(
        "rate {per_second} per second with burst {burst}: both must be finite, the rate above 0, the burst at least 1"
    )]
    Rate {
        /// Calls per second.
        per_second: f64,
        /// The burst.
        burst: f64,
    },
    /// A time is outside its range.
    #[error("latency {0:?}: times must be finite, not negative, and in rising order")]
    Latency(Latency),
    /// A capacity has no workers.
    #[error("capacity of 0 slots: at least 1")]
    Slots,
    /// A body would never end.
    #[error("slow body at 0 bytes per second: at least 1")]
    BodySpeed,
    /// There are too many entries of one kind.
    #[error("{count} {what}, at most {allowed} are allowed")]
    Count {
        /// The kind.
        what: &'static str,
        /// The number of entries.
        count: usize,
        /// The maximum.
        allowed: usize,
    },
}

impl Settings {
    /// Returns true if no call has to wait, and if there are no rate limits and no faults.
    pub(super) fn is_plain(&self) -> bool {
        self.latency == Latency::None
            && self.method_latency.is_empty()
            && self.capacity.is_none()
            && self.rates.is_empty()
            && self.faults.is_empty()
    }

    /// Validates the values.
    ///
    /// # Errors
    /// Returns the first invalid value.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let counts = [
            ("faults", self.faults.len(), FAULTS_MAX),
            ("rates", self.rates.len(), METHODS_MAX),
            ("method latencies", self.method_latency.len(), METHODS_MAX),
            ("unsupported methods", self.unsupported.len(), METHODS_MAX),
        ];
        for (what, count, allowed) in counts {
            if count > allowed {
                return Err(SettingsError::Count { what, count, allowed });
            }
        }
        for rule in &self.faults {
            if !(0.0..=1.0).contains(&rule.share) {
                return Err(SettingsError::Share(rule.share));
            }
            if rule.fault == (Fault::SlowBody { bytes_per_second: 0 }) {
                return Err(SettingsError::BodySpeed);
            }
        }
        match self.inside {
            Some(SecondBackend { share, .. }) if !(0.0..=1.0).contains(&share) => {
                return Err(SettingsError::Share(share));
            }
            _ => {}
        }
        for rate in self.rates.values() {
            let (per_second, burst) = (rate.per_second, rate.burst);
            let is_finite = per_second.is_finite() && burst.is_finite();
            if !is_finite || per_second <= 0.0 || burst < 1.0 {
                return Err(SettingsError::Rate { per_second, burst });
            }
        }
        for latency in self.method_latency.values().chain([&self.latency]) {
            if !latency.is_valid() {
                return Err(SettingsError::Latency(*latency));
            }
        }
        match self.capacity {
            Some(Capacity { slots: 0, .. }) => Err(SettingsError::Slots),
            _ => Ok(()),
        }
    }
}

impl Latency {
    fn is_valid(&self) -> bool {
        let is_valid = |value: f64| value.is_finite() && value >= 0.0;
        match *self {
            Self::None => true,
            Self::Constant { ms } => is_valid(ms),
            Self::Uniform { low_ms, high_ms } => {
                is_valid(low_ms) && is_valid(high_ms) && low_ms <= high_ms
            }
            Self::Exponential { mean_ms } => is_valid(mean_ms),
            Self::Lognormal { median_ms, sigma } => is_valid(median_ms) && is_valid(sigma),
        }
    }
}
