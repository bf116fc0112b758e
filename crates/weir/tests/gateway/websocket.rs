//! Goal: over a WebSocket clients get what they get over HTTP, under the same keys and limits, and
//! none of them can hold up or outlast the gateway. Method: tungstenite as the client where a
//! client behaves, and bytes over a socket where it does not; simulated nodes behind the gateway.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use tungstenite::Message;
use tungstenite::protocol::frame::coding::CloseCode;

use crate::support::scene::{FINAL, READ, Scene, Served, SimNode, account, body, polled_once};
use crate::support::socket::{PATIENCE, Socket};
use test_support::raw::Client;
use test_support::wait::{pause, wait_until};

fn served(node: &SimNode, more: &str) -> Served {
    Served::before(&[node], &format!("{more}{}", polled_once("")))
}

#[test]
fn calls_and_batches_are_answered_as_over_http() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let served = served(&node, "");
    let (mut socket, mut client) = (Socket::open(&served.address), served.client());
    let calls = [
        body("eth_chainId", "[]"),
        body("eth_getBlockByNumber", r#"["0x64",true]"#),
        body(READ, &account(1, &format!("0x{FINAL:x}"))),
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
        assert_eq!(socket.text(), over_http.text(), "{}", String::from_utf8_lossy(call));
    }
    // A notification is answered by nothing: the next answer is that of the next call.
    socket.send(br#"{"jsonrpc":"2.0","method":"eth_chainId"}"#);
    assert_eq!(socket.ask(&body("eth_chainId", "[]"))["id"], 7);
    // Bytes are as good as text.
    socket.0.send(Message::binary(body("eth_chainId", "[]"))).unwrap();
    assert!(socket.text().contains("\"result\""));
    let metrics = served.look("/metrics").text().to_owned();
    for line in ["weir_websockets_open 1", "weir_websockets_opened_total 1"] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
}

#[test]
fn a_slow_call_delays_no_other_call_and_calls_in_flight_are_limited() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    node.slow(READ, 300.0);
    let served = served(&node, "[downstream]\nwebsocket_messages_max = 4\n");
    let mut socket = Socket::open(&served.address);
    let slow = |number: u64| {
        let call =
            json!({"id": number, "method": READ, "params": [format!("0x{number:040x}"), "0x64"]});
        call.to_string().into_bytes()
    };
    socket.send(&slow(1));
    assert_eq!(socket.ask(&body("eth_chainId", "[]"))["id"], 7);
    let mut answers = vec![serde_json::from_str::<Value>(&socket.text()).unwrap()];
    let before = node.calls();
    for number in 2..12 {
        socket.send(&slow(number));
    }
    wait_until("four are under way", || node.calls() - before >= 4);
    assert_eq!(node.calls() - before, 4, "further ones wait unread");
    for _ in 2..12 {
        answers.push(serde_json::from_str(&socket.text()).unwrap());
    }
    let mut ids: Vec<u64> = answers.iter().map(|answer| answer["id"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (1..12).collect::<Vec<_>>());
    assert!(answers.iter().all(|answer| answer["result"].is_string()), "{answers:?}");
}

#[test]
fn who_may_not_call_opens_none() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let front = "[downstream]\ncors_origins = [\"https://good.example\"]\n";
    let open = Served::before(
        &[&node],
        &format!("{front}{}", polled_once("default = false\npaths = [\"/sim\"]")),
    );
    let try_open =
        |path: &str, origin: &str| Socket::try_open(&open.address, path, &[("origin", origin)]);
    assert!(try_open("/sim", "https://good.example").is_ok());
    assert!(Socket::try_open(&open.address, "/sim", &[]).is_ok());
    assert_eq!(try_open("/sim", "https://evil.example").err(), Some(403));
    assert_eq!(try_open("/", "https://good.example").err(), Some(404));
    let off = served(&node, "[downstream]\nwebsocket = false\n");
    assert_eq!(Socket::try_open(&off.address, "/", &[]).err(), Some(200));

    let secret = |key: &str| format!("weir_{key}_0123456789abcdef");
    let keyed = |key: &str| format!("[[key]]\nname = \"{key}\"\nsecret = \"{}\"\n", secret(key));
    let closed = served(&node, &keyed("alice"));
    assert_eq!(Socket::try_open(&closed.address, "/", &[]).err(), Some(401));
    let own = secret("alice");
    let (mut socket, _) =
        Socket::try_open(&closed.address, "/", &[("x-api-key", &own)]).ok().unwrap();
    assert!(socket.ask(&body("eth_chainId", "[]"))["result"].is_string());
    let wrong = secret("mallory");
    assert_eq!(Socket::try_open(&closed.address, "/", &[("x-api-key", &wrong)]).err(), Some(401));
    assert!(Socket::try_open(&closed.address, &format!("/?key={}", secret("alice")), &[]).is_ok());
    // A key that is taken away serves no open connection either.
    closed.reload(&format!("{}{}{}", keyed("bob"), polled_once(""), node.entry("")));
    let answer = socket.ask(&body("eth_chainId", "[]"));
    assert_eq!(answer["error"]["message"], "the API key or token is not valid");
}

