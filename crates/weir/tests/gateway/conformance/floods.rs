//! Floods and slow clients over HTTP/2: each connection is closed, memory stays bounded, and other
//! clients are served. `crates/weir/tests/gateway/bad_input/connections.rs` has those over HTTP/1.1
//! (slow heads and bodies, idle connections, unread responses), `requests.rs` has large headers
//! (10,000 headers, 10 MB in one), and `http2.rs` has unread streams.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, Framed, GOAWAY, HEADERS, PING, PREFACE,
    PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE, beginning, frame, literal, post_block,
};
use test_support::raw::Client;
use test_support::running::{Running, Weir};

/// Times short enough to wait for.
const SHORT_TIMES: &str = "[downstream]
    header_timeout = \"600ms\"
    body_timeout = \"600ms\"
    idle_timeout = \"600ms\"
    write_timeout = \"600ms\"";
/// When something that is due after those is late, on a busy machine.
const LATE: Duration = Duration::from_secs(15);
/// Memory that floods may take, all together: what allocators keep included.
const GROWTH_BYTES_MAX: u64 = 96 << 20;
/// What one write of a flood holds.
const WRITE_BYTES: usize = 64 * 1024;

const CALL: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#;

/// Endless frames after a beginning.
struct Flood {
    name: &'static str,
    start: Vec<u8>,
    /// The repeated frames, by repetition number; `None` sends nothing.
    again: Option<fn(u32) -> Vec<u8>>,
    /// Pause between two repetitions; `None` sends as fast as possible.
    every: Duration,
    /// True if the client reads the gateway's frames.
    reads: bool,
    /// Whether its pings and settings are answered, as an honest client would.
    answers: bool,
}

/// What became of it.
struct End {
    took: Duration,
    bytes: usize,
    /// The code of a GOAWAY, if one came before the end.
    code: Option<u32>,
}

/// Floods until the connection is closed; none if it never is.
fn flood(address: &str, flood: &Flood) -> Option<End> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let began = Instant::now();
    let (mut bytes, mut turn) = (0, 0);
    let mut pending = flood.start.clone();
    let mut said = Said::default();
    let end = |bytes, said: &Said| End { took: began.elapsed(), bytes, code: said.code };
    while began.elapsed() < LATE {
        while let Some(again) = flood.again
            && pending.len() < WRITE_BYTES
        {
            pending.extend(again(turn));
            turn += 1;
            if !flood.every.is_zero() {
                test_support::wait::pause(flood.every); // Sleeps: the rate of the flood.
                break;
            }
        }
        match stream.write(&pending) {
            Ok(written) => {
                bytes += written;
                pending.drain(..written);
            }
            Err(error) if is_late(&error) => {}
            Err(_) => {
                while flood.reads && !said.has_ended(&mut stream) {}
                return Some(end(bytes, &said));
            }
        }
        if (flood.reads || flood.again.is_none()) && said.has_ended(&mut stream) {
            return Some(end(bytes, &said));
        }
        let answers = std::mem::take(&mut said.answers);
        if flood.answers {
            pending.extend(answers);
        }
    }
    None
}

fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// The frames that the gateway sends.
#[derive(Default)]
struct Said {
    rest: Vec<u8>,
    /// The code of the last GOAWAY: a graceful one, of code 0, comes first.
    code: Option<u32>,
    /// What it is to be answered with.
    answers: Vec<u8>,
}

impl Said {
    /// Takes what has come; whether that was the end.
    fn has_ended(&mut self, stream: &mut TcpStream) -> bool {
        let mut part = [0; 64 * 1024];
        match stream.read(&mut part) {
            Ok(bytes) => {
                self.rest.extend_from_slice(&part[..bytes]);
                while self.frame().is_some() {}
                bytes == 0
            }
            Err(error) => !is_late(&error),
        }
    }

    /// Reads one frame; none if it is not whole.
    fn frame(&mut self) -> Option<()> {
        let [a, b, c, kind, flags] = *self.rest.first_chunk()?;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let payload = self.rest.get(9..9 + length)?;
        match kind {
            GOAWAY => self.code = payload.get(4..8)?.try_into().ok().map(u32::from_be_bytes),
            PING if flags & ACK == 0 => self.answers.extend(frame(PING, ACK, 0, payload)),
            SETTINGS if flags & ACK == 0 => self.answers.extend(frame(SETTINGS, ACK, 0, &[])),
            _ => {}
        }
        self.rest.drain(..9 + length);
        Some(())
    }
}

fn gateway() -> (Running, Running) {
    let node = Weir::node().start();
    let url = node.url();
    let text = format!("[server]\nthreads = 1\n[[upstream]]\nurl = \"{url}\"\n{SHORT_TIMES}");
    (node, Weir::serve().config(&text).start())
}

