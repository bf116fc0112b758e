//! A blocking JSON-RPC client for calls that are not part of a run's load, such as the probe of a
//! target before a run. Unlike the engine's client, it describes failures in detail.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use lab_engine::engine::blocking::{BlockingWebSocket, OpenResult};
use lab_model::plan::{Target, Tls};
use parking_lot::Mutex;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use serde_json::Value;
use ureq::config::ConfigBuilder;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::typestate::AgentScope;
use wire::response;
use wire::response::Outcome;

use super::{Reason, TargetFault};

#[cfg(test)]
pub(crate) mod tests;

/// Maximum size of a response. A block with all its transactions has a few million bytes.
const RESPONSE_BYTES_MAX: u64 = 64 << 20;
/// HTTP status that is returned with a WebSocket response. Such a response has no status of its
/// own.
const STATUS_OK: u16 = 200;
/// Deepest nesting of arrays and objects in a response.
const DEPTH_MAX: usize = 128;
/// Maximum number of bytes of an unexpected response in a message.
const SHOWN_BYTES: usize = 80;
/// Maximum number of characters of a server's message that are shown.
const MESSAGE_CHARS_MAX: usize = 300;
/// Maximum number of attempts of a call whose response has HTTP status 429.
const LIMITED_ATTEMPTS: u32 = 4;
/// Wait after the first response with HTTP status 429. It doubles with each attempt.
const LIMITED_WAIT: Duration = Duration::from_millis(500);
/// Shortest timeout of a call. The plan's timeout may be shorter, because it is meant for the load.
const TIMEOUT_MIN: Duration = Duration::from_secs(5);
/// Longest timeout of a call. A target that hangs is reported after this time.
const TIMEOUT_MAX: Duration = Duration::from_secs(30);

/// A client of one server.
pub(crate) struct Client {
    agent: ureq::Agent,
    target: Target,
    tls: Tls,
    /// The open WebSocket of the last call. `None` before the first call, after a failed call, and
    /// always if the target is called over HTTP.
    websocket: Mutex<Option<BlockingWebSocket>>,
    /// Timeout of a call.
    timeout: Duration,
    /// A function that blocks until the next request may be sent. If `None`, requests are sent at
    /// once.
    pace: Option<Box<dyn Fn() + Send + Sync>>,
}

/// The reply to a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    /// The result.
    Result(Value),
    /// A JSON-RPC error.
    Error {
        /// Code of the error.
        code: i64,
        /// Message of the error.
        message: String,
    },
}

impl Client {
    /// Creates a client; it connects with the first call.
    ///
    /// # Errors
    /// Fails if the CA file cannot be used.
    pub(crate) fn new(target: &Target, tls: &Tls) -> Result<Client, TargetFault> {
        let timeout = target.timeout.clamp(TIMEOUT_MIN, TIMEOUT_MAX);
        Client::with_timeout(target, tls, timeout)
    }

    /// Creates a client that uses `timeout` for each call instead of the target's timeout.
    ///
    /// # Errors
    /// Fails if the CA file cannot be used.
    pub(crate) fn with_timeout(
        target: &Target,
        tls: &Tls,
        timeout: Duration,
    ) -> Result<Client, TargetFault> {
        let fault = |reason| TargetFault { url: target.url.to_string(), reason };
        let roots = match &tls.ca {
            None => RootCerts::WebPki,
            Some(path) => {
                let certificates = wire::tls::read_certificates(path).map_err(|error| {
                    fault(Reason::Anchors { path: path.display().to_string(), error })
                })?;
                let to_root = |root: &CertificateDer<'_>| Certificate::from_der(root).to_owned();
                RootCerts::from(certificates.iter().map(to_root))
            }
        };
        let agent = agent_config(roots, tls.insecure)
            .timeout_connect(Some(target.connect_timeout))
            .timeout_global(Some(timeout))
            .build()
            .new_agent();
        Ok(Client {
            agent,
            target: target.clone(),
            tls: tls.clone(),
            websocket: Mutex::new(None),
            timeout,
            pace: None,
        })
    }

    /// Limits the rate of [`Client::call`]: `pace` runs before each request and blocks until the
    /// request may be sent.
    pub(crate) fn with_pace(self, pace: impl Fn() + Send + Sync + 'static) -> Client {
        Client { pace: Some(Box::new(pace)), ..self }
    }

    /// Calls a method; `params` is JSON text. A JSON-RPC error is returned as a reply. A response
    /// with HTTP status 429 is retried.
    ///
    /// # Errors
    /// Fails if the target cannot be reached or the response is not JSON-RPC.
    pub(crate) fn call(&self, method: &str, params: &str) -> Result<Reply, TargetFault> {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        let mut wait = LIMITED_WAIT;
        let mut attempt = 1;
        loop {
            self.wait_for_turn();
            let (status, response) = self.post(body.as_bytes())?;
            if status != 429 {
                return self.parse_reply(status, &response);
            }
            if attempt == LIMITED_ATTEMPTS {
                let beginning = self.message_of(&response);
                return Err(self.fault(Reason::Limited { tries: LIMITED_ATTEMPTS, beginning }));
            }
            attempt += 1;
            std::thread::park_timeout(wait);
            wait *= 2;
        }
    }

