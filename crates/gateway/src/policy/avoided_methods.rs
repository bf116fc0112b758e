//! The methods for which the balancer avoids an upstream, because the upstream does not support them
//! or keeps failing calls that others answer. An avoided upstream still gets such a call if no other
//! one can serve it.

use std::collections::{HashMap, HashSet};
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

/// Time after the last refusal for which a method that no upstream supports is refused without a
/// call. One of several nodes behind an address may support it.
const ERROR_AGE_MAX: Duration = Duration::from_secs(30);

/// Number of times that an upstream must have said that it does not support a method before calls
/// are refused without asking it. Some nodes say so of a method that they support, because of the
/// parameters of one call.
const ERRORS_MIN: u32 = 3;

/// The avoided methods of one upstream.
#[derive(Debug, Clone, Default)]
pub struct AvoidedMethods {
    methods: HashMap<Box<str>, AvoidedMethod, RandomState>,
    /// Methods that the upstream has shown to support, at most [`METHODS_MAX`].
    supported: HashSet<Box<str>, RandomState>,
}

/// Why and how long an upstream is avoided for a method.
#[derive(Debug, Clone)]
struct AvoidedMethod {
    /// The upstream is avoided until this time.
    until: Duration,
    /// Number of refused calls in a row; zero if the upstream does not support the method.
    refusals: u32,
    /// What an upstream has returned that does not support the method.
    unsupported: Option<Unsupported>,
}

/// The errors of an upstream that does not support a method.
#[derive(Debug, Clone)]
pub struct Unsupported {
    /// The last raw error.
    pub error: Bytes,
    /// When the last error was received.
    received: Duration,
    /// Number of such errors.
    errors: u32,
}

/// Returns true if a method is refused without a call, because no upstream supports it.
/// `unsupported` has an element for each upstream.
pub fn is_refused_at_once<'a>(
    now: Duration,
    unsupported: impl Iterator<Item = &'a Unsupported> + Clone,
) -> bool {
    let mut all = unsupported.clone();
    let last = unsupported.map(|upstream| upstream.received).max();
    last.is_some_and(|last| now < last + ERROR_AGE_MAX)
        && all.any(|upstream| upstream.errors >= ERRORS_MIN)
}

impl AvoidedMethods {
    /// Avoids the upstream for `method` until `until`, because it does not support the method.
    /// `error` is the raw error that says so, if there is one.
    pub fn add(&mut self, now: Duration, method: &str, until: Duration, error: Option<Bytes>) {
        let before = self.methods.get(method).and_then(|avoided| avoided.unsupported.as_ref());
        let errors = before.map_or(0, |before| before.errors) + 1;
        let unsupported = error.map(|error| Unsupported { error, received: now, errors });
        self.insert(now, method, AvoidedMethod { until, refusals: 0, unsupported });
    }

    /// Returns the errors by which the upstream has said that it does not support `method`. Returns
    /// `None` if it has never said so, or has ever shown that it supports the method.
    pub fn unsupported(&self, now: Duration, method: &str) -> Option<&Unsupported> {
        let avoided = self.methods.get(method).filter(|avoided| now < avoided.until)?;
        avoided.unsupported.as_ref().filter(|_| !self.supported.contains(method))
    }

    /// Records a call that the upstream refused and another upstream answered. After
    /// [`REFUSALS_MAX`] such calls in a row, the upstream is avoided for [`REFUSAL_PAUSE`], or for
    /// longer if it is avoided for longer already.
    pub fn record_refusal(&mut self, now: Duration, method: &str) {
        let before = self.methods.get(method);
        let refusals = before.map_or(0, |avoided| avoided.refusals) + 1;
        let pause = if refusals < REFUSALS_MAX { Duration::ZERO } else { REFUSAL_PAUSE };
        let until = before.map_or(now, |avoided| avoided.until).max(now + pause);
        self.insert(now, method, AvoidedMethod { until, refusals, unsupported: None });
    }

    /// Records that the upstream has shown that it supports `method`.
    pub fn record_support(&mut self, method: &str) {
        if !self.supported.contains(method) && self.supported.len() < METHODS_MAX {
            self.supported.insert(method.into());
        }
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
    fn a_method_is_refused_at_once_after_three_errors_for_a_while() {
        const METHOD: &str = "trace_block";
        let error = Some(Bytes::from_static(b"{}"));
        let mut upstreams = [AvoidedMethods::default(), AvoidedMethods::default()];
        let is_refused = |upstreams: &[AvoidedMethods], now| {
            let unsupported: Vec<_> =
                upstreams.iter().filter_map(|it| it.unsupported(now, METHOD)).collect();
            unsupported.len() == upstreams.len()
                && is_refused_at_once(now, unsupported.iter().copied())
        };
        upstreams[1].add(SECOND, METHOD, 600 * SECOND, error.clone());
        for count in 1..=ERRORS_MIN {
            assert!(!is_refused(&upstreams, SECOND), "{count}");
            upstreams[0].add(10 * SECOND, METHOD, 600 * SECOND, error.clone());
        }
        assert!(is_refused(&upstreams, 39 * SECOND));
        assert!(!is_refused(&upstreams, 40 * SECOND), "one call asks again");
        upstreams[0].add(40 * SECOND, METHOD, 640 * SECOND, error.clone());
        assert!(is_refused(&upstreams, 69 * SECOND));
        upstreams[1].record_support(METHOD);
        assert!(!is_refused(&upstreams, 41 * SECOND), "an upstream supports the method");
        upstreams[1].add(50 * SECOND, METHOD, 600 * SECOND, error);
        assert!(!is_refused(&upstreams, 51 * SECOND), "it has supported the method before");
        assert!(upstreams[0].contains(41 * SECOND, METHOD));
    }

    #[test]
    fn supported_methods_stay_bounded() {
        let mut methods = AvoidedMethods::default();
        (0..2000).for_each(|number| methods.record_support(&format!("m{number}")));
        assert_eq!(methods.supported.len(), METHODS_MAX);
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