/// A request for a WebSocket in bytes.
fn opening(lines: &str) -> Vec<u8> {
    format!(
        "GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n{lines}\r\n"
    )
    .into_bytes()
}

const RIGHT: &str = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

#[test]
fn requests_that_open_none() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let served = served(&node, "");
    let mut client = served.client();
    client.send(&opening(RIGHT));
    let opened = client.answer().unwrap();
    // RFC 6455, 1.3.
    let accept = Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_eq!((opened.status, opened.header("sec-websocket-accept")), (101, accept));
    for (lines, status) in [
        (RIGHT.replace("13", "8"), 426),
        ("Sec-WebSocket-Version: 13\r\n".to_owned(), 400),
        (RIGHT.replace("dGhl", "d"), 400),
        (format!("{RIGHT}Content-Length: 2\r\n"), 400),
    ] {
        let mut client = served.client();
        client.send(&opening(&lines));
        let answer = client.answer().unwrap();
        assert_eq!(answer.status, status, "{lines}");
        assert!(client.is_closed());
        if status == 426 {
            assert_eq!(answer.header("sec-websocket-version"), Some("13"));
        }
    }
}

#[test]
fn a_message_that_is_too_long_is_refused_and_the_next_is_answered() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let served = served(&node, "[downstream]\nbody_bytes_max = \"4KiB\"\n");
    let mut socket = Socket::open(&served.address);
    let long = format!("[{}]", " ".repeat(1 << 20));
    let refused = socket.ask(long.as_bytes());
    assert_eq!(refused["error"]["code"], -32600, "{refused}");
    assert_eq!(socket.ask(&body("eth_chainId", "[]"))["id"], 7);
}

#[test]
fn limits_hold_message_by_message() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let limit = "[zone.all]\nkey = [\"client\"]\nrate = \"1r/m\"\n[[limit]]\nzone = \"all\"\n\
                 burst = 2\nnodelay = true\n";
    let served = served(&node, limit);
    let mut socket = Socket::open(&served.address);
    let codes: Vec<Value> =
        (0..5).map(|_| socket.ask(&body("eth_chainId", "[]"))["error"]["code"].clone()).collect();
    assert_eq!(codes, [Value::Null, Value::Null, Value::Null, json!(-32005), json!(-32005)]);
}

#[test]
fn a_silent_client_gets_a_ping_and_is_then_disconnected() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let served = served(&node, "[downstream]\nwebsocket_ping = \"200ms\"\n");
    // This one answers pings as it reads.
    let mut alive = Socket::open(&served.address);
    for _ in 0..4 {
        let waited = alive.0.read();
        assert!(matches!(waited, Ok(Message::Ping(_))), "{waited:?}");
    }
    assert_eq!(alive.ask(&body("eth_chainId", "[]"))["id"], 7);
    // This one does not.
    let mut silent = served.client();
    silent.send(&opening(RIGHT));
    assert!(silent.answer().unwrap().status == 101);
    assert_eq!(silent.rest(), [0x89, 0], "a ping, and the end");
}

#[test]
fn clients_that_break_the_protocol_get_the_reason() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let served = served(&node, "");
    for (bytes, code) in [
        (&b"\x81\x02{}"[..], 1002u16),
        (b"\xc1\x80\0\0\0\0", 1002),
        (b"\x80\x80\0\0\0\0", 1002),
        (b"\x81\x81\0\0\0\0\xff", 1007),
    ] {
        let mut client = served.client();
        client.send(&[&opening(RIGHT), bytes].concat());
        assert!(client.answer().unwrap().status == 101);
        client.half_close();
        let said = client.rest();
        assert_eq!(said[0], 0x88, "{said:?}");
        assert_eq!(said[2..4], code.to_be_bytes(), "{said:?}");
    }
}

