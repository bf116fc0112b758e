//! An open-loop load generator with keep-alive connections. It runs while a test changes the
//! gateway.
//!
//! Each client opens a new connection after a response with `Connection: close`, or if the server
//! closes the old one before the client sends. The client never retries, so a call without a
//! response is a failure.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;

/// Read timeout: a call that takes longer is a failure.
const PATIENCE: Duration = Duration::from_secs(20);

/// How much load to send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) connections: u32,
    /// The rate of all connections together.
    pub(crate) calls_per_second: u32,
}

/// The results of all clients.
#[derive(Debug, Default)]
pub(crate) struct LoadResult {
    pub(crate) calls: u64,
    /// A description of each failed call.
    pub(crate) failures: Vec<String>,
    /// Number of connections opened, not counting the first of each client.
    pub(crate) reconnects: u64,
}

/// Runs `scenario` while clients send calls. `target` holds the gateway's address. The scenario may
/// replace it, and connections that clients open later then use the new one.
pub(crate) fn run_under_load(
    load: Load,
    target: &Mutex<String>,
    scenario: impl FnOnce(),
) -> LoadResult {
    let stop = AtomicBool::new(false);
    let total = Mutex::new(LoadResult::default());
    let connections_opened = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for number in 0..load.connections {
            let (stop, total, connections_opened) = (&stop, &total, &connections_opened);
            scope.spawn(move || {
                let connection = KeepAliveConnection::default();
                let mut client = Client { target, number, connection };
                let result = client.run(load, stop);
                connections_opened.fetch_add(client.connection.opened, Ordering::Relaxed);
                let mut total = total.lock();
                total.calls += result.calls;
                total.failures.extend(result.failures);
            });
        }
        // The guard stops the clients even if the scenario panics.
        let _stop = StopGuard(&stop);
        scenario();
    });
    let mut total = total.into_inner();
    let connections_opened = connections_opened.into_inner();
    total.reconnects = connections_opened.saturating_sub(u64::from(load.connections));
    total
}

/// Sets a flag when it is dropped.
pub(crate) struct StopGuard<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

struct Client<'a> {
    target: &'a Mutex<String>,
    number: u32,
    connection: KeepAliveConnection,
}

impl Client<'_> {
    fn run(&mut self, load: Load, stop: &AtomicBool) -> LoadResult {
        let mut result = LoadResult::default();
        let interval = Duration::from_secs(1) * load.connections / load.calls_per_second;
        let start = Instant::now() + interval * self.number / load.connections;
        for call_number in 0u32.. {
            if stop.load(Ordering::Acquire) {
                break;
            }
            let planned = start + interval * call_number;
            while let Some(remaining) = planned.checked_duration_since(Instant::now()) {
                std::thread::park_timeout(remaining); // Sleeps: the planned rate.
            }
            let body = call_body(self.number, call_number);
            result.calls += 1;
            if let Err(failure) = self.call(call_number, &body) {
                self.connection.stream = None;
                result.failures.push(format!("{:?}: {body} -> {failure}", start.elapsed()));
            }
        }
        result
    }

    fn call(&mut self, call_number: u32, body: &str) -> Result<(), String> {
        let target = self.target.lock().clone();
        let (head, body) =
            self.connection.call(&target, "", body).map_err(|error| error.to_string())?;
        let parsed = serde_json::from_str::<Value>(&body);
        let is_success = head.starts_with("http/1.1 200")
            && parsed
                .is_ok_and(|answer| answer["id"] == call_number && !answer["result"].is_null());
        if is_success { Ok(()) } else { Err(format!("{head}{body}")) }
    }
}

/// A keep-alive connection that reconnects as this module's description says.
#[derive(Debug, Default)]
pub(crate) struct KeepAliveConnection {
    stream: Option<TcpStream>,
    /// Number of connections opened so far.
    pub(crate) opened: u64,
}

impl KeepAliveConnection {
    /// Sends a call with further header lines. Returns the status line and headers of the response
    /// in lower case, and its body. Opens a connection to `target` if there is none or the server
    /// has closed it.
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
        let (head, body) = read_response(&mut stream)?;
        if !head.contains("\r\nconnection: close\r\n") {
            self.stream = Some(stream);
        }
        Ok((head, body))
    }
}

/// True if the server has not closed the connection and there are no unread bytes.
fn is_open(stream: &TcpStream) -> bool {
    let nonblocking = |on| stream.set_nonblocking(on).is_ok();
    let open = nonblocking(true)
        && stream.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    open && nonblocking(false)
}

/// Reads one response. Returns its status line and headers in lower case, and its body.
fn read_response(stream: &mut TcpStream) -> std::io::Result<(String, String)> {
    let mut received = Vec::new();
    let mut chunk = [0; 16 * 1024];
    loop {
        if let Some(head_end) = received.windows(4).position(|four| four == b"\r\n\r\n") {
            let body_start = head_end + 4;
            let head = String::from_utf8_lossy(&received[..body_start]).to_ascii_lowercase();
            let length = head.split_once("\r\ncontent-length: ").and_then(|(_, rest)| {
                rest.split_once("\r\n").and_then(|(digits, _)| digits.parse::<usize>().ok())
            });
            let length = length.ok_or(ErrorKind::InvalidData)?;
            if received.len() >= body_start + length {
                let body = String::from_utf8_lossy(&received[body_start..]).into_owned();
                return Ok((head, body));
            }
        }
        match stream.read(&mut chunk)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            bytes => received.extend_from_slice(&chunk[..bytes]),
        }
    }
}

/// The body of a client's call, which is the same in every run. Half of the calls read the balance
/// of an account that no other call reads, so that no cache has the response.
pub(crate) fn call_body(client: u32, call_number: u32) -> String {
    let account = format!("0x{:040x}", u64::from(call_number) << 8 | u64::from(client));
    let (method, params) = match call_number % 4 {
        0 => ("eth_blockNumber", "[]".to_owned()),
        1 => ("eth_getBlockByNumber", "[\"latest\",false]".to_owned()),
        2 => ("eth_getBalance", format!("[\"{account}\",\"latest\"]")),
        _ => ("eth_getBalance", format!("[\"{account}\",\"{:#x}\"]", 1 + call_number % 990)),
    };
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{call_number},\"method\":\"{method}\",\"params\":{params}}}"
    )
}
