//! The endpoint of a node: its URL, and the headers and root certificates of its connections.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use settings::url::{NodeUrl, Transport};

/// A node to call. Its printed form is the masked URL, which contains no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    url: NodeUrl,
    /// Headers of each request, or of a WebSocket's handshake.
    headers: Vec<(String, String)>,
    /// The trusted root certificates; `None` for the certificates that browsers trust.
    roots: Option<Arc<[CertificateDer<'static>]>>,
}

impl From<NodeUrl> for Endpoint {
    fn from(url: NodeUrl) -> Endpoint {
        let authorization = url.authorization().and_then(|value| value.to_str().ok());
        let headers = authorization.map(|value| ("authorization".to_owned(), value.to_owned()));
        Endpoint { headers: headers.into_iter().collect(), url, roots: None }
    }
}

impl Endpoint {
    /// Returns the same endpoint with one more header.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Endpoint {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the same endpoint, whose connections trust only the certificates of this PEM text.
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

    pub(super) fn url(&self) -> &NodeUrl {
        &self.url
    }

    pub(super) fn roots(&self) -> Option<&[CertificateDer<'static>]> {
        self.roots.as_deref()
    }

    pub(super) fn headers(&self) -> &[(String, String)] {
        &self.headers
    }

    pub(super) fn socket_path(&self) -> &Path {
        Path::new(self.url.target())
    }

    /// Returns the URL with this scheme for a library. **Secret**: it contains the secrets of the
    /// URL.
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
