//! The methods for which the balancer avoids an upstream, because the upstream does not support them
//! or keeps failing calls that others answer. An avoided upstream still gets such a call if no other
//! one can serve it.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::RandomState;

/// Maximum number of methods per upstream. Beyond it a new method replaces the one that expires
/// first.
const METHODS_MAX: usize = 256;

/// Number of refused calls in a row after which an upstream is avoided. Fewer would avoid an
/// upstream without old state for calls about new state too.
const REFUSALS_MAX: u32 = 3;

/// Time for which an upstream is avoided after refused calls. The next refusal after it avoids the
/// upstream again, so that an upstream refuses few calls for as long as nothing changes.
const REFUSAL_PAUSE: Duration = Duration::from_secs(10);

/// Time for which the error of an upstream that does not support a method is returned without another
/// call, if no other upstream supports the method either. One of several nodes behind an address may
/// support it.
const ERROR_AGE_MAX: Duration = Duration::from_secs(30);

/// The avoided methods of one upstream.
#[derive(Debug, Clone, Default)]
pub struct AvoidedMethods {
    methods: HashMap<Box<str>, AvoidedMethod, RandomState>,
}

/// Why and how long an upstream is avoided for a method.
#[derive(Debug, Clone)]
struct AvoidedMethod {
    /// The upstream is avoided until this time.
    until: Duration,
    /// Number of refused calls in a row; zero if the upstream does not support the method.
    refusals: u32,
    /// The error of an upstream that does not support the method, and when it was received.
    error: Option<(Bytes, Duration)>,
}

impl AvoidedMethods {
    /// Avoids the upstream for `method` until `until`, because it does not support the method.
    /// `error` is the raw error that says so, if there is one.
    pub fn add(&mut self, now: Duration, method: &str, until: Duration, error: Option<Bytes>) {
        let error = error.map(|error| (error, now));
        self.insert(now, method, AvoidedMethod { until, refusals: 0, error });
    }

    /// Returns the raw error by which the upstream has recently said that it does not support
    /// `method`.
    pub fn recent_error(&self, now: Duration, method: &str) -> Option<&Bytes> {
        let avoided = self.methods.get(method)?;
        let (error, received) = avoided.error.as_ref()?;
        (now < avoided.until.min(*received + ERROR_AGE_MAX)).then_some(error)
    }

    /// Records a call that the upstream refused and another upstream answered. After
    /// [`REFUSALS_MAX`] such calls in a row, the upstream is avoided for [`REFUSAL_PAUSE`], or for
    /// longer if it is avoided for longer already.
    pub fn record_refusal(&mut self, now: Duration, method: &str) {
        let before = self.methods.get(method);
        let refusals = before.map_or(0, |avoided| avoided.refusals) + 1;
        let pause = if refusals < REFUSALS_MAX { Duration::ZERO } else { REFUSAL_PAUSE };
        let until = before.map_or(now, |avoided| avoided.until).max(now + pause);
        self.insert(now, method, AvoidedMethod { until, refusals, error: None });
    }

    /// Records a response of the upstream to a call of `method`, which ends a row of refusals.
    pub fn record_response(&mut self, method: &str) {
        if self.methods.get(method).is_some_and(|avoided| avoided.refusals > 0) {
            self.methods.remove(method);
        }
    }

    /// Returns true if the upstream is avoided for `method`.
    pub fn contains(&self, now: Duration, method: &str) -> bool {
        self.methods.get(method).is_some_and(|avoided| now < avoided.until)
    }

    fn insert(&mut self, now: Duration, method: &str, avoided: AvoidedMethod) {
        if !self.methods.contains_key(method) && self.methods.len() >= METHODS_MAX {
            self.methods.retain(|_, avoided| avoided.until > now);
            let expires_first = self.methods.iter().min_by_key(|(_, avoided)| avoided.until);
            let evicted = expires_first.map(|(method, _)| method.clone());
            if let Some(method) = evicted.filter(|_| self.methods.len() >= METHODS_MAX) {
                self.methods.remove(&method);
            }
        }
        self.methods.insert(method.into(), avoided);
    }
}

#[cfg(test)]
mod tests {
    //! Goal: an upstream that cannot serve a method gets few calls of it, and gets them again once
    //! it can.

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn unsupported_methods_expire_and_stay_bounded() {
        let mut methods = AvoidedMethods::default();
        assert!(!methods.contains(SECOND, "trace_block"));
        methods.add(SECOND, "trace_block", 10 * SECOND, None);
        methods.record_response("trace_block");
        assert!(methods.contains(9 * SECOND, "trace_block"));
        assert!(!methods.contains(10 * SECOND, "trace_block"));
        for number in 0..2000_u64 {
            methods.add(SECOND, &format!("m{number}"), Duration::from_secs(20 + number), None);
        }
        assert_eq!(methods.methods.len(), METHODS_MAX);
        assert!(methods.contains(SECOND, "m1999"));
    }

    #[test]
    fn the_error_of_an_unsupported_method_is_kept_for_a_while() {
        let mut methods = AvoidedMethods::default();
        let error = Bytes::from_static(b"{}");
        methods.add(SECOND, "trace_block", 600 * SECOND, Some(error.clone()));
        assert_eq!(methods.recent_error(30 * SECOND, "trace_block"), Some(&error));
        assert_eq!(methods.recent_error(31 * SECOND, "trace_block"), None);
        assert!(methods.contains(31 * SECOND, "trace_block"));
        assert_eq!(methods.recent_error(SECOND, "eth_call"), None);
        methods.record_refusal(SECOND, "eth_call");
        assert_eq!(methods.recent_error(SECOND, "eth_call"), None);
    }

    #[test]
    fn a_refusal_does_not_shorten_the_time_of_an_unsupported_method() {
        let mut methods = AvoidedMethods::default();
        methods.add(SECOND, "eth_call", 60 * SECOND, None);
        for _ in 0..REFUSALS_MAX {
            methods.record_refusal(2 * SECOND, "eth_call");
            assert!(methods.contains(59 * SECOND, "eth_call"));
        }
    }

    #[test]
    fn an_upstream_is_avoided_after_refused_calls_in_a_row() {
        let mut methods = AvoidedMethods::default();
        let mut now = SECOND;
        for _ in 1..REFUSALS_MAX {
            methods.record_refusal(now, "eth_call");
            assert!(!methods.contains(now, "eth_call"));
        }
        methods.record_response("eth_call");
        for _ in 1..REFUSALS_MAX {
            methods.record_refusal(now, "eth_call");
        }
        assert!(!methods.contains(now, "eth_call"), "a response came in between");
        methods.record_refusal(now, "eth_call");
        assert!(methods.contains(now, "eth_call"));
        assert!(!methods.contains(now, "eth_getBalance"));
        now += REFUSAL_PAUSE;
        assert!(!methods.contains(now, "eth_call"));
        methods.record_refusal(now, "eth_call");
        assert!(methods.contains(now, "eth_call"), "one more refusal is enough");
        methods.record_response("eth_call");
        assert!(!methods.contains(now, "eth_call"));
    }
}
