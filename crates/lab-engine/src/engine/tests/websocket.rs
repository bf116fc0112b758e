//! Goal: calls over WebSockets are counted like calls over HTTP, and each failure of a WebSocket is
//! counted under its class. Method: a server whose frames the test writes. The first argument of
//! `frame` is the first byte of a frame: the FIN bit 0x80 and the opcode (0 continuation, 1 text, 8
//! close, 9 ping, 10 pong).

use std::io::{self, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use lab_model::plan::{Batch, Reuse, Tls};
use lab_model::record::{TIME_MAX_NS, Times};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::{Class, Engine, Plan, RunOutcome, SECOND, chain_facts, collect, open, samples};
use crate::engine::websocket::tests::server::{Peer, Server, accept, frame, read_masked};

/// Returns a plan with a closed scenario: one worker makes `iterations` calls over a WebSocket.
fn plan_of(port: u16, iterations: u64) -> Plan {
    let (workers, pause_ms, seconds) = (1, 0, 20);
    let mut plan = samples::closed(workers, pause_ms, seconds, &["eth_blockNumber"]);
    plan.target.point_at(&format!("ws://localhost:{port}/ws")).unwrap();
    plan.target.timeout = Duration::from_secs(5);
    plan.scenarios[0].iterations_max = Some(iterations);
    plan.scenarios[0].grace = SECOND;
    plan
}

fn plan(server: &Server, iterations: u64) -> Plan {
    plan_of(server.address.port(), iterations)
}

fn run(plan: Plan, server: &Server) -> RunOutcome {
    let addresses = vec![server.address];
    collect(
        Engine::start(Arc::new(plan), Arc::new(chain_facts()), addresses, Instant::now()).unwrap(),
    )
}

/// Makes three calls, and checks that all have this class.
fn check(
    class: Class,
    serve: impl Fn(&mut Peer) -> io::Result<()> + Send + Sync + 'static,
) -> RunOutcome {
    let server = Server::new(serve);
    let outcome = run(plan(&server, 3), &server);
    outcome.check_all(class, 3);
    assert_eq!(outcome.totals.traffic.requests, 3);
    assert_eq!(outcome.totals.iterations[0].ended, 3);
    outcome
}

/// Returns the response to a call, with this member in addition to the id.
fn response(call: &str, member: &str) -> String {
    let (_, id) = call.split_once("\"id\":").unwrap();
    let id = &id[..id.find(',').unwrap()];
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{member}}}")
}

fn ok(call: &str) -> String {
    response(call, "\"result\":\"0x1\"")
}

/// Accepts the handshake and responds to every call.
fn serve(peer: &mut Peer) -> io::Result<()> {
    peer.open()?;
    loop {
        let call = peer.read()?;
        peer.text(&ok(&call))?;
    }
}

/// Responds to the handshake with this status and these header fields.
fn refuse(status: &'static str, fields: &'static str) -> impl Fn(&mut Peer) -> io::Result<()> {
    move |peer| {
        peer.send(format!("HTTP/1.1 {status}\r\n{fields}Content-Length: 2\r\n\r\nno").as_bytes())?;
        peer.wait();
        Ok(())
    }
}

fn error(message: &str) -> io::Error {
    io::Error::other(message.to_owned())
}

#[test]
fn all_calls_of_a_worker_use_one_websocket() {
    let server = Server::new(|peer| {
        let (line, rest) = peer.request.split_once("\r\n").unwrap();
        // The header of the plan is sent once, with the request that opens the WebSocket.
        if line != "GET /ws HTTP/1.1" || !rest.contains("authorization: Bearer x\r\n") {
            return Err(error("another request"));
        }
        serve(peer)
    });
    let mut plan = plan(&server, 20);
    plan.target.headers = vec![("authorization".into(), "Bearer x".into())];
    let outcome = run(plan, &server);
    outcome.check_all(Class::Ok, 20);
    let totals = &outcome.totals;
    assert_eq!((totals.traffic.connections, totals.traffic.connections_failed), (1, 0));
    assert_eq!((totals.connect_time.len(), totals.upgrade_time.len()), (1, 1));
    assert_eq!(totals.statuses.iter().collect::<Vec<_>>(), [(&101, &1)]);
    assert_eq!(totals.traffic.closed_by_server, 0);
    let body = ok("{\"id\":0,").len() as u64;
    assert!(totals.response_bytes[0] >= 20 * body, "{:?}", totals.response_bytes);
}

