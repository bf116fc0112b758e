//! A span: one step of a request, with its time and attributes.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use crate::policy::trace_context::{SpanId, TraceId};

/// The role of a step, with its number in OTLP (`Span.SpanKind` in `trace.proto`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpanKind {
    Internal = 1,
    /// The gateway serves a client.
    Server = 2,
    /// The gateway calls an upstream.
    Client = 3,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Static(&'static str),
    Shared(Arc<str>),
    Integer(i64),
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Value {
        Value::Static(text)
    }
}

impl From<&Arc<str>> for Value {
    fn from(text: &Arc<str>) -> Value {
        Value::Shared(Arc::clone(text))
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Integer(number)
    }
}

/// A span that has ended. It holds no text of a client, so it holds no secret of one.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) trace: TraceId,
    pub(crate) id: SpanId,
    /// The span that caused it; `None` for the first span of a trace.
    pub(crate) parent: Option<SpanId>,
    pub(crate) kind: SpanKind,
    pub(crate) name: &'static str,
    pub(crate) start: SystemTime,
    pub(crate) end: SystemTime,
    pub(crate) attributes: Vec<(&'static str, Value)>,
    /// Description of the failure; `None` if the step did not fail.
    pub(crate) failure: Option<Cow<'static, str>>,
}
