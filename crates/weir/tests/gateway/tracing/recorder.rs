//! An HTTP server that records requests: a relay in front of a node, the receiver behind a
//! collector, or a collector that never responds.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::support::scene::SimNode;
use test_support::raw::Client;

/// One recorded request.
#[derive(Clone)]
pub(super) struct Recorded {
    /// Names in lower case.
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Recorded {
    /// Returns the values of a header.
    pub(super) fn values(&self, name: &str) -> Vec<&str> {
        let matching = self.headers.iter().filter(|(known, _)| known == name);
        matching.map(|(_, value)| value.as_str()).collect()
    }

    /// Returns the body as text; bytes that are not UTF-8 are replaced.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Returns status and body of the response; `None` never responds.
type Respond = dyn Fn(&Recorded) -> Option<(u16, Vec<u8>)> + Send + Sync;

/// The server. Its threads end with the test's process.
pub(super) struct Recorder {
    pub(super) address: String,
    requests: Arc<Mutex<Vec<Recorded>>>,
}

impl Recorder {
    pub(super) fn start(
        respond: impl Fn(&Recorded) -> Option<(u16, Vec<u8>)> + Send + Sync + 'static,
    ) -> Recorder {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests: Arc<Mutex<Vec<Recorded>>> = Arc::default();
        let (recorded, respond) = (Arc::clone(&requests), Arc::new(respond));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (recorded, respond) = (Arc::clone(&recorded), Arc::clone(&respond));
                std::thread::spawn(move || serve(stream.unwrap(), &recorded, &*respond));
            }
        });
        Recorder { address, requests }
    }

    /// Starts a relay before a node. Calls of `method` are not relayed but get this status.
    pub(super) fn relay(node: &SimNode, method: &'static str, status: Option<u16>) -> Recorder {
        let address = node.address.to_string();
        Recorder::start(move |request| match status {
            Some(status) if request.text().contains(method) => Some((status, b"no".to_vec())),
            _ => {
                let answer = Client::connect(&address).call("/", &request.body);
                Some((answer.status, answer.body))
            }
        })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the requests so far whose body has this text.
    pub(super) fn requests(&self, text: &str) -> Vec<Recorded> {
        let requests = self.requests.lock();
        requests.iter().filter(|request| request.text().contains(text)).cloned().collect()
    }
}

/// Answers the requests of a connection and records them.
fn serve(stream: TcpStream, recorded: &Mutex<Vec<Recorded>>, respond: &Respond) {
    let mut reader = BufReader::new(&stream);
    while let Some(request) = read(&mut reader) {
        recorded.lock().push(request.clone());
        let Some((status, body)) = respond(&request) else {
            // Waits until the client closes the connection.
            let mut rest = Vec::new();
            let _ended = reader.read_to_end(&mut rest);
            return;
        };
        let head = format!(
            "HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        if (&stream).write_all(&[head.as_bytes(), &body].concat()).is_err() {
            return;
        }
    }
}

/// Reads a request with a length; `None` if the connection ends instead.
fn read(reader: &mut impl BufRead) -> Option<Recorded> {
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(": ") {
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let mut body = vec![0; length.map_or(0, |(_, value)| value.parse().unwrap())];
    reader.read_exact(&mut body).ok()?;
    Some(Recorded { headers, body })
}