#[test]
fn a_run_ends_with_a_close_frame() {
    let (sender, closes) = std::sync::mpsc::sync_channel(1);
    let server = Server::new(move |peer| {
        peer.open()?;
        let call = peer.read()?;
        peer.text(&ok(&call))?;
        sender.send(peer.read_frame()?).map_err(io::Error::other)
    });
    run(plan(&server, 1), &server).check_all(Class::Ok, 1);
    let close = closes.recv_timeout(10 * SECOND).unwrap();
    assert_eq!(close, (0x88, 1000u16.to_be_bytes().to_vec()));
}

#[test]
fn json_rpc_errors_are_counted_with_their_code() {
    let outcome = check(Class::RpcError, |peer| {
        peer.open()?;
        loop {
            let call = peer.read()?;
            peer.text(&response(&call, "\"error\":{\"code\":-32005,\"message\":\"no\"}"))?;
        }
    });
    // Three errors with this code, of the method with index 0.
    assert_eq!(outcome.totals.codes.iter().collect::<Vec<_>>(), [(&(0, -32005), &3)]);
}

#[test]
fn fragments_are_joined_and_a_ping_between_them_gets_its_pong() {
    let outcome = check(Class::Ok, |peer| {
        peer.open()?;
        loop {
            let response = ok(&peer.read()?).into_bytes();
            let (first, rest) = response.split_at(9);
            let (second, third) = rest.split_at(1);
            let frames = [
                frame(0x01, first),
                frame(0x89, b"between"),
                frame(0x00, second),
                frame(0x00, b""),
                frame(0x8a, b"unasked"),
                frame(0x80, third),
            ];
            // Each frame is sent by itself, and the last one byte by byte.
            frames[..5].iter().try_for_each(|frame| peer.send(frame))?;
            frames[5].iter().try_for_each(|byte| peer.send(&[*byte]))?;
            if peer.read_frame()? != (0x8a, b"between".to_vec()) {
                return Err(error("no pong"));
            }
        }
    });
    assert_eq!(outcome.totals.traffic.connections, 1);
}

#[test]
fn a_ping_while_idle_gets_its_pong() {
    let server = Server::new(|peer| {
        peer.open()?;
        loop {
            let call = peer.read()?;
            peer.text(&ok(&call))?;
            peer.send(&frame(0x89, b"idle"))?;
            if peer.read_frame()? != (0x8a, b"idle".to_vec()) {
                return Err(error("no pong"));
            }
        }
    });
    let mut plan = plan(&server, 3);
    plan.scenarios[0].pause = SECOND / 20;
    let outcome = run(plan, &server);
    outcome.check_all(Class::Ok, 3);
    assert_eq!(outcome.totals.traffic.connections, 1);
}

#[test]
fn a_flood_of_pings_is_answered_by_its_last() {
    check(Class::Ok, |peer| {
        peer.open()?;
        loop {
            let call = peer.read()?;
            let pings: Vec<u8> =
                (0..10_000u32).flat_map(|number| frame(0x89, &number.to_be_bytes())).collect();
            peer.send(&pings)?;
            while peer.read_frame()? != (0x8a, 9_999u32.to_be_bytes().to_vec()) {}
            peer.text(&ok(&call))?;
        }
    });
}

#[test]
fn a_close_frame_instead_of_a_response_is_counted_with_its_code() {
    let outcome = check(Class::Closed, |peer| {
        peer.open()?;
        peer.read()?;
        peer.send(&frame(0x01, b"{\"jsonrpc\""))?;
        peer.send(&frame(0x88, &1011u16.to_be_bytes()))?;
        assert_eq!(peer.read_frame()?, (0x88, 1011u16.to_be_bytes().to_vec()));
        Ok(())
    });
    assert_eq!(outcome.totals.close_codes.iter().collect::<Vec<_>>(), [(&1011, &3)]);
    let traffic = outcome.totals.traffic;
    assert_eq!((traffic.connections, traffic.closed_by_server), (3, 3));
    let outcome = check(Class::Closed, |peer| {
        peer.open()?;
        peer.read()?;
        peer.send(&frame(0x88, b""))
    });
    assert_eq!(outcome.totals.close_codes.iter().collect::<Vec<_>>(), [(&1005, &3)]);
}

#[test]
fn a_close_frame_behind_a_response_fails_no_call() {
    let outcome = check(Class::Ok, |peer| {
        peer.open()?;
        let mut bytes = frame(0x81, ok(&peer.read()?).as_bytes());
        bytes.extend(frame(0x88, &1001u16.to_be_bytes()));
        peer.send(&bytes)?;
        peer.wait();
        Ok(())
    });
    assert_eq!(outcome.totals.close_codes.iter().collect::<Vec<_>>(), [(&1001, &3)]);
    assert_eq!(outcome.totals.traffic.connections, 3);
}

