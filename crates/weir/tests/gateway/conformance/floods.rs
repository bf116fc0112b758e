//! Floods and slow clients over HTTP/2: the gateway closes each of their connections, its memory
//! stays bounded, and it serves other clients.
//!
//! Related tests are in `crates/weir/tests/gateway/bad_input`: slow and idle clients and unread
//! responses over HTTP/1.1 in `connections.rs`, large headers (10,000 headers, 10 MB in one) in
//! `requests.rs`, and unread streams in `http2.rs`.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, Framed, GOAWAY, HEADERS, PING, PREFACE,
    PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE, beginning, frame, literal, post_block,
};
use test_support::raw::Client;
use test_support::running::{Running, Weir};

/// Timeouts that are so short that a test can wait for them.
const SHORT_TIMEOUTS: &str = "[downstream]
    header_timeout = \"600ms\"
    body_timeout = \"600ms\"
    idle_timeout = \"600ms\"
    write_timeout = \"600ms\"";
/// The longest allowed time until the gateway acts on a timeout, on a busy machine.
const LATE: Duration = Duration::from_secs(15);
/// Allowed growth of the gateway's memory by all floods, in bytes. It includes memory that the
/// allocator retains.
const GROWTH_BYTES_MAX: u64 = 96 << 20;
/// Minimum bytes of one write of a flood.
const WRITE_BYTES: usize = 64 * 1024;

const CALL: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#;

/// A client that sends some bytes, and then an endless sequence of frames of the same kind.
struct Flood {
    name: &'static str,
    start: Vec<u8>,
    /// Returns the frames of a repetition. The argument is the number of the repetition. If this is
    /// `None`, the client sends nothing after `start`.
    next_frames: Option<fn(u32) -> Vec<u8>>,
    /// Pause between two repetitions. With zero, the client sends as fast as possible.
    interval: Duration,
    /// True if the client reads the gateway's frames.
    reads_responses: bool,
    /// True if the client acknowledges pings and settings, as an honest client does.
    acknowledges: bool,
}

/// How the gateway closed the connection of a flood.
struct FloodEnd {
    took: Duration,
    bytes: usize,
    /// The code of a GOAWAY, if the gateway sent one.
    code: Option<u32>,
}

/// Runs a flood until the gateway closes the connection. Returns `None` if the gateway does not
/// close it within [`LATE`].
fn flood(address: &str, flood: &Flood) -> Option<FloodEnd> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let began = Instant::now();
    let (mut bytes, mut repetition) = (0, 0);
    let mut pending = flood.start.clone();
    let mut received = ReceivedFrames::default();
    let end = |bytes, received: &ReceivedFrames| FloodEnd {
        took: began.elapsed(),
        bytes,
        code: received.code,
    };
    while began.elapsed() < LATE {
        while let Some(next_frames) = flood.next_frames
            && pending.len() < WRITE_BYTES
        {
            pending.extend(next_frames(repetition));
            repetition += 1;
            if !flood.interval.is_zero() {
                test_support::wait::pause(flood.interval); // Sleeps: the rate of the flood.
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
                while flood.reads_responses && !received.has_ended(&mut stream) {}
                return Some(end(bytes, &received));
            }
        }
        if (flood.reads_responses || flood.next_frames.is_none()) && received.has_ended(&mut stream)
        {
            return Some(end(bytes, &received));
        }
        let acknowledgements = std::mem::take(&mut received.acknowledgements);
        if flood.acknowledges {
            pending.extend(acknowledgements);
        }
    }
    None
}

fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// The frames that the gateway has sent.
#[derive(Default)]
struct ReceivedFrames {
    /// Received bytes that are not yet parsed.
    unparsed: Vec<u8>,
    /// The error code of the last GOAWAY frame. For a graceful close, the gateway first sends one
    /// with the code 0.
    code: Option<u32>,
    /// Acknowledgements that an honest client would send.
    acknowledgements: Vec<u8>,
}

impl ReceivedFrames {
    /// Reads available bytes. Returns true if the connection has ended.
    fn has_ended(&mut self, stream: &mut TcpStream) -> bool {
        let mut part = [0; 64 * 1024];
        match stream.read(&mut part) {
            Ok(bytes) => {
                self.unparsed.extend_from_slice(&part[..bytes]);
                while self.frame().is_some() {}
                bytes == 0
            }
            Err(error) => !is_late(&error),
        }
    }

