//! Traces of requests. While a sampled request runs, the gateway records spans. A background thread
//! sends the spans to a collector.
//!
//! | module | what |
//! |---|---|
//! | `context` | the trace of a request, and the current span |
//! | `span` | a span with its attributes, and the queues from the serving threads to the exporter |
//! | `otlp` | the messages of the OpenTelemetry protocol |
//! | `export` | the thread that sends spans to the collector |

pub(crate) mod context;
pub(crate) mod export;
mod otlp;
pub(crate) mod span;
