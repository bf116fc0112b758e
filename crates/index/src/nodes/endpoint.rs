//! The endpoint of a node: its URL, and the headers and root certificates of its connections.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use settings::url::{NodeUrl, Transport};
use tungstenite::http::header::{AUTHORIZATION, HeaderName, HeaderValue};

use super::batch_limit::BatchLimit;

/// Headers that the client sets itself.
const RESERVED_HEADERS: [&str; 6] =
    ["host", "content-length", "transfer-encoding", "connection", "content-type", "upgrade"];
/// The text that replaces secrets in messages.
const MASK: &str = "***";

/// The name and the value of a request header. The value is a secret.
pub type Header = (HeaderName, HeaderValue);

/// Parses a request header of the form `NAME: VALUE`.
///
/// # Errors
/// Returns the reason why the text is not a header. The message does not contain the value.
pub fn parse_header(text: &str) -> Result<Header, String> {
    let (name, value) = text.split_once(':').ok_or("not of the form NAME: VALUE")?;
    let name: HeaderName = name.trim().parse().map_err(|_| "not the name of a header")?;
    if RESERVED_HEADERS.contains(&name.as_str()) {
        return Err(format!("the client sets the header {name} itself"));
    }
    let mut value = HeaderValue::from_str(value.trim()).map_err(|_| {
        format!("the value of {name} contains a character that headers cannot contain")
    })?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// A node to call. Its printed form is the masked URL, which contains no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub(super) url: NodeUrl,
    /// Headers of each request, or of a WebSocket's handshake.
    pub(super) headers: Vec<Header>,
    /// The trusted root certificates; `None` for the certificates that browsers trust.
    pub(super) roots: Option<Arc<[CertificateDer<'static>]>>,
    /// What all clients of the endpoint have learnt about the size of batches.
    pub(super) batch_limit: BatchLimit,
}

impl From<NodeUrl> for Endpoint {
    fn from(url: NodeUrl) -> Endpoint {
        let authorization = url.authorization().cloned();
        let headers = authorization.map(|value| (AUTHORIZATION, value));
        Endpoint {
            headers: headers.into_iter().collect(),
            url,
            roots: None,
            batch_limit: BatchLimit::default(),
        }
    }
}

impl Endpoint {
    /// Returns the same endpoint with this header. It replaces any earlier header of the same name.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Endpoint {
        self.headers.retain(|(other, _)| *other != name);
        self.headers.push((name, value));
        self
    }

    /// Returns the same endpoint, but its connections trust only the certificates of this PEM text.
    ///
    /// # Errors
    /// Fails if the text has no certificate, or a damaged certificate.
    pub fn with_roots(mut self, pem: &[u8]) -> Result<Endpoint, String> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let certificates = certificates.map_err(|error| error.to_string())?;
        if certificates.is_empty() {
            return Err("it contains no certificate".to_owned());
        }
        self.roots = Some(certificates.into());
        Ok(self)
    }

    /// Returns the transport of calls to the node.
    pub fn transport(&self) -> Transport {
        self.url.transport()
    }

    /// Masks the values of headers in a text from the node. Some nodes repeat a rejected token in
    /// their response.
    pub(super) fn mask(&self, text: &str) -> String {
        let values = self.headers.iter().filter_map(|(_, value)| value.to_str().ok());
        // A value is a token, or a scheme and a token as in `Bearer TOKEN`.
        let tokens = values.filter_map(|value| value.rsplit(' ').next());
        tokens
            .filter(|token| !token.is_empty())
            .fold(text.to_owned(), |text, token| text.replace(token, MASK))
    }

    /// Returns the path of the node's Unix socket.
    pub(super) fn socket_path(&self) -> &Path {
        Path::new(self.url.target())
    }

    /// Returns the URL with this scheme, as client libraries need it. **Secret**: the returned text
    /// contains the secrets of the URL.
    pub(super) fn with_scheme(&self, scheme: &str) -> String {
        format!("{scheme}://{}{}", self.url.authority(), self.url.target())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}
