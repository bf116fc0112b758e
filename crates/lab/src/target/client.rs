//! A blocking JSON-RPC client for the few calls around a run: one at a time, no load, nothing
//! measured. The engine has its own; this one says in words what came back instead of an answer.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use lab_model::plan::{Target, Tls};
use rustls::crypto::aws_lc_rs;
use serde_json::Value;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use wire::response;
use wire::response::Outcome;

use super::{TargetFault, Why};

#[cfg(test)]
pub(crate) mod tests;

/// Bytes of one answer; a block with all its transactions has a few million.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Nested arrays and objects in an answer.
const DEPTH_MAX: usize = 128;
/// Bytes that are shown of something unexpected.
const SHOWN_BYTES: usize = 80;
/// Tries while the target answers 429, and the wait before the first of them, which doubles.
const LIMITED_TRIES: u32 = 4;
const LIMITED_WAIT: Duration = Duration::from_millis(500);
/// Shortest and longest time for a call, whatever the plan's timeout is: a load may have a short
/// one for its own reasons, and nobody waits minutes to hear that a target hangs.
const WAIT: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));

/// A client of one server.
pub(crate) struct Client {
    agent: ureq::Agent,
    target: Target,
}

/// What a call brought.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    /// Its result.
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
    /// Connects with its first call.
    ///
    /// # Errors
    /// If the file of trust anchors cannot be used.
    pub(crate) fn new(target: &Target, tls: &Tls) -> Result<Client, TargetFault> {
        let fault = |why| TargetFault { url: target.url.to_string(), why };
        let anchors = match &tls.ca {
            None => RootCerts::WebPki,
            Some(path) => {
                let read = std::fs::read(path).map_err(|error| error.to_string());
                let read = read.and_then(|text| certificates(&text));
                read.map(RootCerts::from).map_err(|error| {
                    fault(Why::Anchors { path: path.display().to_string(), error })
                })?
            }
        };
        let tls = TlsConfig::builder()
            .root_certs(anchors)
            .disable_verification(tls.insecure)
            .unversioned_rustls_crypto_provider(Arc::new(aws_lc_rs::default_provider()))
            .build();
        let agent = ureq::Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(target.connect_timeout))
            .timeout_global(Some(target.timeout.clamp(WAIT.0, WAIT.1)))
            .build()
            .new_agent();
        Ok(Client { agent, target: target.clone() })
    }

    /// Calls a method; `params` is JSON text. An error object is a reply like any other.
    ///
    /// # Errors
    /// If the target cannot be reached, or answers in anything but JSON-RPC.
    pub(crate) fn call(&self, method: &str, params: &str) -> Result<Reply, TargetFault> {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        let mut wait = LIMITED_WAIT;
        for _ in 1..LIMITED_TRIES {
            let (status, answer) = self.post(body.as_bytes())?;
            if status != 429 {
                return self.read(status, &answer);
            }
            std::thread::park_timeout(wait);
            wait *= 2;
        }
        let (status, answer) = self.post(body.as_bytes())?;
        if status == 429 {
            return Err(self.fault(Why::Limited { tries: LIMITED_TRIES }));
        }
        self.read(status, &answer)
    }

    /// Sends a body as it is: status and body of what comes back.
    ///
    /// # Errors
    /// If the target cannot be reached or does not speak HTTP.
    pub(crate) fn post(&self, body: &[u8]) -> Result<(u16, Vec<u8>), TargetFault> {
        let mut request = self.agent.post(self.url()).header("content-type", "application/json");
        for (name, value) in &self.target.headers {
            request = request.header(name, value);
        }
        let mut response = request.send(body).map_err(|error| self.explain(error))?;
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        Ok((status, body.map_err(|error| self.explain(error))?))
    }

    fn url(&self) -> String {
        let url = &self.target.url;
        let scheme = if url.tls() { "https" } else { "http" };
        format!("{scheme}://{}{}", url.authority(), url.target())
    }

    fn read(&self, status: u16, body: &[u8]) -> Result<Reply, TargetFault> {
        let answer = response::parse_response(body, DEPTH_MAX).map_err(|fault| {
            let fault = fault.to_string();
            self.fault(Why::NotJsonRpc { status, fault, first: first_bytes(body) })
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

    fn fault(&self, why: Why) -> TargetFault {
        TargetFault { url: self.target.url.to_string(), why }
    }

    fn explain(&self, error: ureq::Error) -> TargetFault {
        let url = &self.target.url;
        let (host, port, tls) = (url.host(), url.port(), url.tls());
        let why = match error {
            ureq::Error::HostNotFound => Why::Resolve { host: host.to_owned() },
            ureq::Error::Timeout(ureq::Timeout::Connect) => {
                Why::ConnectTimeout { after: self.target.connect_timeout }
            }
            ureq::Error::Timeout(_) => {
                Why::Silent { after: self.target.timeout.clamp(WAIT.0, WAIT.1) }
            }
            ureq::Error::Rustls(error) => Why::Tls { error: tls_fault(&error) },
            ureq::Error::Io(error) if as_tls(&error).is_some() => {
                Why::Tls { error: as_tls(&error).unwrap_or_default() }
            }
            ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                Why::Refused { port }
            }
            error if !tls => match first_words(&self.target) {
                Some(first) if !first.starts_with("HTTP/1") => Why::NotHttp { first },
                _ => Why::Other { error: error.to_string() },
            },
            error => Why::Other { error: error.to_string() },
        };
        self.fault(why)
    }
}

/// What rustls said, if that is what an error of a socket is about.
fn as_tls(error: &std::io::Error) -> Option<String> {
    let inner = error.get_ref()?;
    inner.downcast_ref::<rustls::Error>().map(tls_fault)
}

/// What is wrong with a handshake, in words, and what helps.
fn tls_fault(error: &rustls::Error) -> String {
    use rustls::CertificateError as Fault;
    let fault = match error {
        rustls::Error::InvalidCertificate(fault) => fault,
        rustls::Error::InvalidMessage(_) => {
            return "the server does not speak TLS; is it an http:// address?".to_owned();
        }
        error => return error.to_string(),
    };
    let what = match fault {
        Fault::Expired | Fault::ExpiredContext { .. } => "has expired".to_owned(),
        Fault::NotValidYet | Fault::NotValidYetContext { .. } => "is not valid yet".to_owned(),
        Fault::NotValidForName | Fault::NotValidForNameContext { .. } => {
            "is for another name".to_owned()
        }
        Fault::UnknownIssuer => "comes from an authority that is not trusted".to_owned(),
        Fault::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "is that of an authority (CA:TRUE), which no server may show".to_owned()
        }
        fault => format!("is refused: {fault}"),
    };
    format!(
        "the server's certificate {what}; name the file of its authority (tls_ca in a \
         plan), or take any certificate with --insecure"
    )
}

fn certificates(pem: &[u8]) -> Result<Vec<Certificate<'static>>, String> {
    let mut found = Vec::new();
    for item in parse_pem(pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| error.to_string())? {
            found.push(certificate);
        }
    }
    if found.is_empty() { Err("there is no certificate in it".to_owned()) } else { Ok(found) }
}

/// The beginning of something as text.
fn first_bytes(body: &[u8]) -> String {
    body[..body.len().min(SHOWN_BYTES)].escape_ascii().to_string()
}

/// What a server that does not speak HTTP says first when it is asked in HTTP; none if nothing.
fn first_words(target: &Target) -> Option<String> {
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
    let mut first = vec![0; SHOWN_BYTES];
    let length = stream.read(&mut first).ok().filter(|length| *length > 0)?;
    Some(first[..length].escape_ascii().to_string())
}
