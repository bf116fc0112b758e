//! Goal: clients get the same responses over a WebSocket as over HTTP, with the same API keys and
//! limits. No client can block the gateway or delay its stop for long.
//!
//! Method: simulated nodes behind the gateway. Clients that conform to the protocol use
//! tungstenite, and others send raw bytes over a socket.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use tungstenite::Message;
use tungstenite::protocol::frame::coding::CloseCode;

use crate::support::harness::{
    FINALIZED_BLOCK, GET_BALANCE, NodeRuntime, SimNode, TestGateway, balance_params, body,
    chain_polled_once,
};
use crate::support::websocket_client::{PATIENCE, WebSocketClient};
use test_support::raw::Client;
use test_support::wait::{pause, wait_until};

fn start_gateway(node: &SimNode, settings: &str) -> TestGateway {
    TestGateway::in_front_of(&[node], &format!("{settings}{}", chain_polled_once("")))
}

#[test]
fn calls_and_batches_are_answered_as_over_http() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let gateway = start_gateway(&node, "");
    let (mut socket, mut client) = (WebSocketClient::open(&gateway.address), gateway.client());
    let calls = [
        body("eth_chainId", "[]"),
        body("eth_getBlockByNumber", r#"["0x64",true]"#),
        body(GET_BALANCE, &balance_params(1, &format!("0x{FINALIZED_BLOCK:x}"))),
        body("eth_nothing", "[]"),
        br#"{"jsonrpc":"2.0","id":"a \u0062","method":"eth_blockNumber"}"#.to_vec(),
        br#"[{"id":1.50,"method":"eth_chainId"},{"id":2,"method":"eth_chainId","params":1}]"#
            .to_vec(),
        b"[]".to_vec(),
        b"{".to_vec(),
    ];
    for call in &calls {
        let over_http = client.call("/", call);
        socket.send(call);
        assert_eq!(socket.read_text(), over_http.text(), "{}", String::from_utf8_lossy(call));
    }
    // A notification has no response, so the next message is the next call's response.
    socket.send(br#"{"jsonrpc":"2.0","method":"eth_chainId"}"#);
    assert_eq!(socket.ask(&body("eth_chainId", "[]"))["id"], 7);
    // A binary message is accepted like a text message.
    socket.0.send(Message::binary(body("eth_chainId", "[]"))).unwrap();
    assert!(socket.read_text().contains("\"result\""));
    let metrics = gateway.get_admin("/metrics").text().to_owned();
    for line in ["weir_websockets_open 1", "weir_websockets_opened_total 1"] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
}

#[test]
fn a_slow_call_delays_no_other_call_and_calls_in_flight_are_limited() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    node.set_latency(GET_BALANCE, 300.0);
    let gateway = start_gateway(&node, "[downstream]\nwebsocket_messages_max = 4\n");
    let mut socket = WebSocketClient::open(&gateway.address);
    let slow = |number: u64| {
        let account = format!("0x{number:040x}");
        let call = json!({"id": number, "method": GET_BALANCE, "params": [account, "0x64"]});
        call.to_string().into_bytes()
    };
    socket.send(&slow(1));
    assert_eq!(socket.ask(&body("eth_chainId", "[]"))["id"], 7);
    let mut answers = vec![serde_json::from_str::<Value>(&socket.read_text()).unwrap()];
    let before = node.calls();
    for number in 2..12 {
        socket.send(&slow(number));
    }
    wait_until("four calls are in flight", || node.calls() - before >= 4);
    assert_eq!(node.calls() - before, 4, "further messages wait unread");
    for _ in 2..12 {
        answers.push(serde_json::from_str(&socket.read_text()).unwrap());
    }
    let mut ids: Vec<u64> = answers.iter().map(|answer| answer["id"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (1..12).collect::<Vec<_>>());
    assert!(answers.iter().all(|answer| answer["result"].is_string()), "{answers:?}");
}

#[test]
fn clients_without_access_cannot_open_a_websocket() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let downstream = "[downstream]\ncors_origins = [\"https://good.example\"]\n";
    let without_keys = TestGateway::in_front_of(
        &[&node],
        &format!("{downstream}{}", chain_polled_once("default = false\npaths = [\"/sim\"]")),
    );
    let try_open = |path: &str, origin: &str| {
        WebSocketClient::try_open(&without_keys.address, path, &[("origin", origin)])
    };
    assert!(try_open("/sim", "https://good.example").is_ok());
    assert!(WebSocketClient::try_open(&without_keys.address, "/sim", &[]).is_ok());
    assert_eq!(try_open("/sim", "https://evil.example").err(), Some(403));
    assert_eq!(try_open("/", "https://good.example").err(), Some(404));
    let disabled = start_gateway(&node, "[downstream]\nwebsocket = false\n");
    assert_eq!(WebSocketClient::try_open(&disabled.address, "/", &[]).err(), Some(200));

    let secret = |key: &str| format!("weir_{key}_0123456789abcdef");
    let key_entry =
        |key: &str| format!("[[key]]\nname = \"{key}\"\nsecret = \"{}\"\n", secret(key));
    let with_keys = start_gateway(&node, &key_entry("alice"));
    assert_eq!(WebSocketClient::try_open(&with_keys.address, "/", &[]).err(), Some(401));
    let (right_key, wrong_key) = (secret("alice"), secret("mallory"));
    let open_with_header =
        |key: &str| WebSocketClient::try_open(&with_keys.address, "/", &[("x-api-key", key)]);
    let (mut socket, _) = open_with_header(&right_key).ok().unwrap();
    assert!(socket.ask(&body("eth_chainId", "[]"))["result"].is_string());
    assert_eq!(open_with_header(&wrong_key).err(), Some(401));
    let path_with_key = format!("/?key={right_key}");
    assert!(WebSocketClient::try_open(&with_keys.address, &path_with_key, &[]).is_ok());
    // The removal of a key also affects open connections.
    with_keys.reload(&format!("{}{}{}", key_entry("bob"), chain_polled_once(""), node.to_toml("")));
    let answer = socket.ask(&body("eth_chainId", "[]"));
    assert_eq!(answer["error"]["message"], "the API key or token is not valid");
}

