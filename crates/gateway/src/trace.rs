//! Traces of requests: spans that are recorded while a sampled request runs, and sent to a
//! collector in the background.
//!
//! | module | what |
//! |---|---|
//! | `context` | the trace of a request and the span that is current in it |
//! | `span` | a span with its attributes, and the queues from the serving threads to the exporter |
//! | `otlp` | the messages of the OpenTelemetry protocol |
//! | `export` | the thread that sends spans to the collector |

pub(crate) mod context;
pub(crate) mod export;
mod otlp;
pub(crate) mod span;
