//! What the gateway does while all nodes are down, and while it stops.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::thread::JoinHandle;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::support::growing_chain::growing_world;
use crate::support::harness::{
    FINALIZED_BLOCK, GET_BALANCE, NEWEST_BLOCK, NodeRuntime, TestGateway, ask, balance_params,
    body, cache_status, chain_polled_often, chain_polled_once, error, result, send,
};
use test_support::raw::Client;
use test_support::running::Weir;
use test_support::wait::wait_until;

#[test]
fn final_data_is_served_while_all_nodes_are_down() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["a", "b"]);
    let text = format!("[health]\nbackoff_min = \"100ms\"\n{}", chain_polled_often(""));
    let gateway = TestGateway::in_front_of(&[&a, &b], &text);
    let mut client = gateway.client();
    let final_calls = [
        ("eth_getBlockByNumber", "[\"0x64\",true]".to_owned()),
        (GET_BALANCE, balance_params(1, &format!("0x{FINALIZED_BLOCK:x}"))),
        ("eth_chainId", "[]".to_owned()),
        ("eth_call", format!(r#"[{{"to":"0x{:040x}","data":"0xdeadbeef"}},"0x64"]"#, 1)),
    ];
    let head_calls = [
        (GET_BALANCE, balance_params(1, "latest")),
        ("eth_blockNumber", "[]".to_owned()),
        ("eth_gasPrice", "[]".to_owned()),
        ("eth_getBlockByNumber", "[\"latest\",false]".to_owned()),
    ];
    // The gateway caches these responses when it knows that their blocks are final.
    wait_until("all final calls are cached", || {
        final_calls
            .iter()
            .all(|(method, params)| cache_status(&ask(&mut client, method, params)) == "hit")
    });
    let before: Vec<String> = final_calls
        .iter()
        .chain(&head_calls)
        .map(|(method, params)| ask(&mut client, method, params).text().to_owned())
        .collect();
    for node in [&a, &b] {
        node.stop_listening();
    }
    gateway.wait_for_head(None);
    for ((method, params), before) in final_calls.iter().zip(&before) {
        let answer = ask(&mut client, method, params);
        assert_eq!((answer.text(), cache_status(&answer)), (before.as_str(), "hit"), "{method}");
    }
    // The cached responses about the newest block may be out of date, and the response to the other
    // call was never cached. So all of these calls fail.
    let uncached_calls = [("eth_getBlockByNumber", "[\"0x65\",true]".to_owned())];
    for (method, params) in head_calls.iter().chain(&uncached_calls) {
        let answer = ask(&mut client, method, params);
        let (status, code, message) = error(&answer);
        assert!(matches!(status, 502 | 503) && code == -32603, "{method}: {status} {message}");
    }
    for node in [&a, &b] {
        node.listen_again();
    }
    gateway.wait_for_candidates(&["a", "b"]);
    gateway.wait_for_head(Some(NEWEST_BLOCK));
    for (method, params) in final_calls.iter().chain(&head_calls).chain(&uncached_calls) {
        let answer = ask(&mut client, method, params);
        assert_eq!(answer.status, 200, "{method}: {}", answer.text());
    }
}

#[test]
fn readiness_follows_the_nodes() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["a", "b"]);
    let text = format!("[health]\nbackoff_min = \"100ms\"\n{}", chain_polled_often(""));
    let gateway = TestGateway::in_front_of(&[&a, &b], &text);
    let has_status = |status: u16| gateway.get_admin("/readyz").status == status;
    assert_eq!(gateway.get_admin("/readyz").text(), "ready\n");
    a.stop_listening();
    gateway.wait_for_candidates(&["b"]);
    assert!(has_status(200), "one node is enough");
    b.stop_listening();
    wait_until("it is not ready", || has_status(503));
    let last_head = format!("no upstream confirms a head; the last was block {NEWEST_BLOCK}, ");
    wait_until("both reasons are reported", || {
        let reasons = gateway.get_admin("/readyz");
        let reports = |reason: &str| reasons.text().contains(reason);
        reports("chain sim: no usable upstream (2 ejected)") && reports(&last_head)
    });
    assert_eq!(gateway.status("/chains/0/last_head/number"), NEWEST_BLOCK);
    // The gateway reports that it is alive, although it is not ready.
    assert_eq!(gateway.get_admin("/healthz").status, 200);
    b.listen_again();
    wait_until("it is ready again", || has_status(200));
}

