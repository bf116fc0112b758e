//! Goal: connections are reused as often as the plan says, and closes are counted by the side that
//! closed the connection. Method: the server counts connections too.

use std::sync::Arc;
use std::time::Duration;

use super::server::{Reply, Request, Server, http};
use super::{Class, Engine, Reuse, SECOND, chain_facts, collect, open, plan, run};
use crate::engine::simulated::{FaultRates, Network};

/// Runs a plan and checks its number of connections. `closes` is true if each request must ask the
/// server to close the connection.
fn check(reuse: Reuse, iterations: u64, connections: usize, closes: bool) {
    let server = Server::new(Request::ok);
    let mut plan = plan(&server, iterations);
    plan.connections.reuse = reuse;
    let outcome = run(plan, &server);
    outcome.check_all(Class::Ok, iterations);
    assert_eq!(server.connections(), connections);
    assert_eq!(outcome.totals.traffic.connections, connections as u64);
    assert_eq!(outcome.totals.connect_time.len(), connections as u64);
    assert_eq!(outcome.totals.traffic.closed_by_server, 0);
    let close_requests = server
        .requests()
        .iter()
        .filter(|request| request.head.contains("Connection: close"))
        .count();
    assert_eq!(close_requests, if closes { iterations as usize } else { 0 });
}

#[test]
fn one_connection_for_all_requests() {
    check(Reuse::Always, 20, 1, false);
}

#[test]
fn a_connection_for_each_request() {
    check(Reuse::Never, 20, 20, true);
}

#[test]
fn a_connection_for_several_requests() {
    // Three requests per connection, so 20 requests need 7 connections.
    check(Reuse::Requests(3), 20, 7, false);
}

#[test]
fn a_connection_that_was_closed_while_idle_is_replaced() {
    // The server closes each connection after a response, without announcing the close. During the
    // pause, the close arrives at the client.
    let server =
        Server::new(|request| Reply::Last(http(200, "", &request.response_with("\"result\":1"))));
    let mut plan = plan(&server, 5);
    plan.scenarios[0].pause = SECOND / 20;
    let outcome = run(plan, &server);
    outcome.check_all(Class::Ok, 5);
    assert_eq!(outcome.totals.traffic.closed_by_server, 5);
    assert_eq!(outcome.totals.traffic.connections, 5);
}

#[test]
fn a_connection_that_the_server_will_close_is_not_reused() {
    let server = Server::new(|request| {
        let fields = if request.number == 1 { "Connection: close\r\n" } else { "" };
        Reply::body(200, fields, &request.response_with("\"result\":1"))
    });
    let outcome = run(plan(&server, 10), &server);
    outcome.check_all(Class::Ok, 10);
    assert_eq!(outcome.totals.traffic.connections, 5);
    assert_eq!(outcome.totals.traffic.closed_by_server, 5);
}

#[test]
fn no_more_connections_than_needed() {
    let server = Server::new(Request::ok);
    // 50 calls per second for a second, from up to 100 workers, without a queue.
    let plan = Arc::new(open(plan(&server, 0), 50.0, SECOND, 100, 0));
    let no_faults = FaultRates { connect: 0, request: 0, stall: 0 };
    for seed in 0..20 {
        // In virtual time, every call ends within a millisecond, long before the next one starts.
        let network = Network::new(seed, Duration::from_millis(1), no_faults);
        let engine =
            Engine::simulated(Arc::clone(&plan), &Arc::new(chain_facts()), &network).unwrap();
        let outcome = collect(engine);
        outcome.check_all(Class::Ok, 50);
        let closed = outcome.totals.traffic.closed_by_server;
        let opened = network.counts().connections;
        assert!(opened <= 1 + closed, "seed {seed}: {opened} connections, {closed} closed");
    }
}

#[test]
fn request_headers_are_those_of_the_plan() {
    let server = Server::new(Request::ok);
    let mut plan = plan(&server, 1);
    plan.target.headers =
        vec![("Authorization".into(), "Bearer x".into()), ("content-type".into(), "a/b".into())];
    let port = server.address.port();
    run(plan, &server);
    let head = server.requests()[0].head.clone();
    let body = server.requests()[0].body.len();
    let agent = concat!("weir-lab/", env!("CARGO_PKG_VERSION"));
    assert_eq!(
        head,
        format!(
            "POST /rpc HTTP/1.1\r\nHost: localhost:{port}\r\nAccept: application/json\r\n\
             User-Agent: {agent}\r\nAuthorization: Bearer x\r\ncontent-type: a/b\r\n\
             Content-Length: {body}\r\n\r\n"
        )
    );
}

#[test]
fn headers_that_would_break_the_request_are_rejected() {
    let server = Server::new(Request::ok);
    for (name, value) in [("a b", "x"), ("x", "y\r\nz: 1"), ("Content-Length", "5"), ("", "")] {
        let mut plan = plan(&server, 1);
        plan.target.headers = vec![(name.into(), value.into())];
        let fault = super::start(plan, &server).err().unwrap().to_string();
        assert!(fault.starts_with(&format!("header {name:?} cannot be sent")), "{fault}");
    }
}