/// Returns an HTTP upgrade request with these additional header lines.
fn upgrade_request(header_lines: &str) -> Vec<u8> {
    format!(
        "GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n{header_lines}\r\n"
    )
    .into_bytes()
}

/// Valid header lines of an upgrade request.
const WEBSOCKET_HEADERS: &str =
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

#[test]
fn invalid_upgrade_requests_are_rejected() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let gateway = start_gateway(&node, "");
    let mut client = gateway.client();
    client.send(&upgrade_request(WEBSOCKET_HEADERS));
    let opened = client.read_response().unwrap();
    // The key and the accept value are the example of RFC 6455, section 1.3.
    let accept = Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_eq!((opened.status, opened.header("sec-websocket-accept")), (101, accept));
    for (header_lines, status) in [
        (WEBSOCKET_HEADERS.replace("13", "8"), 426),
        ("Sec-WebSocket-Version: 13\r\n".to_owned(), 400),
        (WEBSOCKET_HEADERS.replace("dGhl", "d"), 400),
        (format!("{WEBSOCKET_HEADERS}Content-Length: 2\r\n"), 400),
    ] {
        let mut client = gateway.client();
        client.send(&upgrade_request(&header_lines));
        let answer = client.read_response().unwrap();
        assert_eq!(answer.status, status, "{header_lines}");
        assert!(client.is_closed());
        if status == 426 {
            assert_eq!(answer.header("sec-websocket-version"), Some("13"));
        }
    }
}

#[test]
fn a_message_that_is_too_long_is_refused_and_the_next_is_answered() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let gateway = start_gateway(&node, "[downstream]\nbody_bytes_max = \"4KiB\"\n");
    let mut socket = WebSocketClient::open(&gateway.address);
    let long = format!("[{}]", " ".repeat(1 << 20));
    let refused = socket.ask(long.as_bytes());
    assert_eq!(refused["error"]["code"], -32600, "{refused}");
    assert_eq!(socket.ask(&body("eth_chainId", "[]"))["id"], 7);
}

