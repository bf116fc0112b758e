//! Trace contexts: reads and writes the headers `traceparent` and `tracestate`, and decides which
//! traces are sampled, that is, recorded.
//!
//! The headers are those of the W3C Recommendation of 2021-11-23,
//! <https://www.w3.org/TR/trace-context/>.

use std::fmt;
use std::io::Write;

#[cfg(test)]
mod tests;

/// Length of a `traceparent` of version 00, in bytes. Later versions may be longer.
pub(crate) const PARENT_BYTES: usize = 55;

/// Maximum number of bytes of a `tracestate`. The Recommendation (section 3.3.1.5) asks for at
/// least 512.
const STATE_BYTES_MAX: usize = 1024;

/// The flag of `traceparent` for a sampled trace. All other flags of version 00 are reserved.
const SAMPLED: u128 = 1;

/// The id of a trace. It is not zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceId(pub(crate) u128);

/// The id of a span within its trace. It is not zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpanId(pub(crate) u64);

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl TraceId {
    /// Creates an id from random numbers.
    pub(crate) fn new(random: &impl Fn() -> u64) -> TraceId {
        let id = (u128::from(random()) << 64) | u128::from(random());
        TraceId(id.max(1))
    }

    /// Returns true if the trace is sampled. `ratio` is the share of sampled traces, from 0 to 1.
    /// The decision depends only on the ratio and the lower half of the id, as in OpenTelemetry's
    /// `TraceIdRatioBased`. So all services with the same ratio sample the same traces.
    pub(crate) fn is_in_sample(self, ratio: f64) -> bool {
        let lower_half = self.0 as u64;
        // An f64 holds 53 bits exactly. The upper 53 bits, divided by 2^53, are a fraction below
        // one.
        ((lower_half >> 11) as f64) / ((1_u64 << 53) as f64) < ratio
    }
}

impl SpanId {
    /// Creates an id from a random number.
    pub(crate) fn new(random: u64) -> SpanId {
        SpanId(random.max(1))
    }
}

/// The content of a `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceParent {
    pub(crate) trace: TraceId,
    /// The span of the sender that caused the request.
    pub(crate) span: SpanId,
    /// True if the sender records this trace.
    pub(crate) sampled: bool,
}

impl TraceParent {
    /// Parses a header. Returns `None` for a malformed one. A later version is read as version 00,
    /// as section 3.2.2.1 of the Recommendation requires.
    fn parse(value: &[u8]) -> Option<TraceParent> {
        let value = value.trim_ascii();
        let (fields, extension) = value.split_at_checked(PARENT_BYTES)?;
        let has_valid_end = match parse_hex(&fields[..2])? {
            0 => extension.is_empty(),
            // Version 255 is forbidden.
            0xff => false,
            _ => extension.is_empty() || extension.starts_with(b"-"),
        };
        // The fields are version, trace id, span id and flags, with a dash between two fields.
        let has_dashes = [2, 35, 52].iter().all(|index| fields[*index] == b'-');
        let trace = TraceId(parse_hex(&fields[3..35])?);
        let span = SpanId(u64::try_from(parse_hex(&fields[36..52])?).ok()?);
        let sampled = parse_hex(&fields[53..])? & SAMPLED != 0;
        let is_valid = has_valid_end && has_dashes && trace.0 != 0 && span.0 != 0;
        is_valid.then_some(TraceParent { trace, span, sampled })
    }

    /// Returns the header of version 00.
    pub(crate) fn to_header(self) -> [u8; PARENT_BYTES] {
        let (trace, span, flags) = (self.trace, self.span, u8::from(self.sampled));
        let mut header = [0_u8; PARENT_BYTES];
        write!(&mut header[..], "00-{trace:?}-{span:?}-{flags:02x}")
            .expect("the ids have fixed lengths");
        header
    }
}

/// Parses up to 32 lower-case hexadecimal digits; upper case is malformed in a `traceparent`.
/// Returns `None` for other characters.
fn parse_hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0_u128, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some((number << 4) | u128::from(value))
    })
}

/// The trace context that a client sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientTrace {
    pub(crate) parent: TraceParent,
    /// The `tracestate`, which belongs to other tracing systems and is passed on unchanged.
    pub(crate) state: Option<Box<str>>,
}

/// Collects the trace context from the headers of a request.
#[derive(Debug, Default)]
pub(crate) struct TraceHeaders {
    /// Number of `traceparent` headers.
    parent_count: usize,
    /// The last `traceparent`; `None` if there is none or it is malformed.
    parent: Option<TraceParent>,
    /// The values of all `tracestate` headers, joined by commas.
    state: Vec<u8>,
}

impl TraceHeaders {
    /// Adds a `traceparent`.
    pub(crate) fn add_parent(&mut self, value: &[u8]) {
        self.parent_count += 1;
        self.parent = TraceParent::parse(value);
    }

    /// Adds a `tracestate`.
    pub(crate) fn add_state(&mut self, value: &[u8]) {
        let value = value.trim_ascii();
        // `finish` drops a state that is too long, so further values need not be stored.
        if value.is_empty() || self.state.len() > STATE_BYTES_MAX {
            return;
        }
        if !self.state.is_empty() {
            self.state.push(b',');
        }
        self.state.extend_from_slice(value);
    }

    /// Returns the trace context. Returns `None` if there is no `traceparent`, a malformed one, or
    /// more than one. A `tracestate` that is too long, or not printable ASCII, is dropped.
    pub(crate) fn finish(self) -> Option<Box<ClientTrace>> {
        let parent = self.parent.filter(|_| self.parent_count == 1)?;
        let is_printable = self.state.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
        let has_state = !self.state.is_empty() && self.state.len() <= STATE_BYTES_MAX;
        let state = String::from_utf8(self.state).ok().filter(|_| has_state && is_printable);
        Some(Box::new(ClientTrace { parent, state: state.map(String::into_boxed_str) }))
    }
}
