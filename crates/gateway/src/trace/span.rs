//! Spans, and the queues that move them from the serving threads to the exporter. A *span* is one
//! step of a request, with its time and attributes.
//!
//! A serving thread never waits for the collector. It locks its own bounded queue to add the spans
//! of a request. The exporter locks the queue only to empty it.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::config::tracing::Tracing;
use crate::policy::trace_context::{SpanId, TraceId};

/// The role of a step, with its number in OTLP (`Span.SpanKind` in `trace.proto`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpanKind {
    /// A step within the gateway.
    Internal = 1,
    /// The gateway serves a client.
    Server = 2,
    /// The gateway calls an upstream.
    Client = 3,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AttributeValue {
    /// A text that is part of the program.
    Static(&'static str),
    /// A name from the configuration.
    Shared(Arc<str>),
    Integer(i64),
}

impl From<&'static str> for AttributeValue {
    fn from(text: &'static str) -> AttributeValue {
        AttributeValue::Static(text)
    }
}

impl From<&Arc<str>> for AttributeValue {
    fn from(text: &Arc<str>) -> AttributeValue {
        AttributeValue::Shared(Arc::clone(text))
    }
}

impl From<i64> for AttributeValue {
    fn from(number: i64) -> AttributeValue {
        AttributeValue::Integer(number)
    }
}

/// A span that has ended. A span contains no text from a client, and so no secret.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) trace: TraceId,
    pub(crate) id: SpanId,
    /// The span that caused this span; `None` for the first span of a trace.
    pub(crate) parent: Option<SpanId>,
    pub(crate) kind: SpanKind,
    pub(crate) name: &'static str,
    pub(crate) start: SystemTime,
    pub(crate) end: SystemTime,
    pub(crate) attributes: Vec<(&'static str, AttributeValue)>,
    /// Description of the failure; `None` if the step did not fail.
    pub(crate) failure: Option<Cow<'static, str>>,
}

/// Numbers of spans by their outcome.
#[derive(Debug, Default)]
pub(crate) struct SpanCounts {
    /// Spans that the collector accepted.
    pub(crate) exported: AtomicU64,
    /// Spans that could not be sent, or that the collector rejected.
    pub(crate) failed: AtomicU64,
    /// Spans that were dropped because a queue was full, or because their request had too many.
    pub(crate) dropped: AtomicU64,
}

/// The queues of all serving threads.
#[derive(Debug)]
pub(crate) struct SpanQueues {
    pub(crate) config: Tracing,
    /// Counters that continue after a reload.
    pub(crate) counts: Arc<SpanCounts>,
    /// One queue per serving thread.
    queues: Vec<Mutex<Vec<Span>>>,
    /// Maximum number of spans in one queue.
    queue_spans_max: usize,
}

impl SpanQueues {
    /// Creates an empty queue for each serving thread. The counters of the previous queues
    /// continue.
    pub(crate) fn new(
        config: Tracing,
        threads: usize,
        previous: Option<&SpanQueues>,
    ) -> SpanQueues {
        SpanQueues {
            counts: previous.map(|previous| Arc::clone(&previous.counts)).unwrap_or_default(),
            queues: (0..threads).map(|_| Mutex::new(Vec::new())).collect(),
            queue_spans_max: config.queue_max.div_ceil(threads.max(1)),
            config,
        }
    }

    /// Moves the spans of a request into the queue of a serving thread. If the queue lacks room for
    /// all spans of the request, drops them all, because a trace with gaps misleads.
    pub(super) fn push(&self, thread: usize, spans: &mut Vec<Span>) {
        let mut queue = self.queues[thread].lock();
        if queue.len() + spans.len() <= self.queue_spans_max {
            queue.append(spans);
        } else {
            drop(queue);
            self.counts.dropped.fetch_add(spans.len() as u64, Ordering::Relaxed);
        }
    }

    /// Takes the spans of all threads.
    pub(super) fn take(&self) -> Vec<Span> {
        self.queues.iter().flat_map(|queue| std::mem::take(&mut *queue.lock())).collect()
    }
}
