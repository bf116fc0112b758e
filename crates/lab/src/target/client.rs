//! A blocking JSON-RPC client for the few calls before and after a run, which are not measured. The
//! engine has its own client; this one describes failures in detail.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use lab_engine::engine::blocking::{BlockingWebSocket, Opened};
use lab_model::plan::{Target, Tls};
use parking_lot::Mutex;
use rustls::crypto::aws_lc_rs;
use serde_json::Value;
use ureq::config::ConfigBuilder;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::typestate::AgentScope;
use wire::response;
use wire::response::Outcome;

use super::{Reason, TargetFault};

#[cfg(test)]
pub(crate) mod tests;

/// Largest response; a block with all its transactions has a few million bytes.
const RESPONSE_BYTES_MAX: u64 = 64 << 20;
/// Status of a response over a WebSocket, which has none.
const STATUS_OK: u16 = 200;
/// Deepest nesting of arrays and objects in a response.
const DEPTH_MAX: usize = 128;
/// Bytes of an unexpected response that are shown.
const SHOWN_BYTES: usize = 80;
/// Number of attempts while the status is 429, and the first wait between them, which doubles.
const LIMITED_ATTEMPTS: u32 = 4;
const LIMITED_WAIT: Duration = Duration::from_millis(500);
/// Shortest and longest timeout of a call. The plan's timeout may be short for reasons of the load,
/// and waiting minutes for a target that hangs would be too long.
const TIMEOUT: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));

/// A client of one server.
pub(crate) struct Client {
    agent: ureq::Agent,
    target: Target,
    tls: Tls,
    /// The WebSocket of the last call, if the target is called over WebSockets.
    websocket: Mutex<Option<BlockingWebSocket>>,
    /// Timeout of a call.
    timeout: Duration,
    /// Waits until the next call may be sent.
    pace: Option<Box<dyn Fn() + Send + Sync>>,
}

/// The reply to a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    /// The result.
    Result(Value),
    /// A JSON-RPC error.
    Error {
        /// Its code.
        code: i64,
        /// Its message.
        message: String,
    },
}

impl Client {
    /// Creates a client; it connects with the first call.
    ///
    /// # Errors
    /// Fails if the CA file cannot be used.
    pub(crate) fn new(target: &Target, tls: &Tls) -> Result<Client, TargetFault> {
        let timeout = target.timeout.clamp(TIMEOUT.0, TIMEOUT.1);
        Client::with_timeout(target, tls, timeout)
    }

    /// Creates a client with this timeout of a call instead of the target's.
    ///
    /// # Errors
    /// Fails if the CA file cannot be used.
    pub(crate) fn with_timeout(
        target: &Target,
        tls: &Tls,
        timeout: Duration,
    ) -> Result<Client, TargetFault> {
        let fault = |reason| TargetFault { url: target.url.to_string(), reason };
        let anchors = match &tls.ca {
            None => RootCerts::WebPki,
            Some(path) => {
                let loaded = std::fs::read(path).map_err(|error| error.to_string());
                let loaded = loaded.and_then(|text| certificates(&text));
                loaded.map(RootCerts::from).map_err(|error| {
                    fault(Reason::Anchors { path: path.display().to_string(), error })
                })?
            }
        };
        let agent = agent_config(anchors, tls.insecure)
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

    /// Calls `pace` before each request of [`Client::call`]; it waits until one may be sent.
    pub(crate) fn paced(self, pace: impl Fn() + Send + Sync + 'static) -> Client {
        Client { pace: Some(Box::new(pace)), ..self }
    }

    /// Calls a method; `params` is JSON text. A JSON-RPC error is returned as a reply.
    ///
    /// # Errors
    /// Fails if the target cannot be reached or the response is not JSON-RPC.
    pub(crate) fn call(&self, method: &str, params: &str) -> Result<Reply, TargetFault> {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        let mut wait = LIMITED_WAIT;
        for attempt in 1..=LIMITED_ATTEMPTS {
            self.wait_for_turn();
            let (status, answer) = self.post(body.as_bytes())?;
            if status != 429 {
                return self.read(status, &answer);
            }
            if attempt < LIMITED_ATTEMPTS {
                std::thread::park_timeout(wait);
                wait *= 2;
            }
        }
        Err(self.fault(Reason::Limited { tries: LIMITED_ATTEMPTS }))
    }

    fn wait_for_turn(&self) {
        self.pace.iter().for_each(|pace| pace());
    }

    /// Sends a body and returns status and body of the response.
    ///
    /// # Errors
    /// Fails if the target cannot be reached or does not speak HTTP.
    pub(crate) fn post(&self, body: &[u8]) -> Result<(u16, Vec<u8>), TargetFault> {
        self.send(body).map_err(|error| self.explain(&error))
    }

    /// Sends a body and returns status and body of the response. [`Client::reason`] explains the
    /// error.
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

    /// Sends a body as a message of a WebSocket. The status of a response is 200, or that of a
    /// refused WebSocket.
    fn send_message(&self, body: &[u8]) -> Result<(u16, Vec<u8>), ureq::Error> {
        let call = |websocket: &mut BlockingWebSocket| {
            websocket.call(body, RESPONSE_BYTES_MAX as usize, self.timeout)
        };
        let mut kept = self.websocket.lock();
        // The server may have closed a WebSocket that was idle. Then the call needs a new one.
        if let Some(mut websocket) = kept.take() {
            match call(&mut websocket) {
                Ok(response) => {
                    *kept = Some(websocket);
                    return Ok((STATUS_OK, response));
                }
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                    return Err(as_ureq(error));
                }
                Err(_) => {}
            }
        }
        let opened = BlockingWebSocket::open(&self.target, &self.tls, self.timeout);
        let mut websocket = match opened.map_err(as_ureq)? {
            Opened::Open(websocket) => websocket,
            Opened::Refused(status @ (401 | 429)) => {
                return Ok((status, b"the WebSocket was refused".to_vec()));
            }
            Opened::Refused(status) => return Err(ureq::Error::StatusCode(status)),
        };
        let response = call(&mut websocket).map_err(as_ureq)?;
        *kept = Some(websocket);
        Ok((STATUS_OK, response))
    }

