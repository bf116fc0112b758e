//! The admin and health addresses: metrics, health, readiness, status and the status page.
//!
//! The watch thread serves both addresses, so a scrape costs the serving threads nothing. The
//! addresses have no password. Requests to these addresses change no state, and no response may
//! contain a secret. The health address serves only the pages that probes and scrapers need, so it
//! may be exposed to an untrusted network. This file is the listener. The modules in reading order:
//!
//! | module | what |
//! |---|---|
//! | `status` | the state as one value |
//! | `metrics` | state and counters as OpenMetrics text |
//! | `history` | samples of the last two minutes |
//! | `page` | status and history as HTML |
//! | `process` | the identity of a process |
//! | `control` | commands that change state, for the gateway's user and root, over a local socket |

pub mod control;
pub(crate) mod history;
pub mod metrics;
pub(crate) mod page;
pub mod process;
pub mod status;

use std::cell::RefCell;
use std::convert::Infallible;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::metrics::thread::Counters;
use crate::state::snapshot::Snapshot;

#[cfg(test)]
mod goldens;
#[cfg(test)]
mod tests;

use history::{History, SAMPLE_INTERVAL};
use status::Status;

/// Maximum number of open connections. Further connections wait in the backlog. A scraper opens one
/// connection, and a browser opens six.
const CONNECTIONS_MAX: usize = 64;
/// Maximum bytes of a request's head. hyper accepts no limit below 8 KiB.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Timeout of a request's head, and of an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Age at which a connection is closed. Without this limit, clients that never read could occupy
/// all connections for ever.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(600);
/// Timeout of the last response of a connection that has reached `CONNECTION_AGE_MAX`.
const LAST_RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed accept. The usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The phase of the gateway's life. A later variant compares as greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum Phase {
    /// The gateway starts or serves.
    Serving,
    /// The gateway serves, but reports that it is not ready, so that load balancers avoid it.
    Leaving,
    /// As [`Phase::Draining`], but another process now serves the same sockets.
    Replaced,
    /// The gateway accepts no new connections and completes the requests in flight.
    Draining,
    /// The serving threads have ended.
    Stopped,
}

impl Phase {
    /// Returns true if the gateway accepts no new connections.
    pub(crate) fn is_draining(self) -> bool {
        self >= Phase::Replaced
    }
}

/// The signals that readiness depends on, apart from the upstreams.
#[derive(Debug, Clone)]
pub(crate) struct Lifecycle {
    /// True once every serving thread has started.
    pub(crate) ready: Arc<AtomicBool>,
    pub(crate) phase: watch::Receiver<Phase>,
}

/// The pages that a listener serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    /// All pages.
    Admin,
    /// Health, readiness and metrics.
    Health,
}

impl Pages {
    /// Returns the paths of the pages.
    fn paths(self) -> &'static [&'static str] {
        match self {
            Pages::Admin => &["/", "/healthz", "/readyz", "/status", "/metrics"],
            Pages::Health => &["/healthz", "/readyz", "/metrics"],
        }
    }
}

/// The state that a listener needs to build responses.
struct Admin {
    pages: Pages,
    /// Receives the newest snapshot, which is the shared state of a configuration.
    snapshot: watch::Receiver<Arc<Snapshot>>,
    lifecycle: Lifecycle,
    history: RefCell<History>,
}

