//! Calls over HTTP/1.1 with a persistent connection.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use wire::retry_after::parse_retry_after;

use super::endpoint::{Endpoint, Header};
use super::{CONNECT_TIMEOUT, CallError, EXCHANGE_TIMEOUT, MESSAGE_BYTES_MAX, excerpt};

/// An HTTP client of one node.
pub(super) struct HttpConnection {
    agent: ureq::Agent,
    url: String,
    headers: Vec<Header>,
}

impl HttpConnection {
    /// Creates a client that connects with its first exchange.
    pub(super) fn new(node: &Endpoint) -> HttpConnection {
        let roots = match &node.roots {
            None => RootCerts::WebPki,
            Some(roots) => {
                RootCerts::from(roots.iter().map(|root| Certificate::from_der(root).to_owned()))
            }
        };
        let tls = TlsConfig::builder()
            .root_certs(roots)
            .unversioned_rustls_crypto_provider(Arc::new(aws_lc_rs::default_provider()))
            .build();
        let agent = ureq::Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(EXCHANGE_TIMEOUT))
            .build()
            .new_agent();
        let scheme = if node.url.tls() { "https" } else { "http" };
        HttpConnection { agent, url: node.with_scheme(scheme), headers: node.headers.clone() }
    }

    /// Sends a request and returns the body of the response.
    pub(super) fn exchange(&mut self, message: &[u8]) -> Result<Vec<u8>, CallError> {
        let mut request = self.agent.post(&self.url).content_type("application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let mut response = request.send(message).map_err(transport_error)?;
        let status = response.status().as_u16();
        let retry_after = response
            .headers()
            .get("retry-after")
            .and_then(|value| parse_retry_after(value.as_bytes()));
        let body = response.body_mut().with_config().limit(MESSAGE_BYTES_MAX).read_to_vec();
        let body = body.map_err(transport_error)?;
        if status != 200 {
            let text = excerpt(&String::from_utf8_lossy(&body));
            return Err(CallError::Status { status, retry_after, text });
        }
        Ok(body)
    }
}

/// Maps an error of the library. The library's messages for some errors contain the URL with its
/// secrets, so these messages are replaced.
fn transport_error(error: ureq::Error) -> CallError {
    CallError::Transport(match error {
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => "not a url".to_owned(),
        ureq::Error::Timeout(phase) => format!("timeout ({phase})"),
        other => other.to_string(),
    })
}