/// A masked frame with this first byte; a mask of zeros leaves its payload as it is.
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

/// First byte and payload of the next frame.
fn next_frame(stream: &mut impl Read) -> (u8, Vec<u8>) {
    let mut head = [0; 2];
    stream.read_exact(&mut head).unwrap();
    let mut long = [0; 2];
    let length = match head[1] {
        126 => {
            stream.read_exact(&mut long).unwrap();
            usize::from(u16::from_be_bytes(long))
        }
        127 => panic!("no message is that long"),
        short => usize::from(short),
    };
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).unwrap();
    (head[0], payload)
}

/// A message as it is packed, without what every one ends with.
fn packed(message: &[u8]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(message.len() + 64);
    let mut deflate = flate2::Compress::new(flate2::Compression::default(), false);
    deflate.compress_vec(message, &mut packed, flate2::FlushCompress::Sync).unwrap();
    assert!(packed.ends_with(&[0, 0, 0xff, 0xff]));
    packed.truncate(packed.len() - 4);
    packed
}

/// And back.
fn unpacked(packed: &[u8]) -> String {
    let mut message = Vec::with_capacity(1 << 20);
    let mut inflate = flate2::Decompress::new(false);
    let whole = [packed, &[0, 0, 0xff, 0xff]].concat();
    inflate.decompress_vec(&whole, &mut message, flate2::FlushDecompress::Sync).unwrap();
    String::from_utf8(message).unwrap()
}

#[test]
fn messages_are_packed_where_both_sides_want_it() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n";
    let open = |served: &Served| {
        let mut stream = TcpStream::connect(&served.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&opening(&format!("{RIGHT}{offer}"))).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        (stream, String::from_utf8(head).unwrap())
    };
    let off = served(&node, "");
    assert!(!open(&off).1.contains("Extensions"), "not unless the operator wants it");
    let more = "[downstream]\nwebsocket_compression = true\nbody_bytes_max = \"64KiB\"\n";
    let served = served(&node, more);
    let (mut stream, head) = open(&served);
    let taken = "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; \
                 client_no_context_takeover\r\n";
    assert!(head.contains(taken), "{head}");

    // A packed call in two frames, with a long answer.
    let block = body("eth_getBlockByNumber", r#"["0x64",true]"#);
    let whole = packed(&block);
    let (first, second) = whole.split_at(10);
    stream.write_all(&[masked(0x41, first), masked(0x80, second)].concat()).unwrap();
    let (kind, answer) = next_frame(&mut stream);
    assert_eq!(kind, 0xc1);
    let plain = served.client().call("/", &block);
    assert_eq!(unpacked(&answer), plain.text());
    assert!(answer.len() < plain.text().len() / 2);
    // A plain one, whose answer is not worth it.
    stream.write_all(&masked(0x81, &body("eth_chainId", "[]"))).unwrap();
    let (kind, answer) = next_frame(&mut stream);
    assert!(kind == 0x81 && answer.starts_with(b"{\"jsonrpc\""), "{kind:x}");
    // One that is too long when it is unpacked; the next is answered.
    let bomb = packed(&vec![b' '; 10 << 20]);
    stream.write_all(&masked(0xc1, &bomb)).unwrap();
    let (_, answer) = next_frame(&mut stream);
    assert!(String::from_utf8_lossy(&answer).contains("exceeds the limit of 65536 bytes"));
    stream.write_all(&masked(0xc2, &packed(&body("eth_chainId", "[]")))).unwrap();
    assert!(next_frame(&mut stream).1.starts_with(b"{\"jsonrpc\""));
    // One that is none, and text that is not UTF-8.
    for payload in [b"\xff\xff\xff".to_vec(), packed(b"\xff")] {
        let (mut stream, _) = open(&served);
        stream.write_all(&masked(0xc1, &payload)).unwrap();
        let (kind, said) = next_frame(&mut stream);
        assert_eq!((kind, &said[..2]), (0x88, &1007_u16.to_be_bytes()[..]));
    }
}

