//! Limits over HTTP/2 are the same as over HTTP/1.1. All streams of a client count together, and a
//! reset stream no longer counts as in flight.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::support::harness::{
    GET_BALANCE, NodeRuntime, TestGateway, balance_params, body, chain_polled_once,
};
use test_support::wait::wait_until;

const CALL: &str = "eth_blockNumber";

type Sender = SendRequest<Full<Bytes>>;

/// Opens an HTTP/2 connection. Its task runs on the thread of `runtime`.
fn connect(runtime: &NodeRuntime, gateway: &TestGateway) -> Sender {
    let address = gateway.address.clone();
    let sender = runtime.handle.spawn(async move {
        let stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let opened = handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, connection) = opened.unwrap();
        tokio::spawn(connection);
        sender
    });
    runtime.handle.block_on(sender).unwrap()
}

fn request(gateway: &TestGateway, body: Vec<u8>) -> Request<Full<Bytes>> {
    Request::post(format!("http://{}/", gateway.address))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))
        .unwrap()
}

/// Reads a response. Returns its status, its header `Retry-After` and its body.
async fn read_response(answer: Response<Incoming>) -> (u16, Option<String>, String) {
    let status = answer.status().as_u16();
    let retry_after = answer.headers().get("retry-after");
    let retry_after = retry_after.map(|value| value.to_str().unwrap().to_owned());
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, retry_after, String::from_utf8(body.to_vec()).unwrap())
}

#[test]
fn streams_count_together_and_get_retry_after() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let limit = "[zone.z]\nkey = [\"client\"]\nrate = \"30r/m\"\n[[limit]]\nzone = \"z\"\nburst = 1\n\
                 nodelay = true\n";
    let gateway = TestGateway::in_front_of(&[&node], &format!("{}{limit}", chain_polled_once("")));
    let mut sender = connect(&runtime, &gateway);
    let answers = runtime.handle.block_on(async {
        let mut answers = Vec::new();
        for _ in 0..3 {
            let answer = sender.send_request(request(&gateway, body(CALL, "[]"))).await;
            answers.push(read_response(answer.unwrap()).await);
        }
        answers
    });
    assert_eq!(answers.iter().map(|answer| answer.0).collect::<Vec<_>>(), [200, 200, 429]);
    assert_eq!(answers[2].1.as_deref(), Some("2"));
    let refusal = r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32005,"message":"request rate limit exceeded"}}"#;
    assert_eq!(answers[2].2, refusal);
    // Another connection from the same address counts as the same client.
    assert_eq!(gateway.client().call("/", &body(CALL, "[]")).status, 429);
}

#[test]
fn a_reset_stream_no_longer_counts_as_in_flight() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    node.set_latency(GET_BALANCE, 60_000.0);
    let limit = "[zone.z]\nkey = [\"client\"]\n[[limit]]\nzone = \"z\"\nconcurrent = 1\n";
    let gateway = TestGateway::in_front_of(&[&node], &format!("{}{limit}", chain_polled_once("")));
    let mut sender = connect(&runtime, &gateway);
    let before = node.calls();
    let slow = body(GET_BALANCE, &balance_params(1, "0x10"));
    let slow = runtime.handle.spawn(sender.send_request(request(&gateway, slow)));
    wait_until("the call is in flight", || node.calls() > before);
    assert_eq!(gateway.client().call("/", &body(CALL, "[]")).status, 429);
    // This drops the future of the response, and hyper then resets the stream.
    slow.abort();
    wait_until("the call no longer counts", || {
        gateway.client().call("/", &body(CALL, "[]")).status == 200
    });
}
