//! Goal: calls over one connection are answered in any order, each with its own answer; what is
//! lost is lost with the truth of what was sent; nothing hangs. Method: the upstream is a script at
//! the other end of a stream in memory, in virtual time, which reads masked frames and writes what
//! it likes.

use std::cell::RefCell;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::LocalSet;
use wire::json::walk;

use super::*;
use crate::io::websocket::frame::{Decoder, Role, write};

const PING: Duration = Duration::from_secs(5);
const DEADLINE: Duration = Duration::from_secs(30);
const ANSWER_BYTES_MAX: usize = 200_000;

/// The upstream's end of a WebSocket.
struct Upstream {
    stream: DuplexStream,
    decoder: Decoder,
    read: Vec<u8>,
}

impl Upstream {
    /// The next call: its id and its method.
    async fn call(&mut self) -> (u64, String) {
        loop {
            let frame = self.frame().await.expect("the connection is open");
            if let (Op::Text, payload) = frame {
                let [id, method] = walk::fields_of(&payload, ["id", "method"]);
                let text = |raw: Option<&[u8]>| String::from_utf8(raw.unwrap().to_vec()).unwrap();
                return (text(id).parse().unwrap(), text(method).trim_matches('"').to_owned());
            }
        }
    }

    /// The next frame; none once the connection has ended.
    async fn frame(&mut self) -> Option<(Op, Vec<u8>)> {
        loop {
            let (used, event) = self.decoder.next(&self.read).expect("frames are well-formed");
            let frame = match event {
                Some(Event::Message(payload)) => Some((Op::Text, payload.to_vec())),
                Some(Event::Ping(payload)) => Some((Op::Ping, payload.to_vec())),
                Some(Event::Pong) => Some((Op::Pong, Vec::new())),
                Some(Event::Close(code)) => {
                    Some((Op::Close, code.unwrap_or(0).to_be_bytes().to_vec()))
                }
                Some(Event::TooLarge(_)) => panic!("a call is too large"),
                Some(Event::Compressed { .. }) => panic!("nothing is packed"),
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

    async fn say(&mut self, op: Op, payload: &[u8]) {
        let mut out = Vec::new();
        write(&mut out, op, payload, None);
        // A client that has gone is what some tests are about.
        let _ = self.stream.write_all(&out).await;
    }

    async fn answer(&mut self, id: u64, result: &str) {
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
        self.say(Op::Text, answer.as_bytes()).await;
    }
}

fn settings() -> Settings {
    Settings { response_bytes_max: ANSWER_BYTES_MAX, ping_interval: PING, notice: Rc::new(|_| {}) }
}

/// A trunk in a task of its own, what becomes of it, and its upstream.
fn trunk(settings: Settings) -> (Rc<Trunk>, Rc<Cell<Option<Loss>>>, Upstream) {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (trunk, driver) = Trunk::new(Stream::Memory(ours), true, Vec::new(), settings);
    let loss = Rc::new(Cell::new(None));
    let told = Rc::clone(&loss);
    tokio::task::spawn_local(async move { told.set(Some(driver.await)) });
    let decoder = Decoder::new(Role::Server, 1 << 20);
    (trunk, loss, Upstream { stream: theirs, decoder, read: Vec::new() })
}

fn ask(trunk: &Rc<Trunk>, method: &str) -> Call {
    let now = Instant::now();
    trunk.call(method, Some(b"[]"), now, now + DEADLINE).expect("it takes calls")
}

/// The answer's result, or what was lost.
async fn result(call: Call) -> Result<String, Lost> {
    let (id, body) = call.await?;
    let [own, result] = walk::fields_of(&body, ["id", "result"]);
    assert_eq!(own, Some(id.as_bytes()), "the answer is under the id of its call");
    Ok(String::from_utf8(result.unwrap().to_vec()).unwrap())
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

#[test]
fn answers_in_any_order_reach_their_calls() {
    run(async {
        let (trunk, _, mut upstream) = trunk(settings());
        let calls: Vec<Call> = (0..100).map(|i| ask(&trunk, &format!("m{i}"))).collect();
        assert_eq!(trunk.in_flight(), 100);
        let mut heard = Vec::new();
        for _ in 0..100 {
            heard.push(upstream.call().await);
        }
        for (id, method) in heard.iter().rev() {
            upstream.answer(*id, &format!("\"{method}\"")).await;
        }
        for (i, call) in calls.into_iter().enumerate() {
            assert_eq!(result(call).await.unwrap(), format!("\"m{i}\""));
        }
        assert_eq!(trunk.in_flight(), 0);
        assert!(trunk.carried.get());
    });
}

#[test]
fn the_id_may_stand_last_and_answers_in_fragments() {
    run(async {
        let (trunk, _, mut upstream) = trunk(settings());
        let call = ask(&trunk, "m");
        let (id, _) = upstream.call().await;
        let answer = format!(r#"{{"result":{{"id":7}},"id":{id},"jsonrpc":"2.0"}}"#);
        let (first, rest) = answer.as_bytes().split_at(9);
        let frames =
            [&[0x01, first.len() as u8], first, &[0x89, 0], &[0x80, rest.len() as u8], rest];
        for byte in frames.concat() {
            upstream.stream.write_all(&[byte]).await.unwrap();
        }
        assert_eq!(result(call).await.unwrap(), r#"{"id":7}"#);
        assert_eq!(upstream.frame().await, Some((Op::Pong, Vec::new())), "the ping is answered");
    });
}

#[test]
fn a_large_answer_comes_whole() {
    run(async {
        let (trunk, _, mut upstream) = trunk(settings());
        let (large, small) = (ask(&trunk, "large"), ask(&trunk, "small"));
        let (first, _) = upstream.call().await;
        let (second, _) = upstream.call().await;
        let long = format!("\"{}\"", "x".repeat(ANSWER_BYTES_MAX - 100));
        let upstream = async {
            upstream.answer(first, &long).await;
            upstream.answer(second, "1").await;
        };
        let (large, small, ()) = tokio::join!(result(large), result(small), upstream);
        assert_eq!((large.unwrap(), small.unwrap()), (long, "1".to_owned()));
    });
}

#[test]
fn an_answer_that_is_too_large_costs_its_own_call_only() {
    run(async {
        let (trunk, _, mut upstream) = trunk(settings());
        let (large, small) = (ask(&trunk, "large"), ask(&trunk, "small"));
        let (first, _) = upstream.call().await;
        let (second, _) = upstream.call().await;
        let long = format!("\"{}\"", "x".repeat(ANSWER_BYTES_MAX));
        let upstream = async {
            upstream.answer(first, &long).await;
            upstream.answer(second, "1").await;
        };
        let (large, small, ()) = tokio::join!(result(large), result(small), upstream);
        let lost = Lost { kind: Kind::TooLarge, sent: Sent::Yes, stale: false };
        assert_eq!((large, small.unwrap()), (Err(lost), "1".to_owned()));
    });
}

#[test]
fn calls_on_a_connection_that_closes_may_have_been_sent() {
    run(async {
        let (trunk, loss, mut upstream) = trunk(settings());
        let call = ask(&trunk, "first");
        let (id, _) = upstream.call().await;
        upstream.answer(id, "1").await;
        result(call).await.unwrap();
        let call = ask(&trunk, "second");
        upstream.call().await;
        drop(upstream);
        let lost = Lost { kind: Kind::Closed, sent: Sent::Maybe, stale: true };
        assert_eq!(result(call).await, Err(lost));
        assert_eq!(loss.get(), Some(Loss::Closed(None)));
        assert!(trunk.call("third", None, Instant::now(), Instant::now()).is_none());
    });
}

#[test]
fn calls_that_were_not_written_were_not_sent() {
    run(async {
        let (ours, theirs) = tokio::io::duplex(64);
        let (trunk, driver) = Trunk::new(Stream::Memory(ours), true, Vec::new(), settings());
        let (first, second) = (ask(&trunk, &"f".repeat(40)), ask(&trunk, "second"));
        let driven = tokio::task::spawn_local(driver);
        // The pipe takes 64 bytes, which are a part of the first call.
        tokio::task::yield_now().await;
        drop(theirs);
        assert_eq!(driven.await.unwrap(), Loss::Closed(None));
        let lost = |sent| Err(Lost { kind: Kind::Closed, sent, stale: false });
        assert_eq!(result(first).await, lost(Sent::Maybe));
        assert_eq!(result(second).await, lost(Sent::No));
    });
}

#[test]
fn a_goodbye_is_answered() {
    run(async {
        let (trunk, loss, mut upstream) = trunk(settings());
        let call = ask(&trunk, "m");
        upstream.call().await;
        upstream.say(Op::Close, &1001_u16.to_be_bytes()).await;
        assert!(result(call).await.is_err());
        assert_eq!(loss.get(), Some(Loss::Closed(Some(1001))));
        assert_eq!(upstream.frame().await, Some((Op::Close, 1001_u16.to_be_bytes().to_vec())));
        assert_eq!(upstream.frame().await, None);
    });
}

#[test]
fn nonsense_ends_the_connection() {
    run(async {
        let (trunk, loss, mut upstream) = trunk(settings());
        let call = ask(&trunk, "m");
        upstream.call().await;
        upstream.stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let lost = Lost { kind: Kind::Malformed, sent: Sent::Maybe, stale: false };
        assert_eq!(result(call).await, Err(lost));
        assert_eq!(loss.get(), Some(Loss::Malformed));
        assert_eq!(upstream.frame().await, Some((Op::Close, 1002_u16.to_be_bytes().to_vec())));
    });
}

#[test]
fn a_call_is_late_at_its_deadline_and_its_answer_is_nobodys() {
    run(async {
        let (trunk, loss, mut upstream) = trunk(settings());
        let began = Instant::now();
        let late = trunk.call("late", None, began, began + Duration::from_secs(2)).unwrap();
        let (id, _) = upstream.call().await;
        let lost = Lost { kind: Kind::Deadline, sent: Sent::Maybe, stale: false };
        assert_eq!(result(late).await, Err(lost));
        assert_eq!(began.elapsed(), Duration::from_secs(2));
        assert!(!trunk.has_room(9), "a silent upstream gets no more calls here");
        assert_eq!(upstream.frame().await, Some((Op::Ping, Vec::new())), "it is asked at once");
        upstream.say(Op::Pong, b"").await;
        upstream.answer(id, "1").await;
        let call = ask(&trunk, "next");
        let (next, _) = upstream.call().await;
        assert_ne!(next, id);
        upstream.answer(next, "2").await;
        assert_eq!(result(call).await.unwrap(), "2");
        assert!(trunk.has_room(9) && loss.get().is_none());
    });
}

#[test]
fn an_upstream_that_answers_no_ping_is_left() {
    run(async {
        let (trunk, loss, mut upstream) = trunk(settings());
        let began = Instant::now();
        let call = ask(&trunk, "m");
        upstream.call().await;
        assert_eq!(upstream.frame().await, Some((Op::Ping, Vec::new())));
        assert_eq!(began.elapsed(), PING);
        let lost = Lost { kind: Kind::Closed, sent: Sent::Maybe, stale: false };
        assert_eq!(result(call).await, Err(lost));
        assert_eq!((began.elapsed(), loss.get()), (2 * PING, Some(Loss::Stalled)));
    });
}

#[test]
fn an_upstream_that_answers_pings_is_kept() {
    run(async {
        let (trunk, loss, mut upstream) = trunk(settings());
        for _ in 0..5 {
            assert_eq!(upstream.frame().await, Some((Op::Ping, Vec::new())));
            upstream.say(Op::Pong, b"").await;
        }
        assert!(trunk.has_room(1) && loss.get().is_none());
    });
}

#[test]
fn dropped_calls_leave_room() {
    run(async {
        let (trunk, _, mut upstream) = trunk(settings());
        drop(ask(&trunk, "dropped"));
        assert_eq!(trunk.in_flight(), 0);
        let call = ask(&trunk, "kept");
        let (dropped, _) = upstream.call().await;
        let (kept, _) = upstream.call().await;
        upstream.answer(dropped, "1").await;
        upstream.answer(kept, "2").await;
        assert_eq!(result(call).await.unwrap(), "2");
    });
}

#[test]
fn notices_are_told_and_strays_passed_over() {
    run(async {
        let told = Rc::new(RefCell::new(Vec::new()));
        let notices = Rc::clone(&told);
        let notice: Notice = Rc::new(move |message| notices.borrow_mut().push(message.to_vec()));
        let (trunk, loss, mut upstream) = trunk(Settings { notice, ..settings() });
        let call = ask(&trunk, "m");
        let (id, _) = upstream.call().await;
        let notice = br#"{"jsonrpc":"2.0","method":"eth_subscription","params":{}}"#;
        upstream.say(Op::Text, notice).await;
        upstream.answer(id + 1, "1").await;
        upstream.answer(u64::MAX, "1").await;
        upstream.answer(id, "2").await;
        upstream.answer(id, "3").await;
        assert_eq!(result(call).await.unwrap(), "2");
        assert_eq!(*told.borrow(), [notice.to_vec()]);
        assert!(loss.get().is_none());
    });
}

#[test]
fn an_error_without_an_id_is_of_who_asked_alone() {
    run(async {
        let (trunk, _, mut upstream) = trunk(settings());
        let call = ask(&trunk, "m");
        upstream.call().await;
        let error = br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32005,"message":"slow down"}}"#;
        upstream.say(Op::Text, error).await;
        assert_eq!(call.await.unwrap().1, &error[..]);
    });
}

#[test]
fn a_retired_trunk_ends_after_its_calls() {
    run(async {
        let (trunk, loss, mut upstream) = trunk(settings());
        let call = ask(&trunk, "m");
        let (id, _) = upstream.call().await;
        trunk.retire();
        assert!(!trunk.has_room(9) && loss.get().is_none());
        upstream.answer(id, "1").await;
        assert_eq!(result(call).await.unwrap(), "1");
        assert_eq!(upstream.frame().await, None);
        assert_eq!(loss.get(), Some(Loss::Retired));
    });
}

#[test]
fn many_calls_go_out_in_one_write() {
    run(async {
        let (trunk, _, mut upstream) = trunk(settings());
        let calls: Vec<Call> = (0..50).map(|_| ask(&trunk, "m")).collect();
        upstream.read.reserve(1 << 16);
        let bytes = upstream.stream.read_buf(&mut upstream.read).await.unwrap();
        let expected: usize = trunk.out.borrow().before as usize;
        assert_eq!((bytes, expected), (expected, bytes), "all came at once");
        drop(calls);
    });
}

#[test]
fn values_on_a_local_socket_are_answered_likewise() {
    run(async {
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let (trunk, driver) = Trunk::new(Stream::Memory(ours), false, Vec::new(), settings());
        let loss = tokio::task::spawn_local(driver);
        let (first, second) = (ask(&trunk, "one"), ask(&trunk, "two"));
        let mut read = Vec::new();
        while read.iter().filter(|byte| **byte == b'\n').count() < 2 {
            theirs.read_buf(&mut read).await.unwrap();
        }
        let ids: Vec<String> = read
            .split(|byte| *byte == b'\n')
            .filter_map(|line| walk::member(line, "id"))
            .map(|id| String::from_utf8(id.to_vec()).unwrap())
            .collect();
        let answer =
            |at: usize| format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{at}}}\n", ids[at]);
        for byte in [answer(1), answer(0)].concat().bytes() {
            theirs.write_all(&[byte]).await.unwrap();
        }
        assert_eq!(result(first).await.unwrap(), "0");
        assert_eq!(result(second).await.unwrap(), "1");
        let began = Instant::now();
        let late = trunk.call("m", None, began, began + Duration::from_secs(1)).unwrap();
        assert_eq!(result(late).await.unwrap_err().kind, Kind::Deadline);
        // There is no ping; a socket that is silent about a call is left.
        assert_eq!(loss.await.unwrap(), Loss::Retired);
    });
}
