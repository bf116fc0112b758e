//! The address of a node. Its printed form hides what may be a secret: providers put keys into
//! paths, queries and host names.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use ureq::http::Uri;

/// The transport of calls to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// HTTP/1.1.
    Http,
    /// A WebSocket.
    WebSocket,
    /// A Unix socket.
    Ipc,
}

/// The address of a node. Its printed form has scheme, host and port.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeUrl {
    transport: Transport,
    tls: bool,
    host: String,
    port: u16,
    /// Path and query, or the path of a Unix socket.
    target: String,
    /// Headers of each request, or of a WebSocket's handshake.
    headers: Vec<(String, String)>,
    /// The trusted root certificates; `None` for those that browsers trust.
    roots: Option<Arc<[CertificateDer<'static>]>>,
}

/// Bytes from which on a host label with a digit is masked: some providers make the key a label of
/// the host name.
const MASKED_LABEL_BYTES_MIN: usize = 16;

impl FromStr for NodeUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<NodeUrl, &'static str> {
        if let Some(path) = text.strip_prefix("ipc:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if !path.starts_with('/') {
                return Err(
                    "after ipc: comes the whole path of a socket, such as ipc:/var/geth.ipc",
                );
            }
            return Ok(NodeUrl::from_parts(Transport::Ipc, false, "", 0, path));
        }
        let uri: Uri = text.parse().map_err(|_| "not a url")?;
        let (transport, tls) = match uri.scheme_str() {
            Some("http") => (Transport::Http, false),
            Some("https") => (Transport::Http, true),
            Some("ws") => (Transport::WebSocket, false),
            Some("wss") => (Transport::WebSocket, true),
            _ => return Err("a url begins with http://, https://, ws://, wss:// or ipc:"),
        };
        let authority = uri.authority().ok_or("the url has no host")?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err("the url has no host");
        }
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        let mut url = NodeUrl::from_parts(transport, tls, host, port, target);
        let user = authority.as_str().rsplit_once('@').map(|(user, _)| user);
        url.headers.extend(user.map(basic_authorization));
        Ok(url)
    }
}

/// The header for a user and a password (RFC 7617).
fn basic_authorization(user: &str) -> (String, String) {
    ("authorization".to_owned(), format!("Basic {}", STANDARD.encode(user)))
}

impl NodeUrl {
    /// An address from its parts; `target` is path and query, or the path of a Unix socket.
    pub fn from_parts(
        transport: Transport,
        tls: bool,
        host: &str,
        port: u16,
        target: &str,
    ) -> NodeUrl {
        let (host, target) = (host.to_owned(), target.to_owned());
        NodeUrl { transport, tls, host, port, target, headers: Vec::new(), roots: None }
    }

    /// The same address with one more header.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> NodeUrl {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same address, which trusts only the certificates of this PEM text.
    ///
    /// # Errors
    /// If the text has no certificate, or a damaged one.
    pub fn with_roots(mut self, pem: &[u8]) -> Result<NodeUrl, String> {
        let listed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let listed = listed.map_err(|error| error.to_string())?;
        if listed.is_empty() {
            return Err("no certificate in it".to_owned());
        }
        self.roots = Some(listed.into());
        Ok(self)
    }

    pub(super) fn roots(&self) -> Option<&[CertificateDer<'static>]> {
        self.roots.as_deref()
    }

    /// The transport of calls to the node.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    pub(super) fn tls(&self) -> bool {
        self.tls
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn headers(&self) -> &[(String, String)] {
        &self.headers
    }

    pub(super) fn socket_path(&self) -> &Path {
        Path::new(&self.target)
    }

    /// The whole URL with this scheme, secrets included, for a library.
    pub(super) fn with_scheme(&self, scheme: &str) -> String {
        let host = self.bracketed();
        format!("{scheme}://{host}:{}{}", self.port, self.target)
    }

    fn bracketed(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }
}

impl fmt::Display for NodeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.transport, self.tls) {
            (Transport::Ipc, _) => return write!(f, "ipc:{}", self.target),
            (Transport::Http, false) => "http",
            (Transport::Http, true) => "https",
            (Transport::WebSocket, false) => "ws",
            (Transport::WebSocket, true) => "wss",
        };
        let secret = |label: &str| {
            label.len() >= MASKED_LABEL_BYTES_MIN && label.bytes().any(|byte| byte.is_ascii_digit())
        };
        let host = self.bracketed();
        let labels: Vec<&str> =
            host.split('.').map(|label| if secret(label) { "***" } else { label }).collect();
        let path = if self.target == "/" { "" } else { "/***" };
        write!(f, "{scheme}://{}:{}{path}", labels.join("."), self.port)
    }
}

impl fmt::Debug for NodeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