    /// Parses one frame. Returns `None` if it is not complete.
    fn frame(&mut self) -> Option<()> {
        let [a, b, c, kind, flags] = *self.unparsed.first_chunk()?;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let payload = self.unparsed.get(9..9 + length)?;
        match kind {
            GOAWAY => self.code = payload.get(4..8)?.try_into().ok().map(u32::from_be_bytes),
            PING if flags & ACK == 0 => self.acknowledgements.extend(frame(PING, ACK, 0, payload)),
            SETTINGS if flags & ACK == 0 => {
                self.acknowledgements.extend(frame(SETTINGS, ACK, 0, &[]))
            }
            _ => {}
        }
        self.unparsed.drain(..9 + length);
        Some(())
    }
}

fn start_gateway() -> (Running, Running) {
    let node = Weir::node().start();
    let url = node.url();
    let text = format!("[server]\nthreads = 1\n[[upstream]]\nurl = \"{url}\"\n{SHORT_TIMEOUTS}");
    (node, Weir::serve().config(&text).start())
}

/// The start of a connection, and the headers of a request whose body is still missing.
fn open() -> Vec<u8> {
    [beginning(), frame(HEADERS, END_HEADERS, 1, &post_block())].concat()
}

/// The id of a client's stream. `number` counts the streams from 0. The ids are odd.
fn stream(number: u32) -> u32 {
    2 * number + 1
}

fn floods() -> Vec<Flood> {
    let fast = |name, start, next_frames: fn(u32) -> Vec<u8>, reads_responses| Flood {
        name,
        start,
        next_frames: Some(next_frames),
        interval: Duration::ZERO,
        reads_responses,
        acknowledges: false,
    };
    let headers = [beginning(), frame(HEADERS, 0, 1, &post_block())].concat();
    let ping: fn(u32) -> Vec<u8> = |_| frame(PING, 0, 0, &[7; 8]);
    let settings: fn(u32) -> Vec<u8> = |_| frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]);
    let drip = Duration::from_millis(50);
    let honest = |name, next_frames: fn(u32) -> Vec<u8>| Flood {
        acknowledges: true,
        ..fast(name, beginning(), next_frames, true)
    };
    vec![
        // CVE-2024-27316 and similar attacks.
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
            |number| {
                let head = frame(HEADERS, END_HEADERS, stream(number), &post_block());
                [head, frame(RST_STREAM, 0, stream(number), &8_u32.to_be_bytes())].concat()
            },
            true,
        ),
        fast(
            "rapid reset of whole requests",
            beginning(),
            |number| {
                let head = frame(HEADERS, END_HEADERS, stream(number), &post_block());
                let body = frame(DATA, END_STREAM, stream(number), CALL);
                [head, body, frame(RST_STREAM, 0, stream(number), &8_u32.to_be_bytes())].concat()
            },
            true,
        ),
        // Streams that the gateway must reset, because a window update of 0 is an error
        // (CVE-2025-8671).
        fast(
            "resets that the gateway is made to send",
            beginning(),
            |number| {
                let head = frame(HEADERS, END_HEADERS, stream(number), &post_block());
                [head, frame(WINDOW_UPDATE, 0, stream(number), &[0; 4])].concat()
            },
            true,
        ),
        // CVE-2019-9518.
        fast("empty DATA", open(), |_| frame(DATA, 0, 1, &[]), true),
        // CVE-2019-9515 and CVE-2019-9512. The client does not acknowledge the gateway's pings.
        fast("SETTINGS", beginning(), settings, true),
        fast("SETTINGS, unread", beginning(), settings, false),
        fast("PING", beginning(), ping, true),
        fast("PING, unread", beginning(), ping, false),
        fast(
            "PRIORITY",
            beginning(),
            |number| frame(PRIORITY, 0, stream(number % 1000), &[0, 0, 0, 0, 7]),
            true,
        ),
        fast("WINDOW_UPDATE", open(), |_| frame(WINDOW_UPDATE, 0, 1, &1_u32.to_be_bytes()), true),
        fast("frames of an unknown type", beginning(), |_| frame(0xbb, 0, 0, &[7; 8]), true),
        // These clients acknowledge pings, but send no requests. So the gateway disconnects them
        // after the idle timeout.
        honest("SETTINGS, by who answers", settings),
        honest("PING, by who answers", ping),
        honest("PRIORITY, by who answers", |number| {
            frame(PRIORITY, 0, stream(number % 1000), &[0, 0, 0, 0, 7])
        }),
        Flood {
            name: "nothing, by who answers",
            start: beginning(),
            next_frames: None,
            interval: drip,
            reads_responses: true,
            acknowledges: true,
        },
        // Slow clients.
        Flood {
            name: "a preface and silence",
            start: PREFACE.to_vec(),
            next_frames: None,
            interval: drip,
            reads_responses: true,
            acknowledges: false,
        },
        Flood {
            name: "settings and silence",
            start: beginning(),
            next_frames: None,
            interval: drip,
            reads_responses: true,
            acknowledges: false,
        },
        Flood {
            name: "half a frame and silence",
            start: headers[..headers.len() - 5].to_vec(),
            next_frames: None,
            interval: drip,
            reads_responses: true,
            acknowledges: false,
        },
        Flood {
            name: "headers in drips",
            start: headers,
            next_frames: Some(|_| frame(CONTINUATION, 0, 1, &literal("x", "y"))),
            interval: drip,
            reads_responses: true,
            acknowledges: false,
        },
        Flood {
            name: "a body in drips",
            start: open(),
            next_frames: Some(|_| frame(DATA, 0, 1, b" ")),
            interval: drip,
            reads_responses: true,
            acknowledges: false,
        },
    ]
}