#[test]
fn the_log_has_one_warning_per_outage_and_reports_a_lagging_return() {
    let runtime = NodeRuntime::start();
    let world = growing_world(false);
    let [ahead, late] = ["ahead", "late"].map(|name| runtime.node(name, &world));
    let nodes = format!("{}{}", ahead.to_toml(""), late.to_toml(""));
    let text = format!("[health]\nbackoff_min = \"100ms\"\n{}{nodes}", chain_polled_often(""));
    let gateway = Weir::serve().admin().config(&text).start();
    let admin = gateway.admin.clone().unwrap();
    let metrics = || {
        let mut client = Client::connect(&admin);
        client.send(b"GET /metrics HTTP/1.1\r\nHost: admin\r\n\r\n");
        client.read_response().unwrap().text().to_owned()
    };
    let ejections = |count: u32| {
        let series = "weir_upstream_ejections_total{chain=\"sim\",upstream=\"late\"}";
        metrics().contains(&format!("{series} {count}\n"))
    };
    late.set(|settings| settings.lag_blocks = 50);
    late.stop_listening();
    wait_until("three probes have failed", || ejections(4));
    assert_eq!(gateway.log().matches("upstream ejected").count(), 1, "{}", gateway.log());
    late.listen_again();
    wait_until("the return is logged", || {
        gateway.log().contains("upstream responds again but lags")
    });
    assert!(!gateway.log().contains("readmitted"), "{}", gateway.log());
    late.set(|settings| settings.lag_blocks = 0);
    wait_until("it is readmitted", || gateway.log().contains("upstream readmitted"));
    assert_eq!(gateway.log().matches("responds again but lags").count(), 1, "{}", gateway.log());
}

/// Sends a call over HTTP/2 in a thread, which returns the response's status and body.
fn ask_over_http2(runtime: &NodeRuntime, address: &str) -> JoinHandle<(u16, String)> {
    let (handle, address) = (runtime.handle.clone(), address.to_owned());
    let call = async move {
        let stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.unwrap();
        let connection_task = tokio::spawn(connection);
        let request = hyper::Request::post(format!("http://{address}/"))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body(GET_BALANCE, &balance_params(3, "0x10")))))
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        let status = response.status().as_u16();
        let body_bytes = response.into_body().collect().await.unwrap().to_bytes();
        // The gateway closes the connection.
        connection_task.await.unwrap().unwrap();
        (status, String::from_utf8(body_bytes.to_vec()).unwrap())
    };
    std::thread::spawn(move || handle.block_on(handle.spawn(call)).unwrap())
}

#[test]
fn a_graceful_stop_completes_requests_in_flight() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    node.set_latency(GET_BALANCE, 1500.0);
    let gateway = TestGateway::in_front_of(&[&node], &chain_polled_once(""));
    let address = gateway.address.clone();
    let before = node.calls();
    let (mut idle, mut used) = (gateway.client(), gateway.client());
    result(&ask(&mut used, "eth_chainId", "[]"));
    let mut busy = gateway.client();
    send(&mut busy, GET_BALANCE, &balance_params(1, "0x10"));
    // A batch whose first call the gateway answers at once.
    let mut batched = gateway.client();
    let call = String::from_utf8(body(GET_BALANCE, &balance_params(2, "0x10"))).unwrap();
    let batch = format!(r#"[{{"id":"at once","method":"eth_chainId"}},{call}]"#);
    batched.send(&test_support::raw::post("/", batch.as_bytes()));
    let over_http2 = ask_over_http2(&runtime, &address);
    // The four calls are the one on the used connection, the busy client's, the one in the batch,
    // and the one over HTTP/2.
    wait_until("all calls have reached the node", || node.calls() - before == 4);
    let stopping = std::thread::spawn(move || gateway.stop());
    assert!(idle.is_closed() && used.is_closed());
    let refused = TcpStream::connect(&address).map(|_| ()).map_err(|error| error.kind());
    assert_eq!(refused, Err(ErrorKind::ConnectionRefused));
    assert!(!stopping.is_finished(), "the stop did not wait for calls in flight");
    for (client, results) in [(&mut busy, 1), (&mut batched, 2)] {
        let answer = client.read_response().expect("it is answered");
        let result_count = answer.text().matches("\"result\"").count();
        assert_eq!((answer.status, result_count), (200, results), "{}", answer.text());
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(client.is_closed());
    }
    let (status, text) = over_http2.join().unwrap();
    assert!(status == 200 && text.contains("\"result\""), "{status} {text}");
    let took = stopping.join().unwrap();
    assert!(took < Duration::from_secs(4), "the stop took {took:?}; the drain deadline is 5 s");
}

#[test]
fn a_stop_ends_at_the_drain_deadline() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    node.set_latency(GET_BALANCE, 60_000.0);
    let gateway = TestGateway::in_front_of(&[&node], &chain_polled_once(""));
    let mut client = Client::connect(&gateway.address);
    send(&mut client, GET_BALANCE, &balance_params(1, "0x10"));
    wait_until("the call is in flight", || gateway.status_u64("/totals/in_flight") == 1);
    let took = gateway.stop();
    assert!((4..8).contains(&took.as_secs()), "{took:?}, and the drain deadline is 5 s");
    assert!(client.is_closed());
}
