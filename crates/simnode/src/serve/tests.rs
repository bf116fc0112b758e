//! Goal: the server sends the right bytes. Method: a plain TCP client that writes and reads bytes,
//! and a duplex stream in virtual time.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::{NodeServer, serve_connection};
use crate::admin::Admin;
use crate::node::Node;
use crate::node::settings::{Fault, FaultRule, Latency};
use crate::schedule::WorldOptions;
use crate::world::World;

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}"#;

fn node() -> Arc<Node> {
    let options = WorldOptions { height_start: 20, ..WorldOptions::default() };
    Node::new("a", Arc::new(World::new(options).unwrap()))
}

fn listen(node: &Arc<Node>) -> NodeServer {
    node.listen(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap()
}

fn request(method: &str, path: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Reads one whole response. Fails if the connection ends before the end of the response.
async fn read_response(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<(u16, String)> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        if let Some(header_end) = text.find("\r\n\r\n") {
            let header = &text[..header_end];
            let status = header.split(' ').nth(1).unwrap().parse().unwrap();
            let line = header.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = line.map_or(0, |line| line.parse().unwrap());
            let body = &bytes[header_end + 4..];
            if body.len() >= length {
                return Ok((status, String::from_utf8_lossy(&body[..length]).into_owned()));
            }
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            let kind = ErrorKind::UnexpectedEof;
            return Err(std::io::Error::new(kind, String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
}

async fn exchange(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    request: &str,
) -> std::io::Result<(u16, String)> {
    stream.write_all(request.as_bytes()).await?;
    read_response(stream).await
}

/// Calls a node that has this fault, and returns the status and the body.
async fn call_with_fault(fault: Fault) -> std::io::Result<(u16, String)> {
    let node = node();
    node.set(|settings| settings.faults = vec![FaultRule::always(fault)]).unwrap();
    let listening = listen(&node);
    let mut stream = TcpStream::connect(listening.addr()).await.unwrap();
    exchange(&mut stream, &request("POST", "/", CALL)).await
}

#[tokio::test]
async fn connections_are_kept_and_pipelined() {
    let node = node();
    let listening = listen(&node);
    let mut stream = TcpStream::connect(listening.addr()).await.unwrap();
    for _ in 0..3 {
        let (status, body) = exchange(&mut stream, &request("POST", "/", CALL)).await.unwrap();
        assert_eq!(
            (status, body.as_str()),
            (200, r#"{"jsonrpc":"2.0","id":1,"result":"0x67932"}"#)
        );
    }
    stream.write_all(request("POST", "/", CALL).repeat(2).as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    while String::from_utf8_lossy(&bytes).matches("0x67932").count() < 2 {
        assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0);
    }
    let (status, _) = exchange(&mut stream, &request("GET", "/", "")).await.unwrap();
    assert_eq!(status, 405);
    assert_eq!(node.counters().requests, 5);
}

#[tokio::test]
async fn faults_reach_the_socket() {
    let closed = call_with_fault(Fault::Close).await.unwrap_err();
    assert_eq!((closed.kind(), closed.to_string().as_str()), (ErrorKind::UnexpectedEof, ""));
    let reset = call_with_fault(Fault::Reset).await.unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
    let truncated = call_with_fault(Fault::Truncate).await.unwrap_err();
    assert_eq!(truncated.kind(), ErrorKind::UnexpectedEof);
    assert!(truncated.to_string().ends_with(r#"{"jsonrpc":"2.0","id""#), "{truncated}");
    let (status, page) = call_with_fault(Fault::Html).await.unwrap();
    assert!(status == 200 && page.contains("<html>"));
    let (status, _) = call_with_fault(Fault::TooManyRequests { retry_after_s: 1 }).await.unwrap();
    assert_eq!(status, 429);
    let (status, body) =
        call_with_fault(Fault::SlowBody { bytes_per_second: 100_000 }).await.unwrap();
    assert!(status == 200 && body.ends_with('}'));
}

#[tokio::test]
async fn a_node_goes_down_and_comes_up_on_its_port() {
    let node = node();
    let listening = listen(&node);
    let mut stream = TcpStream::connect(listening.addr()).await.unwrap();
    exchange(&mut stream, &request("POST", "/", CALL)).await.unwrap();
    for _ in 0..2 {
        listening.close_port().await;
        assert!(!listening.is_up());
        let broken = exchange(&mut stream, &request("POST", "/", CALL)).await.unwrap_err();
        assert!(matches!(broken.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe));
        let refused = TcpStream::connect(listening.addr()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        listening.open_port().await.unwrap();
        stream = TcpStream::connect(listening.addr()).await.unwrap();
        exchange(&mut stream, &request("POST", "/", CALL)).await.unwrap();
    }
    let addr = listening.addr();
    drop(listening);
    // Until the task of the port is scheduled and ends, the port may still accept.
    let mut tries = 0;
    while TcpStream::connect(addr).await.is_ok() {
        tries += 1;
        assert!(tries < 1_000, "the port stays open");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_admin_port_changes_a_running_node() {
    let node = node();
    let listening = Arc::new(listen(&node));
    let addr = SocketAddr::from(([127, 0, 0, 1], 0));
    let admin = Admin::listen(addr, Arc::clone(&listening)).await.unwrap();
    let ask = async |method: &str, path: &str, body: &str| {
        let mut stream = TcpStream::connect(admin.addr()).await.unwrap();
        let (status, body) = exchange(&mut stream, &request(method, path, body)).await.unwrap();
        let value: Value = serde_json::from_str(&body).unwrap();
        (status, value)
    };
    let (status, state) = ask("GET", "/state", "").await;
    assert_eq!((status, &state["up"], &state["name"]), (200, &json!(true), &json!("a")));
    let patch = json!({ "faults": [{ "fault": { "kind": "html" } }], "delay_ms": 2.5 });
    let (status, state) = ask("POST", "/faults", &patch.to_string()).await;
    assert_eq!((status, &state["settings"]["delay_ms"]), (200, &json!(2.5)));
    assert_eq!(node.settings().faults, [FaultRule::always(Fault::Html)]);
    let latency = json!({ "faults": null, "latency": { "shape": "constant", "ms": 4.0 } });
    ask("POST", "/faults", &latency.to_string()).await;
    ask("POST", "/faults", r#"{"latency":{"shape":"exponential","mean_ms":4}}"#).await;
    assert_eq!(node.settings().latency, Latency::Exponential { mean_ms: 4.0 });
    assert!(node.settings().faults.is_empty());
    ask("POST", "/lag", r#"{"blocks":3}"#).await;
    assert_eq!(node.settings().lag_blocks, 3);
    ask("POST", "/freeze", "").await;
    assert!(node.settings().frozen_at.is_some());
    ask("POST", "/thaw", "").await;
    assert!(node.settings().frozen_at.is_none());
    let (_, state) = ask("POST", "/down", "").await;
    assert_eq!(state["up"], json!(false));
    let (status, state) = ask("POST", "/up", "").await;
    assert_eq!((status, &state["up"]), (200, &json!(true)));
    for (method, path, body, expected) in [
        ("GET", "/nothing", "", 404),
        ("GET", "/down", "", 405),
        ("POST", "/faults", "{", 400),
        ("POST", "/faults", r#"{"lagg":1}"#, 400),
        ("POST", "/lag", r#"{"blocks":-1}"#, 400),
    ] {
        let (status, response) = ask(method, path, body).await;
        assert_eq!(status, expected, "{method} {path} {body}");
        assert!(response["error"].is_string());
    }
}

#[tokio::test(start_paused = true)]
async fn a_duplex_stream_serves_in_virtual_time() {
    let node = node();
    node.set(|settings| settings.latency = Latency::Constant { ms: 5_000.0 }).unwrap();
    let (mut near, far) = tokio::io::duplex(64 * 1024);
    tokio::spawn(serve_connection(Arc::clone(&node), far));
    let start = Instant::now();
    let (status, _) = exchange(&mut near, &request("POST", "/", CALL)).await.unwrap();
    assert_eq!((status, (Instant::now() - start).as_secs()), (200, 5));
    node.set(|settings| {
        settings.latency = Latency::None;
        let slow = Fault::SlowBody { bytes_per_second: 10 };
        settings.faults = vec![FaultRule::always(slow)];
    })
    .unwrap();
    let start = Instant::now();
    let (_, body) = exchange(&mut near, &request("POST", "/", CALL)).await.unwrap();
    let expected = Duration::from_millis(100 * body.len() as u64);
    let elapsed = Instant::now() - start;
    assert!(
        elapsed >= expected.mul_f64(0.9) && elapsed <= expected.mul_f64(1.2),
        "{elapsed:?} for {expected:?}"
    );
}
