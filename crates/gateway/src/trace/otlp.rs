//! The messages of the OpenTelemetry protocol (OTLP 1.x) that carry spans.
//!
//! `trace.proto`, `common.proto`, `resource.proto` and `trace_service.proto` in
//! <https://github.com/open-telemetry/opentelemetry-proto> define the field numbers, which are
//! stable. The types here omit fields that the gateway never sets.
//!
//! Most types are named after their messages. In `#[prost(…)]`, `tag` is the number of the field.

use std::time::{SystemTime, UNIX_EPOCH};

use prost::{Message, Oneof};

use super::span;

/// `Status.code` of a span that failed.
const STATUS_ERROR: i32 = 2;

/// Bit of `Span.flags`: the trace is sampled.
const FLAG_SAMPLED: u32 = 0x01;
/// Bit of `Span.flags`: the value of `FLAG_IS_REMOTE` is known.
const FLAG_HAS_IS_REMOTE: u32 = 0x100;
/// Bit of `Span.flags`: the parent span is in another process.
const FLAG_IS_REMOTE: u32 = 0x200;

#[derive(Clone, PartialEq, Message)]
struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    /// Empty for the first span of a trace.
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "Content", tags = "1, 3")]
    content: Option<Content>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Content {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Integer(i64),
}

/// The response of a collector.
#[derive(Clone, PartialEq, Message)]
struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_spans: i64,
}

/// Encodes spans as the body of a request to a collector.
pub(super) fn encode(service_name: &str, spans: &[span::Span]) -> Vec<u8> {
    let attributes = vec![
        key_value("service.name", string_content(service_name)),
        key_value("service.version", string_content(env!("CARGO_PKG_VERSION"))),
    ];
    let scope = Scope { name: "weir".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let spans = spans.iter().map(convert_span).collect();
    let resource_spans = vec![ResourceSpans {
        resource: Some(Resource { attributes }),
        scope_spans: vec![ScopeSpans { scope: Some(scope), spans }],
    }];
    ExportRequest { resource_spans }.encode_to_vec()
}

/// Returns the number of spans that the collector rejected according to the body of its response.
/// Returns 0 if the body cannot be decoded.
pub(super) fn rejected_spans(body: &[u8]) -> u64 {
    let response = ExportResponse::decode(body).ok();
    let partial_success = response.and_then(|response| response.partial_success);
    partial_success.map_or(0, |partial| u64::try_from(partial.rejected_spans).unwrap_or(0))
}

/// Converts a recorded span to its message.
fn convert_span(span: &span::Span) -> Span {
    let attributes = span.attributes.iter().map(|(key, value)| {
        key_value(
            key,
            match value {
                span::AttributeValue::Static(value) => string_content(value),
                span::AttributeValue::Shared(value) => string_content(value),
                span::AttributeValue::Integer(number) => Content::Integer(*number),
            },
        )
    });
    let is_remote = span.kind == span::SpanKind::Server && span.parent.is_some();
    let remote_flag = if is_remote { FLAG_IS_REMOTE } else { 0 };
    Span {
        trace_id: span.trace.0.to_be_bytes().to_vec(),
        span_id: span.id.0.to_be_bytes().to_vec(),
        parent_span_id: span.parent.map_or_else(Vec::new, |parent| parent.0.to_be_bytes().to_vec()),
        name: span.name.to_owned(),
        kind: span.kind as i32,
        start_time_unix_nano: unix_nanos(span.start),
        end_time_unix_nano: unix_nanos(span.end),
        attributes: attributes.collect(),
        status: span
            .failure
            .as_ref()
            .map(|failure| Status { message: failure.to_string(), code: STATUS_ERROR }),
        flags: FLAG_SAMPLED | FLAG_HAS_IS_REMOTE | remote_flag,
    }
}

fn key_value(key: &str, content: Content) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { content: Some(content) }) }
}

fn string_content(text: &str) -> Content {
    Content::Text(text.to_owned())
}

/// Returns the nanoseconds since the Unix epoch.
fn unix_nanos(time: SystemTime) -> u64 {
    let elapsed = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}
