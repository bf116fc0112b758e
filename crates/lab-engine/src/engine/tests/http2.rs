//! Goal: calls over HTTP/2 are counted like calls over HTTP/1.1, and connections are shared as the
//! plan says. Method: a server of the h2 crate with planted faults.

mod goaway;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use http::{Request, Response};

use super::transactions::{run_with_log, sending, transactions};
use super::{Class, HttpVersion, Plan, Reuse, RunOutcome, SECOND, Server, open, plan, run};

/// The server's action after it has received a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServerAction {
    /// Responds with this status, and a result of this length.
    Respond(u16, usize),
    ResetStream,
    Silence,
    /// The default response and a GOAWAY frame.
    GoAway,
    /// Closes the connection.
    CloseConnection,
}

/// An HTTP/2 server on an unused port, which stops when it is dropped.
struct Http2Server {
    /// A server value with the same address, for the functions that build a plan.
    plain: Server,
    connections: Arc<AtomicUsize>,
    /// Stops the server; `None` once it was used.
    stop: Option<tokio::sync::oneshot::Sender<()>>,
}

impl Drop for Http2Server {
    fn drop(&mut self) {
        // The send fails if the server has ended.
        let _ignored = self.stop.take().map(|stop| stop.send(()));
    }
}

impl Http2Server {
    /// Starts a server. `action` returns the action for the n-th request of a connection, from 0.
    fn new(action: impl Fn(usize) -> ServerAction + Send + Sync + 'static) -> Http2Server {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let connections = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&connections);
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let action = Arc::new(action);
                tokio::spawn(async move {
                    while let Ok((stream, _)) = listener.accept().await {
                        count.fetch_add(1, Ordering::Relaxed);
                        tokio::spawn(converse(stream, Arc::clone(&action)));
                    }
                });
                let _ignored = stopped.await;
            });
        });
        let mut plain = Server::new(super::server::Request::ok);
        plain.address = address;
        Http2Server { plain, connections, stop: Some(stop) }
    }

    fn plan(&self, iterations: u64) -> Plan {
        let mut plan = plan(&self.plain, iterations);
        plan.connections.http = HttpVersion::Http2;
        plan
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

async fn converse(
    stream: tokio::net::TcpStream,
    action: Arc<impl Fn(usize) -> ServerAction + Send + Sync + 'static>,
) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    let mut number = 0;
    while let Some(Ok((request, respond))) = connection.accept().await {
        let action = action(number);
        number += 1;
        match action {
            ServerAction::CloseConnection => return,
            ServerAction::GoAway => connection.graceful_shutdown(),
            _ => {}
        }
        tokio::spawn(send_response(request, respond, action));
    }
}