#[test]
fn a_connection_that_ends_without_a_close_frame_is_reset() {
    let outcome = check(Class::Reset, |peer| {
        peer.open()?;
        peer.read()?;
        peer.send(&frame(0x01, b"{\"jsonrpc\""))
    });
    assert_eq!(outcome.totals.traffic.closed_by_server, 3);
    assert!(outcome.totals.close_codes.is_empty());
}

#[test]
fn a_refused_websocket_is_counted_with_its_status() {
    for (line, status) in [
        ("401 Unauthorized", 401),
        ("404 Not Found", 404),
        ("200 OK", 200),
        ("503 Service Unavailable", 503),
    ] {
        let outcome = check(Class::Upgrade, refuse(line, ""));
        assert_eq!(outcome.totals.statuses.iter().collect::<Vec<_>>(), [(&status, &3)]);
        let traffic = outcome.totals.traffic;
        assert_eq!((traffic.connections, traffic.connections_failed), (0, 3));
        // A worker of a closed scenario backs off for 100 ms after each refusal.
        assert!(outcome.elapsed > Duration::from_millis(200), "{:?}", outcome.elapsed);
    }
    let outcome = check(Class::Limited, refuse("429 Too Many Requests", "Retry-After: 7\r\n"));
    assert_eq!(outcome.totals.statuses.iter().collect::<Vec<_>>(), [(&429, &3)]);
    assert_eq!(outcome.totals.retry_after.len(), 3);
}

#[test]
fn an_invalid_handshake_is_refused_and_a_lost_one_is_reset() {
    check(Class::Upgrade, |peer| {
        peer.send(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
              Sec-WebSocket-Accept: AAAA\r\n\r\n",
        )?;
        peer.wait();
        Ok(())
    });
    check(Class::Upgrade, |peer| {
        peer.send(b"SSH-2.0-OpenSSH_9.6\r\n")?;
        peer.wait();
        Ok(())
    });
    check(Class::Reset, |peer| {
        peer.send(b"HTTP/1.1 101 Switch")?;
        peer.shut_down();
        peer.wait();
        Ok(())
    });
}

#[test]
fn a_handshake_without_a_response_times_out_after_the_connect_timeout() {
    let server = Server::new(|peer| {
        peer.wait();
        Ok(())
    });
    let mut plan = plan(&server, 2);
    plan.target.connect_timeout = Duration::from_millis(50);
    let outcome = run(plan, &server);
    outcome.check_all(Class::Timeout, 2);
    assert_eq!(outcome.totals.traffic.connections_failed, 2);
    let cell = outcome.totals.cells.values().next().unwrap();
    // The call timeout of 5 s does not apply. The histogram rounds down, by 0.1 % at most.
    assert!((49_950_000..2_500_000_000).contains(&cell.latency.min()), "{}", cell.latency.min());
}

#[test]
fn a_response_after_the_timeout_is_not_taken_for_the_next_one() {
    let server = Server::new(|peer| {
        peer.open()?;
        loop {
            let call = peer.read()?;
            if peer.connection == 0 {
                peer.wait();
            }
            peer.text(&ok(&call))?;
        }
    });
    let mut plan = plan(&server, 3);
    plan.target.timeout = Duration::from_millis(100);
    let outcome = run(plan, &server);
    assert_eq!((outcome.count(Class::Timeout), outcome.count(Class::Ok)), (1, 2));
    assert_eq!(outcome.totals.traffic.connections, 2);
}

#[test]
fn a_wrong_id_does_not_shift_the_later_responses() {
    let server = Server::new(|peer| {
        peer.open()?;
        if peer.connection == 0 {
            let call = peer.read()?;
            peer.text("{\"jsonrpc\":\"2.0\",\"id\":\"other\",\"result\":1}")?;
            peer.text(&ok(&call))?;
        }
        loop {
            let call = peer.read()?;
            peer.text(&ok(&call))?;
        }
    });
    let outcome = run(plan(&server, 5), &server);
    assert_eq!((outcome.count(Class::WrongId), outcome.count(Class::Ok)), (1, 4));
    assert_eq!(outcome.totals.traffic.connections, 2);
}

