//! A faulty node: a proxy in front of an honest node. It responds to calls of one method with bytes
//! that a test chooses, and forwards all other calls.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::Client;

/// The method whose calls get the faulty response.
pub(super) const BAD_METHOD: &str = "eth_getBalance";

/// What the node does with a call of [`BAD_METHOD`].
#[derive(Clone)]
pub(super) struct Misbehaviour {
    /// Returns the bytes to send. The argument is the raw id of the call.
    pub(super) response: fn(&str) -> Vec<u8>,
    /// What the node does after these bytes.
    pub(super) then: FollowUp,
}

/// What the node does on the connection after its response.
#[derive(Clone, Copy)]
pub(super) enum FollowUp {
    /// Closes the connection.
    Close,
    /// Sends nothing more and waits until the gateway closes the connection.
    Wait,
    /// Reads the next request, as an honest node does.
    Serve,
    /// After 30 ms, sends an unsolicited response, as if for a call with the next id. Then behaves
    /// like [`FollowUp::Serve`].
    SendUnsolicited(fn(&str) -> Vec<u8>),
    /// Sends these bytes without end until the gateway closes the connection.
    Repeat(&'static [u8]),
    /// Sends these bytes every 20 ms until the gateway closes the connection.
    Drip(&'static [u8]),
}

/// A running faulty node. It accepts connections until it is dropped.
pub(super) struct FaultyNode {
    pub(super) url: String,
    shared: Arc<Shared>,
}

/// The state that the node's threads share.
struct Shared {
    /// Address of the honest node.
    honest: String,
    misbehaviour: Mutex<Misbehaviour>,
    /// Number of calls of [`BAD_METHOD`] so far.
    faulty_call_count: AtomicUsize,
    /// True if the accepting thread must end.
    ended: AtomicBool,
}

impl FaultyNode {
    /// Starts a faulty node that passes all other methods on to the node at `honest`.
    pub(super) fn start(honest: &str) -> FaultyNode {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            honest: honest.to_owned(),
            misbehaviour: Mutex::new(Misbehaviour {
                response: |_| Vec::new(),
                then: FollowUp::Close,
            }),
            faulty_call_count: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if accepting.ended.load(Ordering::Relaxed) {
                    return;
                }
                let shared = Arc::clone(&accepting);
                // The gateway may close the connection at any point of a faulty response.
                std::thread::spawn(move || drop(serve(&shared, stream)));
            }
        });
        FaultyNode { url, shared }
    }

    /// Sets what the node does with later calls of [`BAD_METHOD`].
    pub(super) fn set_misbehaviour(&self, misbehaviour: &Misbehaviour) {
        *self.shared.misbehaviour.lock() = misbehaviour.clone();
    }

    /// Number of calls of [`BAD_METHOD`] so far.
    pub(super) fn faulty_call_count(&self) -> usize {
        self.shared.faulty_call_count.load(Ordering::Relaxed)
    }
}

impl Drop for FaultyNode {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        // Wakes the accepting thread, which then reads `ended`.
        let _ = TcpStream::connect(&self.url["http://".len()..]);
    }
}

fn serve(shared: &Shared, mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut honest = Client::connect(&shared.honest);
    loop {
        let body = read_request(&mut stream)?;
        if !body.contains(BAD_METHOD) {
            let answer = honest.call("/", body.as_bytes());
            stream.write_all(&ok_response(answer.text()))?;
            continue;
        }
        shared.faulty_call_count.fetch_add(1, Ordering::Relaxed);
        let id = body.split_once("\"id\":").unwrap().1;
        let id = &id[..id.find([',', '}']).unwrap()];
        let misbehaviour = shared.misbehaviour.lock().clone();
        stream.write_all(&(misbehaviour.response)(id))?;
        match misbehaviour.then {
            FollowUp::Close => return Ok(()),
            FollowUp::Serve => {}
            FollowUp::Wait => {
                stream.read_to_end(&mut Vec::new())?;
                return Ok(());
            }
            FollowUp::SendUnsolicited(response) => {
                // Sleeps: the unasked bytes arrive after the response.
                std::thread::park_timeout(Duration::from_millis(30));
                let next = id.parse::<u64>().unwrap() + 1;
                stream.write_all(&response(&next.to_string()))?;
            }
            FollowUp::Repeat(bytes) => loop {
                stream.write_all(&bytes.repeat(1024))?;
            },
            FollowUp::Drip(bytes) => loop {
                stream.write_all(bytes)?;
                std::thread::park_timeout(Duration::from_millis(20)); // Sleeps: the node is slow.
            },
        }
    }
}

/// Reads the body of the next request. The gateway always sends `Content-Length`.
fn read_request(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut received = Vec::new();
    let mut chunk = [0; 16 * 1024];
    loop {
        let text = String::from_utf8_lossy(&received);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let lower = head.to_ascii_lowercase();
            let length = lower.split_once("content-length: ").unwrap().1;
            let length: usize = length.lines().next().unwrap().parse().unwrap();
            if body.len() == length {
                return Ok(body.to_owned());
            }
        }
        let bytes = stream.read(&mut chunk)?;
        if bytes == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        received.extend_from_slice(&chunk[..bytes]);
    }
}

/// A valid HTTP response with this body.
pub(super) fn ok_response(body: &str) -> Vec<u8> {
    ok_response_with("Content-Type: application/json", body)
}

/// A valid HTTP response with this header line and body.
pub(super) fn ok_response_with(line: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\n{line}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into()
}