    /// Waits until the pace allows a request.
    fn wait_for_turn(&self) {
        self.pace.iter().for_each(|pace| pace());
    }

    /// Sends a request body. Returns the status and the body of the response.
    ///
    /// # Errors
    /// Fails if the target cannot be reached or does not speak HTTP.
    pub(crate) fn post(&self, body: &[u8]) -> Result<(u16, Vec<u8>), TargetFault> {
        self.send(body).map_err(|error| self.explain(&error))
    }

    /// Sends a request body, as [`Client::post`] does, but returns the client library's error.
    /// [`Client::reason`] explains that error.
    ///
    /// # Errors
    /// Fails if the target cannot be reached or does not speak HTTP.
    pub(crate) fn send(&self, body: &[u8]) -> Result<(u16, Vec<u8>), ureq::Error> {
        if self.target.is_websocket() {
            return self.send_message(body);
        }
        let mut request = self.agent.post(self.url()).header("content-type", "application/json");
        for (name, value) in &self.target.headers {
            request = request.header(name, value);
        }
        let mut response = request.send(body)?;
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(RESPONSE_BYTES_MAX).read_to_vec();
        Ok((status, body?))
    }

    /// Sends a request body as a WebSocket message. Returns status 200 and the response. If the
    /// server refuses to open the WebSocket with status 401 or 429, returns that status.
    fn send_message(&self, body: &[u8]) -> Result<(u16, Vec<u8>), ureq::Error> {
        let call = |websocket: &mut BlockingWebSocket| {
            websocket.call(body, RESPONSE_BYTES_MAX as usize, self.timeout)
        };
        let mut open_websocket = self.websocket.lock();
        // The server may have closed an idle WebSocket. In that case the call fails, and is sent
        // again over a new WebSocket. A timeout is not retried.
        if let Some(mut websocket) = open_websocket.take() {
            match call(&mut websocket) {
                Ok(response) => {
                    *open_websocket = Some(websocket);
                    return Ok((STATUS_OK, response));
                }
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                    return Err(to_ureq_error(error));
                }
                Err(_) => {}
            }
        }
        let opened = BlockingWebSocket::open(&self.target, &self.tls, self.timeout);
        let mut websocket = match opened.map_err(to_ureq_error)? {
            OpenResult::Open(websocket) => websocket,
            OpenResult::Refused(status @ (401 | 429)) => {
                return Ok((status, b"the WebSocket was refused".to_vec()));
            }
            OpenResult::Refused(status) => return Err(ureq::Error::StatusCode(status)),
        };
        let response = call(&mut websocket).map_err(to_ureq_error)?;
        *open_websocket = Some(websocket);
        Ok((STATUS_OK, response))
    }

    /// Returns what a body of the target says to people, as [`message_of`] does.
    pub(crate) fn message_of(&self, body: &[u8]) -> String {
        message_of(body, &self.target)
    }

    /// Returns the target's URL with the scheme `http` or `https`.
    fn url(&self) -> String {
        let url = &self.target.url;
        let scheme = if url.tls() { "https" } else { "http" };
        format!("{scheme}://{}{}", url.authority(), url.target())
    }

    /// Parses the response to a call.
    fn parse_reply(&self, status: u16, body: &[u8]) -> Result<Reply, TargetFault> {
        if status == 401 {
            let beginning = self.message_of(body);
            return Err(self.fault(Reason::Unauthorized { beginning }));
        }
        let response = response::parse_response(body, DEPTH_MAX).map_err(|fault| {
            let fault = fault.to_string();
            self.fault(Reason::NotJsonRpc { status, fault, beginning: first_bytes(body) })
        })?;
        Ok(match response.outcome {
            Outcome::Result(raw) => {
                let value = serde_json::from_slice(raw).unwrap_or_default();
                Reply::Result(value)
            }
            Outcome::Error { code, message, .. } => {
                Reply::Error { code, message: message.into_owned() }
            }
        })
    }

    fn fault(&self, reason: Reason) -> TargetFault {
        TargetFault { url: self.target.url.to_string(), reason }
    }

    /// Turns an error into a fault. If the server may speak another protocol than HTTP, sends a
    /// request over another connection to read the first bytes of its response. The client library
    /// does not return these bytes.
    fn explain(&self, error: &ureq::Error) -> TargetFault {
        let reason = match self.reason(error) {
            reason @ (Reason::Closed | Reason::Other { .. }) if !self.target.url.tls() => {
                self.wait_for_turn();
                match read_response_start(&self.target) {
                    Some(beginning) if !beginning.starts_with("HTTP/1") => {
                        Reason::NotHttp { beginning }
                    }
                    _ => reason,
                }
            }
            reason => reason,
        };
        self.fault(reason)
    }

    /// Returns the reason for an error of the client library.
    pub(crate) fn reason(&self, error: &ureq::Error) -> Reason {
        use std::io::ErrorKind;
        let url = &self.target.url;
        match error {
            ureq::Error::HostNotFound => Reason::Resolve { host: url.host().to_owned() },
            ureq::Error::Timeout(ureq::Timeout::Connect) => {
                Reason::ConnectTimeout { after: self.target.connect_timeout }
            }
            ureq::Error::Timeout(_) => Reason::Silent { after: self.timeout },
            // Only a refused WebSocket causes this error; see `agent_config`.
            ureq::Error::StatusCode(status) => Reason::NoWebSocket { status: *status },
            ureq::Error::Rustls(error) => Reason::Tls { error: describe_tls_error(error) },
            ureq::Error::Io(error) => match (tls_message(error), error.kind()) {
                (Some(error), _) => Reason::Tls { error },
                (None, ErrorKind::ConnectionRefused) => Reason::Refused { port: url.port() },
                (None, ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable) => {
                    Reason::Unreachable { error: error.to_string() }
                }
                (
                    None,
                    ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe,
                ) => Reason::Closed,
                (None, _) => Reason::Other { error: error.to_string() },
            },
            error => Reason::Other { error: error.to_string() },
        }
    }
}

