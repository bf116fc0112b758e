//! A proxy in front of a node that answers one method with configured bytes.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::Client;

/// The method that it is wicked about.
pub(super) const STRUCK: &str = "eth_getBalance";

/// What it does instead of answering, given the raw id of the call.
#[derive(Clone)]
pub(super) struct Deed {
    pub(super) say: fn(&str) -> Vec<u8>,
    pub(super) then: Then,
}

/// What follows on the connection.
#[derive(Clone, Copy)]
pub(super) enum Then {
    Close,
    /// Nothing more, until the gateway closes.
    Wait,
    /// The next request is read, as by an honest node.
    Serve,
    /// A moment later this, unasked, with the id after the call's; then as [`Then::Serve`].
    SayUnasked(fn(&str) -> Vec<u8>),
    /// This again and again until the gateway closes.
    Repeat(&'static [u8]),
    /// This again and again with a pause in between.
    Drip(&'static [u8]),
}

/// The node, until the test ends.
pub(super) struct Wicked {
    pub(super) url: String,
    shared: Arc<Shared>,
}

struct Shared {
    honest: String,
    deed: Mutex<Deed>,
    struck: AtomicUsize,
    ended: AtomicBool,
}

impl Wicked {
    /// Passes everything else on to the node at `honest`.
    pub(super) fn start(honest: &str) -> Wicked {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            honest: honest.to_owned(),
            deed: Mutex::new(Deed { say: |_| Vec::new(), then: Then::Close }),
            struck: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if accepting.ended.load(Ordering::Relaxed) {
                    return;
                }
                let shared = Arc::clone(&accepting);
                // The gateway may close at any point of a wicked answer.
                std::thread::spawn(move || drop(serve(&shared, stream)));
            }
        });
        Wicked { url, shared }
    }

    /// What it does from now on.
    pub(super) fn shall(&self, deed: &Deed) {
        *self.shared.deed.lock() = deed.clone();
    }

    /// How often it has been wicked.
    pub(super) fn struck(&self) -> usize {
        self.shared.struck.load(Ordering::Relaxed)
    }
}

impl Drop for Wicked {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(&self.url["http://".len()..]);
    }
}

fn serve(shared: &Shared, mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut honest = Client::connect(&shared.honest);
    loop {
        let body = read_request(&mut stream)?;
        if !body.contains(STRUCK) {
            let answer = honest.call("/", body.as_bytes());
            stream.write_all(&whole(answer.text()))?;
            continue;
        }
        shared.struck.fetch_add(1, Ordering::Relaxed);
        let id = body.split_once("\"id\":").unwrap().1;
        let id = &id[..id.find([',', '}']).unwrap()];
        let deed = shared.deed.lock().clone();
        stream.write_all(&(deed.say)(id))?;
        match deed.then {
            Then::Close => return Ok(()),
            Then::Serve => {}
            Then::Wait => {
                stream.read_to_end(&mut Vec::new())?;
                return Ok(());
            }
            Then::SayUnasked(say) => {
                // Sleeps: the unasked bytes arrive after the response.
                std::thread::park_timeout(Duration::from_millis(30));
                let next = id.parse::<u64>().unwrap() + 1;
                stream.write_all(&say(&next.to_string()))?;
            }
            Then::Repeat(bytes) => loop {
                stream.write_all(&bytes.repeat(1024))?;
            },
            Then::Drip(bytes) => loop {
                stream.write_all(bytes)?;
                std::thread::park_timeout(Duration::from_millis(20)); // Sleeps: the node is slow.
            },
        }
    }
}

/// Reads the body of the next request. The gateway always sends its length.
fn read_request(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut read = Vec::new();
    let mut part = [0; 16 * 1024];
    loop {
        let text = String::from_utf8_lossy(&read);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let lower = head.to_ascii_lowercase();
            let length = lower.split_once("content-length: ").unwrap().1;
            let length: usize = length.lines().next().unwrap().parse().unwrap();
            if body.len() == length {
                return Ok(body.to_owned());
            }
        }
        let bytes = stream.read(&mut part)?;
        if bytes == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        read.extend_from_slice(&part[..bytes]);
    }
}

/// A proper HTTP answer with this body.
pub(super) fn whole(body: &str) -> Vec<u8> {
    with("Content-Type: application/json", body)
}

/// A proper HTTP answer with this header line and body.
pub(super) fn with(line: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\n{line}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into()
}
