//! An HTTP server that records requests. The tests use it as a proxy in front of a node, as the
//! server to which a collector forwards spans, and as a collector.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::support::harness::SimNode;
use test_support::raw::Client;

/// One recorded request.
#[derive(Clone)]
pub(super) struct RecordedRequest {
    /// Names, in lower case, and values.
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl RecordedRequest {
    /// Returns the values of a header.
    pub(super) fn values(&self, name: &str) -> Vec<&str> {
        let matching = self.headers.iter().filter(|(known, _)| known == name);
        matching.map(|(_, value)| value.as_str()).collect()
    }

    /// Returns the body as text. Invalid UTF-8 is replaced.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Returns the status and the body of the response to a request, or `None` for no response.
type Respond = dyn Fn(&RecordedRequest) -> Option<(u16, Vec<u8>)> + Send + Sync;

/// The server. Its threads run until the test's process ends.
pub(super) struct Recorder {
    pub(super) address: String,
    requests: Arc<Mutex<Vec<RecordedRequest>>>,
}

impl Recorder {
    pub(super) fn start(
        respond: impl Fn(&RecordedRequest) -> Option<(u16, Vec<u8>)> + Send + Sync + 'static,
    ) -> Recorder {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests: Arc<Mutex<Vec<RecordedRequest>>> = Arc::default();
        let (recorded, respond) = (Arc::clone(&requests), Arc::new(respond));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (recorded, respond) = (Arc::clone(&recorded), Arc::clone(&respond));
                std::thread::spawn(move || serve(stream.unwrap(), &recorded, &*respond));
            }
        });
        Recorder { address, requests }
    }

    /// Starts a recording proxy in front of a node. If there is a status, calls of `method` get a
    /// response with it, and the proxy does not forward them.
    pub(super) fn in_front_of(
        node: &SimNode,
        method: &'static str,
        status: Option<u16>,
    ) -> Recorder {
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

    /// Returns the recorded requests whose body contains this text.
    pub(super) fn requests(&self, text: &str) -> Vec<RecordedRequest> {
        let requests = self.requests.lock();
        requests.iter().filter(|request| request.text().contains(text)).cloned().collect()
    }
}

/// Records the requests of a connection, and responds to them.
fn serve(stream: TcpStream, recorded: &Mutex<Vec<RecordedRequest>>, respond: &Respond) {
    let mut reader = BufReader::new(&stream);
    while let Some(request) = read(&mut reader) {
        recorded.lock().push(request.clone());
        let Some((status, body)) = respond(&request) else {
            // Waits until the client closes the connection.
            let mut rest = Vec::new();
            let _ended = reader.read_to_end(&mut rest);
            return;
        };
        let header_section = format!(
            "HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        if (&stream).write_all(&[header_section.as_bytes(), &body].concat()).is_err() {
            return;
        }
    }
}

/// Reads a request, which must have a `Content-Length` if it has a body. Returns `None` if the
/// connection ends instead.
fn read(reader: &mut impl BufRead) -> Option<RecordedRequest> {
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
    Some(RecordedRequest { headers, body })
}
