//! Measures how long a new head takes to reach 10,000 subscribers, and the memory per subscriber. A
//! *head* is the header of a new block, as `eth_subscribe` sends it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use super::Bench;
use super::machine::{self, MIB};
use super::row::{Row, RowSpec};
use super::server::{Contender, PROBE, Server};

/// Number of clients that subscribe to new heads.
const SUBSCRIBERS: usize = 10_000;
/// Number of heads to measure.
const HEADS: u64 = 8;
/// Options of the node. The block time is long enough to notify all subscribers.
const NODE: [&str; 2] = ["--block-time", "2s"];
/// Maximum time from the node's notification to its arrival at the last subscriber, in
/// milliseconds.
const FAN_OUT_MAX_MS: f64 = 250.0;
/// Maximum resident memory per subscriber, in KiB.
const MEMORY_MAX_KIB: f64 = 20.0;
/// Timeout of the whole measurement.
const TIMEOUT: Duration = Duration::from_secs(120);
const SUBSCRIBE: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":["newHeads"]}"#;
const UPGRADE: &[u8] =
    b"GET / HTTP/1.1\r\nHost: bench\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";

/// The arrivals of heads, by height.
#[derive(Debug, Default)]
struct Arrivals(BTreeMap<u64, Arrival>);

/// The times at which the first and the last client received a head, and the number of clients that
/// received it.
#[derive(Debug)]
struct Arrival {
    first: Instant,
    last: Instant,
    clients: usize,
}

impl Arrivals {
    /// Records that a client received the head at a height now.
    fn record(&mut self, number: u64) {
        let now = Instant::now();
        let first_arrival = Arrival { first: now, last: now, clients: 0 };
        let arrival = self.0.entry(number).or_insert(first_arrival);
        arrival.last = now;
        arrival.clients += 1;
    }

    /// Returns the heights of the heads that all clients have received.
    fn complete_heights(&self, clients: usize) -> Vec<u64> {
        let complete = self.0.iter().filter(|(_, arrival)| arrival.clients == clients);
        complete.map(|(number, _)| *number).collect()
    }
}

/// Measures the fan-out (the sending of a head to all subscribers) and the memory of many
/// subscribers.
///
/// # Errors
/// Fails if the gateway or the node does not run, or a client cannot subscribe.
pub(crate) fn measure_fan_out(bench: &Bench) -> Result<Vec<Row>> {
    let node = Server::start_simulated(&bench.weir, &NODE, PROBE)?;
    let url = format!("ws://{}", node.address);
    let ours = Contender::WeirUncached { label: "weir", program: bench.weir.clone(), url };
    let server = Server::start(&ours, PROBE)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (received, reference, mebibytes) = LocalSet::new().block_on(&runtime, async {
        let run = measure(&server, node.address);
        tokio::time::timeout(TIMEOUT, run).await.context("the measurement timed out")?
    })?;
    let heads = received.complete_heights(SUBSCRIBERS);
    ensure!(heads.len() as u64 >= HEADS, "only {} heads reached all clients", heads.len());
    let mut figures = Vec::new();
    for number in heads {
        let (Some(received), Some(reference)) = (received.0.get(&number), reference.0.get(&number))
        else {
            // The reference client subscribes last, so it may miss the first heads.
            continue;
        };
        let ms = received.last.saturating_duration_since(reference.first).as_secs_f64() * 1e3;
        eprintln!("subscribers: head {number} reached all clients after {ms:.1} ms");
        figures.push(ms);
    }
    let kib = mebibytes * 1024.0 / SUBSCRIBERS as f64;
    let row = |case, unit, ours: &[f64], limit: f64| {
        // The target is the largest allowed ratio of our figure to the limit.
        let row_spec = RowSpec { case, unit, peer: "the limit", target: Some(1.0) };
        Row::compare(&row_spec, ours, &vec![limit; ours.len()], Vec::new())
    };
    Ok(vec![
        row("a head to 10,000 subscribers", "ms until the last", &figures, FAN_OUT_MAX_MS),
        row("10,000 subscribers", "KiB resident each", &[kib], MEMORY_MAX_KIB),
    ])
}

