//! Goal: a scrape returns the counts as text that Prometheus can read, and no client can block the
//! run or other clients. Method: sockets on port 0.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use super::*;
use crate::live::scene::Scene;

fn scrape(names: Names) -> Scrape {
    let labels = Labels::parse(&["testid=t\"1"]).unwrap();
    let mut scrape = Scrape::listen("127.0.0.1:0".parse().unwrap(), names, labels).unwrap();
    scrape.update(&Scene::new().progress());
    scrape
}

/// Sends a request and returns the whole response.
fn send(scrape: &Scrape, request: &[u8]) -> String {
    let mut client = TcpStream::connect(scrape.address()).unwrap();
    client.set_read_timeout(Some(CONNECTION_TIME_MAX * 5)).unwrap();
    // The server may respond and close before it has read the whole request.
    let _ = client.write_all(request);
    let mut response = String::new();
    let _ = client.read_to_string(&mut response);
    response
}

#[test]
fn a_scrape_returns_the_counts() {
    let scrape = scrape(Names::Weir);
    let response = send(&scrape, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(head.contains("openmetrics-text"), "{head}");
    assert!(body.ends_with("# EOF\n"));
    for line in [
        r#"weir_lab_calls_total{testid="t\"1",scenario="main",stage="climb",method="eth_getLogs",class="timeout"} 20.0"#,
        r#"weir_lab_iteration_seconds_count{testid="t\"1"} 12000"#,
        r#"weir_lab_iteration_seconds_bucket{testid="t\"1",le="0.0025"} 12000"#,
        r#"weir_lab_iteration_seconds_bucket{testid="t\"1",le="0.001"} 0"#,
        "# TYPE weir_lab_latency_seconds histogram",
        "# UNIT weir_lab_sent_bytes bytes",
        r#"weir_lab_sent_bytes_total{testid="t\"1"} 1200000.0"#,
    ] {
        assert!(body.contains(line), "{line}: {body}");
    }
}

#[test]
fn k6_names_are_scraped_too() {
    let scrape = scrape(Names::K6);
    let response = send(&scrape, b"GET /metrics?x=y HTTP/1.0\r\n\r\n");
    for name in ["k6_http_reqs_total{", "k6_http_req_duration_seconds_bucket{", "k6_vus{"] {
        assert!(response.contains(name), "{name}: {response}");
    }
}

#[test]
fn other_requests_are_rejected() {
    let scrape = scrape(Names::Weir);
    let long = [b"GET /metrics HTTP/1.1\r\nX: ".to_vec(), vec![b'a'; 20_000]].concat();
    for (request, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
        (b"GET /metrics/x HTTP/1.1\r\n\r\n", "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "400"),
    ] {
        let response = send(&scrape, request);
        assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{response}");
    }
    // The server does not read the whole request, so a reset may discard its response.
    let response = send(&scrape, &long);
    assert!(response.is_empty() || response.starts_with("HTTP/1.1 431"), "{response}");
}

#[test]
fn silent_clients_block_others_only_briefly() {
    let scrape = scrape(Names::Weir);
    let silent: Vec<TcpStream> =
        (0..CONNECTIONS_MAX * 4).map(|_| TcpStream::connect(scrape.address()).unwrap()).collect();
    let start = Instant::now();
    loop {
        let response = send(&scrape, b"GET /metrics HTTP/1.1\r\n\r\n");
        if response.starts_with("HTTP/1.1 200") {
            break;
        }
        assert!(start.elapsed() < CONNECTION_TIME_MAX * 10, "nobody is answered any more");
    }
    drop(silent);
}

#[test]
fn the_address_is_free_after_the_end() {
    let scrape = scrape(Names::Weir);
    let address = scrape.address();
    scrape.finish();
    TcpListener::bind(address).expect("the address is free again");
}

#[test]
fn an_address_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let fault = Scrape::listen(address, Names::Weir, Labels::default()).unwrap_err();
    assert!(fault.to_string().contains(&address.to_string()), "{fault}");
}
