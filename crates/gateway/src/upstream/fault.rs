//! Why an upstream fails, in words for the log, the status and the readiness.
//!
//! `weir load` reports the same causes in the same words. No text contains a part of a URL or a
//! header, because both may hold a key.

use std::io;
use std::time::Duration;

use rustls::CertificateError;
use settings::url::{NodeUrl, Transport};

use crate::call::failure::FailureKind;
use crate::config::upstream::Upstream;

#[cfg(test)]
mod tests;

/// Maximum number of characters of an upstream's own text in a reason.
const QUOTED_CHARS_MAX: usize = 120;

/// The last fault of an upstream that fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UpstreamFault {
    /// The reason, in words.
    pub(crate) reason: String,
    /// When the upstream began to fail, as time since the process started.
    pub(crate) since: Duration,
}

/// Describes an error from opening a connection to `url`.
pub(crate) fn describe_connect_error(error: &io::Error, url: &NodeUrl) -> String {
    let inner = error.get_ref();
    if let Some(tls) = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        return format!("the TLS handshake failed: {}", describe_tls_error(tls));
    }
    match error.kind() {
        io::ErrorKind::ConnectionRefused if url.transport() == Transport::Ipc => {
            "the connection was refused; nothing listens on the socket".to_owned()
        }
        io::ErrorKind::ConnectionRefused => {
            format!("the connection was refused; nothing listens on port {}", url.port())
        }
        io::ErrorKind::TimedOut => "no connection within the timeout".to_owned(),
        io::ErrorKind::NotFound if url.transport() == Transport::Ipc => {
            "the socket does not exist".to_owned()
        }
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            "the host cannot be reached".to_owned()
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset if url.tls() => {
            "the TLS handshake failed: the server closed the connection; is it an http:// address?"
                .to_owned()
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            "the connection closed before the response was complete".to_owned()
        }
        // The system library reports an unknown name without a kind of its own.
        _ if error.to_string().starts_with("failed to lookup address") => {
            "the host name has no address".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Describes a TLS error, with advice if a setting can mend it.
fn describe_tls_error(error: &rustls::Error) -> String {
    let text = wire::tls::describe_error(error);
    match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            format!("{text}; set the file of its authority with tls_ca")
        }
        _ => text,
    }
}

/// Describes why a request over an open connection to `url` has no response.
pub(crate) fn describe_exchange_error(kind: FailureKind, url: Option<&NodeUrl>) -> String {
    let advice = if url.is_some_and(NodeUrl::tls) { "" } else { "; is it an https:// address?" };
    match kind {
        FailureKind::Deadline => "it accepts connections, but did not respond in time".to_owned(),
        FailureKind::Closed => {
            format!("the connection closed before the response was complete{advice}")
        }
        FailureKind::Malformed => format!("it does not speak HTTP{advice}"),
        FailureKind::TooLarge => "its response is too large".to_owned(),
        _ => "it did not respond".to_owned(),
    }
}

/// Describes a response that is an error, or no JSON-RPC. `error` is the code and message of a
/// JSON-RPC error.
pub(crate) fn describe_response(
    status: u16,
    error: Option<(i64, &str)>,
    upstream: &Upstream,
) -> String {
    let error_text = error.map(|(code, message)| {
        let message = quote(message, upstream);
        format!("JSON-RPC error {code}: {message}")
    });
    let status_text = match status {
        200 if error_text.is_some() => String::new(),
        200 => "its response is not JSON-RPC (HTTP status 200)".to_owned(),
        401 | 403 => format!("it requires another key or token (HTTP status {status})"),
        404 => "HTTP status 404; is the path of the URL right?".to_owned(),
        _ => format!("HTTP status {status}"),
    };
    let texts = [Some(status_text).filter(|text| !text.is_empty()), error_text];
    texts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Returns the text of an upstream with secrets masked, without control characters, and cut to a
/// short length.
fn quote(text: &str, upstream: &Upstream) -> String {
    let headers = || upstream.headers.iter().filter_map(|(_, value)| value.to_str().ok());
    let urls = [upstream.http(), upstream.multiplexed()].into_iter().flatten();
    let quoted = urls.fold(text.to_owned(), |text, (url, _)| url.mask_secrets_in(&text, headers()));
    let printable = quoted.chars().map(|char| if char.is_control() { ' ' } else { char });
    printable.take(QUOTED_CHARS_MAX).collect()
}