#[test]
fn a_doubled_response_is_no_response_to_the_next_call() {
    let server = Server::new(|peer| {
        peer.open()?;
        loop {
            let message = frame(0x81, ok(&peer.read()?).as_bytes());
            peer.send(&[&message[..], &message].concat())?;
        }
    });
    let outcome = run(plan(&server, 5), &server);
    outcome.check_all(Class::Ok, 5);
    let traffic = outcome.totals.traffic;
    // The run may end before the client reads the last one.
    assert!(traffic.connections == 1 && (4..=5).contains(&traffic.duplicates), "{traffic:?}");
    // The second response arrives only when the next call is in flight.
    let server = Server::new(|peer| {
        peer.open()?;
        let mut last = None;
        loop {
            let call = peer.read()?;
            if let Some(last) = last.replace(ok(&call)) {
                peer.text(&last)?;
            }
            peer.text(&ok(&call))?;
        }
    });
    let outcome = run(plan(&server, 5), &server);
    outcome.check_all(Class::Ok, 5);
    let traffic = outcome.totals.traffic;
    assert_eq!((traffic.connections, traffic.duplicates), (1, 4), "{traffic:?}");
}

#[test]
fn messages_that_are_no_responses_are_malformed() {
    for message in [&b"hello"[..], b"", b"[]", b"{\"jsonrpc\":\"2.0\",\"method\":\"m\"}"] {
        check(Class::Malformed, move |peer| {
            peer.open()?;
            peer.read()?;
            peer.send(&frame(0x81, message))?;
            peer.wait();
            Ok(())
        });
    }
    // Invalid frames: one with a reserved bit, a masked one, and a continuation without a message.
    for bytes in [&[0xc1, 0][..], &[0x81, 0x80, 0, 0, 0, 0], &[0x80, 0]] {
        check(Class::Malformed, move |peer| {
            peer.open()?;
            peer.read()?;
            peer.send(bytes)?;
            peer.wait();
            Ok(())
        });
    }
}

#[test]
fn a_message_before_the_first_call_is_malformed() {
    let accepted = |request: &str| {
        let accept = accept(request);
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        )
        .into_bytes()
    };
    let with = move |more: Vec<u8>| {
        move |peer: &mut Peer| {
            let mut bytes = accepted(&peer.request);
            bytes.extend(&more);
            peer.send(&bytes)?;
            loop {
                let call = peer.read()?;
                peer.text(&ok(&call))?;
            }
        }
    };
    check(Class::Malformed, with(frame(0x81, b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":1}")));
    check(Class::Closed, with(frame(0x88, &1008u16.to_be_bytes())));
    check(Class::Ok, with(frame(0x89, b"hello")));
}

#[test]
fn a_message_has_the_limit_of_a_response() {
    let long = |call: &str, bytes: usize| {
        response(call, &format!("\"result\":\"{}\"", "x".repeat(bytes))).into_bytes()
    };
    // Messages beyond the limit: a frame that announces 2^62 bytes, and many fragments.
    let server = Server::new(move |peer| {
        peer.open()?;
        let call = peer.read()?;
        if peer.connection == 0 {
            peer.send(&[&[0x81, 127], &(1u64 << 62).to_be_bytes()[..]].concat())?;
            while peer.send(&[b'['; 4096]).is_ok() {}
        } else {
            peer.send(&frame(0x01, &long(&call, 60_000)))?;
            while peer.send(&frame(0x00, &[b'x'; 100])).is_ok() {}
        }
        Ok(())
    });
    let mut limited = plan(&server, 3);
    limited.target.response_bytes_max = 100_000;
    run(limited, &server).check_all(Class::Malformed, 3);
    // Messages within the limit: a long message in fragments of all sizes.
    let server = Server::new(move |peer| {
        peer.open()?;
        loop {
            let message = long(&peer.read()?, 300_000);
            let (mut first, mut rest, mut size) = (1, &message[..], 1);
            while rest.len() > size {
                peer.send(&frame(first, &rest[..size]))?;
                (first, rest, size) = (0, &rest[size..], size + 97);
            }
            peer.send(&frame(0x80, rest))?;
        }
    });
    let outcome = run(plan(&server, 3), &server);
    outcome.check_all(Class::Ok, 3);
    assert_eq!(outcome.totals.traffic.connections, 1);
    assert!(outcome.totals.response_bytes[0] > 900_000, "{:?}", outcome.totals.response_bytes);
}