async fn send_response(
    request: Request<h2::RecvStream>,
    mut respond: SendResponse<Bytes>,
    action: ServerAction,
) {
    let mut body = Vec::new();
    let (head, mut parts) = request.into_parts();
    assert_eq!((head.uri.path(), head.method.as_str()), ("/rpc", "POST"));
    while let Some(Ok(part)) = parts.data().await {
        let _ended = parts.flow_control().release_capacity(part.len());
        body.extend_from_slice(&part);
    }
    let call: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let (status, size) = match action {
        ServerAction::ResetStream => return respond.send_reset(h2::Reason::REFUSED_STREAM),
        ServerAction::Silence => return std::future::pending().await,
        ServerAction::Respond(status, size) => (status, size),
        ServerAction::GoAway | ServerAction::CloseConnection => (200, 1),
    };
    let text = format!(r#"{{"id":{},"result":"{}"}}"#, call["id"], "x".repeat(size));
    let head = Response::builder().status(status).header("retry-after", "3").body(()).unwrap();
    if let Ok(mut stream) = respond.send_response(head, false) {
        let _gone = stream.send_data(text.into(), true);
    }
}

fn check(class: Class, action: ServerAction) -> RunOutcome {
    let server = Http2Server::new(move |_| action);
    let outcome = run(server.plan(3), &server.plain);
    outcome.check_all(class, 3);
    outcome
}

#[test]
fn all_workers_of_a_thread_share_a_connection() {
    let server = Http2Server::new(|_| ServerAction::Respond(200, 10));
    let mut plan = server.plan(500);
    plan.scenarios[0].workers_max = 8;
    (plan.scenarios[0].stages[0].from, plan.scenarios[0].stages[0].to) = (8.0, 8.0);
    let outcome = run(plan, &server.plain);
    outcome.check_all(Class::Ok, 500);
    assert_eq!((server.connections(), outcome.totals.traffic.connections), (1, 1));
    assert!(outcome.totals.traffic.bytes_sent > 10_000, "{:?}", outcome.totals.traffic);
}

#[test]
fn connections_are_used_as_often_as_planned() {
    for (reuse, connections) in [(Reuse::Never, 20), (Reuse::Requests(3), 7)] {
        let server = Http2Server::new(|_| ServerAction::Respond(200, 10));
        let mut plan = server.plan(20);
        plan.connections.reuse = reuse;
        run(plan, &server.plain).check_all(Class::Ok, 20);
        assert_eq!(server.connections(), connections);
    }
}

#[test]
fn many_workers_with_a_connection_for_each_request() {
    let server = Http2Server::new(|_| ServerAction::Respond(200, 10));
    // 500 calls per second for a second, from 50 workers and a queue of up to 1,000 calls.
    let mut plan = open(server.plan(0), 500.0, SECOND, 50, 1000);
    plan.connections.reuse = Reuse::Never;
    run(plan, &server.plain).check_all(Class::Ok, 500);
    assert_eq!(server.connections(), 500);
}

#[test]
fn responses_larger_than_the_default_window() {
    let outcome = check(Class::Ok, ServerAction::Respond(200, 900_000));
    assert!(outcome.totals.traffic.bytes_received > 2_700_000);
}

/// Several responses at a time are larger than the window of a stream.
#[test]
fn responses_larger_than_all_windows() {
    let server = Http2Server::new(|_| ServerAction::Respond(200, 9 << 20));
    let mut plan = server.plan(8);
    plan.target.response_bytes_max = 64 << 20;
    plan.scenarios[0].workers_max = 4;
    (plan.scenarios[0].stages[0].from, plan.scenarios[0].stages[0].to) = (4.0, 4.0);
    let outcome = run(plan, &server.plain);
    outcome.check_all(Class::Ok, 8);
    assert!(outcome.totals.response_bytes[0] > 8 * (9 << 20));
}

#[test]
fn classes() {
    let outcome = check(Class::Limited, ServerAction::Respond(429, 1));
    assert_eq!(outcome.totals.retry_after.len(), 3);
    check(Class::Malformed, ServerAction::Respond(200, 2 << 20));
    check(Class::Reset, ServerAction::ResetStream);
    let outcome = check(Class::Reset, ServerAction::CloseConnection);
    assert_eq!(outcome.totals.traffic.closed_by_server, 3);
}

#[test]
fn a_timeout_ends_only_its_stream() {
    let server = Http2Server::new(|number| {
        if number == 1 { ServerAction::Silence } else { ServerAction::Respond(200, 1) }
    });
    let mut plan = server.plan(10);
    plan.target.timeout = Duration::from_millis(200);
    let outcome = run(plan, &server.plain);
    assert_eq!((outcome.count(Class::Ok), outcome.count(Class::Timeout)), (9, 1));
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_connection_ends_after_goaway() {
    let server = Http2Server::new(|number| {
        if number == 4 { ServerAction::GoAway } else { ServerAction::Respond(200, 1) }
    });
    let mut plan = server.plan(20);
    plan.scenarios[0].pause = Duration::from_millis(5);
    let outcome = run(plan, &server.plain);
    outcome.check_all(Class::Ok, 20);
    assert_eq!(server.connections(), 4);
}

/// Each connection serves some requests. Then it ends with a GOAWAY frame that names the stream before
/// the open one, so the request on it was not processed. It is sent again on a new connection.
#[test]
fn a_request_that_a_goaway_excludes_is_sent_again() {
    let run_excluding = |served, calls| {
        let server = goaway::start(served);
        let mut plan = plan(&server, calls);
        plan.connections.http = HttpVersion::Http2;
        run(plan, &server)
    };
    let outcome = run_excluding(1, 10);
    outcome.check_all(Class::Ok, 10);
    assert_eq!(outcome.totals.traffic.retried, 9, "all but the first call");
    // A server that excludes every request does not keep a call going for ever.
    let outcome = run_excluding(0, 3);
    outcome.check_all(Class::Reset, 3);
    assert_eq!(outcome.totals.traffic.retried, 12);
}

/// The server may refuse a stream before it processes it (RFC 9113, 8.7).
#[test]
fn a_refused_stream_is_opened_again() {
    let server = Http2Server::new(|number| match number % 3 {
        1 => ServerAction::ResetStream,
        _ => ServerAction::Respond(200, 1),
    });
    let outcome = run(server.plan(10), &server.plain);
    outcome.check_all(Class::Ok, 10);
    assert_eq!((outcome.totals.traffic.retried, server.connections()), (5, 1));
}

#[test]
fn a_server_without_http2() {
    let server = Server::new(super::server::Request::ok);
    let mut plan = plan(&server, 2);
    plan.connections.http = HttpVersion::Http2;
    plan.target.timeout = Duration::from_millis(300);
    let outcome = run(plan, &server);
    assert_eq!(outcome.totals.count(|slot| slot.class == Class::Ok), 0);
    assert_eq!(outcome.totals.count(|_| true), 2);
}

#[test]
fn refused_connections() {
    let server = Http2Server::new(|_| ServerAction::Silence);
    let mut gone = Server::new(super::server::Request::ok);
    gone.address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let outcome = run(server.plan(2), &gone);
    outcome.check_all(Class::Connect, 2);
    assert_eq!(outcome.totals.traffic.connections_failed, 2);
}

#[test]
fn transactions_are_sent_once_each() {
    let server = Http2Server::new(|_| ServerAction::Respond(200, 0));
    let mut plan = server.plan(0);
    plan.scenarios[0].workers_max = 3;
    (plan.scenarios[0].stages[0].from, plan.scenarios[0].stages[0].to) = (3.0, 3.0);
    let (outcome, log) = run_with_log(sending(plan, transactions(&[9, 2])), &server.plain);
    outcome.check_all(Class::Ok, 11);
    assert_eq!(log.count().accepted, 11);
}