#[test]
fn limits_hold_message_by_message() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let limit = "[zone.all]\nkey = [\"client\"]\nrate = \"1r/m\"\n[[limit]]\nzone = \"all\"\n\
                 burst = 2\nnodelay = true\n";
    let gateway = start_gateway(&node, limit);
    let mut socket = WebSocketClient::open(&gateway.address);
    let codes: Vec<Value> =
        (0..5).map(|_| socket.ask(&body("eth_chainId", "[]"))["error"]["code"].clone()).collect();
    assert_eq!(codes, [Value::Null, Value::Null, Value::Null, json!(-32005), json!(-32005)]);
}

#[test]
fn a_silent_client_gets_a_ping_and_is_then_disconnected() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let gateway = start_gateway(&node, "[downstream]\nwebsocket_ping = \"200ms\"\n");
    // tungstenite responds to pings while it reads.
    let mut alive = WebSocketClient::open(&gateway.address);
    for _ in 0..4 {
        let waited = alive.0.read();
        assert!(matches!(waited, Ok(Message::Ping(_))), "{waited:?}");
    }
    assert_eq!(alive.ask(&body("eth_chainId", "[]"))["id"], 7);
    // A raw client does not respond to pings.
    let mut silent = gateway.client();
    silent.send(&upgrade_request(WEBSOCKET_HEADERS));
    assert!(silent.read_response().unwrap().status == 101);
    assert_eq!(silent.read_to_end(), [0x89, 0], "a ping, then the end of the connection");
}

#[test]
fn clients_that_break_the_protocol_get_the_reason() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let gateway = start_gateway(&node, "");
    for (bytes, code) in [
        (&b"\x81\x02{}"[..], 1002u16),
        (b"\xc1\x80\0\0\0\0", 1002),
        (b"\x80\x80\0\0\0\0", 1002),
        (b"\x81\x81\0\0\0\0\xff", 1007),
    ] {
        let mut client = gateway.client();
        client.send(&[&upgrade_request(WEBSOCKET_HEADERS), bytes].concat());
        assert!(client.read_response().unwrap().status == 101);
        client.half_close();
        let reply = client.read_to_end();
        assert_eq!(reply[0], 0x88, "{reply:?}");
        assert_eq!(reply[2..4], code.to_be_bytes(), "{reply:?}");
    }
}

/// Returns a client's frame with this first byte (flags and opcode). The mask that clients must
/// apply to the payload is zero, so the payload remains unchanged.
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match u8::try_from(payload.len()) {
        Ok(length) if length < 126 => frame.push(0x80 | length),
        _ => {
            frame.push(0xfe);
            frame.extend_from_slice(&(payload.len() as u16).to_be_bytes());
        }
    }
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(payload);
    frame
}

/// Reads the next frame and returns its first byte and its payload.
fn next_frame(stream: &mut impl Read) -> (u8, Vec<u8>) {
    let mut frame_header = [0; 2];
    stream.read_exact(&mut frame_header).unwrap();
    let mut long_length = [0; 2];
    let length = match frame_header[1] {
        126 => {
            stream.read_exact(&mut long_length).unwrap();
            usize::from(u16::from_be_bytes(long_length))
        }
        127 => panic!("no message is that long"),
        short => usize::from(short),
    };
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).unwrap();
    (frame_header[0], payload)
}

/// Compresses a message for permessage-deflate, which removes the final bytes 00 00 ff ff.
fn compressed(message: &[u8]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(message.len() + 64);
    let mut deflate = flate2::Compress::new(flate2::Compression::default(), false);
    deflate.compress_vec(message, &mut payload, flate2::FlushCompress::Sync).unwrap();
    assert!(payload.ends_with(&[0, 0, 0xff, 0xff]));
    payload.truncate(payload.len() - 4);
    payload
}

/// Decompresses the payload of a permessage-deflate message.
fn decompressed(payload: &[u8]) -> String {
    let mut message = Vec::with_capacity(1 << 20);
    let mut inflate = flate2::Decompress::new(false);
    let whole = [payload, &[0, 0, 0xff, 0xff]].concat();
    inflate.decompress_vec(&whole, &mut message, flate2::FlushDecompress::Sync).unwrap();
    String::from_utf8(message).unwrap()
}

