//! The trace of a request, from the client's headers to those for upstreams.
//!
//! A request without a `traceparent` that is not sampled has no trace and costs nothing. A request
//! that is not sampled passes the client's context on unchanged. A sampled request records spans,
//! and each attempt passes its own span on.

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

/// Maximum number of spans of one request. A batch may have thousands of calls; the spans of its
/// further calls are dropped and counted.
const REQUEST_SPANS_MAX: usize = 512;

/// The trace of a request.
struct RequestTrace {
    id: TraceId,
    /// The flag for upstreams: true if the gateway records spans, or if the client does.
    sampled: bool,
    /// The client's `tracestate`.
    state: Option<Box<str>>,
    /// Records spans; `None` if the request is not sampled.
    recorder: Option<Recorder>,
}

/// Collects the spans of one request, and queues them all once the request and the calls that it
/// has started have ended.
struct Recorder {
    queues: Arc<SpanQueues>,
    /// Index of the serving thread.
    thread: usize,
    spans: RefCell<Vec<Span>>,
}

impl Recorder {
    fn push(&self, span: Span) {
        let mut spans = self.spans.borrow_mut();
        // The request's own span comes last, and the others hang on it.
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

/// The trace of a request and the span that is current in it. Clones share the trace.
#[derive(Clone)]
pub(crate) struct TraceContext {
    trace: Rc<RequestTrace>,
    /// The current span: one of the gateway if the request is sampled, otherwise the client's.
    span: SpanId,
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.parent(), f)
    }
}

/// The queues of a serving thread, for requests that may be sampled.
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
    /// The span of the request; `None` if it is not sampled.
    pub(crate) span: Option<Box<ActiveSpan>>,
}

impl TraceContext {
    /// Begins the trace of a request, or continues the client's. Returns `None` if the request is
    /// not sampled and the client sent no trace context.
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

    /// Begins a span under the current one. Returns `None` if the request is not sampled.
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

/// A span that has not ended. It ends when it is dropped, so a step that is cancelled has a span
/// too.
#[derive(Debug)]
pub(crate) struct ActiveSpan {
    context: TraceContext,
    began: Instant,
    /// The span as far as it is known.
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
        ActiveSpan { context, began: Instant::now(), span }
    }

    /// Returns the context in which this span is current.
    pub(crate) fn context(&self) -> &TraceContext {
        &self.context
    }

    pub(crate) fn rename(&mut self, name: &'static str) {
        self.span.name = name;
    }

    pub(crate) fn set(&mut self, key: &'static str, value: impl Into<AttributeValue>) {
        self.span.attributes.push((key, value.into()));
    }

    /// Marks the step as failed.
    pub(crate) fn fail(&mut self, failure: impl Into<Cow<'static, str>>) {
        self.span.failure = Some(failure.into());
    }
}

impl Drop for ActiveSpan {
    fn drop(&mut self) {
        let Some(recorder) = &self.context.trace.recorder else { return };
        recorder.push(Span {
            // The system's clock may be set meanwhile; a duration is never negative.
            end: self.span.start + self.began.elapsed(),
            attributes: std::mem::take(&mut self.span.attributes),
            failure: self.span.failure.take(),
            ..self.span
        });
    }
}