    fn url(&self) -> String {
        let url = &self.target.url;
        let scheme = if url.tls() { "https" } else { "http" };
        format!("{scheme}://{}{}", url.authority(), url.target())
    }

    fn read(&self, status: u16, body: &[u8]) -> Result<Reply, TargetFault> {
        if status == 401 {
            return Err(self.fault(Reason::Unauthorized { beginning: first_bytes(body) }));
        }
        let answer = response::parse_response(body, DEPTH_MAX).map_err(|fault| {
            let fault = fault.to_string();
            self.fault(Reason::NotJsonRpc { status, fault, beginning: first_bytes(body) })
        })?;
        Ok(match answer.outcome {
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

    /// Explains an error. The beginning of a response that is not HTTP needs another connection.
    fn explain(&self, error: &ureq::Error) -> TargetFault {
        let reason = match self.reason(error) {
            reason @ (Reason::Closed | Reason::Other { .. }) if !self.target.url.tls() => {
                self.wait_for_turn();
                match first_response(&self.target) {
                    Some(first) if !first.starts_with("HTTP/1") => {
                        Reason::NotHttp { beginning: first }
                    }
                    _ => reason,
                }
            }
            reason => reason,
        };
        self.fault(reason)
    }

    /// Returns the reason of an error.
    pub(crate) fn reason(&self, error: &ureq::Error) -> Reason {
        use std::io::ErrorKind;
        let url = &self.target.url;
        match error {
            ureq::Error::HostNotFound => Reason::Resolve { host: url.host().to_owned() },
            ureq::Error::Timeout(ureq::Timeout::Connect) => {
                Reason::ConnectTimeout { after: self.target.connect_timeout }
            }
            ureq::Error::Timeout(_) => Reason::Silent { after: self.timeout },
            // HTTP statuses are no errors, except for the status of a refused WebSocket.
            ureq::Error::StatusCode(status) => Reason::NoWebSocket { status: *status },
            ureq::Error::Rustls(error) => Reason::Tls { error: tls_fault(error) },
            ureq::Error::Io(error) => match (as_tls(error), error.kind()) {
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

/// Returns the configuration of every HTTP client of the lab: without redirects, and without a
/// proxy from the environment, which would also get requests to local servers. `insecure` accepts
/// any certificate.
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

/// Returns an error of a WebSocket as that of an HTTP client.
fn as_ureq(error: std::io::Error) -> ureq::Error {
    match error.kind() {
        std::io::ErrorKind::TimedOut => ureq::Error::Timeout(ureq::Timeout::Global),
        _ => ureq::Error::Io(error),
    }
}

/// The message of a TLS error in an I/O error.
fn as_tls(error: &std::io::Error) -> Option<String> {
    let inner = error.get_ref()?;
    inner.downcast_ref::<rustls::Error>().map(tls_fault)
}

/// The message for a failed handshake, with advice.
fn tls_fault(error: &rustls::Error) -> String {
    use rustls::CertificateError as Fault;
    let fault = match error {
        rustls::Error::InvalidCertificate(fault) => fault,
        rustls::Error::InvalidMessage(_) => {
            return "the server does not speak TLS; is it an http:// address?".to_owned();
        }
        error => return error.to_string(),
    };
    let fault_text = match fault {
        Fault::Expired | Fault::ExpiredContext { .. } => "has expired".to_owned(),
        Fault::NotValidYet | Fault::NotValidYetContext { .. } => "is not valid yet".to_owned(),
        Fault::NotValidForName | Fault::NotValidForNameContext { .. } => {
            "is for another host name".to_owned()
        }
        Fault::UnknownIssuer => "comes from an untrusted authority".to_owned(),
        Fault::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "is that of an authority (CA:TRUE), which a server must not use".to_owned()
        }
        fault => format!("was rejected: {fault}"),
    };
    format!(
        "the server's certificate {fault_text}; set the file of its authority (tls_ca in a \
         plan), or accept any certificate with --insecure"
    )
}

fn certificates(pem: &[u8]) -> Result<Vec<Certificate<'static>>, String> {
    let mut parsed = Vec::new();
    for item in parse_pem(pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| error.to_string())? {
            parsed.push(certificate);
        }
    }
    if parsed.is_empty() { Err("it contains no certificate".to_owned()) } else { Ok(parsed) }
}

/// The beginning of a body as text.
fn first_bytes(body: &[u8]) -> String {
    body[..body.len().min(SHOWN_BYTES)].escape_ascii().to_string()
}

/// The first bytes of what a server that does not speak HTTP sends in response to an HTTP request.
fn first_response(target: &Target) -> Option<String> {
    let address = (target.url.host(), target.url.port()).to_socket_addrs().ok()?.next()?;
    let wait = Duration::from_secs(2);
    let mut stream = TcpStream::connect_timeout(&address, wait).ok()?;
    stream.set_read_timeout(Some(wait)).ok()?;
    stream.set_write_timeout(Some(wait)).ok()?;
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
