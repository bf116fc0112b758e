//! A proxy in front of a node that tampers with calls of one method. It sends responses that
//! simulated nodes cannot send, such as raw bytes, cut connections or odd headers.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::scene::{SimNode, entry};

/// What the proxy does with a call of its method.
#[derive(Clone)]
pub(crate) enum Instead {
    /// Sends these bytes and closes the connection. The node does not get the call.
    Bytes(Vec<u8>),
    /// Does the same after a delay.
    Late(Duration, Vec<u8>),
    /// Closes the connection without a response. The node does not get the call.
    Close,
    /// Forwards the call, but closes the connection instead of returning the node's response.
    Cut,
    /// Does the same for the first call of the method; forwards later calls unchanged.
    CutOnce,
    /// Sends nothing and keeps the connection open until the client closes it.
    Silence,
    /// Forwards the call and adds these header lines to the node's response.
    Headers(&'static str),
    /// Forwards the call and returns the node's response in chunks of seven bytes.
    Chunks,
}

/// A response with this HTTP status, these header lines and an empty body.
pub(crate) fn status(status: u16, lines: &str) -> Instead {
    let head = format!(
        "HTTP/1.1 {status} Said So\r\n{lines}Content-Length: 0\r\nConnection: close\r\n\r\n"
    );
    Instead::Bytes(head.into_bytes())
}

/// The proxy that this module's doc describes.
pub(crate) struct Line {
    address: String,
    name: &'static str,
    /// Number of calls of the method so far.
    met: Arc<AtomicUsize>,
    /// True if the accepting thread must end.
    done: Arc<AtomicBool>,
}

impl Line {
    /// Starts a proxy in front of `node` that treats calls of `method` as `instead` says.
    pub(crate) fn before(node: &SimNode, method: &'static str, instead: Instead) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let line = Line { address, name: node.name, met: Arc::default(), done: Arc::default() };
        let (met, done, node) = (Arc::clone(&line.met), Arc::clone(&line.done), node.address);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(stream), met, instead) = (stream, Arc::clone(&met), instead.clone()) else {
                    return;
                };
                std::thread::spawn(move || {
                    let node = TcpStream::connect(node).unwrap();
                    // An error ends the thread, which closes both connections.
                    let _ = forward_calls(stream, node, method, &instead, &met);
                });
            }
        });
        line
    }

    /// Number of calls of the method so far.
    pub(crate) fn met(&self) -> usize {
        self.met.load(Ordering::Relaxed)
    }

    /// The `[[upstream]]` table of this proxy, with further lines.
    pub(crate) fn entry(&self, more: &str) -> String {
        entry(self.name, &format!("http://{}", self.address), more)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        // Wakes the accepting thread, which then sees `done`.
        let _ = TcpStream::connect(&self.address);
    }
}

/// Passes requests and responses until either side closes. Each is small enough for one `read`.
fn forward_calls(
    mut client: TcpStream,
    mut node: TcpStream,
    method: &str,
    instead: &Instead,
    met: &AtomicUsize,
) -> std::io::Result<()> {
    let mut bytes = vec![0; 1 << 20];
    loop {
        let length = client.read(&mut bytes)?;
        if length == 0 {
            return Ok(());
        }
        let is_tampered = String::from_utf8_lossy(&bytes[..length]).contains(method);
        if is_tampered {
            met.fetch_add(1, Ordering::Relaxed);
            match instead {
                Instead::Bytes(answer) => return client.write_all(answer),
                Instead::Late(time, answer) => {
                    test_support::wait::pause(*time); // Sleeps: the node is late.
                    return client.write_all(answer);
                }
                Instead::Close => return Ok(()),
                Instead::Silence => {
                    // Returns when the client closes the connection.
                    let _ = client.read(&mut bytes)?;
                    return Ok(());
                }
                Instead::Cut | Instead::CutOnce | Instead::Headers(_) | Instead::Chunks => {}
            }
        }
        node.write_all(&bytes[..length])?;
        let length = node.read(&mut bytes)?;
        let answer = &bytes[..length];
        match instead {
            Instead::Cut if is_tampered => return Ok(()),
            Instead::CutOnce if is_tampered && met.load(Ordering::Relaxed) == 1 => return Ok(()),
            Instead::Headers(lines) if is_tampered => {
                client.write_all(&with_headers(answer, lines))?
            }
            Instead::Chunks if is_tampered => client.write_all(&in_chunks(answer))?,
            _ => client.write_all(answer)?,
        }
    }
}

/// Splits a response into its head, without the empty line, and its body.
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
