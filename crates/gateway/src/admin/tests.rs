//! Goal: each route answers with its status, type and content, over a real socket.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::{CONNECTIONS_MAX, Lifecycle, Pages, Phase, serve};
use crate::admin::status::tests::{fresh, populated};
use crate::state::snapshot::Snapshot;

struct TestServer {
    address: std::net::SocketAddr,
    phase: watch::Sender<Phase>,
}

impl TestServer {
    async fn start(snapshot: Arc<Snapshot>, ready: bool) -> TestServer {
        TestServer::start_with(Pages::Admin, snapshot, ready).await
    }

    async fn start_with(pages: Pages, snapshot: Arc<Snapshot>, ready: bool) -> TestServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (phase, phase_receiver) = watch::channel(Phase::Serving);
        let lifecycle =
            Lifecycle { ready: Arc::new(AtomicBool::new(ready)), phase: phase_receiver };
        tokio::task::spawn_local(serve(pages, listener, watch::channel(snapshot).1, lifecycle));
        TestServer { address, phase }
    }

    /// Returns the whole response to one request on a new connection.
    async fn get_response(&self, method: &str, path: &str) -> String {
        self.get_response_as("x", method, path).await
    }

    async fn get_response_as(&self, host: &str, method: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request =
            format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    }
}

fn run(test: impl Future<Output = ()>) {
    let builder = &mut tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build_local(Default::default()).unwrap().block_on(test);
}

#[test]
fn exactly_one_host_is_required_by_http_1_1() {
    run(async {
        let served = TestServer::start(populated(), true).await;
        for (head, status) in [
            ("GET /healthz HTTP/1.1\r\n", 400),
            ("GET /healthz HTTP/1.1\r\nhost: a\r\nhost: b\r\n", 400),
            ("GET /healthz HTTP/1.1\r\nhost: a\r\n", 200),
            ("GET /healthz HTTP/1.0\r\n", 200),
        ] {
            let mut stream = TcpStream::connect(served.address).await.unwrap();
            stream.write_all(format!("{head}connection: close\r\n\r\n").as_bytes()).await.unwrap();
            let mut response = String::new();
            stream.read_to_string(&mut response).await.unwrap();
            assert!(response.contains(&format!(" {status} ")), "{head}: {response}");
        }
    });
}

#[test]
fn a_public_host_name_is_refused_on_loopback() {
    run(async {
        let served = TestServer::start(populated(), true).await;
        for (host, status) in [
            ("127.0.0.1", 200),
            ("127.0.0.1:8646", 200),
            ("[::1]:8646", 200),
            ("localhost:8646", 200),
            ("weir", 200),
            ("rebound.example", 421),
            ("rebound.example:8646", 421),
            ("127.0.0.1.rebound.example", 421),
        ] {
            let response = served.get_response_as(host, "GET", "/healthz").await;
            assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {response}");
        }
    });
}

#[test]
fn every_route_responds() {
    run(async {
        let served = TestServer::start(populated(), true).await;
        for (path, status, content_type, text) in [
            ("/healthz", 200, "text/plain", "ok\n"),
            ("/readyz", 503, "text/plain", "chain side: no upstream has reported a head yet"),
            ("/status", 200, "application/json", "\"number\": 22431084"),
            ("/metrics", 200, "application/openmetrics-text; version=1.0.0", "# EOF\n"),
            ("/", 200, "text/html", "<h1>Weir</h1>"),
            ("/?x=1", 200, "text/html", "<h1>Weir</h1>"),
            ("/elsewhere", 404, "text/plain", "/metrics"),
        ] {
            let response = served.get_response("GET", path).await;
            assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {response}");
            assert!(
                response.contains(&format!("content-type: {content_type}")),
                "{path}: {response}"
            );
            assert!(response.contains(text), "{path}: {response}");
            assert!(!response.contains("sekrit"), "{path} shows a secret");
        }
        let refused = served.get_response("POST", "/metrics").await;
        assert!(refused.starts_with("HTTP/1.1 405 ") && refused.contains("allow: GET, HEAD"));
        let head = served.get_response("HEAD", "/healthz").await;
        assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    });
}

#[test]
fn the_health_address_serves_probes_and_metrics_only() {
    run(async {
        let served = TestServer::start_with(Pages::Health, populated(), true).await;
        for (path, status) in [
            ("/healthz", 200),
            ("/readyz", 503),
            ("/metrics", 200),
            ("/", 404),
            ("/status", 404),
            ("/elsewhere", 404),
        ] {
            // A probe may use any host name.
            let response = served.get_response_as("weir.example", "GET", path).await;
            assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {response}");
            if status == 404 {
                assert!(response.ends_with("there are /healthz /readyz /metrics\n"), "{response}");
            }
        }
        let refused = served.get_response("POST", "/metrics").await;
        assert!(refused.starts_with("HTTP/1.1 405 "), "{refused}");
    });
}

#[test]
fn the_content_security_policy_admits_only_the_page() {
    run(async {
        let served = TestServer::start(populated(), true).await;
        let nonce_of = |page: &str| {
            let start = page.find("script-src 'nonce-").unwrap() + "script-src 'nonce-".len();
            page[start..start + 32].to_owned()
        };
        let (first_page, second_page) =
            (served.get_response("GET", "/").await, served.get_response("GET", "/").await);
        let nonce = nonce_of(&first_page);
        assert!(
            first_page.contains(&format!("<script nonce=\"{nonce}\">")),
            "the page's own script runs"
        );
        assert_ne!(nonce, nonce_of(&second_page), "a nonce is used once");
    });
}

#[test]
fn readiness_follows_the_gateways_life() {
    run(async {
        let snapshot = fresh();
        for chain in &snapshot.chains {
            let mut view = crate::policy::heads::ChainView::default();
            view.head = Some(crate::policy::heads::Head { number: 1, hash: [1; 32] });
            chain.publish(view, snapshot.now());
        }
        let starting = TestServer::start(Arc::clone(&snapshot), false).await;
        assert!(starting.get_response("GET", "/readyz").await.ends_with("\r\n\r\nstarting\n"));
        let served = TestServer::start(snapshot, true).await;
        let ready = served.get_response("GET", "/readyz").await;
        assert!(ready.starts_with("HTTP/1.1 200 ") && ready.ends_with("ready\n"), "{ready}");
        served.phase.send_replace(Phase::Draining);
        let draining = served.get_response("GET", "/readyz").await;
        assert!(draining.starts_with("HTTP/1.1 503 ") && draining.ends_with("stopping\n"));
        assert!(served.get_response("GET", "/healthz").await.starts_with("HTTP/1.1 200 "));
    });
}

#[test]
fn connections_beyond_the_bound_wait() {
    for pages in [Pages::Admin, Pages::Health] {
        run(connections_beyond_the_bound_wait_at(pages));
    }
}

async fn connections_beyond_the_bound_wait_at(pages: Pages) {
    let served = TestServer::start_with(pages, fresh(), true).await;
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        // A response proves that the connection was accepted. The connection stays open.
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut first = [0; 8];
        stream.read_exact(&mut first).await.unwrap();
        open.push(stream);
    }
    let late = served.get_response("GET", "/healthz");
    let waited = tokio::time::timeout(std::time::Duration::from_millis(200), late).await;
    assert!(waited.is_err(), "a connection beyond the limit was served");
    drop(open);
    assert!(served.get_response("GET", "/healthz").await.starts_with("HTTP/1.1 200 "));
}
