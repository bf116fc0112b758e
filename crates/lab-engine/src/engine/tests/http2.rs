//! Goal: HTTP/2 is counted like HTTP/1.1, and its connections are shared as the plan says. Method:
//! a server of the h2 crate with planted faults.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use http::{Request, Response};

use super::transactions::{run_with_log, sending, transactions};
use super::{Class, HttpVersion, Plan, Ran, Reuse, SECOND, Server, open, plan, run};

/// Action of the server for a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deed {
    Answer(u16, usize),
    ResetStream,
    Silence,
    /// The default response and a GOAWAY frame.
    Leave,
    /// Closes the connection.
    Drop,
}

struct Server2 {
    /// Server with the same address, for the functions that make a plan.
    plain: Server,
    connections: Arc<AtomicUsize>,
    over: Option<tokio::sync::oneshot::Sender<()>>,
}

impl Drop for Server2 {
    fn drop(&mut self) {
        let _gone = self.over.take().map(|over| over.send(()));
    }
}

impl Server2 {
    /// Starts a server that acts so for the n-th request of a connection, from 0.
    fn new(deed: impl Fn(usize) -> Deed + Send + Sync + 'static) -> Server2 {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let (over, ended) = tokio::sync::oneshot::channel();
        let connections = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&connections);
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let deed = Arc::new(deed);
                tokio::spawn(async move {
                    while let Ok((stream, _)) = listener.accept().await {
                        count.fetch_add(1, Ordering::Relaxed);
                        tokio::spawn(converse(stream, Arc::clone(&deed)));
                    }
                });
                let _owner_gone = ended.await;
            });
        });
        let mut plain = Server::new(super::server::Request::ok);
        plain.address = address;
        Server2 { plain, connections, over: Some(over) }
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
    deed: Arc<impl Fn(usize) -> Deed + Send + Sync + 'static>,
) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    let mut nth = 0;
    while let Some(Ok((request, respond))) = connection.accept().await {
        let deed = deed(nth);
        nth += 1;
        match deed {
            Deed::Drop => return,
            Deed::Leave => connection.graceful_shutdown(),
            _ => {}
        }
        tokio::spawn(answer(request, respond, deed));
    }
}