fn open() -> Vec<u8> {
    [beginning(), frame(HEADERS, END_HEADERS, 1, &post_block())].concat()
}

/// Streams are odd, from one on.
fn stream(turn: u32) -> u32 {
    2 * turn + 1
}

fn floods() -> Vec<Flood> {
    let fast = |name, start, again: fn(u32) -> Vec<u8>, reads| Flood {
        name,
        start,
        again: Some(again),
        every: Duration::ZERO,
        reads,
        answers: false,
    };
    let headers = [beginning(), frame(HEADERS, 0, 1, &post_block())].concat();
    let ping: fn(u32) -> Vec<u8> = |_| frame(PING, 0, 0, &[7; 8]);
    let settings: fn(u32) -> Vec<u8> = |_| frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]);
    let drip = Duration::from_millis(50);
    let honest = |name, again: fn(u32) -> Vec<u8>| Flood {
        answers: true,
        ..fast(name, beginning(), again, true)
    };
    vec![
        // CVE-2024-27316 and its kin.
        fast(
            "CONTINUATION",
            headers.clone(),
            |_| frame(CONTINUATION, 0, 1, &literal("x", "y")),
            true,
        ),
        fast("empty CONTINUATION", headers.clone(), |_| frame(CONTINUATION, 0, 1, &[]), true),
        // CVE-2023-44487.
        fast(
            "rapid reset",
            beginning(),
            |turn| {
                let head = frame(HEADERS, END_HEADERS, stream(turn), &post_block());
                [head, frame(RST_STREAM, 0, stream(turn), &8_u32.to_be_bytes())].concat()
            },
            true,
        ),
        fast(
            "rapid reset of whole requests",
            beginning(),
            |turn| {
                let head = frame(HEADERS, END_HEADERS, stream(turn), &post_block());
                let body = frame(DATA, END_STREAM, stream(turn), CALL);
                [head, body, frame(RST_STREAM, 0, stream(turn), &8_u32.to_be_bytes())].concat()
            },
            true,
        ),
        // Streams that the gateway resets for the client (CVE-2025-8671): each is updated by
        // nothing.
        fast(
            "resets that the gateway is made to send",
            beginning(),
            |turn| {
                let head = frame(HEADERS, END_HEADERS, stream(turn), &post_block());
                [head, frame(WINDOW_UPDATE, 0, stream(turn), &[0; 4])].concat()
            },
            true,
        ),
        // CVE-2019-9518.
        fast("empty DATA", open(), |_| frame(DATA, 0, 1, &[]), true),
        // CVE-2019-9515 and CVE-2019-9512; who floods does not answer our own pings.
        fast("SETTINGS", beginning(), settings, true),
        fast("SETTINGS, unread", beginning(), settings, false),
        fast("PING", beginning(), ping, true),
        fast("PING, unread", beginning(), ping, false),
        fast(
            "PRIORITY",
            beginning(),
            |turn| frame(PRIORITY, 0, stream(turn % 1000), &[0, 0, 0, 0, 7]),
            true,
        ),
        fast("WINDOW_UPDATE", open(), |_| frame(WINDOW_UPDATE, 0, 1, &1_u32.to_be_bytes()), true),
        fast("frames of an unknown type", beginning(), |_| frame(0xbb, 0, 0, &[7; 8]), true),
        // Those who answer our pings are cut once they have asked nothing for the idle timeout.
        honest("SETTINGS, by who answers", settings),
        honest("PING, by who answers", ping),
        honest("PRIORITY, by who answers", |turn| {
            frame(PRIORITY, 0, stream(turn % 1000), &[0, 0, 0, 0, 7])
        }),
        Flood {
            name: "nothing, by who answers",
            start: beginning(),
            again: None,
            every: drip,
            reads: true,
            answers: true,
        },
        // Slow ones.
        Flood {
            name: "a preface and silence",
            start: PREFACE.to_vec(),
            again: None,
            every: drip,
            reads: true,
            answers: false,
        },
        Flood {
            name: "settings and silence",
            start: beginning(),
            again: None,
            every: drip,
            reads: true,
            answers: false,
        },
        Flood {
            name: "half a frame and silence",
            start: headers[..headers.len() - 5].to_vec(),
            again: None,
            every: drip,
            reads: true,
            answers: false,
        },
        Flood {
            name: "headers in drips",
            start: headers,
            again: Some(|_| frame(CONTINUATION, 0, 1, &literal("x", "y"))),
            every: drip,
            reads: true,
            answers: false,
        },
        Flood {
            name: "a body in drips",
            start: open(),
            again: Some(|_| frame(DATA, 0, 1, b" ")),
            every: drip,
            reads: true,
            answers: false,
        },
    ]
}

