//! The target of a case: a small JSON-RPC server over HTTP/1.1 within the test, with a thread for
//! each connection. The case plants its responses to calls of the load. It responds like a healthy
//! node to the calls that the lab makes before and after a run.

use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use test_support::raw::read_request;

/// A call of the load.
pub(crate) struct Call {
    /// Time since the first call of the load.
    pub(crate) at: Duration,
    /// Number of the call, from 0.
    pub(crate) nth: u64,
    pub(crate) method: String,
}

/// A response to a call.
pub(crate) enum Reply {
    /// A result, as JSON.
    Result(String),
    /// A JSON-RPC error.
    Error(i64),
    /// A result under another HTTP status.
    ResultUnder(u16),
    /// A body that is not JSON-RPC under an HTTP status.
    Text(u16, &'static str),
    /// A result with another id.
    OtherId,
    /// No response; the connection stays open.
    Nothing,
    /// No response; the server closes the connection.
    Closed,
}

/// Returns a successful response.
pub(crate) fn ok() -> Reply {
    Reply::Result("\"0x1\"".to_owned())
}

/// Chooses the response to a call.
pub(crate) type Behaviour = Box<dyn Fn(&Call) -> Reply + Send + Sync>;

/// A running target. It ends when this value is dropped.
pub(crate) struct Server {
    pub(crate) port: u16,
    is_stopped: Arc<AtomicBool>,
}

impl Server {
    pub(crate) fn start(behaviour: Behaviour) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_stopped = Arc::new(AtomicBool::new(false));
        let state =
            Arc::new(State { behaviour, first_call: Mutex::new(None), count: AtomicU64::new(0) });
        let thread_is_stopped = Arc::clone(&is_stopped);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if thread_is_stopped.load(Ordering::Relaxed) {
                    return;
                }
                let state = Arc::clone(&state);
                std::thread::spawn(move || serve(&stream.unwrap(), &state));
            }
        });
        Server { port, is_stopped }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        // The connection wakes the thread that accepts.
        let _wakeup = TcpStream::connect(("127.0.0.1", self.port));
    }
}

struct State {
    behaviour: Behaviour,
    /// Time of the first call of the load.
    first_call: Mutex<Option<Instant>>,
    /// Number of calls of the load so far.
    count: AtomicU64,
}

/// Limits the number of calls that are served at a time. Further calls wait.
pub(crate) struct Slots {
    free: Mutex<usize>,
    slot_freed: Condvar,
}

impl Slots {
    pub(crate) fn new(count: usize) -> Slots {
        Slots { free: Mutex::new(count), slot_freed: Condvar::new() }
    }

    /// Waits for a slot and occupies it for the given time.
    pub(crate) fn hold(&self, time: Duration) {
        let mut free = self.free.lock();
        while *free == 0 {
            self.slot_freed.wait(&mut free);
        }
        *free -= 1;
        drop(free);
        wait(time);
        *self.free.lock() += 1;
        self.slot_freed.notify_one();
    }
}

#[expect(clippy::disallowed_methods)]
pub(crate) fn wait(time: Duration) {
    // Sleeps: the planted service time must really pass.
    std::thread::sleep(time);
}

/// Responds to the calls of one connection, one at a time.
fn serve(stream: &TcpStream, state: &State) {
    let _ = stream.set_nodelay(true);
    let mut reader = BufReader::new(stream);
    let mut stream = stream;
    while let Some(body) = read_request(&mut reader) {
        let call: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let id = &call["id"];
        let result = |value: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{value}}}"#);
        let (status, response_body) = match reply_to(
            call["method"].as_str().unwrap_or_default(),
            state,
        ) {
            Reply::Result(value) => (200, result(&value)),
            Reply::ResultUnder(status) => (status, result("\"0x1\"")),
            Reply::Error(code) => (
                200,
                format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"planted"}}}}"#
                ),
            ),
            Reply::Text(status, text) => (status, text.to_owned()),
            Reply::OtherId => (200, r#"{"jsonrpc":"2.0","id":"other","result":"0x1"}"#.to_owned()),
            Reply::Nothing => continue,
            Reply::Closed => return,
        };
        let head = format!("HTTP/1.1 {status} Planted\r\nContent-Type: application/json\r\n");
        let length = response_body.len();
        let response = format!("{head}Content-Length: {length}\r\n\r\n{response_body}");
        if stream.write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}

fn reply_to(method: &str, state: &State) -> Reply {
    match method {
        "web3_clientVersion" => Reply::Result("\"planted\"".to_owned()),
        "eth_chainId" | "net_version" | "eth_blockNumber" => Reply::Result("\"0x64\"".to_owned()),
        "eth_call" | "eth_getLogs" => {
            let at = state.first_call.lock().get_or_insert_with(Instant::now).elapsed();
            let nth = state.count.fetch_add(1, Ordering::Relaxed);
            (state.behaviour)(&Call { at, nth, method: method.to_owned() })
        }
        _ => Reply::Error(-32_601),
    }
}
