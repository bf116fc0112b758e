//! HTTP/2 has the same limits as HTTP/1.1. A refused request ends its stream, but not the
//! connection.

use std::io::Write;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2::SendRequest;
use hyper::{Method, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::{CALL, CALL_OK, Response, assert_memory_bounded, describe, start_gateway};
use test_support::raw::Client;
use test_support::running::Weir;

const TOO_LARGE: &str = "413 null -32600 body exceeds the limit of 5242880 bytes";

/// A request without its body.
type Head = hyper::http::request::Builder;

async fn ask(sender: &mut SendRequest<Full<Bytes>>, head: Head, body: Vec<u8>) -> String {
    let request = head.body(Full::new(Bytes::from(body))).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let text = |value: &hyper::header::HeaderValue| value.to_str().unwrap().to_owned();
    let headers = parts.headers.iter().map(|(name, value)| (name.to_string(), text(value)));
    describe(&Response {
        status: parts.status.as_u16(),
        headers: headers.collect(),
        body: body.collect().await.unwrap().to_bytes().to_vec(),
    })
}

fn head(method: Method, address: &str, path: &str) -> Head {
    let head = Request::builder().method(method).uri(format!("http://{address}{path}"));
    head.header("content-type", "application/json")
}

/// Opens a connection whose streams have a flow-control window of this many bytes.
async fn connect(
    address: &str,
    window: u32,
) -> (SendRequest<Full<Bytes>>, tokio::task::JoinHandle<Result<(), hyper::Error>>) {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(window).initial_connection_window_size(1 << 20);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    (sender, tokio::spawn(connection))
}

#[test]
fn a_stream_that_is_not_read_ends_its_connection_and_a_slow_one_does_not() {
    let (_node, mut gateway) = start_gateway("[downstream]\nwrite_timeout = \"2s\"");
    let address = gateway.address.clone();
    let large = || {
        let call = |id: u32| {
            let params = format!("[\"0x{:x}\",true]", id + 1);
            format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"eth_getBlockByNumber","params":{params}}}"#
            )
        };
        let calls: Vec<String> = (0..40).map(call).collect();
        let body = Bytes::from(format!("[{}]", calls.join(",")));
        head(Method::POST, &address, "/").body(Full::new(body)).unwrap()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (mut sender, running) = connect(&address, 20_000).await;
        let mut slow = sender.send_request(large()).await.unwrap().into_body();
        let began = std::time::Instant::now();
        let mut bytes = 0;
        while let Some(frame) = slow.frame().await {
            let frame = frame.unwrap_or_else(|error| {
                panic!("{error} after {bytes} bytes in {:?}", began.elapsed())
            });
            bytes += frame.into_data().unwrap().len();
            // Sleeps: less than the timeout for each frame, but more in total.
            tokio::time::sleep(std::time::Duration::from_millis(60)).await;
        }
        assert!(began.elapsed() > std::time::Duration::from_secs(2), "{bytes} bytes came at once");

        let unread = sender.send_request(large()).await.unwrap();
        // The timeout applies even if another stream of the connection makes progress.
        let active_stream = async {
            loop {
                let body = Full::new(Bytes::from(CALL));
                let call = head(Method::POST, &address, "/").body(body).unwrap();
                match sender.send_request(call).await {
                    Ok(answer) => drop(answer.into_body().collect().await),
                    Err(_) => return,
                }
                // Sleeps: real time: the gateway is a process of its own.
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        };
        let patience = std::time::Duration::from_secs(20);
        tokio::time::timeout(patience, active_stream).await.expect("the gateway closes in time");
        drop(unread);
        // The connection has ended, either cleanly or with a reset.
        let _ = running.await.unwrap();
        let (mut sender, _running) = connect(&address, 20_000).await;
        let post = head(Method::POST, &address, "/eth");
        assert_eq!(ask(&mut sender, post, CALL.as_bytes().to_vec()).await, CALL_OK);
    });
    gateway.assert_sound();
}

#[test]
fn http2_requests_meet_the_same_limits() {
    let node = Weir::node().start();
    let mut gateway = Weir::serve()
        .admin()
        .config(&format!(
            r#"
        [server]
        threads = 2
        [chain.sim]
        paths = ["/", "/eth"]
        default = false
        [[upstream]]
        url = "{}"
        "#,
            node.url()
        ))
        .start();
    let (before, _) = gateway.memory();
    let address = gateway.address.clone();
    let post = |path: &str| head(Method::POST, &address, path);
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    bomb.write_all(&vec![b' '; 64 << 20]).unwrap();
    let bomb = bomb.finish().unwrap();
    let call = || CALL.as_bytes().to_vec();
    let packed = |coding: &str| post("/").header("content-encoding", coding);
    let cases: Vec<(&str, Head, Vec<u8>, &str)> = vec![
        ("a call", post("/eth"), call(), CALL_OK),
        (
            "an unknown path",
            post("/nowhere"),
            call(),
            "404 null -32600 no chain is served at this path",
        ),
        ("GET", head(Method::GET, &address, "/"), vec![], "200 service"),
        ("HEAD", head(Method::HEAD, &address, "/"), vec![], "200"),
        ("OPTIONS", head(Method::OPTIONS, &address, "/"), vec![], "204"),
        (
            "PUT",
            head(Method::PUT, &address, "/"),
            call(),
            "405 null -32600 method must be POST, GET, HEAD or OPTIONS",
        ),
        (
            "no body",
            post("/"),
            vec![],
            "200 null -32700 empty body where a json-rpc call is needed",
        ),
        ("a body too large", post("/"), vec![b' '; 6 << 20], TOO_LARGE),
        ("a gzip bomb", packed("gzip"), bomb, TOO_LARGE),
        (
            "not gzip",
            packed("gzip"),
            call(),
            "400 null -32600 body does not match its content-encoding",
        ),
        (
            "brotli",
            packed("br"),
            call(),
            "415 null -32600 content-encoding must be gzip, zstd or identity",
        ),
        ("a head of 20 kB", post("/").header("x", "y".repeat(20_000)), call(), "431"),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let handshake =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.unwrap();
        let running = tokio::spawn(connection);
        for (name, head, body, expected) in cases {
            assert_eq!(ask(&mut sender, head, body).await, expected, "{name}");
            assert_eq!(ask(&mut sender, post("/"), call()).await, CALL_OK, "after {name}");
        }
        drop(sender);
        running.await.unwrap().unwrap();
    });
    // The count for 431 is not checked, because hyper itself refuses the head.
    let mut admin = Client::connect(gateway.admin.as_deref().unwrap());
    admin.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let answer = admin.read_response().unwrap();
    let metrics = answer.text();
    for (status, count) in [(400, 1), (404, 1), (405, 1), (413, 2), (415, 1)] {
        let line = format!("weir_requests_refused_total{{status=\"{status}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    gateway.assert_sound();
    assert_memory_bounded(&gateway, before);
}