/// Returns the configuration of every HTTP client of the lab. `roots` are the trusted authorities.
/// If `insecure` is true, the client accepts any certificate. It follows no redirects. It ignores
/// the environment's proxy, which would also receive requests to local servers.
pub(crate) fn agent_config(roots: RootCerts, insecure: bool) -> ConfigBuilder<AgentScope> {
    let tls = TlsConfig::builder()
        .root_certs(roots)
        .disable_verification(insecure)
        .unversioned_rustls_crypto_provider(Arc::new(aws_lc_rs::default_provider()))
        .build();
    ureq::Agent::config_builder()
        .tls_config(tls)
        .http_status_as_error(false)
        .proxy(None)
        .max_redirects(0)
        .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION")))
}

/// Converts an I/O error of a WebSocket to an error of the HTTP client.
fn to_ureq_error(error: std::io::Error) -> ureq::Error {
    match error.kind() {
        std::io::ErrorKind::TimedOut => ureq::Error::Timeout(ureq::Timeout::Global),
        _ => ureq::Error::Io(error),
    }
}

/// Returns the message of the TLS error inside an I/O error, or `None` if there is no TLS error.
fn tls_message(error: &std::io::Error) -> Option<String> {
    let inner = error.get_ref()?;
    inner.downcast_ref::<rustls::Error>().map(describe_tls_error)
}

/// Returns the description of the TLS error in an error of the client library, without advice.
/// Returns `None` if there is no TLS error.
pub(crate) fn describe_tls_failure(error: &ureq::Error) -> Option<String> {
    let error = match error {
        ureq::Error::Rustls(error) => error,
        ureq::Error::Io(error) => error.get_ref()?.downcast_ref()?,
        _ => return None,
    };
    Some(wire::tls::describe_error(error))
}

/// Returns the message for a TLS error. If the certificate is the cause, it includes advice.
fn describe_tls_error(error: &rustls::Error) -> String {
    let text = wire::tls::describe_error(error);
    if !matches!(error, rustls::Error::InvalidCertificate(_)) {
        return text;
    }
    format!(
        "{text}; set the file of its authority (tls_ca in a plan), or accept any certificate with \
         --insecure"
    )
}

/// Returns what a body of `target` says to people: the message of a JSON-RPC error or of another JSON
/// object, or else the beginning of the body. Secrets of the target are masked, and control
/// characters become spaces.
pub(crate) fn message_of(body: &[u8], target: &Target) -> String {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let messages = [&json["error"]["message"], &json["error"], &json["message"]];
    let text = match messages.into_iter().find_map(Value::as_str) {
        Some(message) => message.to_owned(),
        None => String::from_utf8_lossy(body).into_owned(),
    };
    let header_values = target.headers.iter().map(|(_, value)| value.as_str());
    let masked = target.url.mask_secrets_in(text.trim(), header_values);
    let shown = masked.chars().take(MESSAGE_CHARS_MAX);
    shown.map(|character| if character.is_control() { ' ' } else { character }).collect()
}

/// Returns the beginning of a body as escaped text.
fn first_bytes(body: &[u8]) -> String {
    body[..body.len().min(SHOWN_BYTES)].escape_ascii().to_string()
}

/// Sends an HTTP request and returns the first bytes of the response as escaped text. `None` if the
/// server cannot be reached or sends no byte.
fn read_response_start(target: &Target) -> Option<String> {
    let address = (target.url.host(), target.url.port()).to_socket_addrs().ok()?.next()?;
    let timeout = Duration::from_secs(2);
    let mut stream = TcpStream::connect_timeout(&address, timeout).ok()?;
    stream.set_read_timeout(Some(timeout)).ok()?;
    stream.set_write_timeout(Some(timeout)).ok()?;
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"web3_clientVersion","params":[]}"#;
    let (path, authority, length) = (target.url.target(), target.url.authority(), body.len());
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {authority}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut beginning = vec![0; SHOWN_BYTES];
    let length = stream.read(&mut beginning).ok().filter(|length| *length > 0)?;
    Some(beginning[..length].escape_ascii().to_string())
}