#[test]
fn messages_are_compressed_if_both_sides_support_it() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n";
    let open = |gateway: &TestGateway| {
        let mut stream = TcpStream::connect(&gateway.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&upgrade_request(&format!("{WEBSOCKET_HEADERS}{offer}"))).unwrap();
        let mut header_section = Vec::new();
        while !header_section.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            header_section.push(byte[0]);
        }
        (stream, String::from_utf8(header_section).unwrap())
    };
    let disabled = start_gateway(&node, "");
    assert!(!open(&disabled).1.contains("Extensions"), "compression is off by default");
    let settings = "[downstream]\nwebsocket_compression = true\nbody_bytes_max = \"64KiB\"\n";
    let gateway = start_gateway(&node, settings);
    let (mut stream, header_section) = open(&gateway);
    let accepted_extensions = "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; \
                 client_no_context_takeover\r\n";
    assert!(header_section.contains(accepted_extensions), "{header_section}");

    // The client sends a compressed call in two frames. Its long response is compressed too.
    let block = body("eth_getBlockByNumber", r#"["0x64",true]"#);
    let compressed_call = compressed(&block);
    let (first, second) = compressed_call.split_at(10);
    stream.write_all(&[masked(0x41, first), masked(0x80, second)].concat()).unwrap();
    let (first_byte, answer) = next_frame(&mut stream);
    assert_eq!(first_byte, 0xc1);
    let over_http = gateway.client().call("/", &block);
    assert_eq!(decompressed(&answer), over_http.text());
    assert!(answer.len() < over_http.text().len() / 2);
    // The client sends an uncompressed call, whose response is too short to compress.
    stream.write_all(&masked(0x81, &body("eth_chainId", "[]"))).unwrap();
    let (first_byte, answer) = next_frame(&mut stream);
    assert!(first_byte == 0x81 && answer.starts_with(b"{\"jsonrpc\""), "{first_byte:x}");
    // The gateway rejects a message that is too long after decompression, and responds to the next.
    let bomb = compressed(&vec![b' '; 10 << 20]);
    stream.write_all(&masked(0xc1, &bomb)).unwrap();
    let (_, answer) = next_frame(&mut stream);
    assert!(String::from_utf8_lossy(&answer).contains("exceeds the limit of 65536 bytes"));
    stream.write_all(&masked(0xc2, &compressed(&body("eth_chainId", "[]")))).unwrap();
    assert!(next_frame(&mut stream).1.starts_with(b"{\"jsonrpc\""));
    // The client sends invalid compressed data, or valid data whose text is not UTF-8.
    for payload in [b"\xff\xff\xff".to_vec(), compressed(b"\xff")] {
        let (mut stream, _) = open(&gateway);
        stream.write_all(&masked(0xc1, &payload)).unwrap();
        let (first_byte, reply) = next_frame(&mut stream);
        assert_eq!((first_byte, &reply[..2]), (0x88, &1007_u16.to_be_bytes()[..]));
    }
}

#[test]
fn a_client_that_does_not_read_is_not_read_from_and_its_queue_is_bounded() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let config = "[downstream]\nwebsocket_queue_bytes_max = \"64KiB\"\nwebsocket_messages_max = 100\n\
                  write_timeout = \"10m\"\n";
    let gateway = start_gateway(&node, config);
    let mut client = Client::with_small_receive_buffer(&gateway.address);
    client.send(&upgrade_request(WEBSOCKET_HEADERS));
    assert!(client.read_response().unwrap().status == 101);
    let call = body("eth_getBlockByNumber", r#"["0x64",true]"#);
    let mut frame = vec![0x81, 0xfe];
    frame.extend_from_slice(&(call.len() as u16).to_be_bytes());
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(&call);
    let answered_calls = || gateway.status_u64("/totals/requests");
    let many: Vec<u8> = frame.repeat(2000);
    client.send(&many);
    wait_until("the connection is closed", || {
        gateway.get_admin("/metrics").text().contains("weir_websockets_open 0")
    });
    assert!(answered_calls() < 2000, "{}", answered_calls());
}