/// Serves the pages on a listener until the future is dropped. Needs a `tokio` local runtime.
pub(crate) async fn serve(
    pages: Pages,
    listener: TcpListener,
    snapshot: watch::Receiver<Arc<Snapshot>>,
    lifecycle: Lifecycle,
) {
    let admin = Rc::new(Admin { pages, snapshot, lifecycle, history: RefCell::default() });
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut sample = tokio::time::interval(SAMPLE_INTERVAL);
    sample.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        let accepted = async {
            let permit =
                Arc::clone(&permits).acquire_owned().await.expect("the semaphore is never closed");
            (listener.accept().await, permit)
        };
        tokio::select! {
            (accepted, permit) = accepted => match accepted {
                Ok((stream, _)) => {
                    let admin = Rc::clone(&admin);
                    tokio::task::spawn_local(async move {
                        serve_connection(admin, stream).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    let message = "cannot accept a connection on the admin or health address";
                    tracing::warn!(%error, "{message}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            _ = sample.tick(), if pages == Pages::Admin => admin.take_sample(),
        }
    }
}

/// Serves the requests of one connection until it ends or reaches [`CONNECTION_AGE_MAX`].
async fn serve_connection(admin: Rc<Admin>, stream: TcpStream) {
    let checks_host = admin.pages == Pages::Admin
        && stream.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback());
    let service = service_fn(|request: Request<Incoming>| {
        let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        let host_count = request.headers().get_all(header::HOST).iter().count();
        // RFC 9112, section 3.2.
        let needs_host = request.version() == Version::HTTP_11;
        let response = if host_count > 1 || (needs_host && host.is_none()) {
            let text = "exactly one Host header is required\n";
            build_plain_response(StatusCode::BAD_REQUEST, text.to_owned())
        } else if checks_host && !host.is_none_or(is_local_name) {
            let text = "on a loopback address the host must be an address or localhost\n";
            build_plain_response(StatusCode::MISDIRECTED_REQUEST, text.to_owned())
        } else {
            admin.respond(request.method(), request.uri().path())
        };
        async { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = tokio::time::sleep(CONNECTION_AGE_MAX) => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(LAST_RESPONSE_TIMEOUT, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection on the admin or health address failed");
    }
}

impl Admin {
    /// Returns the newest snapshot.
    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.borrow())
    }

    /// Takes a sample for the history.
    fn take_sample(&self) {
        let snapshot = self.snapshot();
        let counters = Counters::sum(&snapshot.counters);
        let generation = snapshot.process.reloads().generation();
        self.history.borrow_mut().take_sample(snapshot.now(), generation, &counters);
    }

    /// Responds to a request for one of the pages.
    fn respond(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        let paths = self.pages.paths();
        if !paths.contains(&path) {
            let text = format!("not found; there are {}\n", paths.join(" "));
            return build_plain_response(StatusCode::NOT_FOUND, text);
        }
        // hyper leaves out the body of a response to HEAD.
        if method != Method::GET && method != Method::HEAD {
            let text = "method is not allowed; GET and HEAD are\n".to_owned();
            let mut response = build_plain_response(StatusCode::METHOD_NOT_ALLOWED, text);
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match path {
            "/healthz" => build_plain_response(StatusCode::OK, "ok\n".to_owned()),
            "/readyz" => self.respond_readiness(),
            "/status" => self.respond_status(),
            "/metrics" => {
                build_response(metrics::CONTENT_TYPE, metrics::render_openmetrics(&self.snapshot()))
            }
            _ => self.respond_page(),
        }
    }

    fn respond_readiness(&self) -> Response<Full<Bytes>> {
        let reasons = self.unready_reasons(&Status::of(&self.snapshot()));
        if reasons.is_empty() {
            return build_plain_response(StatusCode::OK, "ready\n".to_owned());
        }
        build_plain_response(StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n")
    }

    fn respond_status(&self) -> Response<Full<Bytes>> {
        let mut json = serde_json::to_string_pretty(&Status::of(&self.snapshot()))
            .expect("a status has only string keys and finite numbers");
        json.push('\n');
        build_response("application/json", json)
    }

    fn respond_page(&self) -> Response<Full<Bytes>> {
        let status = Status::of(&self.snapshot());
        let nonce = generate_nonce();
        let html = page::render_page(
            &status,
            &self.history.borrow(),
            &self.unready_reasons(&status),
            &nonce,
        );
        let mut response = build_response("text/html; charset=utf-8", html);
        let policy = HeaderValue::from_str(&page::content_security_policy(&nonce))
            .expect("a nonce is hexadecimal");
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
        response
    }

    /// Returns the reasons why the gateway should get no traffic; empty if it is ready.
    fn unready_reasons(&self, status: &Status) -> Vec<String> {
        let mut reasons = Vec::new();
        match *self.lifecycle.phase.borrow() {
            Phase::Serving if self.lifecycle.ready.load(Ordering::Acquire) => {}
            Phase::Serving => reasons.push("starting".to_owned()),
            Phase::Leaving | Phase::Replaced | Phase::Draining | Phase::Stopped => {
                reasons.push("stopping".to_owned())
            }
        }
        reasons.extend(status.unready_reasons());
        reasons
    }
}

/// Returns true if a `Host` header is an address, `localhost` or a name without a dot. No public
/// web page can have such a host. The check prevents DNS rebinding: without it, a web page whose
/// name resolves to a loopback address could read every response.
fn is_local_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    address.parse::<IpAddr>().is_ok() || !name.contains('.') || name.ends_with(".localhost")
}

fn build_plain_response(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = build_response("text/plain; charset=utf-8", text);
    *response.status_mut() = status;
    response
}

fn build_response(content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Returns 128 unpredictable bits as hexadecimal text. The bits come from the random keys of the
/// standard library's hashers.
fn generate_nonce() -> String {
    let random_half = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random_half(), random_half())
}
