//! A proxy in front of a node that changes the responses to one method. Its responses are ones that
//! simulated nodes cannot send, such as raw bytes or odd headers, or it breaks the connection.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::harness::{SimNode, upstream_toml};

/// What the proxy does with a call of the chosen method.
#[derive(Clone)]
pub(crate) enum Tampering {
    /// Sends these bytes and closes the connection. The node does not get the call.
    Respond(Vec<u8>),
    /// Like `Respond`, after a delay.
    RespondLate(Duration, Vec<u8>),
    /// Closes the connection without a response. The node does not get the call.
    Close,
    /// Forwards the call, but closes the connection instead of returning the node's response.
    DropResponse,
    /// Like `DropResponse` for the first call of the method. Forwards later calls unchanged.
    DropFirstResponse,
    /// Sends nothing and keeps the connection open until the client closes it. The node does not
    /// get the call.
    NeverRespond,
    /// Forwards the call and adds these header lines to the node's response.
    AddHeaders(&'static str),
    /// Forwards the call and returns the node's response in chunks of seven bytes.
    RespondInChunks,
}

/// Responds with this HTTP status, these header lines and an empty body.
pub(crate) fn respond_with_status(status: u16, lines: &str) -> Tampering {
    let head = format!(
        "HTTP/1.1 {status} Said So\r\n{lines}Content-Length: 0\r\nConnection: close\r\n\r\n"
    );
    Tampering::Respond(head.into_bytes())
}

/// The proxy. It stops when it is dropped.
pub(crate) struct TamperingProxy {
    address: String,
    name: &'static str,
    /// Number of requests so far that contain the method's name.
    matching_calls: Arc<AtomicUsize>,
    /// True if the accepting thread must end.
    done: Arc<AtomicBool>,
}

impl TamperingProxy {
    /// Starts a proxy in front of `node` that applies `tampering` to calls of `method`.
    pub(crate) fn in_front_of(
        node: &SimNode,
        method: &'static str,
        tampering: Tampering,
    ) -> TamperingProxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = TamperingProxy {
            address: listener.local_addr().unwrap().to_string(),
            name: node.name,
            matching_calls: Arc::default(),
            done: Arc::default(),
        };
        let (matching_calls, done) = (Arc::clone(&proxy.matching_calls), Arc::clone(&proxy.done));
        let node_address = node.address;
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(stream) = stream else { return };
                let (matching_calls, tampering) = (Arc::clone(&matching_calls), tampering.clone());
                std::thread::spawn(move || {
                    let node = TcpStream::connect(node_address).unwrap();
                    // An error ends the thread, which closes both connections.
                    let _ = forward_calls(stream, node, method, &tampering, &matching_calls);
                });
            }
        });
        proxy
    }

    /// Number of requests so far that contain the method's name.
    pub(crate) fn matching_calls(&self) -> usize {
        self.matching_calls.load(Ordering::Relaxed)
    }

    /// The `[[upstream]]` table of this proxy in the gateway's configuration. `more` has further
    /// lines.
    pub(crate) fn to_toml(&self, more: &str) -> String {
        upstream_toml(self.name, &format!("http://{}", self.address), more)
    }
}

impl Drop for TamperingProxy {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        // Wakes the accepting thread, which then reads `done`.
        let _ = TcpStream::connect(&self.address);
    }
}

/// Forwards requests and responses until either side closes the connection. Assumes that one `read`
/// returns a whole message.
fn forward_calls(
    mut client: TcpStream,
    mut node: TcpStream,
    method: &str,
    tampering: &Tampering,
    matching_calls: &AtomicUsize,
) -> std::io::Result<()> {
    let mut bytes = vec![0; 1 << 20];
    loop {
        let length = client.read(&mut bytes)?;
        if length == 0 {
            return Ok(());
        }
        let is_tampered = String::from_utf8_lossy(&bytes[..length]).contains(method);
        if is_tampered {
            matching_calls.fetch_add(1, Ordering::Relaxed);
            match tampering {
                Tampering::Respond(answer) => return client.write_all(answer),
                Tampering::RespondLate(time, answer) => {
                    test_support::wait::pause(*time); // Sleeps: the node is late.
                    return client.write_all(answer);
                }
                Tampering::Close => return Ok(()),
                Tampering::NeverRespond => {
                    // Returns when the client closes the connection.
                    let _ = client.read(&mut bytes)?;
                    return Ok(());
                }
                Tampering::DropResponse
                | Tampering::DropFirstResponse
                | Tampering::AddHeaders(_)
                | Tampering::RespondInChunks => {}
            }
        }
        node.write_all(&bytes[..length])?;
        let length = node.read(&mut bytes)?;
        let answer = &bytes[..length];
        match tampering {
            Tampering::DropResponse if is_tampered => return Ok(()),
            Tampering::DropFirstResponse
                if is_tampered && matching_calls.load(Ordering::Relaxed) == 1 =>
            {
                return Ok(());
            }
            Tampering::AddHeaders(lines) if is_tampered => {
                client.write_all(&with_headers(answer, lines))?
            }
            Tampering::RespondInChunks if is_tampered => client.write_all(&in_chunks(answer))?,
            _ => client.write_all(answer)?,
        }
    }
}

/// Splits a response into its header section, without the empty line, and its body.
fn split_response(answer: &[u8]) -> (String, &[u8]) {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    (String::from_utf8(answer[..end].to_vec()).unwrap(), &answer[end + 4..])
}

fn with_headers(answer: &[u8], lines: &str) -> Vec<u8> {
    let (head, body) = split_response(answer);
    [format!("{head}\r\n{lines}\r\n").as_bytes(), body].concat()
}

fn in_chunks(answer: &[u8]) -> Vec<u8> {
    let (head, body) = split_response(answer);
    let lines =
        head.split("\r\n").filter(|line| !line.to_ascii_lowercase().starts_with("content-length"));
    let head = lines.collect::<Vec<_>>().join("\r\n");
    let mut response = format!("{head}\r\nTransfer-Encoding: chunked\r\n\r\n").into_bytes();
    for chunk in body.chunks(7) {
        response.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        response.extend_from_slice(chunk);
        response.extend_from_slice(b"\r\n");
    }
    response.extend_from_slice(b"0\r\n\r\n");
    response
}
