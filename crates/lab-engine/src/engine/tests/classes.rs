//! Goal: each outcome class is counted only for its cause. Method: a server responds to all calls,
//! or breaks them, in the same way. The test checks that all calls are counted under the class of
//! this cause.

use std::time::{Duration, Instant};

use super::server::{Reply, Request, Server, http};
use super::{Class, RunOutcome, SECOND, plan, run, start};

/// Makes three calls with this response, and checks that all have this class.
fn check(class: Class, reply: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> RunOutcome {
    let server = Server::new(reply);
    let outcome = run(plan(&server, 3), &server);
    outcome.check_all(class, 3);
    let iterations = outcome.totals.iterations[0];
    assert_eq!((iterations.scheduled, iterations.started, iterations.ended), (3, 3, 3));
    assert_eq!((iterations.dropped, iterations.interrupted), (0, 0));
    assert_eq!(outcome.totals.traffic.requests, 3);
    outcome
}

/// Returns the bytes of a response with two chunks, a chunk extension and a trailer.
fn chunked(body: &str) -> Vec<u8> {
    let (a, b) = body.split_at(body.len() / 2);
    format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{a}\r\n{:x};x\r\n{b}\r\n0\r\nx: y\r\n\r\n",
        a.len(),
        b.len()
    )
    .into_bytes()
}

#[test]
fn results() {
    let outcome = check(Class::Ok, Request::ok);
    assert_eq!(outcome.totals.traffic.connections, 1);
    assert_eq!(outcome.totals.statuses.iter().collect::<Vec<_>>(), [(&200, &3)]);
}

#[test]
fn results_in_chunks() {
    check(Class::Ok, |request| Reply::Bytes(chunked(&request.response_with("\"result\":[1,2,3]"))));
}

#[test]
fn results_byte_by_byte() {
    check(Class::Ok, |request| {
        Reply::Singly(chunked(&request.response_with("\"result\":[1,2,3]")))
    });
    check(Class::Ok, |request| {
        let interim = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n".to_vec();
        let response = http(200, "", &request.response_with("\"result\":null"));
        Reply::Singly([interim, response].concat())
    });
}

#[test]
fn results_up_to_the_end_of_the_connection() {
    let outcome = check(Class::Ok, |request| {
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_owned();
        Reply::Last((head + &request.response_with("\"result\":1")).into_bytes())
    });
    assert_eq!(outcome.totals.traffic.connections, 3);
    assert_eq!(outcome.totals.traffic.closed_by_server, 3);
}

#[test]
fn large_results() {
    let outcome = check(Class::Ok, |request| {
        Reply::body(
            200,
            "",
            &request.response_with(&format!("\"result\":\"{}\"", "x".repeat(900_000))),
        )
    });
    assert!(outcome.totals.traffic.bytes_received > 2_700_000);
}

#[test]
fn errors_by_code() {
    let outcome = check(Class::RpcError, |request| {
        Reply::body(
            200,
            "",
            &request.response_with("\"error\":{\"code\":-32000,\"message\":\"m\"}"),
        )
    });
    // Three errors with this code, of the method with index 0.
    assert_eq!(outcome.totals.codes.iter().collect::<Vec<_>>(), [(&(0, -32000), &3)]);
}

#[test]
fn limits_with_their_wait() {
    let outcome = check(Class::Limited, |_| Reply::body(429, "Retry-After: 7\r\n", "slow down"));
    assert_eq!(outcome.totals.retry_after.len(), 3);
    let seconds = outcome.totals.retry_after.max() as f64 / 1e9;
    assert!((seconds - 7.0).abs() < 0.01, "{seconds}");
}

#[test]
fn pages_of_proxies() {
    let outcome = check(Class::Http5xx, |_| Reply::body(500, "", "<html>oops</html>"));
    assert_eq!(outcome.totals.statuses.iter().collect::<Vec<_>>(), [(&500, &3)]);
    check(Class::Http4xx, |_| Reply::body(403, "", "no"));
}

