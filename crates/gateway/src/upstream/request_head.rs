//! Request lines and headers of HTTP/1.1 requests to an upstream.

use settings::url::NodeUrl;

use crate::config::upstream::Upstream;

/// Returns the request line and headers of a call over HTTP/1.1, up to and including
/// `Content-Length: `.
pub(super) fn build_call_head(upstream: &Upstream) -> Vec<u8> {
    let close = if upstream.keep_alive { "" } else { "Connection: close\r\n" };
    let headers = format!("Content-Type: application/json\r\nAccept: application/json\r\n{close}");
    let mut head = build_request_head("POST", &upstream.url, &headers, upstream);
    head.extend_from_slice(b"Content-Length: ");
    head
}

/// Returns the start of a request to one of the upstream's addresses: the request line,
/// `more_headers` and the configured headers. Credentials in the address override a configured
/// `authorization` header.
pub(super) fn build_request_head(
    method: &str,
    url: &NodeUrl,
    more_headers: &str,
    upstream: &Upstream,
) -> Vec<u8> {
    let (target, authority) = (url.target(), url.authority());
    let first_lines = format!("{method} {target} HTTP/1.1\r\nHost: {authority}\r\n{more_headers}");
    let mut head = first_lines.into_bytes();
    let mut add_header = |name: &[u8], value: &[u8]| {
        for part in [name, b": ", value, b"\r\n"] {
            head.extend_from_slice(part);
        }
    };
    let authorization = url.authorization();
    if let Some(value) = authorization {
        add_header(b"Authorization", value.as_bytes());
    }
    for (name, value) in &upstream.headers {
        if *name != http::header::AUTHORIZATION || authorization.is_none() {
            add_header(name.as_str().as_bytes(), value.as_bytes());
        }
    }
    head
}
