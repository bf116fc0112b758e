//! Goal: the client describes faulty servers in detail. Method: fake servers on real sockets.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread::JoinHandle;
use std::time::Duration;

use base64::Engine as _;
use lab_model::plan::{Target, Tls};
use lab_model::samples;

use super::{Client, Reply};
use crate::target::Reason;

/// Returns true if a request has the end of its body: the brace of a call, or the bracket of a
/// batch.
fn has_whole_body(request: &[u8]) -> bool {
    let is_batch = request.windows(5).any(|bytes| bytes == b"\r\n\r\n[");
    request.ends_with(if is_batch { b"]" } else { b"}" })
}

/// A server that sends one response per connection.
pub(crate) struct Fake {
    port: u16,
    /// The thread is not joined. It waits in `accept` until the test's process ends.
    _thread: JoinHandle<()>,
}

impl Fake {
    /// Starts a server. `response_to` returns the bytes to send for a request. For `None` the
    /// server closes the connection.
    pub(crate) fn responding(
        response_to: impl Fn(&str) -> Option<Vec<u8>> + Send + 'static,
    ) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { continue };
                let mut request = Vec::new();
                let mut chunk = [0; 4096];
                // A TLS handshake begins with 0x16.
                while !has_whole_body(&request) && !request.starts_with(&[0x16]) {
                    match stream.read(&mut chunk) {
                        Ok(length) if length > 0 => request.extend_from_slice(&chunk[..length]),
                        _ => break,
                    }
                }
                if let Some(response) = response_to(&String::from_utf8_lossy(&request)) {
                    let _closed = stream.write_all(&response);
                }
            }
        });
        Fake { port, _thread: thread }
    }

    pub(crate) fn target(&self) -> Target {
        let mut target = samples::open(1.0, 1, &["eth_chainId"]).target;
        target.point_at(&format!("http://127.0.0.1:{}", self.port)).unwrap();
        target
    }

    fn call(&self) -> Result<Reply, Reason> {
        let client = Client::new(&self.target(), &Tls::default()).unwrap();
        client.call("eth_chainId", "[]").map_err(|fault| fault.reason)
    }
}

/// Returns an HTTP response after which the connection closes.
pub(crate) fn http(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
        .into_bytes()
}

/// Starts a server that sends the same response to every request.
fn always(response: Vec<u8>) -> Fake {
    Fake::responding(move |_| Some(response.clone()))
}

#[test]
fn results_and_errors_are_replies_whatever_the_status() {
    let fake = always(http("200 OK", r#"{"jsonrpc":"2.0","id":1,"result":"0x1"}"#));
    assert_eq!(fake.call(), Ok(Reply::Result("0x1".into())));
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}"#;
    let expected = Reply::Error { code: -32_601, message: "no".to_owned() };
    assert_eq!(always(http("200 OK", error)).call(), Ok(expected.clone()));
    assert_eq!(always(http("500 Oops", error)).call(), Ok(expected));
}

#[test]
fn the_call_is_sent_to_the_path_with_the_headers_of_the_target() {
    let fake = Fake::responding(|request| {
        let lower_case = request.to_ascii_lowercase();
        let is_correct = request.starts_with("POST /v1/key HTTP/1.1\r\n")
            && lower_case.contains("authorization: bearer x\r\n")
            && lower_case.contains("content-type: application/json\r\n");
        let result = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{is_correct}}}"#);
        Some(http("200 OK", &result))
    });
    let mut target = fake.target();
    target.point_at(&format!("http://127.0.0.1:{}/v1/key", fake.port)).unwrap();
    target.headers = vec![("authorization".to_owned(), "Bearer x".to_owned())];
    let client = Client::new(&target, &Tls::default()).unwrap();
    assert_eq!(client.call("eth_chainId", "[]"), Ok(Reply::Result(true.into())));
}

