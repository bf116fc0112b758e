//! Goal: a client's trace is continued and reaches the upstream, a collector receives the spans of
//! sampled requests with the right parents, no collector delays a call, no span holds a secret, and
//! the buckets of histograms name sampled traces.
//! Method: the gateway over real sockets before simulated nodes behind relays that record the
//! headers; a real OpenTelemetry Collector receives the spans and passes them on as JSON.
//!
//! Needs otelcol; see `test_support::programs` for what happens without.

mod collector;
mod delays;
mod exemplars;
mod headers;
mod recorder;
mod secrets;
mod spans;

/// The trace context of a client.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// The `traceparent` of [`TRACE`] and [`SPAN`] with these flags.
fn parent(flags: &str) -> String {
    format!("00-{TRACE}-{SPAN}-{flags}")
}