#[test]
fn resets() {
    check(Class::Reset, |_| Reply::Reset(Vec::new()));
    check(Class::Reset, |_| Reply::Last(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{".to_vec()));
    let outcome = check(Class::Reset, |_| Reply::Last(Vec::new()));
    assert_eq!(outcome.totals.traffic.connections, 3);
}

#[test]
fn invalid_responses() {
    check(Class::Malformed, |_| Reply::Bytes(b"what?\r\n\r\n".to_vec()));
    check(Class::Malformed, |_| Reply::body(200, "", "{\"jsonrpc\":\"2.0\""));
    check(Class::Malformed, |_| Reply::body(200, "Content-Encoding: gzip\r\n", "\x1f\u{8b}"));
    check(Class::Malformed, |request| {
        let mut response = http(200, "", &request.response_with("\"result\":1"));
        response.extend_from_slice(b"garbage");
        Reply::Bytes(response)
    });
    check(Class::Malformed, |request| {
        Reply::body(
            200,
            "",
            &request.response_with(&format!("\"result\":\"{}\"", "x".repeat(2 << 20))),
        )
    });
    check(Class::Malformed, |request| {
        let field = format!("x: {}\r\n", "y".repeat(100_000));
        Reply::body(200, &field, &request.response_with("\"result\":1"))
    });
}

#[test]
fn responses_to_other_calls() {
    check(Class::WrongId, |_| Reply::body(200, "", r#"{"jsonrpc":"2.0","id":999999,"result":1}"#));
}

#[test]
fn timeouts_are_counted_at_their_deadline() {
    let longest = || {
        let server = Server::new(|_| Reply::Silence);
        let mut plan = plan(&server, 3);
        plan.target.timeout = Duration::from_millis(150);
        let outcome = run(plan, &server);
        outcome.check_all(Class::Timeout, 3);
        assert_eq!(outcome.totals.traffic.connections, 3);
        let cell = outcome.totals.cells.values().next().unwrap();
        assert!(cell.service.min() >= 149_000_000, "{}", cell.service.min());
        cell.service.max()
    };
    check_punctual(longest, 151_000_000);
}

/// Checks that in one of 20 runs no time exceeds `max_ns`. A late engine would exceed it in every
/// run. A busy machine wakes the engine late only in some runs.
fn check_punctual(longest: impl Fn() -> u64, max_ns: u64) {
    let late: Vec<u64> = (0..20).map(|_| longest()).take_while(|time| *time > max_ns).collect();
    assert!(late.len() < 20, "{late:?} of at most {max_ns}");
}

#[test]
fn a_response_after_the_deadline_is_a_timeout() {
    let server = Server::new(|request| {
        let response = http(200, "", &request.response_with("\"result\":1"));
        if request.connection == 0 {
            Reply::At(request.at + Duration::from_millis(400), response)
        } else {
            Reply::Bytes(response)
        }
    });
    let mut plan = plan(&server, 50);
    plan.target.timeout = Duration::from_millis(200);
    let outcome = run(plan, &server);
    assert_eq!((outcome.count(Class::Timeout), outcome.count(Class::Ok)), (1, 49));
}

#[test]
fn refused_connections() {
    let server = Server::new(Request::ok);
    let plan = plan(&server, 3);
    let address = server.address;
    drop(server);
    let gone = wait_until_refused(address);
    let outcome = run(plan, &gone);
    outcome.check_all(Class::Connect, 3);
    assert_eq!(outcome.totals.traffic.connections_failed, 3);
    // The worker backs off twice, between three attempts.
    assert!(outcome.elapsed >= Duration::from_millis(200), "{:?}", outcome.elapsed);
}

/// Waits until nothing listens at an address. Returns a server value with this address, for the
/// functions that take a server.
fn wait_until_refused(address: std::net::SocketAddr) -> Server {
    while std::net::TcpStream::connect(address).is_ok() {}
    let mut gone = Server::new(Request::ok);
    gone.address = address;
    gone
}

#[test]
fn connections_that_hang() {
    // Nothing accepts connections, and the accept queue is full. So the kernel drops SYNs.
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    full.listen(0).unwrap();
    let mut hanging = Server::new(Request::ok);
    hanging.address = full.local_addr().unwrap().as_socket().unwrap();
    let brief = Duration::from_millis(50);
    let connect = || std::net::TcpStream::connect_timeout(&hanging.address, brief);
    let filling: Vec<_> = std::iter::from_fn(|| connect().ok()).collect();
    assert!(!filling.is_empty());
    let longest = || {
        let mut plan = plan(&hanging, 1);
        plan.target.connect_timeout = Duration::from_millis(100);
        let outcome = run(plan, &hanging);
        outcome.check_all(Class::Connect, 1);
        let service = outcome.totals.cells.values().next().unwrap().service.max();
        assert!(service >= 99_000_000, "{service}");
        service
    };
    check_punctual(longest, 101_000_000);
}

#[test]
fn a_second_address_is_tried() {
    let server = Server::new(Request::ok);
    let plan = std::sync::Arc::new(plan(&server, 5));
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let engine = super::Engine::start(
        plan,
        std::sync::Arc::new(super::chain_facts()),
        vec![nobody, server.address],
        Instant::now(),
    )
    .unwrap();
    super::collect(engine).check_all(Class::Ok, 5);
}

#[test]
fn an_address_without_response_is_given_up() {
    let server = Server::new(Request::ok);
    let mut plan = plan(&server, 5);
    plan.target.timeout = SECOND / 4;
    // Nothing accepts connections, and the accept queue is short. Once it is full, a connect gets
    // no response.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let silent = socket.local_addr().unwrap().as_socket().unwrap();
    let mut full = Vec::new();
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&silent, SECOND / 10) {
        full.push(stream);
    }
    let engine = super::Engine::start(
        std::sync::Arc::new(plan),
        std::sync::Arc::new(super::chain_facts()),
        vec![silent, server.address],
        Instant::now(),
    )
    .unwrap();
    let outcome = super::collect(engine);
    assert_eq!((outcome.count(Class::Connect), outcome.count(Class::Ok)), (1, 4));
}

#[test]
fn stopping_interrupts_running_calls() {
    let server = Server::new(|_| Reply::Silence);
    let engine = start(plan(&server, 3), &server).unwrap();
    while server.requests().is_empty() {
        std::thread::yield_now();
    }
    engine.stop();
    let outcome = super::collect(engine);
    assert!(outcome.elapsed < SECOND, "{:?}", outcome.elapsed);
    let iterations = outcome.totals.iterations[0];
    assert_eq!((iterations.started, iterations.ended, iterations.interrupted), (1, 0, 1));
    assert_eq!(outcome.totals.count(|_| true), 0);
}
