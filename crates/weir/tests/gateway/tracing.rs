//! Goal: the gateway continues a client's trace and sends its context to the upstream. A collector
//! receives the spans of sampled requests with the right parents, and never delays a call. No span
//! contains a secret. The buckets of histograms contain the ids of sampled traces as exemplars.
//!
//! Method: proxies between the gateway and simulated nodes record the headers. A server receives the
//! spans and decodes them by the protocol's own field numbers. One test, of
//! `cargo xtask check --full`, repeats the tests of spans with a real OpenTelemetry Collector, which
//! forwards them as JSON.

mod collector;
mod delays;
mod exemplars;
mod headers;
mod otlp;
mod recorder;
mod secrets;
mod spans;

/// Trace id of a client.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
/// Id of the client's span.
const SPAN: &str = "00f067aa0ba902b7";

/// Returns the value of the header `traceparent` for [`TRACE`] and [`SPAN`]. The flags are `01` if
/// the client samples the trace, and `00` if not.
fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{SPAN}-{flags}")
}