async fn answer(request: Request<h2::RecvStream>, mut respond: SendResponse<Bytes>, deed: Deed) {
    let mut body = Vec::new();
    let (head, mut parts) = request.into_parts();
    assert_eq!((head.uri.path(), head.method.as_str()), ("/rpc", "POST"));
    while let Some(Ok(part)) = parts.data().await {
        let _ended = parts.flow_control().release_capacity(part.len());
        body.extend_from_slice(&part);
    }
    let call: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let (status, size) = match deed {
        Deed::ResetStream => return respond.send_reset(h2::Reason::REFUSED_STREAM),
        Deed::Silence => return std::future::pending().await,
        Deed::Answer(status, size) => (status, size),
        Deed::Leave | Deed::Drop => (200, 1),
    };
    let text = format!(r#"{{"id":{},"result":"{}"}}"#, call["id"], "x".repeat(size));
    let head = Response::builder().status(status).header("retry-after", "3").body(()).unwrap();
    if let Ok(mut stream) = respond.send_response(head, false) {
        let _gone = stream.send_data(text.into(), true);
    }
}

fn check(class: Class, deed: Deed) -> Ran {
    let server = Server2::new(move |_| deed);
    let ran = run(server.plan(3), &server.plain);
    ran.check_all(class, 3);
    ran
}

#[test]
fn all_workers_of_a_thread_share_a_connection() {
    let server = Server2::new(|_| Deed::Answer(200, 10));
    let mut plan = server.plan(500);
    plan.scenarios[0].workers_max = 8;
    (plan.scenarios[0].stages[0].from, plan.scenarios[0].stages[0].to) = (8.0, 8.0);
    let ran = run(plan, &server.plain);
    ran.check_all(Class::Ok, 500);
    assert_eq!((server.connections(), ran.totals.traffic.connections), (1, 1));
    assert!(ran.totals.traffic.bytes_sent > 10_000, "{:?}", ran.totals.traffic);
}

#[test]
fn connections_are_used_as_often_as_planned() {
    for (reuse, connections) in [(Reuse::Never, 20), (Reuse::Requests(3), 7)] {
        let server = Server2::new(|_| Deed::Answer(200, 10));
        let mut plan = server.plan(20);
        plan.connections.reuse = reuse;
        run(plan, &server.plain).check_all(Class::Ok, 20);
        assert_eq!(server.connections(), connections);
    }
}

#[test]
fn many_workers_with_a_connection_for_each_request() {
    let server = Server2::new(|_| Deed::Answer(200, 10));
    let mut plan = open(server.plan(0), 500.0, SECOND, 50, 1000);
    plan.connections.reuse = Reuse::Never;
    run(plan, &server.plain).check_all(Class::Ok, 500);
    assert_eq!(server.connections(), 500);
}

#[test]
fn responses_larger_than_the_default_window() {
    let ran = check(Class::Ok, Deed::Answer(200, 900_000));
    assert!(ran.totals.traffic.bytes_received > 2_700_000);
}

/// Several responses at a time are larger than the window of a stream.
#[test]
fn responses_larger_than_all_windows() {
    let server = Server2::new(|_| Deed::Answer(200, 9 << 20));
    let mut plan = server.plan(8);
    plan.target.response_bytes_max = 64 << 20;
    plan.scenarios[0].workers_max = 4;
    (plan.scenarios[0].stages[0].from, plan.scenarios[0].stages[0].to) = (4.0, 4.0);
    let ran = run(plan, &server.plain);
    ran.check_all(Class::Ok, 8);
    assert!(ran.totals.response_bytes[0] > 8 * (9 << 20));
}

#[test]
fn classes() {
    let ran = check(Class::Limited, Deed::Answer(429, 1));
    assert_eq!(ran.totals.retry_after.len(), 3);
    check(Class::Malformed, Deed::Answer(200, 2 << 20));
    check(Class::Reset, Deed::ResetStream);
    let ran = check(Class::Reset, Deed::Drop);
    assert_eq!(ran.totals.traffic.closed_by_server, 3);
}

#[test]
fn a_timeout_ends_only_its_stream() {
    let server = Server2::new(|nth| if nth == 1 { Deed::Silence } else { Deed::Answer(200, 1) });
    let mut plan = server.plan(10);
    plan.target.timeout = Duration::from_millis(200);
    let ran = run(plan, &server.plain);
    assert_eq!((ran.count(Class::Ok), ran.count(Class::Timeout)), (9, 1));
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_connection_ends_after_goaway() {
    let server = Server2::new(|nth| if nth == 4 { Deed::Leave } else { Deed::Answer(200, 1) });
    let mut plan = server.plan(20);
    plan.scenarios[0].pause = Duration::from_millis(5);
    let ran = run(plan, &server.plain);
    ran.check_all(Class::Ok, 20);
    assert_eq!(server.connections(), 4);
}

#[test]
fn a_server_without_http2() {
    let server = Server::new(super::server::Request::ok);
    let mut plan = plan(&server, 2);
    plan.connections.http = HttpVersion::Http2;
    plan.target.timeout = Duration::from_millis(300);
    let ran = run(plan, &server);
    assert_eq!(ran.totals.count(|slot| slot.class == Class::Ok), 0);
    assert_eq!(ran.totals.count(|_| true), 2);
}

#[test]
fn refused_connections() {
    let server = Server2::new(|_| Deed::Silence);
    let mut gone = Server::new(super::server::Request::ok);
    gone.address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ran = run(server.plan(2), &gone);
    ran.check_all(Class::Connect, 2);
    assert_eq!(ran.totals.traffic.connections_failed, 2);
}

#[test]
fn transactions_are_sent_once_each() {
    let server = Server2::new(|_| Deed::Answer(200, 0));
    let mut plan = server.plan(0);
    plan.scenarios[0].workers_max = 3;
    (plan.scenarios[0].stages[0].from, plan.scenarios[0].stages[0].to) = (3.0, 3.0);
    let (ran, log) = run_with_log(sending(plan, transactions(&[9, 2])), &server.plain);
    ran.check_all(Class::Ok, 11);
    assert_eq!(log.count().accepted, 11);
}