#[test]
fn a_web_server_is_no_json_rpc_server() {
    let fault =
        always(http("405 Method Not Allowed", "<html>\n<h1>nginx</h1>")).call().unwrap_err();
    let output = fault.to_string();
    assert!(output.contains("HTTP status 405"), "{output}");
    assert!(output.contains(r#"the body begins with "<html>\n<h1>nginx"#), "{output}");
    let fault = always(http("200 OK", r#"{"hello":"world"}"#)).call().unwrap_err();
    assert!(fault.to_string().contains("neither a result nor an error"), "{fault}");
}

#[test]
fn another_protocol_is_shown_by_its_first_bytes() {
    let fault = always(b"SSH-2.0-OpenSSH_9.6\r\n".to_vec()).call().unwrap_err();
    assert_eq!(fault, Reason::NotHttp { beginning: r"SSH-2.0-OpenSSH_9.6\r\n".to_owned() });
}

#[test]
fn a_missing_key_is_named() {
    let body = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"a key is required"}}"#;
    let fake = always(http("401 Unauthorized", body));
    let client = Client::new(&fake.target(), &Tls::default()).unwrap();
    let fault = client.call("eth_chainId", "[]").unwrap_err();
    assert!(matches!(fault.reason, Reason::Unauthorized { .. }), "{fault:?}");
    assert!(fault.to_string().contains("-H 'x-api-key: KEY'"), "{fault}");
    assert!(fault.to_string().contains("(HTTP status 401: a key is required)"), "{fault}");
    for body in
        ["say \"please\"\n", r#"{"error":"say \"please\""}"#, r#"{"message":"say \"please\""}"#]
    {
        let fake = always(http("401 Unauthorized", body));
        let client = Client::new(&fake.target(), &Tls::default()).unwrap();
        let fault = client.call("eth_chainId", "[]").unwrap_err().to_string();
        assert!(fault.contains("(HTTP status 401: say \"please\")"), "{fault}");
    }
}

#[test]
fn a_used_up_quota_is_shown_in_the_words_of_the_server() {
    let message = "the month's quota of key demo is used up";
    let body =
        format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":-32005,"message":"{message}"}}}}"#);
    let fake = always(http("429 Too Many Requests", &body));
    let client = Client::new(&fake.target(), &Tls::default()).unwrap();
    let fault = client.call("eth_chainId", "[]").unwrap_err().to_string();
    assert!(fault.contains(message) && fault.contains("the quota"), "{fault}");
}

#[test]
fn a_closed_port_is_refused() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut target = always(Vec::new()).target();
    target.point_at(&format!("http://127.0.0.1:{port}")).unwrap();
    let client = Client::new(&target, &Tls::default()).unwrap();
    let fault = client.call("eth_chainId", "[]").unwrap_err();
    let output = format!(
        "http://127.0.0.1:{port}: the connection was refused; nothing listens on port {port}"
    );
    assert_eq!(fault.to_string(), output);
}

#[test]
fn tls_to_a_plain_server_says_so() {
    let fake = always(http("400 Bad Request", "plain"));
    let mut target = fake.target();
    target.point_at(&format!("https://127.0.0.1:{}", fake.port)).unwrap();
    let client = Client::new(&target, &Tls { insecure: true, ..Tls::default() }).unwrap();
    let fault = client.call("eth_chainId", "[]").unwrap_err();
    assert!(matches!(fault.reason, Reason::Tls { .. }), "{fault:?}");
    assert!(fault.to_string().ends_with("is it an http:// address?"), "{fault}");
}

#[test]
fn faults_of_certificates_are_reported_in_words() {
    use rustls::{CertificateError, Error, OtherError};
    let other = std::io::Error::other("CaUsedAsEndEntity");
    let cases = [
        (CertificateError::Expired, "has expired"),
        (CertificateError::UnknownIssuer, "untrusted"),
        (CertificateError::Other(OtherError(std::sync::Arc::new(other))), "of an authority"),
    ];
    for (fault, words) in cases {
        let output = super::describe_tls_error(&Error::InvalidCertificate(fault));
        assert!(output.contains(words) && output.contains("--insecure"), "{output}");
        assert!(!output.contains("OtherError") && !output.contains("http://"), "{output}");
    }
}

#[test]
fn a_server_that_closes_without_a_complete_response_is_reported() {
    assert_eq!(Fake::responding(|_| None).call(), Err(Reason::Closed));
    assert_eq!(always(b"HTTP/1.1 200 OK\r\n".to_vec()).call(), Err(Reason::Closed));
}

#[test]
fn a_call_above_the_rate_limit_is_retried() {
    let requests = std::sync::atomic::AtomicU32::new(0);
    let fake = Fake::responding(move |_| {
        let is_first = requests.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        let response = http("200 OK", r#"{"jsonrpc":"2.0","id":1,"result":"0x1"}"#);
        Some(if is_first { http("429 Too Many Requests", "slow down") } else { response })
    });
    assert_eq!(fake.call(), Ok(Reply::Result("0x1".into())));
}

#[test]
fn a_missing_ca_file_is_named() {
    let target = always(Vec::new()).target();
    let tls = Tls { ca: Some("/nowhere/ca.pem".into()), ..Tls::default() };
    let fault = Client::new(&target, &tls).err().unwrap();
    assert!(fault.to_string().contains("CA certificates in /nowhere/ca.pem"), "{fault}");
}

#[test]
fn a_target_that_hangs_times_out() {
    // The kernel accepts the connection for this listener, but nobody responds.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut target = samples::open(1.0, 1, &["eth_chainId"]).target;
    target.point_at(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    target.timeout = Duration::from_millis(1);
    let client = Client::new(&target, &Tls::default()).unwrap();
    let fault = client.call("eth_chainId", "[]").unwrap_err();
    assert_eq!(fault.reason, Reason::Silent { after: Duration::from_secs(5) });
}

/// Starts a server of WebSockets and returns a client for it. `handshake` returns the response to a
/// `Sec-WebSocket-Key`. `response_to` gets the index of a connection and a call, and returns the
/// response. For an empty text the server sends no response, and for `None` it closes the
/// connection.
fn websocket_server(
    handshake: impl Fn(&str) -> String + Send + Sync + 'static,
    response_to: impl Fn(usize, &str) -> Option<String> + Send + Sync + 'static,
) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // The thread ends with the test's process.
    std::thread::spawn(move || {
        for (connection, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            let key = String::from_utf8(head).unwrap();
            let (_, key) = key.split_once("Sec-WebSocket-Key: ").unwrap();
            stream.write_all(handshake(key.lines().next().unwrap()).as_bytes()).unwrap();
            let mut header = [0; 6];
            while stream.read_exact(&mut header).is_ok() && header[0] == 0x81 {
                let mut call = vec![0; usize::from(header[1] & 0x7f)];
                stream.read_exact(&mut call).unwrap();
                let key = header[2..].iter().cycle();
                call.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
                let Some(text) = response_to(connection, std::str::from_utf8(&call).unwrap())
                else {
                    break;
                };
                if !text.is_empty() {
                    stream.write_all(&[0x81, text.len() as u8]).unwrap();
                    stream.write_all(text.as_bytes()).unwrap();
                }
            }
        }
    });
    let mut target = samples::open(1.0, 1, &["eth_chainId"]).target;
    target.point_at(&format!("ws://127.0.0.1:{port}")).unwrap();
    Client::new(&target, &Tls::default()).unwrap()
}

/// Returns the response that opens a WebSocket.
fn accept_upgrade(key: &str) -> String {
    let digest = aws_lc_rs::digest::digest(
        &aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY,
        format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11").as_bytes(),
    );
    let accept = base64::engine::general_purpose::STANDARD.encode(digest);
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}

#[test]
fn calls_over_a_websocket_use_one_connection_until_the_server_closes_it() {
    let calls = std::sync::atomic::AtomicUsize::new(0);
    let client = websocket_server(accept_upgrade, move |connection, call| {
        assert!(call.contains("eth_chainId"), "{call}");
        // The first connection ends with the third call, which needs a second connection.
        let call = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let result = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{connection}}}"#);
        (call != 2).then_some(result)
    });
    for connection in [0, 0, 1, 1] {
        assert_eq!(client.call("eth_chainId", "[]"), Ok(Reply::Result(connection.into())));
    }
}

#[test]
fn a_call_over_a_websocket_that_times_out_is_not_repeated() {
    let calls = std::sync::atomic::AtomicUsize::new(0);
    let client = websocket_server(accept_upgrade, move |_, _| {
        let call = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let result = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{call}}}"#);
        Some(if call == 1 { String::new() } else { result })
    });
    let client = Client { timeout: Duration::from_millis(500), ..client };
    let call = || client.call("eth_chainId", "[]");
    assert_eq!(call(), Ok(Reply::Result(0.into())));
    let silent = Reason::Silent { after: client.timeout };
    assert_eq!(call().unwrap_err().reason, silent);
    assert_eq!(call(), Ok(Reply::Result(2.into())));
}

#[test]
fn a_server_that_opens_no_websocket_is_named_with_its_status() {
    let refusing = |status: &'static str| {
        let refuse = move |_: &str| format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        let client = websocket_server(refuse, |_, _| None);
        client.call("eth_chainId", "[]").unwrap_err()
    };
    let fault = refusing("404 Not Found");
    assert_eq!(fault.reason, Reason::NoWebSocket { status: 404 });
    assert!(fault.to_string().starts_with("ws://127.0.0.1:"), "{fault}");
    let fault = refusing("401 Unauthorized");
    assert!(matches!(fault.reason, Reason::Unauthorized { .. }), "{fault}");
    let fault = websocket_server(|_| "SSH-2.0\r\n".to_owned(), |_, _| None);
    let fault = fault.call("eth_chainId", "[]").unwrap_err();
    assert!(fault.to_string().contains("invalid"), "{fault}");
}