#[test]
fn floods_are_cut() {
    let floods = floods();
    let (_node, mut gateway) = gateway();
    let (before, _) = gateway.memory();
    let mut wrong = Vec::new();
    for case in &floods {
        match flood(&gateway.address, case) {
            Some(End { took, bytes, code }) => {
                println!("{}: cut after {took:?} and {bytes} bytes, code {code:?}", case.name);
                // No error, or ENHANCE_YOUR_CALM: its frames were right, there were too many.
                let calm =
                    matches!(code, None | Some(0 | 11)) || case.name.contains("made to send");
                assert!(calm, "{} is no flood, but wrong: code {code:?}", case.name);
            }
            None => wrong.push(format!("{} is never cut", case.name)),
        }
        let began = Instant::now();
        assert_eq!(Client::connect(&gateway.address).call("/", CALL).status, 200);
        if began.elapsed() > Duration::from_secs(2) {
            wrong.push(format!("{}: the next client waited {:?}", case.name, began.elapsed()));
        }
        gateway.assert_sound();
    }
    let (now, most) = gateway.memory();
    println!("{} floods; memory: {before} bytes before, {now} after, {most} at most", floods.len());
    assert!(most < before + GROWTH_BYTES_MAX, "from {before} bytes to {most}");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn others_are_served_during_a_flood() {
    let (_node, mut gateway) = gateway();
    let floods = floods();
    let fast: Vec<&Flood> = floods.iter().filter(|flood| flood.every.is_zero()).collect();
    assert!(fast.len() > 10, "only {} floods", fast.len());
    let address = gateway.address.clone();
    std::thread::scope(|scope| {
        for flood in &fast {
            let address = &address;
            scope.spawn(move || self::flood(address, flood));
        }
        let mut client = Client::connect(&address);
        let mut slowest = Duration::ZERO;
        for _ in 0..200 {
            let began = Instant::now();
            assert_eq!(client.call("/", CALL).status, 200);
            slowest = slowest.max(began.elapsed());
        }
        println!("slowest of 200 calls: {slowest:?}");
        assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    });
    gateway.assert_sound();
}

#[test]
fn a_header_bomb_is_refused_and_its_connection_goes_on_or_ends() {
    let (_node, mut gateway) = gateway();
    let (before, _) = gateway.memory();
    let mut framed = Framed::begin(&gateway.address);
    // One field of 4,000 bytes into the dynamic table, then references to it of one byte each: 60
    // MB in 16 kB (RFC 7541, section 7.3).
    let mut block = post_block();
    block.extend([0x40, 1, b'x', 0x7f, 0xa1, 0x1e]);
    block.extend(std::iter::repeat_n(b'y', 4_000));
    block.extend(std::iter::repeat_n(0xbe, 15_000 - block.len()));
    framed.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block));
    if let Some((fine, _)) = framed.answer(1) {
        assert!(!fine, "60 MB of headers were taken");
    }
    let (_, most) = gateway.memory();
    assert!(most < before + (16 << 20), "from {before} bytes to {most}");
    framed.send(&frame(SETTINGS, ACK, 0, &[]));
    assert_eq!(Client::connect(&gateway.address).call("/", CALL).status, 200);
    gateway.assert_sound();
}

#[test]
fn who_asks_now_and_then_or_waits_long_stays() {
    // Longer than the idle timeout.
    let node = Weir::node().args(&["--latency", "1500ms"]).start();
    let url = node.url();
    let gateway =
        Weir::serve().config(&format!("[[upstream]]\nurl = \"{url}\"\n{SHORT_TIMES}")).start();
    let mut framed = Framed::begin(&gateway.address);
    let read = br#"{"id":1,"method":"eth_getBalance","params":["0x0000000000000000000000000000000000000001","0x1"]}"#;
    for (turn, call) in [CALL, CALL, CALL, CALL, CALL, read].into_iter().enumerate() {
        let stream = stream(u32::try_from(turn).unwrap());
        framed.send(&frame(HEADERS, END_HEADERS, stream, &post_block()));
        framed.send(&frame(DATA, END_STREAM, stream, call));
        let (fine, body) = framed.answer(stream).expect("it is still there");
        assert!(fine && body.contains("result"), "{body}");
        // Sleeps: each request is late, but in time.
        test_support::wait::pause(Duration::from_millis(400));
    }
    // And is told to leave once it asks nothing.
    let began = Instant::now();
    while let Some(came) = framed.next() {
        if came.kind == PING && came.flags & ACK == 0 {
            framed.send(&frame(PING, ACK, 0, &came.payload));
        }
    }
    assert!(began.elapsed() < LATE, "after {:?}", began.elapsed());
}
