//! Goal: each call over one connection gets its own response, in any order. A failed call reports
//! whether it was sent. No call waits forever. Method: the test acts as the upstream at the other
//! end of a stream in memory, in virtual time. It reads masked frames and writes arbitrary bytes.

use std::cell::RefCell;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::LocalSet;
use wire::json::walk;
use wire::websocket::{Role, write_frame};

use super::*;
use crate::io::websocket::decoder::Decoder;

const PING: Duration = Duration::from_secs(5);
const DEADLINE: Duration = Duration::from_secs(30);
const RESPONSE_BYTES_MAX: usize = 200_000;

/// The upstream's end of a WebSocket.
struct Upstream {
    stream: DuplexStream,
    decoder: Decoder,
    /// Bytes that were read but not decoded yet.
    read: Vec<u8>,
}

impl Upstream {
    /// Returns the id and the method of the next call.
    async fn call(&mut self) -> (u64, String) {
        loop {
            let frame = self.frame().await.expect("the connection is open");
            if let (Opcode::Text, payload) = frame {
                let [id, method] = walk::fields_of(&payload, ["id", "method"]);
                let text = |raw: Option<&[u8]>| String::from_utf8(raw.unwrap().to_vec()).unwrap();
                return (text(id).parse().unwrap(), text(method).trim_matches('"').to_owned());
            }
        }
    }

    /// Returns the next frame; `None` once the connection has ended.
    async fn frame(&mut self) -> Option<(Opcode, Vec<u8>)> {
        loop {
            let (used, event) = self.decoder.next(&self.read).expect("frames are well-formed");
            let frame = match event {
                Some(Event::Message(payload)) => Some((Opcode::Text, payload.to_vec())),
                Some(Event::Ping(payload)) => Some((Opcode::Ping, payload.to_vec())),
                Some(Event::Pong) => Some((Opcode::Pong, Vec::new())),
                Some(Event::Close(code)) => {
                    Some((Opcode::Close, code.unwrap_or(0).to_be_bytes().to_vec()))
                }
                Some(Event::TooLarge(_)) => panic!("a call is too large"),
                Some(Event::Compressed { .. }) => panic!("compression was not negotiated"),
                None => None,
            };
            self.read.drain(..used);
            if frame.is_some() {
                return frame;
            }
            if self.stream.read_buf(&mut self.read).await.ok()? == 0 {
                return None;
            }
        }
    }

    async fn send(&mut self, op: Opcode, payload: &[u8]) {
        let mut out = Vec::new();
        write_frame(&mut out, op, payload, None);
        // Some tests close the client first, so an error is ignored.
        let _ = self.stream.write_all(&out).await;
    }

    async fn respond(&mut self, id: u64, result: &str) {
        let response = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
        self.send(Opcode::Text, response.as_bytes()).await;
    }
}

fn settings() -> Settings {
    Settings {
        response_bytes_max: RESPONSE_BYTES_MAX,
        ping_interval: PING,
        on_notification: Rc::new(|_| {}),
    }
}

/// Returns a connection whose driver runs in a task, its close reason, and its upstream.
fn connection(
    settings: Settings,
) -> (Rc<MultiplexedConnection>, Rc<Cell<Option<CloseReason>>>, Upstream) {
    let (gateway_stream, upstream_stream) = tokio::io::duplex(1 << 16);
    let (stream, is_websocket) = (Stream::Memory(gateway_stream), true);
    let (connection, driver) =
        MultiplexedConnection::new(stream, is_websocket, Vec::new(), settings);
    let reason = Rc::new(Cell::new(None));
    let task_reason = Rc::clone(&reason);
    tokio::task::spawn_local(async move { task_reason.set(Some(driver.await)) });
    let decoder = Decoder::new(Role::Server, 1 << 20, false);
    (connection, reason, Upstream { stream: upstream_stream, decoder, read: Vec::new() })
}

fn start_call(connection: &Rc<MultiplexedConnection>, method: &str) -> Call {
    let now = Instant::now();
    connection.call(method, Some(b"[]"), now, now + DEADLINE).expect("it takes calls")
}

/// Waits for the response. Returns its result, or the error of the call.
async fn result(call: Call) -> Result<String, ExchangeError> {
    let (id, body) = call.await?;
    let [response_id, result] = walk::fields_of(&body, ["id", "result"]);
    assert_eq!(response_id, Some(id.as_bytes()), "the response is under the id of its call");
    Ok(String::from_utf8(result.unwrap().to_vec()).unwrap())
}

