//! Clients that pipeline requests, send slowly, send incomplete requests, or disconnect.

use std::time::{Duration, Instant};

use super::{
    After, CALL, CALL_OK, Client, Running, assert_memory_bounded, describe, post, start_gateway,
    state,
};
use test_support::raw::post_with;
use test_support::running::Weir;
use test_support::wait::pause;

/// Timeouts that are short, so that a test can wait for them, but long enough for a busy machine.
const SHORT_TIMEOUTS: &str = "[downstream]
    header_timeout = \"600ms\"
    body_timeout = \"600ms\"
    idle_timeout = \"600ms\"";
/// The duration of each timeout in [`SHORT_TIMEOUTS`].
const SHORT: Duration = Duration::from_millis(600);
/// The longest allowed time until the gateway acts on a timeout, on a busy machine.
const LATE: Duration = Duration::from_secs(10);

fn call(id: usize, method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let (_node, mut gateway) = start_gateway("");
    let mut client = Client::connect(&gateway.address);
    // Some responses come from the gateway's memory, some from the node, and some are errors. The
    // client sends all requests in one write.
    let bodies: Vec<String> = (0..300)
        .map(|id| match id % 5 {
            0 => call(id, "eth_chainId", "[]"),
            1 => call(id, "eth_getBalance", &format!("[\"0x{id:040x}\",\"0x{id:x}\"]")),
            2 => call(id, "eth_getBlockByNumber", &format!("[\"0x{:x}\",true]", id)),
            3 => call(id, "eth_noSuchMethod", "[]"),
            _ => format!("[{}]", call(id, "eth_blockNumber", "[]")),
        })
        .collect();
    let bytes: Vec<u8> = bodies.iter().flat_map(|body| post("/", body.as_bytes())).collect();
    let answers = std::thread::scope(|scope| {
        let mut sender = Client::connect(&gateway.address);
        scope
            .spawn(move || {
                sender.send(&bytes);
                (0..300)
                    .map(|_| describe(&sender.read_response().expect("every request is answered")))
                    .collect::<Vec<_>>()
            })
            .join()
            .unwrap()
    });
    for (id, answer) in answers.iter().enumerate() {
        let starts = [format!("200 {id} "), format!("200 [{id} ")];
        assert!(starts.iter().any(|start| answer.starts_with(start)), "{id}: {answer:.80}");
        let refused = answer.contains(" -32601 ");
        assert_eq!(refused, id % 5 == 3, "{answer:.80}");
    }
    assert_eq!(describe(&client.call("/", CALL.as_bytes())), CALL_OK);
    gateway.assert_sound();
}

#[test]
fn requests_after_a_refused_one_get_no_response() {
    let (_node, mut gateway) = start_gateway("");
    let good = post("/", CALL.as_bytes());
    let both = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
                 Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    let mut client = Client::connect(&gateway.address);
    client.send(&[&good[..], &good, both, &good, &good].concat());
    for _ in 0..2 {
        assert_eq!(describe(&client.read_response().unwrap()), CALL_OK);
    }
    let refusal = client.read_response().unwrap();
    assert_eq!(refusal.status, 400);
    assert_eq!(state(&mut client, &refusal), After::Closed);

    // The bytes after a body belong to the next request.
    let mut client = Client::connect(&gateway.address);
    client.send(&[&good[..], b"GARBAGE", &good].concat());
    assert_eq!(describe(&client.read_response().unwrap()), CALL_OK);
    let refusal = client.read_response().unwrap();
    assert_eq!(refusal.status, 405, "GARBAGEPOST is an unknown method");
    assert_eq!(state(&mut client, &refusal), After::Open);
    gateway.assert_sound();
}

#[test]
fn a_request_in_two_parts_is_the_same_request() {
    let (_node, gateway) = start_gateway("");
    let lines = "Expect: 100-continue\r\n";
    let request = post_with("/", lines, CALL.as_bytes());
    for cut in 1..request.len() {
        let mut client = Client::connect(&gateway.address);
        client.send(&request[..cut]);
        if cut % 7 == 0 {
            // Sleeps: the gateway reads the first part before the second arrives.
            pause(Duration::from_millis(2));
        }
        client.send(&request[cut..]);
        let mut answer = client.read_response().unwrap();
        if answer.status == 100 {
            answer = client.read_response().unwrap();
        }
        assert_eq!(describe(&answer), CALL_OK, "cut at {cut}");
    }
}

