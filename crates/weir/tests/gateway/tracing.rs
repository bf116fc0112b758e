//! Goal: the gateway continues a client's trace and sends it to the upstream. A collector receives
//! the spans of sampled requests with the right parents and never delays a call. No span holds a
//! secret, and the buckets of histograms name sampled traces.
//!
//! Method: the gateway in front of relays that record headers and forward to simulated nodes. A
//! real OpenTelemetry Collector receives the spans and forwards them as JSON.
//!
//! Needs otelcol; see `test_support::programs` for what happens without.

mod collector;
mod delays;
mod exemplars;
mod headers;
mod recorder;
mod secrets;
mod spans;

/// Trace id of a client.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
/// Id of the client's span.
const SPAN: &str = "00f067aa0ba902b7";

/// The `traceparent` of [`TRACE`] and [`SPAN`] with these flags.
fn parent(flags: &str) -> String {
    format!("00-{TRACE}-{SPAN}-{flags}")
}
