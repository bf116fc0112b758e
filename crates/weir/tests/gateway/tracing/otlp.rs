//! Decodes the body of an OTLP request into the JSON that a collector would forward. The decoder is
//! stricter than a collector: it rejects a field that [`MESSAGES`] does not list.

use serde_json::{Map, Value, json};

/// A type of a field.
#[derive(Clone, Copy)]
enum Type {
    Text,
    /// Bytes, as hexadecimal digits.
    Id,
    /// A varint that fits into a JSON number.
    Small,
    /// A varint that is text in JSON.
    Large,
    /// Eight bytes, as text.
    Fixed64,
    Fixed32,
    One(&'static str),
    Many(&'static str),
}

use Type::{Fixed32, Fixed64, Id, Large, Many, One, Small, Text};

/// A field of a message: number, JSON name and type.
type Field = (u64, &'static str, Type);

/// Messages with their fields, recorded from `trace.proto`, `common.proto`, `resource.proto` and
/// `trace_service.proto` of opentelemetry-proto 1.7. Events and links of spans are missing, because
/// the gateway sends none.
const MESSAGES: &[(&str, &[Field])] = &[
    ("ExportTraceServiceRequest", &[(1, "resourceSpans", Many("ResourceSpans"))]),
    (
        "ResourceSpans",
        &[
            (1, "resource", One("Resource")),
            (2, "scopeSpans", Many("ScopeSpans")),
            (3, "schemaUrl", Text),
        ],
    ),
    ("Resource", &[(1, "attributes", Many("KeyValue")), (2, "droppedAttributesCount", Small)]),
    (
        "ScopeSpans",
        &[
            (1, "scope", One("InstrumentationScope")),
            (2, "spans", Many("Span")),
            (3, "schemaUrl", Text),
        ],
    ),
    (
        "InstrumentationScope",
        &[
            (1, "name", Text),
            (2, "version", Text),
            (3, "attributes", Many("KeyValue")),
            (4, "droppedAttributesCount", Small),
        ],
    ),
    (
        "Span",
        &[
            (1, "traceId", Id),
            (2, "spanId", Id),
            (3, "traceState", Text),
            (4, "parentSpanId", Id),
            (5, "name", Text),
            (6, "kind", Small),
            (7, "startTimeUnixNano", Fixed64),
            (8, "endTimeUnixNano", Fixed64),
            (9, "attributes", Many("KeyValue")),
            (10, "droppedAttributesCount", Small),
            (12, "droppedEventsCount", Small),
            (14, "droppedLinksCount", Small),
            (15, "status", One("Status")),
            (16, "flags", Fixed32),
        ],
    ),
    ("Status", &[(2, "message", Text), (3, "code", Small)]),
    ("KeyValue", &[(1, "key", Text), (2, "value", One("AnyValue"))]),
    ("AnyValue", &[(1, "stringValue", Text), (3, "intValue", Large)]),
];

/// Decodes the body of a request.
///
/// # Panics
/// Panics if the body is not a valid message.
pub(super) fn decode_request(body: &[u8]) -> Value {
    decode("ExportTraceServiceRequest", body)
}

/// Decodes a message.
fn decode(message: &str, mut bytes: &[u8]) -> Value {
    let (_, fields) = MESSAGES.iter().find(|(name, _)| *name == message).unwrap();
    let mut object = Map::new();
    while !bytes.is_empty() {
        let tag = take_varint(&mut bytes);
        let field = fields.iter().find(|(number, ..)| *number == tag >> 3);
        let (_, name, kind) =
            field.unwrap_or_else(|| panic!("{message} has no field {}", tag >> 3));
        let wire_type = match kind {
            Small | Large => 0,
            Fixed64 => 1,
            Text | Id | One(_) | Many(_) => 2,
            Fixed32 => 5,
        };
        assert_eq!(tag & 7, wire_type, "wire type of {message}.{name}");
        let value = match *kind {
            Small => json!(take_varint(&mut bytes)),
            Large => json!((take_varint(&mut bytes) as i64).to_string()),
            Fixed64 => {
                json!(u64::from_le_bytes(take(&mut bytes, 8).try_into().unwrap()).to_string())
            }
            Fixed32 => json!(u32::from_le_bytes(take(&mut bytes, 4).try_into().unwrap())),
            Text => json!(std::str::from_utf8(take_delimited(&mut bytes)).unwrap()),
            Id => json!(format_hex(take_delimited(&mut bytes))),
            One(inner) | Many(inner) => decode(inner, take_delimited(&mut bytes)),
        };
        match (kind, object.get_mut(*name)) {
            (Many(_), Some(Value::Array(values))) => values.push(value),
            (Many(_), _) => drop(object.insert((*name).to_owned(), json!([value]))),
            (_, previous) => {
                assert!(previous.is_none(), "{message}.{name} occurs twice");
                object.insert((*name).to_owned(), value);
            }
        }
    }
    Value::Object(object)
}

fn format_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(length);
    *bytes = rest;
    taken
}

fn take_delimited<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let length = take_varint(bytes);
    take(bytes, usize::try_from(length).unwrap())
}

fn take_varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return value;
        }
    }
    panic!("a varint has at most ten bytes")
}