#[test]
fn a_client_that_waits_for_100_continue_gets_it() {
    let (_node, gateway) = start_gateway("");
    let head = |length: usize| {
        format!(
            "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Expect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    let mut client = Client::connect(&gateway.address);
    for _ in 0..3 {
        client.send(head(CALL.len()).as_bytes());
        assert_eq!(client.read_response().unwrap().status, 100);
        client.send(CALL.as_bytes());
        assert_eq!(describe(&client.read_response().unwrap()), CALL_OK);
    }
    // The gateway refuses a body that is too large before the client sends it.
    client.send(head(1 << 30).as_bytes());
    let refusal = client.read_response().unwrap();
    assert_eq!(refusal.status, 413);
    assert_eq!(state(&mut client, &refusal), After::Closed);
}

#[test]
fn head_and_options_have_no_body() {
    let (_node, gateway) = start_gateway("");
    let mut client = Client::connect(&gateway.address);
    client.send(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let head = client.read_head_response().unwrap();
    assert_eq!((head.status, head.header("content-length")), (200, Some("0")));
    client.send(b"HEAD /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let head = client.read_head_response().unwrap();
    assert_eq!(head.status, 404);
    assert!(client.is_silent(), "an answer to HEAD has no body");
    client.send(
        b"OPTIONS / HTTP/1.1\r\nHost: localhost\r\nOrigin: https://a.example\r\n\
          Access-Control-Request-Method: POST\r\n\r\n",
    );
    let options = client.read_response().unwrap();
    assert_eq!((options.status, options.header("content-length")), (204, None));
    assert_eq!(options.header("access-control-allow-origin"), Some("*"));
    assert_eq!(options.header("access-control-allow-methods"), Some("GET, HEAD, OPTIONS, POST"));
    client.send(b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    let put = client.read_response().unwrap();
    assert_eq!((put.status, put.header("allow")), (405, Some("GET, HEAD, OPTIONS, POST")));
    assert_eq!(state(&mut client, &put), After::Open);
}

#[test]
fn http10_clients_learn_that_a_connection_stays_open() {
    let (_node, gateway) = start_gateway("");
    let mut client = Client::connect(&gateway.address);
    let asked = post_with("/", "Connection: Keep-Alive\r\n", CALL.as_bytes());
    let old = String::from_utf8(asked).unwrap().replace("HTTP/1.1", "HTTP/1.0");
    for _ in 0..2 {
        client.send(old.as_bytes());
        let answer = client.read_response().unwrap();
        // Without this header, an HTTP/1.0 client waits for the connection to close.
        assert_eq!(answer.header("connection"), Some("keep-alive"));
        assert_eq!(describe(&answer), CALL_OK);
    }
    let answer = client.call("/", CALL.as_bytes());
    assert_eq!(answer.header("connection"), None);
}

/// Sends `first`, and then the byte `repeated` every 50 ms until the gateway responds or closes the
/// connection. Returns a description of the response, and the time until the response.
fn drip(gateway: &Running, first: &[u8], repeated: u8) -> (String, Duration) {
    let mut client = Client::connect(&gateway.address);
    let start = Instant::now();
    client.send(first);
    while client.is_silent() {
        assert!(start.elapsed() < LATE, "the gateway neither responds nor closes");
        client.send(&[repeated]);
    }
    let took = start.elapsed();
    let response = client.read_response().map_or("nothing".to_owned(), |answer| describe(&answer));
    assert!(client.is_closed());
    (response, took)
}

#[test]
fn slow_clients_get_an_error_and_are_disconnected() {
    let (_node, mut gateway) = start_gateway(SHORT_TIMEOUTS);
    let head = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let fixed = format!("{head}Content-Length: 1000\r\n\r\n{{");
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n3e8\r\n{{");
    let late_head = "408 null -32600 request head took too long";
    let late_body = "408 null -32600 request body took too long";
    let cases = [
        (head, b'x', late_head),
        ("P", b'O', late_head),
        (&fixed, b' ', late_body),
        (&chunked, b' ', late_body),
    ];
    for (first, repeated, expected) in cases {
        let (response, took) = drip(&gateway, first.as_bytes(), repeated);
        assert_eq!(response, expected, "{first}");
        assert!(took >= SHORT, "{first}: after {took:?}");
    }
    // The gateway closes idle connections without a response, before a first request and after one.
    let began = Instant::now();
    let mut silent = Client::connect(&gateway.address);
    assert!(silent.is_closed());
    assert!((SHORT..LATE).contains(&began.elapsed()), "{:?}", began.elapsed());
    let mut idle = Client::connect(&gateway.address);
    let began = Instant::now();
    assert_eq!(describe(&idle.call("/", CALL.as_bytes())), CALL_OK);
    assert!(idle.is_closed());
    assert!((SHORT..LATE).contains(&began.elapsed()), "{:?}", began.elapsed());
    gateway.assert_sound();
}

#[test]
fn slow_clients_do_not_hinder_others() {
    let (_node, mut gateway) = start_gateway("");
    let (before, _) = gateway.memory();
    let slow: Vec<Client> = (0..500)
        .map(|number| {
            let mut client = Client::connect(&gateway.address);
            let part: &[u8] = if number % 2 == 0 {
                b"POST / HTTP/1.1\r\nHost: lo"
            } else {
                b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
                  Content-Length: 5000000\r\n\r\n["
            };
            client.send(part);
            client
        })
        .collect();
    let mut client = Client::connect(&gateway.address);
    let began = Instant::now();
    for _ in 0..100 {
        assert_eq!(describe(&client.call("/", CALL.as_bytes())), CALL_OK);
    }
    assert!(began.elapsed() < LATE, "{:?}", began.elapsed());
    // The gateway allocates no memory for a declared length until the bytes arrive.
    assert_memory_bounded(&gateway, before);
    drop(slow);
    gateway.assert_sound();
}

#[test]
fn a_half_closed_client_gets_its_responses() {
    let (_node, gateway) = start_gateway("");
    let mut client = Client::connect(&gateway.address);
    let good = post("/", CALL.as_bytes());
    client.send(&[&good[..], &good].concat());
    client.half_close();
    for _ in 0..2 {
        assert_eq!(describe(&client.read_response().unwrap()), CALL_OK);
    }
    assert!(client.is_closed());
    // A client that closes within a request gets no response.
    for part in [&good[..20], &good[..good.len() - 1]] {
        let mut client = Client::connect(&gateway.address);
        client.send(part);
        client.half_close();
        assert!(client.is_closed());
    }
}

#[test]
fn clients_that_leave_harm_nobody() {
    let node = Weir::node().args(&["--latency", "300ms"]).start();
    let mut gateway = Weir::serve().upstreams(&[node.url()]).args(&["--threads", "2"]).start();
    let (before, _) = gateway.memory();
    for round in 0..3 {
        let leaving: Vec<Client> = (0..200)
            .map(|number| {
                let mut client = Client::connect(&gateway.address);
                // Every second client sends the same call; the others each send a unique one.
                let account = if number % 2 == 0 { 0 } else { round * 1000 + number };
                let params = format!("[\"0x{account:040x}\",\"0x10\"]");
                client.send(&post("/", call(number, "eth_getBalance", &params).as_bytes()));
                client
            })
            .collect();
        drop(leaving);
        let params = format!("[\"0x{:040x}\",\"0x10\"]", 0);
        let answer = Client::connect(&gateway.address)
            .call("/", call(7, "eth_getBalance", &params).as_bytes());
        assert!(describe(&answer).starts_with("200 7 result \"0x"), "{}", describe(&answer));
    }
    gateway.assert_sound();
    assert_memory_bounded(&gateway, before);
}

#[test]
fn a_client_that_does_not_read_is_waited_for_only_by_itself() {
    let (_node, mut gateway) = start_gateway("");
    let (before, _) = gateway.memory();
    let not_reading: Vec<Client> = (0..20)
        .map(|_| {
            let mut client = Client::connect(&gateway.address);
            let blocks: Vec<String> = (0..40)
                .map(|id| call(id, "eth_getBlockByNumber", &format!("[\"0x{:x}\",true]", id + 1)))
                .collect();
            client.send(&post("/", format!("[{}]", blocks.join(",")).as_bytes()).repeat(8));
            client
        })
        .collect();
    let mut client = Client::connect(&gateway.address);
    for _ in 0..100 {
        assert_eq!(describe(&client.call("/", CALL.as_bytes())), CALL_OK);
    }
    assert_memory_bounded(&gateway, before);
    drop(not_reading);
    gateway.assert_sound();
}

/// A request whose response is larger than the socket buffers.
fn request_large_response() -> Vec<u8> {
    let calls: Vec<String> = (0..900)
        .map(|id| call(id, "eth_getBlockByNumber", &format!("[\"0x{:x}\",true]", 1 + id)))
        .collect();
    post("/", format!("[{}]", calls.join(",")).as_bytes())
}

#[test]
fn a_client_that_does_not_read_its_response_is_disconnected() {
    let (_node, mut gateway) = start_gateway("[downstream]\nwrite_timeout = \"600ms\"");
    let mut idle = Client::with_small_receive_buffer(&gateway.address);
    idle.send(&request_large_response());
    pause(SHORT * 4); // Sleeps: the client reads nothing for longer than it may.
    idle.drain();
    let (bytes, ended) = idle.buffered();
    assert!(!ended, "the client got the whole response of {bytes} bytes, so the test is void");
    // A client that keeps reading gets the whole response, even with a small receive buffer.
    let mut slow = Client::with_small_receive_buffer(&gateway.address);
    slow.send(&request_large_response());
    assert_eq!(slow.read_response().unwrap().status, 200);
    gateway.assert_sound();
}

#[test]
fn broken_http2_ends_its_connection_only() {
    let (_node, mut gateway) = start_gateway("");
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    // An empty SETTINGS frame. Every connection begins with one (RFC 9113, section 3.4).
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let frames: [&[u8]; 5] = [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        // A DATA frame for a stream that was never opened.
        &[&settings[..], &[0, 0, 1, 0, 1, 0, 0, 0, 1, b'x']].concat(),
        // A HEADERS frame whose payload is not valid HPACK.
        &[&settings[..], &[0, 0, 4, 1, 5, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]].concat(),
        // A frame with a declared length of 16 MB.
        &[&settings[..], &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat(),
    ];
    for frame in frames {
        let mut client = Client::connect(&gateway.address);
        client.send(&[&preface[..], frame].concat());
        client.half_close();
        client.drain();
    }
    let mut cut = Client::connect(&gateway.address);
    cut.send(&preface[..10]);
    cut.half_close();
    assert!(cut.is_closed());
    assert_eq!(describe(&Client::connect(&gateway.address).call("/", CALL.as_bytes())), CALL_OK);
    gateway.assert_sound();
}
