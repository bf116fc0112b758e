//! A proxy to a node that answers calls of one method itself, with bytes from the test. It sends
//! responses that simulated nodes cannot send.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::scene::{SimNode, entry};

/// What becomes of a call.
#[derive(Clone)]
pub(crate) enum Instead {
    /// These bytes, and then the connection ends.
    Bytes(Vec<u8>),
    /// The same after a while.
    Late(Duration, Vec<u8>),
    /// The connection ends without a word.
    Close,
    /// It is carried, and the connection ends before the node's answer is.
    Cut,
    /// The same for the first such call; others are carried whole.
    CutOnce,
    /// Nothing at all, for as long as the other side waits.
    Silence,
    /// It is carried, and the node's answer gets these header lines.
    Headers(&'static str),
    /// It is carried, and the node's answer comes in chunks of seven bytes.
    Chunks,
}

/// An HTTP answer with a status, an empty body and these header lines.
pub(crate) fn status(status: u16, lines: &str) -> Instead {
    let head = format!(
        "HTTP/1.1 {status} Said So\r\n{lines}Content-Length: 0\r\nConnection: close\r\n\r\n"
    );
    Instead::Bytes(head.into_bytes())
}

/// See the module's doc.
pub(crate) struct Line {
    address: String,
    name: &'static str,
    met: Arc<AtomicUsize>,
    done: Arc<AtomicBool>,
}

impl Line {
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
                    // An end on either side ends both.
                    let _ = carry(stream, node, method, &instead, &met);
                });
            }
        });
        line
    }

    /// Calls of the method that it has met.
    pub(crate) fn met(&self) -> usize {
        self.met.load(Ordering::Relaxed)
    }

    /// Its lines in a configuration.
    pub(crate) fn entry(&self, more: &str) -> String {
        entry(self.name, &format!("http://{}", self.address), more)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(&self.address);
    }
}

/// Requests and responses here are small enough for one read each.
fn carry(
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
        let meets = String::from_utf8_lossy(&bytes[..length]).contains(method);
        if meets {
            met.fetch_add(1, Ordering::Relaxed);
            match instead {
                Instead::Bytes(answer) => return client.write_all(answer),
                Instead::Late(time, answer) => {
                    test_support::wait::pause(*time); // Sleeps: the node is late.
                    return client.write_all(answer);
                }
                Instead::Close => return Ok(()),
                Instead::Silence => {
                    // Until the other side has had enough.
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
            Instead::Cut if meets => return Ok(()),
            Instead::CutOnce if meets && met.load(Ordering::Relaxed) == 1 => return Ok(()),
            Instead::Headers(lines) if meets => client.write_all(&with_headers(answer, lines))?,
            Instead::Chunks if meets => client.write_all(&in_chunks(answer))?,
            _ => client.write_all(answer)?,
        }
    }
}

fn parts(answer: &[u8]) -> (String, &[u8]) {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    (String::from_utf8(answer[..end].to_vec()).unwrap(), &answer[end + 4..])
}

fn with_headers(answer: &[u8], lines: &str) -> Vec<u8> {
    let (head, body) = parts(answer);
    [format!("{head}\r\n{lines}\r\n").as_bytes(), body].concat()
}

fn in_chunks(answer: &[u8]) -> Vec<u8> {
    let (head, body) = parts(answer);
    let lines =
        head.split("\r\n").filter(|line| !line.to_ascii_lowercase().starts_with("content-length"));
    let head = lines.collect::<Vec<_>>().join("\r\n");
    let mut whole = format!("{head}\r\nTransfer-Encoding: chunked\r\n\r\n").into_bytes();
    for chunk in body.chunks(7) {
        whole.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        whole.extend_from_slice(chunk);
        whole.extend_from_slice(b"\r\n");
    }
    whole.extend_from_slice(b"0\r\n\r\n");
    whole
}