/// Subscribes all clients and records heads. Returns the arrivals at the gateway's clients, and the
/// arrivals at the reference, which is one client of the node itself. The third value is the
/// gateway's memory for its clients, in MiB.
async fn measure(server: &Server, node: SocketAddr) -> Result<(Arrivals, Arrivals, f64)> {
    let before = machine::resident_bytes(server.group())?;
    let (received, reference) =
        (Rc::<RefCell<Arrivals>>::default(), Rc::<RefCell<Arrivals>>::default());
    let mut clients = Vec::with_capacity(SUBSCRIBERS);
    for client in 0..SUBSCRIBERS {
        let subscription = subscribe(server.address).await;
        clients.push(subscription.with_context(|| format!("client {client}"))?);
    }
    eprintln!("subscribers: {SUBSCRIBERS} clients have subscribed");
    let bytes = machine::resident_bytes(server.group())?.saturating_sub(before);
    for (stream, unread) in clients {
        tokio::task::spawn_local(record_heads(stream, unread, Rc::clone(&received)));
    }
    let (stream, unread) = subscribe(node).await?;
    tokio::task::spawn_local(record_heads(stream, unread, Rc::clone(&reference)));
    // The first heads arrive while clients still connect, so not all clients receive them.
    while (received.borrow().complete_heights(SUBSCRIBERS).len() as u64) < HEADS {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok((received.take(), reference.take(), bytes as f64 / MIB))
}

/// Opens a subscription; returns the stream and the bytes after the response.
async fn subscribe(address: SocketAddr) -> Result<(TcpStream, Vec<u8>)> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    stream.write_all(UPGRADE).await?;
    let mut buffer = Vec::with_capacity(256);
    while !buffer.ends_with(b"\r\n\r\n") {
        ensure!(stream.read_buf(&mut buffer).await? > 0, "closed before the WebSocket was open");
    }
    ensure!(buffer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&buffer));
    // The byte 0x81 begins a whole text message. A client must mask the payload of a frame, which
    // the bit 0x80 announces. A mask of zeros does not change the payload.
    let length = u8::try_from(SUBSCRIBE.len())?;
    stream.write_all(&[&[0x81, 0x80 | length, 0, 0, 0, 0], SUBSCRIBE.as_bytes()].concat()).await?;
    buffer.clear();
    loop {
        ensure!(stream.read_buf(&mut buffer).await? > 0, "closed before the response");
        if let Some((start, end)) = find_frame(&buffer) {
            let response = String::from_utf8_lossy(&buffer[start..end]);
            ensure!(response.contains("\"result\""), "{response}");
            buffer.drain(..end);
            buffer.shrink_to_fit();
            return Ok((stream, buffer));
        }
    }
}

/// Returns the start and the end of the payload of the first WebSocket frame, or `None` if the
/// frame is incomplete.
fn find_frame(bytes: &[u8]) -> Option<(usize, usize)> {
    // The second byte has the length. The values 126 and 127 announce a longer field with the
    // length (RFC 6455, section 5.2).
    let (start, length) = match bytes.get(1)? & 0x7f {
        126 => (4, usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]))),
        127 => (10, usize::try_from(u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?)).ok()?),
        length => (2, usize::from(length)),
    };
    (bytes.len() >= start + length).then_some((start, start + length))
}

/// Records each head until the connection ends. `buffer` holds bytes that were already received.
async fn record_heads(mut stream: TcpStream, mut buffer: Vec<u8>, received: Rc<RefCell<Arrivals>>) {
    loop {
        while let Some((start, end)) = find_frame(&buffer) {
            if let Some(number) = parse_height(&buffer[start..end]) {
                received.borrow_mut().record(number);
            }
            buffer.drain(..end);
        }
        if !matches!(stream.read_buf(&mut buffer).await, Ok(1..)) {
            return;
        }
    }
}

/// Parses the height in the JSON of a header.
fn parse_height(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let (_, after_prefix) = text.split_once("\"number\":\"0x")?;
    let (digits, _) = after_prefix.split_once('"')?;
    u64::from_str_radix(digits, 16).ok()
}