#[test]
fn a_stop_completes_calls_in_flight_and_closes_with_1012() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    node.set_latency(GET_BALANCE, 700.0);
    let gateway = start_gateway(&node, "");
    let [mut idle, mut busy] = [(); 2].map(|()| WebSocketClient::open(&gateway.address));
    assert_eq!(idle.ask(&body("eth_chainId", "[]"))["id"], 7);
    let before = node.calls();
    busy.send(&body(GET_BALANCE, &balance_params(1, "0x10")));
    wait_until("the call is in flight", || node.calls() > before);
    let stopping = std::thread::spawn(move || gateway.stop());
    assert_eq!(idle.read_close(), (CloseCode::Restart, "the gateway is stopping".to_owned()));
    let answer: Value = serde_json::from_str(&busy.read_text()).unwrap();
    assert!(answer["result"].is_string(), "{answer}");
    assert_eq!(busy.read_close().0, CloseCode::Restart);
    let took = stopping.join().unwrap();
    assert!(took < Duration::from_secs(4), "{took:?}; the drain deadline is 5 s");
}

/// A gateway that stops completes a response that it has started to write, even to a slow client.
#[test]
fn a_stop_waits_for_a_response_that_is_still_being_read() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let gateway = start_gateway(&node, "");
    let mut slow = WebSocketClient::open(&gateway.address);
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "eth_getBlockByNumber",
        "params": ["0x64", true]});
    let calls = vec![call; 900];
    slow.send(&serde_json::to_vec(&calls).unwrap());
    wait_until("the batch is answered", || gateway.status_u64("/totals/requests") > 0);
    let stopping = std::thread::spawn(move || gateway.stop());
    // Sleeps: longer than a client may take to answer a close frame.
    pause(Duration::from_secs(3));
    let answer = slow.read_text();
    assert!(answer.len() > 8 << 20, "{} bytes: too short to make the gateway wait", answer.len());
    let answers: Vec<Value> = serde_json::from_str(&answer).unwrap();
    assert_eq!(answers.len(), calls.len());
    assert_eq!(slow.read_close().0, CloseCode::Restart);
    let took = stopping.join().unwrap();
    assert!(took < Duration::from_secs(5), "{took:?}; the drain deadline is 5 s");
}

#[test]
fn a_reload_that_reads_other_headers_makes_clients_reconnect() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let rule = |header: &str| {
        format!("[[rule]]\nname = \"gold\"\nheaders = [\"{header}: gold\"]\ndeny = 403\n")
    };
    let config = |more: &str| format!("{more}{}{}", chain_polled_once(""), node.to_toml(""));
    let gateway = TestGateway::start(&config(&rule("x-region")));
    gateway.wait_for_candidates(&["node"]);
    let mut socket = WebSocketClient::open(&gateway.address);
    let call = body("eth_chainId", "[]");
    assert_eq!(socket.ask(&call)["id"], 7);
    // If the new configuration uses the same headers, a reload keeps the connection.
    gateway.reload(&config(&format!("{}[call]\nhedge = false\n", rule("x-region"))));
    assert_eq!(socket.ask(&call)["id"], 7);
    gateway.reload(&config(&rule("x-plan")));
    socket.send(&call);
    let (code, reason) = socket.read_close();
    assert_eq!(code, CloseCode::Again, "{reason}");
    assert!(reason.contains("configuration changed"), "{reason}");
    assert_eq!(WebSocketClient::open(&gateway.address).ask(&call)["id"], 7);
}

#[test]
fn a_disconnect_ends_the_connection_and_its_calls() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let gateway = start_gateway(&node, "");
    let mut socket = WebSocketClient::open(&gateway.address);
    socket.send(&body("eth_chainId", "[]"));
    socket.0.close(None).unwrap();
    while socket.0.read().is_ok() {}
    let abrupt = WebSocketClient::open(&gateway.address);
    drop(abrupt);
    wait_until("both connections are closed", || {
        gateway.get_admin("/metrics").text().contains("weir_websockets_open 0")
    });
    wait_until("no call is in flight", || gateway.status_u64("/totals/in_flight") == 0);
}