fn run_in_virtual_time(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// Frames of testdata/public-faults/websocket-error-without-an-id.json.
#[test]
fn an_error_without_an_id_does_not_take_the_place_of_a_response() {
    run_in_virtual_time(async {
        let (connection, _, mut upstream) = connection(settings());
        let call = start_call(&connection, "m");
        let (id, _) = upstream.call().await;
        for start in ["", "\"id\":null,"] {
            let notice = format!(r#"{{{start}"error":{{"code":-32000,"message":"free tier"}}}}"#);
            upstream.send(Opcode::Text, notice.as_bytes()).await;
        }
        upstream.respond(id, "1").await;
        assert_eq!(result(call).await.unwrap(), "1");
        assert!(connection.is_open());
    });
}

#[test]
fn responses_in_any_order_reach_their_calls() {
    run_in_virtual_time(async {
        let (connection, _, mut upstream) = connection(settings());
        let calls: Vec<Call> =
            (0..100).map(|index| start_call(&connection, &format!("m{index}"))).collect();
        assert_eq!(connection.in_flight(), 100);
        let mut received = Vec::new();
        for _ in 0..100 {
            received.push(upstream.call().await);
        }
        for (id, method) in received.iter().rev() {
            upstream.respond(*id, &format!("\"{method}\"")).await;
        }
        for (index, call) in calls.into_iter().enumerate() {
            assert_eq!(result(call).await.unwrap(), format!("\"m{index}\""));
        }
        assert_eq!(connection.in_flight(), 0);
        assert!(connection.has_carried_response.get());
    });
}

#[test]
fn a_response_may_be_fragmented_and_have_its_id_last() {
    run_in_virtual_time(async {
        let (connection, _, mut upstream) = connection(settings());
        let call = start_call(&connection, "m");
        let (id, _) = upstream.call().await;
        let response = format!(r#"{{"result":{{"id":7}},"id":{id},"jsonrpc":"2.0"}}"#);
        let (first, second) = response.as_bytes().split_at(9);
        let frames =
            [&[0x01, first.len() as u8], first, &[0x89, 0], &[0x80, second.len() as u8], second];
        for byte in frames.concat() {
            upstream.stream.write_all(&[byte]).await.unwrap();
        }
        assert_eq!(result(call).await.unwrap(), r#"{"id":7}"#);
        assert_eq!(
            upstream.frame().await,
            Some((Opcode::Pong, Vec::new())),
            "the ping is answered"
        );
    });
}

#[test]
fn a_large_response_is_complete() {
    run_in_virtual_time(async {
        let (connection, _, mut upstream) = connection(settings());
        let (large, small) = (start_call(&connection, "large"), start_call(&connection, "small"));
        let (first, _) = upstream.call().await;
        let (second, _) = upstream.call().await;
        let long = format!("\"{}\"", "x".repeat(RESPONSE_BYTES_MAX - 100));
        let upstream = async {
            upstream.respond(first, &long).await;
            upstream.respond(second, "1").await;
        };
        let (large, small, ()) = tokio::join!(result(large), result(small), upstream);
        assert_eq!((large.unwrap(), small.unwrap()), (long, "1".to_owned()));
    });
}

#[test]
fn a_response_that_is_too_large_fails_only_its_call() {
    run_in_virtual_time(async {
        let (connection, _, mut upstream) = connection(settings());
        let (large, small) = (start_call(&connection, "large"), start_call(&connection, "small"));
        let (first, _) = upstream.call().await;
        let (second, _) = upstream.call().await;
        let long = format!("\"{}\"", "x".repeat(RESPONSE_BYTES_MAX));
        let upstream = async {
            upstream.respond(first, &long).await;
            upstream.respond(second, "1").await;
        };
        let (large, small, ()) = tokio::join!(result(large), result(small), upstream);
        let failure =
            ExchangeError { kind: FailureKind::TooLarge, sent: Sent::Yes, stale_connection: false };
        assert_eq!((large, small.unwrap()), (Err(failure), "1".to_owned()));
    });
}

#[test]
fn calls_on_a_connection_that_closes_may_have_been_sent() {
    run_in_virtual_time(async {
        let (connection, reason, mut upstream) = connection(settings());
        let call = start_call(&connection, "first");
        let (id, _) = upstream.call().await;
        upstream.respond(id, "1").await;
        result(call).await.unwrap();
        let call = start_call(&connection, "second");
        upstream.call().await;
        drop(upstream);
        let failure =
            ExchangeError { kind: FailureKind::Closed, sent: Sent::Maybe, stale_connection: true };
        assert_eq!(result(call).await, Err(failure));
        assert_eq!(reason.get(), Some(CloseReason::Closed(None)));
        assert!(connection.call("third", None, Instant::now(), Instant::now()).is_none());
    });
}

#[test]
fn calls_that_were_not_written_were_not_sent() {
    run_in_virtual_time(async {
        let (gateway_stream, upstream_stream) = tokio::io::duplex(64);
        let (stream, is_websocket) = (Stream::Memory(gateway_stream), true);
        let (connection, driver) =
            MultiplexedConnection::new(stream, is_websocket, Vec::new(), settings());
        let (first, second) =
            (start_call(&connection, &"f".repeat(40)), start_call(&connection, "second"));
        let driven = tokio::task::spawn_local(driver);
        // The stream accepts 64 bytes, which is less than the first call.
        tokio::task::yield_now().await;
        drop(upstream_stream);
        assert_eq!(driven.await.unwrap(), CloseReason::Closed(None));
        let failure =
            |sent| Err(ExchangeError { kind: FailureKind::Closed, sent, stale_connection: false });
        assert_eq!(result(first).await, failure(Sent::Maybe));
        assert_eq!(result(second).await, failure(Sent::No));
    });
}

#[test]
fn a_close_frame_is_answered() {
    run_in_virtual_time(async {
        let (connection, reason, mut upstream) = connection(settings());
        let call = start_call(&connection, "m");
        upstream.call().await;
        upstream.send(Opcode::Close, &1001_u16.to_be_bytes()).await;
        assert!(result(call).await.is_err());
        assert_eq!(reason.get(), Some(CloseReason::Closed(Some(1001))));
        assert_eq!(upstream.frame().await, Some((Opcode::Close, 1001_u16.to_be_bytes().to_vec())));
        assert_eq!(upstream.frame().await, None);
    });
}

#[test]
fn a_malformed_frame_ends_the_connection() {
    run_in_virtual_time(async {
        let (connection, reason, mut upstream) = connection(settings());
        let call = start_call(&connection, "m");
        upstream.call().await;
        upstream.stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let failure = ExchangeError {
            kind: FailureKind::Malformed,
            sent: Sent::Maybe,
            stale_connection: false,
        };
        assert_eq!(result(call).await, Err(failure));
        assert_eq!(reason.get(), Some(CloseReason::Malformed));
        assert_eq!(upstream.frame().await, Some((Opcode::Close, 1002_u16.to_be_bytes().to_vec())));
    });
}

#[test]
fn a_late_response_is_discarded() {
    run_in_virtual_time(async {
        let (connection, reason, mut upstream) = connection(settings());
        let began = Instant::now();
        let late = connection.call("late", None, began, began + Duration::from_secs(2)).unwrap();
        let (id, _) = upstream.call().await;
        let failure = ExchangeError {
            kind: FailureKind::Deadline,
            sent: Sent::Maybe,
            stale_connection: false,
        };
        assert_eq!(result(late).await, Err(failure));
        assert_eq!(began.elapsed(), Duration::from_secs(2));
        assert!(!connection.can_take(9), "a silent upstream gets no more calls here");
        assert_eq!(
            upstream.frame().await,
            Some((Opcode::Ping, Vec::new())),
            "the upstream is pinged at once"
        );
        upstream.send(Opcode::Pong, b"").await;
        upstream.respond(id, "1").await;
        let call = start_call(&connection, "next");
        let (next, _) = upstream.call().await;
        assert_ne!(next, id);
        upstream.respond(next, "2").await;
        assert_eq!(result(call).await.unwrap(), "2");
        assert!(connection.can_take(9) && reason.get().is_none());
    });
}

#[test]
fn an_unanswered_ping_ends_the_connection() {
    run_in_virtual_time(async {
        let (connection, reason, mut upstream) = connection(settings());
        let began = Instant::now();
        let call = start_call(&connection, "m");
        upstream.call().await;
        assert_eq!(upstream.frame().await, Some((Opcode::Ping, Vec::new())));
        assert_eq!(began.elapsed(), PING);
        let failure =
            ExchangeError { kind: FailureKind::Closed, sent: Sent::Maybe, stale_connection: false };
        assert_eq!(result(call).await, Err(failure));
        assert_eq!((began.elapsed(), reason.get()), (2 * PING, Some(CloseReason::Stalled)));
    });
}

#[test]
fn an_answered_ping_keeps_the_connection() {
    run_in_virtual_time(async {
        let (connection, reason, mut upstream) = connection(settings());
        for _ in 0..5 {
            assert_eq!(upstream.frame().await, Some((Opcode::Ping, Vec::new())));
            upstream.send(Opcode::Pong, b"").await;
        }
        assert!(connection.can_take(1) && reason.get().is_none());
    });
}

#[test]
fn a_dropped_call_frees_its_slot() {
    run_in_virtual_time(async {
        let (connection, _, mut upstream) = connection(settings());
        drop(start_call(&connection, "dropped"));
        assert_eq!(connection.in_flight(), 0);
        let call = start_call(&connection, "kept");
        let (dropped, _) = upstream.call().await;
        let (kept, _) = upstream.call().await;
        upstream.respond(dropped, "1").await;
        upstream.respond(kept, "2").await;
        assert_eq!(result(call).await.unwrap(), "2");
    });
}

#[test]
fn notifications_are_reported_and_unknown_ids_ignored() {
    run_in_virtual_time(async {
        let received = Rc::new(RefCell::new(Vec::new()));
        let sink = Rc::clone(&received);
        let on_notification: OnNotification =
            Rc::new(move |message| sink.borrow_mut().push(message.to_vec()));
        let (connection, reason, mut upstream) =
            connection(Settings { on_notification, ..settings() });
        let call = start_call(&connection, "m");
        let (id, _) = upstream.call().await;
        let notification = br#"{"jsonrpc":"2.0","method":"eth_subscription","params":{}}"#;
        upstream.send(Opcode::Text, notification).await;
        upstream.respond(id + 1, "1").await;
        upstream.respond(u64::MAX, "1").await;
        upstream.respond(id, "2").await;
        upstream.respond(id, "3").await;
        assert_eq!(result(call).await.unwrap(), "2");
        assert_eq!(*received.borrow(), [notification.to_vec()]);
        assert!(reason.get().is_none());
    });
}

#[test]
fn an_invalid_request_without_an_id_belongs_to_the_only_call() {
    run_in_virtual_time(async {
        let (connection, _, mut upstream) = connection(settings());
        let call = start_call(&connection, "m");
        upstream.call().await;
        let error = br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"bad call"}}"#;
        upstream.send(Opcode::Text, error).await;
        assert_eq!(call.await.unwrap().1, &error[..]);
    });
}

#[test]
fn a_retired_connection_ends_after_its_calls() {
    run_in_virtual_time(async {
        let (connection, reason, mut upstream) = connection(settings());
        let call = start_call(&connection, "m");
        let (id, _) = upstream.call().await;
        connection.retire();
        assert!(!connection.can_take(9) && reason.get().is_none());
        upstream.respond(id, "1").await;
        assert_eq!(result(call).await.unwrap(), "1");
        assert_eq!(upstream.frame().await, None);
        assert_eq!(reason.get(), Some(CloseReason::Retired));
    });
}

#[test]
fn many_calls_go_out_in_one_write() {
    run_in_virtual_time(async {
        let (connection, _, mut upstream) = connection(settings());
        let calls: Vec<Call> = (0..50).map(|_| start_call(&connection, "m")).collect();
        upstream.read.reserve(1 << 16);
        let bytes = upstream.stream.read_buf(&mut upstream.read).await.unwrap();
        let expected: usize = connection.output.borrow().discarded_bytes as usize;
        assert_eq!((bytes, expected), (expected, bytes), "all came at once");
        drop(calls);
    });
}

#[test]
fn a_local_socket_carries_values() {
    run_in_virtual_time(async {
        let (gateway_stream, mut upstream_stream) = tokio::io::duplex(1 << 16);
        let (stream, is_websocket) = (Stream::Memory(gateway_stream), false);
        let (connection, driver) =
            MultiplexedConnection::new(stream, is_websocket, Vec::new(), settings());
        let reason = tokio::task::spawn_local(driver);
        let (first, second) = (start_call(&connection, "one"), start_call(&connection, "two"));
        let mut read = Vec::new();
        while read.iter().filter(|byte| **byte == b'\n').count() < 2 {
            upstream_stream.read_buf(&mut read).await.unwrap();
        }
        let ids: Vec<String> = read
            .split(|byte| *byte == b'\n')
            .filter_map(|line| walk::member(line, "id"))
            .map(|id| String::from_utf8(id.to_vec()).unwrap())
            .collect();
        let response = |index: usize| {
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{index}}}\n", ids[index])
        };
        for byte in [response(1), response(0)].concat().bytes() {
            upstream_stream.write_all(&[byte]).await.unwrap();
        }
        assert_eq!(result(first).await.unwrap(), "0");
        assert_eq!(result(second).await.unwrap(), "1");
        let began = Instant::now();
        let late = connection.call("m", None, began, began + Duration::from_secs(1)).unwrap();
        assert_eq!(result(late).await.unwrap_err().kind, FailureKind::Deadline);
        // A local socket has no pings, so an unanswered call ends the connection.
        assert_eq!(reason.await.unwrap(), CloseReason::Retired);
    });
}