#[test]
fn websockets_are_reused_as_often_as_the_plan_says() {
    for (reuse, connections) in [(Reuse::Never, 20), (Reuse::Requests(3), 7)] {
        let server = Server::new(|peer| {
            peer.open()?;
            loop {
                match peer.read_frame()? {
                    (0x81, call) => peer.text(&ok(&String::from_utf8(call).unwrap()))?,
                    // The client sends its close frame first. The server replies with a close frame
                    // and closes the connection.
                    (0x88, code) if code == 1000u16.to_be_bytes() => {
                        peer.send(&frame(0x88, &code))?;
                        return Ok(());
                    }
                    other => return Err(error(&format!("{other:?}"))),
                }
            }
        });
        let mut plan = plan(&server, 20);
        plan.connections.reuse = reuse;
        let outcome = run(plan, &server);
        outcome.check_all(Class::Ok, 20);
        let traffic = outcome.totals.traffic;
        assert_eq!((traffic.connections, traffic.closed_by_server), (connections, 0));
    }
}

#[test]
fn a_batch_is_one_message() {
    let server = Server::new(|peer| {
        peer.open()?;
        loop {
            let batch = peer.read()?;
            let calls = batch.split("\"jsonrpc\"").skip(1);
            // The responses are in reverse order, and the last call of each batch has none.
            let mut responses: Vec<String> = calls.map(ok).collect();
            assert_eq!(responses.len(), 5);
            responses.pop();
            responses.reverse();
            peer.text(&format!("[{}]", responses.join(",")))?;
        }
    });
    let mut plan = plan(&server, 4);
    plan.scenarios[0].batch = Some(Batch { probability: 1.0, size: 5 });
    let outcome = run(plan, &server);
    assert_eq!((outcome.count(Class::Ok), outcome.count(Class::Malformed)), (16, 4));
    assert_eq!(outcome.totals.traffic.requests, 4);
}

#[test]
fn latency_counts_from_the_schedule_and_service_time_from_the_send() {
    const DELAY: Duration = Duration::from_millis(400);
    let server = Server::new(|peer| {
        peer.open()?;
        for number in 0.. {
            let call = peer.read()?;
            if number == 0 {
                std::thread::park_timeout(DELAY); // Sleeps: the planted delay.
            }
            peer.text(&ok(&call))?;
        }
        Ok(())
    });
    // One worker sends a call each 10 ms. The delay of the first call delays the next 39 calls.
    let outcome = run(open(plan(&server, 0), 100.0, SECOND, 1, 1_000), &server);
    outcome.check_all(Class::Ok, 100);
    let cell = outcome.totals.cells.values().next().unwrap();
    let above_half = |times: &Times| times.count_between(200_000_000, TIME_MAX_NS);
    assert!(cell.service.max() >= 400_000_000, "{}", cell.service.max());
    assert_eq!(above_half(&cell.service), 1);
    // The calls that were scheduled in the first 200 ms waited for at least the remaining 200 ms of
    // the delay.
    assert!((20..40).contains(&above_half(&cell.latency)), "{}", above_half(&cell.latency));
}

#[test]
fn workers_have_their_own_websockets() {
    let barrier = Barrier::new(8);
    let server = Server::new(move |peer| {
        peer.open()?;
        let call = peer.read()?;
        // The server responds once each worker has sent a call on its own connection.
        barrier.wait();
        peer.text(&ok(&call))?;
        loop {
            let call = peer.read()?;
            peer.text(&ok(&call))?;
        }
    });
    let mut plan = plan(&server, 400);
    plan.scenarios[0].workers_max = 8;
    (plan.scenarios[0].stages[0].from, plan.scenarios[0].stages[0].to) = (8.0, 8.0);
    plan.threads = 2;
    let outcome = run(plan, &server);
    outcome.check_all(Class::Ok, 400);
    assert_eq!(outcome.totals.traffic.connections, 8);
}

#[test]
fn wss_is_a_websocket_over_tls() {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        );
    let config = Arc::new(config.unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || -> io::Result<()> {
        let (socket, _) = listener.accept()?;
        let connection = ServerConnection::new(config).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, socket);
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let accept = accept(&String::from_utf8(head).unwrap());
        let head = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        while let (0x81, call) = read_masked(&mut stream)? {
            let response = ok(&String::from_utf8(call).unwrap());
            stream.write_all(&frame(0x81, response.as_bytes()))?;
        }
        Ok(())
    });
    let mut plan = plan_of(address.port(), 20);
    plan.target.point_at(&format!("wss://localhost:{}/ws", address.port())).unwrap();
    plan.connections.tls = Tls { insecure: true, ..Tls::default() };
    let engine =
        Engine::start(Arc::new(plan), Arc::new(chain_facts()), vec![address], Instant::now())
            .unwrap();
    let outcome = collect(engine);
    outcome.check_all(Class::Ok, 20);
    let traffic = outcome.totals.traffic;
    assert_eq!((traffic.connections, traffic.handshakes_full), (1, 1));
    assert_eq!(outcome.totals.upgrade_time.len(), 1);
}