#[test]
fn floods_are_cut() {
    let floods = floods();
    let (_node, mut gateway) = start_gateway();
    let (before, _) = gateway.memory();
    let mut wrong = Vec::new();
    for case in &floods {
        match flood(&gateway.address, case) {
            Some(FloodEnd { took, bytes, code }) => {
                println!("{}: cut after {took:?} and {bytes} bytes, code {code:?}", case.name);
                // Most floods consist of valid frames. So the gateway reports no error, or
                // ENHANCE_YOUR_CALM (11), but no protocol error.
                let is_expected =
                    matches!(code, None | Some(0 | 11)) || case.name.contains("made to send");
                assert!(is_expected, "{} ended as a protocol error: {code:?}", case.name);
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
    let (_node, mut gateway) = start_gateway();
    let floods = floods();
    let fast: Vec<&Flood> = floods.iter().filter(|flood| flood.interval.is_zero()).collect();
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
    let (_node, mut gateway) = start_gateway();
    let (before, _) = gateway.memory();
    let mut framed = Framed::begin(&gateway.address);
    // A field of 4,000 bytes goes into HPACK's dynamic table. Then references to that field follow,
    // each of one byte. So 16 kB expand to 60 MB (RFC 7541, section 7.3).
    let mut block = post_block();
    block.extend([0x40, 1, b'x', 0x7f, 0xa1, 0x1e]);
    block.extend(std::iter::repeat_n(b'y', 4_000));
    block.extend(std::iter::repeat_n(0xbe, 15_000 - block.len()));
    framed.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block));
    if let Some((is_ok, _)) = framed.answer(1) {
        assert!(!is_ok, "60 MB of headers were taken");
    }
    let (_, most) = gateway.memory();
    assert!(most < before + (16 << 20), "from {before} bytes to {most}");
    framed.send(&frame(SETTINGS, ACK, 0, &[]));
    assert_eq!(Client::connect(&gateway.address).call("/", CALL).status, 200);
    gateway.assert_sound();
}

#[test]
fn a_client_with_rare_or_slow_calls_stays_connected() {
    // A call that the gateway forwards takes longer than the idle timeout.
    let node = Weir::node().args(&["--latency", "1500ms"]).start();
    let url = node.url();
    let gateway =
        Weir::serve().config(&format!("[[upstream]]\nurl = \"{url}\"\n{SHORT_TIMEOUTS}")).start();
    let mut framed = Framed::begin(&gateway.address);
    let read = br#"{"id":1,"method":"eth_getBalance","params":["0x0000000000000000000000000000000000000001","0x1"]}"#;
    for (number, call) in [CALL, CALL, CALL, CALL, CALL, read].into_iter().enumerate() {
        let stream = stream(u32::try_from(number).unwrap());
        framed.send(&frame(HEADERS, END_HEADERS, stream, &post_block()));
        framed.send(&frame(DATA, END_STREAM, stream, call));
        let (is_ok, body) = framed.answer(stream).expect("the connection is still open");
        assert!(is_ok && body.contains("result"), "{body}");
        // Sleeps: less than the idle timeout.
        test_support::wait::pause(Duration::from_millis(400));
    }
    // The gateway closes the connection once the client sends no more requests.
    let began = Instant::now();
    while let Some(next_frame) = framed.next() {
        if next_frame.kind == PING && next_frame.flags & ACK == 0 {
            framed.send(&frame(PING, ACK, 0, &next_frame.payload));
        }
    }
    assert!(began.elapsed() < LATE, "after {:?}", began.elapsed());
}
