//! The trace of a request, from the client's trace headers to the headers for upstreams.
//!
//! There are three cases:
//!
//! - A sampled request records spans. Each attempt at an upstream sends the id of its own span.
//! - If a request is not sampled but has a `traceparent` (the client's W3C trace header), the
//!   gateway forwards the client's context unchanged.
//! - Any other request has no trace and costs nothing.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};

use super::span::{AttributeValue, Span, SpanKind, SpanQueues};
use crate::policy::trace_context::{ClientTrace, SpanId, TraceId, TraceParent};

#[cfg(test)]
mod tests;

/// Maximum number of spans of one request. A batch may have thousands of calls. Further spans are
/// dropped and counted.
const REQUEST_SPANS_MAX: usize = 512;

/// The trace of a request.
struct RequestTrace {
    id: TraceId,
    /// The `sampled` flag that upstreams receive: true if the gateway or the client records spans.
    sampled: bool,
    /// The client's `tracestate`; `None` if the client sent none.
    state: Option<Box<str>>,
    /// Records spans; `None` if the request is not sampled.
    recorder: Option<Recorder>,
}

/// Collects the spans of one request. When the request and all its calls have ended, moves the
/// spans together into a queue.
struct Recorder {
    queues: Arc<SpanQueues>,
    /// Index of the serving thread.
    thread: usize,
    spans: RefCell<Vec<Span>>,
}

impl Recorder {
    /// Adds an ended span. Drops and counts the span if the request has too many spans.
    fn push(&self, span: Span) {
        let mut spans = self.spans.borrow_mut();
        // The limit does not apply to the span of the request itself. That span ends last, and is
        // the parent of the other spans.
        if spans.len() < REQUEST_SPANS_MAX || span.kind == SpanKind::Server {
            spans.push(span);
        } else {
            self.queues.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.queues.push(self.thread, self.spans.get_mut());
    }
}

/// The trace of a request, and the current span. Clones share the trace.
#[derive(Clone)]
pub(crate) struct TraceContext {
    trace: Rc<RequestTrace>,
    /// The current span: a span of the gateway if the request is sampled, otherwise the client's
    /// span.
    span: SpanId,
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.parent(), f)
    }
}

/// The span queues and the index of the serving thread, for a request that may be sampled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sampler<'a> {
    pub(crate) queues: &'a Arc<SpanQueues>,
    /// Index of the serving thread.
    pub(crate) thread: usize,
}

/// A request whose trace has begun.
#[derive(Debug)]
pub(crate) struct TracedRequest {
    pub(crate) context: TraceContext,
    /// The span of the request; `None` if the request is not sampled.
    pub(crate) span: Option<Box<ActiveSpan>>,
}

impl TraceContext {
    /// Begins the trace of a request, or continues the client's trace. `sampler` is `None` if the
    /// request must not be sampled. Returns `None` if the request is not sampled and the client
    /// sent no trace context.
    pub(crate) fn begin_request(
        client: Option<&ClientTrace>,
        sampler: Option<Sampler<'_>>,
        random: impl Fn() -> u64,
    ) -> Option<TracedRequest> {
        if client.is_none() && sampler.is_none() {
            return None;
        }
        let parent = client.map(|client| client.parent);
        let id = parent.map_or_else(|| TraceId::new(&random), |parent| parent.trace);
        let sampler = sampler.filter(|sampler| sampler.queues.config.samples(id, parent));
        let recorder = sampler.map(|sampler| Recorder {
            queues: Arc::clone(sampler.queues),
            thread: sampler.thread,
            spans: RefCell::default(),
        });
        let state = client.and_then(|client| client.state.clone());
        if parent.is_none() && recorder.is_none() {
            return None;
        }
        let is_recorded = recorder.is_some();
        let sampled = is_recorded || parent.is_some_and(|parent| parent.sampled);
        let trace = Rc::new(RequestTrace { id, sampled, state, recorder });
        if !is_recorded {
            let context = TraceContext { trace, span: parent?.span };
            return Some(TracedRequest { context, span: None });
        }
        let context = TraceContext { trace, span: SpanId::new(random()) };
        let parent = parent.map(|parent| parent.span);
        let span = ActiveSpan::new(context.clone(), parent, SpanKind::Server, "request");
        Some(TracedRequest { context, span: Some(Box::new(span)) })
    }

    /// Begins a span whose parent is the current span. Returns `None` if the request is not
    /// sampled.
    pub(crate) fn begin(
        &self,
        kind: SpanKind,
        name: &'static str,
        random: impl FnOnce() -> u64,
    ) -> Option<Box<ActiveSpan>> {
        self.trace.recorder.as_ref()?;
        let context = TraceContext { trace: Rc::clone(&self.trace), span: SpanId::new(random()) };
        Some(Box::new(ActiveSpan::new(context, Some(self.span), kind, name)))
    }

    /// Returns the id of the trace.
    pub(crate) fn trace_id(&self) -> TraceId {
        self.trace.id
    }

    /// Returns the `traceparent` for an upstream.
    pub(crate) fn parent(&self) -> TraceParent {
        let RequestTrace { id, sampled, .. } = *self.trace;
        TraceParent { trace: id, span: self.span, sampled }
    }

    /// Returns the `tracestate` for an upstream.
    pub(crate) fn state(&self) -> Option<&str> {
        self.trace.state.as_deref()
    }
}

/// A span that has not ended. Dropping it ends the span, so a cancelled step has a span too.
#[derive(Debug)]
pub(crate) struct ActiveSpan {
    context: TraceContext,
    started_at: Instant,
    /// The recorded span. Its `end` is set when this value is dropped.
    span: Span,
}

impl ActiveSpan {
    fn new(
        context: TraceContext,
        parent: Option<SpanId>,
        kind: SpanKind,
        name: &'static str,
    ) -> ActiveSpan {
        let start = SystemTime::now();
        let span = Span {
            trace: context.trace.id,
            id: context.span,
            parent,
            kind,
            name,
            start,
            end: start,
            attributes: Vec::new(),
            failure: None,
        };
        ActiveSpan { context, started_at: Instant::now(), span }
    }

    /// Returns the context in which this span is current.
    pub(crate) fn context(&self) -> &TraceContext {
        &self.context
    }

    pub(crate) fn rename(&mut self, name: &'static str) {
        self.span.name = name;
    }

    /// Sets an attribute.
    pub(crate) fn set(&mut self, key: &'static str, value: impl Into<AttributeValue>) {
        self.span.attributes.push((key, value.into()));
    }

    /// Marks the step as failed. `failure` is the description of the failure.
    pub(crate) fn fail(&mut self, failure: impl Into<Cow<'static, str>>) {
        self.span.failure = Some(failure.into());
    }
}

impl Drop for ActiveSpan {
    fn drop(&mut self) {
        let Some(recorder) = &self.context.trace.recorder else { return };
        recorder.push(Span {
            // The end is computed from the elapsed time, because the system's clock may have been
            // set back meanwhile.
            end: self.span.start + self.started_at.elapsed(),
            attributes: std::mem::take(&mut self.span.attributes),
            failure: self.span.failure.take(),
            ..self.span
        });
    }
}
