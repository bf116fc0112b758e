//! Goal: the reasons of failures are plain words without secrets. Method: connections to real
//! sockets, and responses of providers.

use std::net::TcpListener;
use std::path::Path;

use super::*;
use crate::config::Config;
use crate::upstream::connector::Connector;

/// Returns the only upstream of a configuration with this URL.
fn upstream(url: &str) -> Upstream {
    let text = format!(
        "[chain.main]\nfamily = \"ethereum\"\ndefault = true\n[[upstream]]\nurl = \"{url}\"\nchain = \
         \"main\"\nheaders = {{ x-api-key = \"sekrit-header\" }}\n"
    );
    Config::from_text("test", &text, Path::new(""), &|_| None).unwrap().upstreams[0].clone()
}

/// Connects to an upstream and returns the reason of the failure.
async fn connect(url: &str) -> String {
    let upstream = upstream(url);
    let address = upstream.http();
    let connecting = Connector::Network.connect(address, Duration::from_secs(5));
    let error = connecting.await.expect_err("the connection fails");
    describe_connect_error(&error, address.unwrap().0)
}

#[tokio::test]
async fn connection_failures_have_a_plain_reason() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // The server closes the connection, or responds to the TLS handshake with plain HTTP.
    let server = std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        let (mut stream, _) = listener.accept().unwrap();
        let _bytes = stream.read(&mut [0; 4096]).unwrap();
        drop(stream);
        let (mut stream, _) = listener.accept().unwrap();
        let _bytes = stream.read(&mut [0; 4096]).unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let url = format!("https://127.0.0.1:{port}");
    assert_eq!(
        connect(&url).await,
        "the TLS handshake failed: the server closed the connection; is it an http:// address?"
    );
    assert_eq!(
        connect(&url).await,
        "the TLS handshake failed: the server does not speak TLS; is it an http:// address?"
    );
    server.join().unwrap();
    assert_eq!(
        connect(&url).await,
        format!("the connection was refused; nothing listens on port {port}")
    );
}

#[test]
fn a_response_that_is_an_error_names_its_status_and_no_secret() {
    let upstream = upstream("https://one.example/v3/sekrit-path-1234?key=sekrit-query");
    let describe = |status, error| describe_response(status, error, &upstream);
    assert_eq!(describe(401, None), "it requires another key or token (HTTP status 401)");
    assert_eq!(
        describe(403, Some((-32000, "no project sekrit-path-1234, sekrit-query, sekrit-header"))),
        "it requires another key or token (HTTP status 403), JSON-RPC error -32000: no project \
         ***, ***, ***"
    );
    assert_eq!(describe(200, None), "its response is not JSON-RPC (HTTP status 200)");
    assert_eq!(describe(502, None), "HTTP status 502");
    assert_eq!(describe(200, Some((-1, "busy\nnow"))), "JSON-RPC error -1: busy now");
    let long = "x".repeat(1000);
    assert!(describe(200, Some((-1, &long))).len() < 200);
}
