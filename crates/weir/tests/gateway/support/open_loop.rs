//! Open-loop calls over keep-alive connections while the gateway changes.
//!
//! Each client follows HTTP: it opens a new connection after a response with `Connection: close`,
//! and if the old one is closed before it sends. It never retries: a call without a response is a
//! failure.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;

/// Longer than any call may take; what hangs is a fault.
const PATIENCE: Duration = Duration::from_secs(20);

/// The plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) connections: u32,
    pub(crate) calls_per_second: u32,
}

/// What clients saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) calls: u64,
    pub(crate) faults: Vec<String>,
    /// Connections opened after the first of each client.
    pub(crate) reconnects: u64,
}

/// Sends calls while `story` runs. New connections use the current address of `target`.
pub(crate) fn under_load(load: Load, target: &Mutex<String>, story: impl FnOnce()) -> Seen {
    let stop = AtomicBool::new(false);
    let seen = Mutex::new(Seen::default());
    let reconnects = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for number in 0..load.connections {
            let (stop, seen, reconnects) = (&stop, &seen, &reconnects);
            scope.spawn(move || {
                let mut client = Client { target, number, connection: Connection::default() };
                let mine = client.run(load, stop);
                reconnects.fetch_add(client.connection.opened, Ordering::Relaxed);
                let mut seen = seen.lock();
                seen.calls += mine.calls;
                seen.faults.extend(mine.faults);
            });
        }
        // Also when the story fails, so that the clients end.
        let _stop = Stop(&stop);
        story();
    });
    let mut seen = seen.into_inner();
    seen.reconnects = reconnects.into_inner().saturating_sub(u64::from(load.connections));
    seen
}

/// Sets a flag when it is dropped.
pub(crate) struct Stop<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

struct Client<'a> {
    target: &'a Mutex<String>,
    number: u32,
    connection: Connection,
}

impl Client<'_> {
    fn run(&mut self, load: Load, stop: &AtomicBool) -> Seen {
        let mut seen = Seen::default();
        let pause = Duration::from_secs(1) * load.connections / load.calls_per_second;
        let began = Instant::now() + pause * self.number / load.connections;
        for turn in 0u32.. {
            if stop.load(Ordering::Acquire) {
                break;
            }
            let planned = began + pause * turn;
            while let Some(left) = planned.checked_duration_since(Instant::now()) {
                std::thread::park_timeout(left); // Sleeps: the planned rate.
            }
            let body = call(self.number, turn);
            seen.calls += 1;
            if let Err(fault) = self.call(turn, &body) {
                self.connection.stream = None;
                seen.faults.push(format!("{:?}: {body} -> {fault}", began.elapsed()));
            }
        }
        seen
    }

    fn call(&mut self, turn: u32, body: &str) -> Result<(), String> {
        let target = self.target.lock().clone();
        let (head, body) =
            self.connection.call(&target, "", body).map_err(|error| error.to_string())?;
        let read = serde_json::from_str::<Value>(&body);
        let right = head.starts_with("http/1.1 200")
            && read.is_ok_and(|answer| answer["id"] == turn && !answer["result"].is_null());
        if right { Ok(()) } else { Err(format!("{head}{body}")) }
    }
}

/// A keep-alive connection of a client that follows HTTP.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    stream: Option<TcpStream>,
    /// Number of connections opened so far.
    pub(crate) opened: u64,
}

impl Connection {
    /// Sends a call with further header lines, and returns the head in lower case and the body. It
    /// opens a connection to `target` if there is none or the server has closed it.
    ///
    /// # Errors
    ///
    /// If the connection ends before the response.
    pub(crate) fn call(
        &mut self,
        target: &str,
        lines: &str,
        body: &str,
    ) -> std::io::Result<(String, String)> {
        let mut stream = match self.stream.take().filter(is_open) {
            Some(stream) => stream,
            None => {
                self.opened += 1;
                let stream = TcpStream::connect(target)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream
            }
        };
        let request = format!(
            "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{lines}\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        let (head, body) = answer(&mut stream)?;
        if !head.contains("\r\nconnection: close\r\n") {
            self.stream = Some(stream);
        }
        Ok((head, body))
    }
}

/// Whether the other side has not closed it.
fn is_open(stream: &TcpStream) -> bool {
    let nonblocking = |on| stream.set_nonblocking(on).is_ok();
    let open = nonblocking(true)
        && stream.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    open && nonblocking(false)
}

/// One answer: its head in lower case, and its body.
fn answer(stream: &mut TcpStream) -> std::io::Result<(String, String)> {
    let mut read = Vec::new();
    let mut part = [0; 16 * 1024];
    loop {
        if let Some(at) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&read[..at + 4]).to_ascii_lowercase();
            let length = head.split_once("\r\ncontent-length: ").and_then(|(_, rest)| {
                rest.split_once("\r\n").and_then(|(digits, _)| digits.parse::<usize>().ok())
            });
            let length = length.ok_or(ErrorKind::InvalidData)?;
            if read.len() >= at + 4 + length {
                let body = String::from_utf8_lossy(&read[at + 4..]).into_owned();
                return Ok((head, body));
            }
        }
        match stream.read(&mut part)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            bytes => read.extend_from_slice(&part[..bytes]),
        }
    }
}

/// Repeatable reads, half of which no cache can know.
pub(crate) fn call(client: u32, turn: u32) -> String {
    let account = format!("0x{:040x}", u64::from(turn) << 8 | u64::from(client));
    let (method, params) = match turn % 4 {
        0 => ("eth_blockNumber", "[]".to_owned()),
        1 => ("eth_getBlockByNumber", "[\"latest\",false]".to_owned()),
        2 => ("eth_getBalance", format!("[\"{account}\",\"latest\"]")),
        _ => ("eth_getBalance", format!("[\"{account}\",\"{:#x}\"]", 1 + turn % 990)),
    };
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{turn},\"method\":\"{method}\",\"params\":{params}}}")
}