#[test]
fn who_does_not_read_is_not_read_from_and_costs_a_bounded_queue() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let config = "[downstream]\nwebsocket_queue_bytes_max = \"64KiB\"\nwebsocket_messages_max = 100\n\
                  write_timeout = \"10m\"\n";
    let served = served(&node, config);
    let mut client = Client::with_small_receive_buffer(&served.address);
    client.send(&opening(RIGHT));
    assert!(client.answer().unwrap().status == 101);
    let call = body("eth_getBlockByNumber", r#"["0x64",true]"#);
    let mut frame = vec![0x81, 0xfe];
    frame.extend_from_slice(&(call.len() as u16).to_be_bytes());
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(&call);
    let calls = || served.count("/totals/requests");
    let many: Vec<u8> = frame.repeat(2000);
    client.send(&many);
    wait_until("it is closed", || {
        served.look("/metrics").text().contains("weir_websockets_open 0")
    });
    assert!(calls() < 2000, "{}", calls());
}

#[test]
fn a_stop_completes_calls_in_flight_and_closes_with_1001() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    node.slow(READ, 700.0);
    let served = served(&node, "");
    let (mut idle, mut busy) = (Socket::open(&served.address), Socket::open(&served.address));
    assert_eq!(idle.ask(&body("eth_chainId", "[]"))["id"], 7);
    let before = node.calls();
    busy.send(&body(READ, &account(1, "0x10")));
    wait_until("it is under way", || node.calls() > before);
    let stopping = std::thread::spawn(move || served.stop());
    assert_eq!(idle.closed(), (CloseCode::Away, "the gateway is stopping".to_owned()));
    let answer: Value = serde_json::from_str(&busy.text()).unwrap();
    assert!(answer["result"].is_string(), "{answer}");
    assert_eq!(busy.closed().0, CloseCode::Away);
    let took = stopping.join().unwrap();
    assert!(took < Duration::from_secs(4), "{took:?} of 5 s that it may wait");
}

/// What had begun to be written when the gateway was told to stop is written to its end, however
/// slow the client is.
#[test]
fn a_stop_waits_for_a_response_that_is_still_being_read() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let served = served(&node, "");
    let mut slow = Socket::open(&served.address);
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "eth_getBlockByNumber",
        "params": ["0x64", true]});
    let calls = vec![call; 900];
    slow.send(&serde_json::to_vec(&calls).unwrap());
    wait_until("it is answered", || served.count("/totals/requests") > 0);
    let stopping = std::thread::spawn(move || served.stop());
    // Sleeps: longer than a client has that is told to go.
    pause(Duration::from_secs(3));
    let answer = slow.text();
    assert!(answer.len() > 8 << 20, "{} bytes: nobody had to wait", answer.len());
    let answers: Vec<Value> = serde_json::from_str(&answer).unwrap();
    assert_eq!(answers.len(), calls.len());
    assert_eq!(slow.closed().0, CloseCode::Away);
    let took = stopping.join().unwrap();
    assert!(took < Duration::from_secs(5), "{took:?} of 5 s that it may wait");
}

#[test]
fn who_opened_under_other_headers_is_asked_to_connect_anew() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let rule = |header: &str| {
        format!("[[rule]]\nname = \"gold\"\nheaders = [\"{header}: gold\"]\ndeny = 403\n")
    };
    let text = |more: &str| format!("{more}{}{}", polled_once(""), node.entry(""));
    let served = Served::start(&text(&rule("x-region")));
    served.wait_for_candidates(&["node"]);
    let mut socket = Socket::open(&served.address);
    let call = body("eth_chainId", "[]");
    assert_eq!(socket.ask(&call)["id"], 7);
    // Others in the same order: what was kept is looked at as before.
    served.reload(&text(&format!("{}[call]\nhedge = false\n", rule("x-region"))));
    assert_eq!(socket.ask(&call)["id"], 7);
    served.reload(&text(&rule("x-plan")));
    socket.send(&call);
    let (code, why) = socket.closed();
    assert_eq!(code, CloseCode::Again, "{why}");
    assert!(why.contains("configuration changed"), "{why}");
    assert_eq!(Socket::open(&served.address).ask(&call)["id"], 7);
}

#[test]
fn a_client_that_leaves_takes_its_calls_along() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let served = served(&node, "");
    let mut socket = Socket::open(&served.address);
    socket.send(&body("eth_chainId", "[]"));
    socket.0.close(None).unwrap();
    while socket.0.read().is_ok() {}
    let abrupt = Socket::open(&served.address);
    drop(abrupt);
    wait_until("both are gone", || {
        served.look("/metrics").text().contains("weir_websockets_open 0")
    });
    wait_until("no call is in flight", || served.count("/totals/in_flight") == 0);
}
