//! Cordons: an operator takes an upstream out of rotation for a limited time.
//!
//! A cordoned upstream gets no new calls. Its head (newest block) does not count when `heads`
//! elects the newest block that clients get. Polls continue, so the gateway knows the upstream's
//! state when the cordon ends.

use std::time::Duration;

use crate::policy::health::HealthState;

#[cfg(test)]
mod tests;

/// Maximum length of a reason, in characters. Tables print the reason.
pub const REASON_CHARS_MAX: usize = 200;
/// Maximum duration of a cordon. An upstream that is out of use for longer should be removed from
/// the configuration.
pub const DURATION_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// The time for which an upstream is out of rotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cordon {
    /// Reason that the operator gave; `None` without one.
    pub reason: Option<String>,
    /// End of the cordon.
    pub until: Duration,
}

impl Cordon {
    /// Returns true until the cordon expires.
    pub fn is_active(&self, now: Duration) -> bool {
        now < self.until
    }
}

/// State of an upstream of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Health, including whether the upstream lags behind the head.
    pub health: HealthState,
    /// True if the upstream serves another chain than configured.
    pub serves_other_chain: bool,
    /// True if the upstream is cordoned.
    pub cordoned: bool,
}

impl Member {
    /// Returns true if calls may be sent to the upstream.
    pub fn is_usable(self) -> bool {
        let is_responsive = matches!(self.health, HealthState::Healthy | HealthState::Lagging);
        is_responsive && !self.serves_other_chain && !self.cordoned
    }
}

/// Returns an error message for an invalid reason or duration; `None` if both are valid.
pub fn check(reason: Option<&str>, duration: Duration) -> Option<&'static str> {
    match reason {
        Some(reason) if reason.chars().count() > REASON_CHARS_MAX => {
            Some("the reason has more than 200 characters")
        }
        Some(reason) if reason.chars().any(char::is_control) => {
            Some("the reason has control characters or more than one line")
        }
        _ if duration.is_zero() || duration > DURATION_MAX => {
            Some("the duration must be more than 0 and at most 30d")
        }
        _ => None,
    }
}
