//! An HTTP/2 server that ends each connection with a GOAWAY frame while a request is in flight. The
//! h2 crate's server cannot exclude a request that it has received, so this one writes its frames
//! itself. The exchange is that of grafana/k6#6234 and codesenberg/bombardier#82.

use std::io::{Read, Result, Write};
use std::net::{TcpListener, TcpStream};

use super::super::server::{Request, Server};

const PREFACE_BYTES: usize = 24;
/// Types of frames (RFC 9113, 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const ACK_OR_END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// The HPACK index of `:status: 200` (RFC 7541, appendix A).
const STATUS_200: u8 = 0x88;

/// Starts a server. Each connection serves this many requests, and excludes the next one by GOAWAY.
pub(super) fn start(served: u32) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut server = Server::new(Request::ok);
    server.address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // The client may end the connection at any time.
            std::thread::spawn(move || converse(stream?, served));
        }
    });
    server
}

/// Serves a connection until it excludes a request or the client ends it.
fn converse(mut stream: TcpStream, served: u32) -> Result<()> {
    let mut preface = [0; PREFACE_BYTES];
    stream.read_exact(&mut preface)?;
    write_frame(&mut stream, SETTINGS, 0, 0, &[])?;
    let (mut requests, mut last_served) = (0, 0);
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let (kind, flags) = (head[3], head[4]);
        let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload)?;
        match kind {
            SETTINGS if flags & ACK_OR_END_STREAM == 0 => {
                write_frame(&mut stream, SETTINGS, ACK_OR_END_STREAM, 0, &[])?;
            }
            HEADERS if requests == served => {
                // The last stream that the server may process, and NO_ERROR.
                let no_error = [0; 4];
                let payload = [u32::to_be_bytes(last_served), no_error].concat();
                write_frame(&mut stream, GOAWAY, 0, 0, &payload)?;
                // The server reads until the client closes the connection, so that the frame is not
                // lost by a reset.
                return std::io::copy(&mut stream, &mut std::io::sink()).map(|_| ());
            }
            HEADERS => requests += 1,
            DATA if flags & ACK_OR_END_STREAM != 0 => {
                let call: serde_json::Value = serde_json::from_slice(&payload).unwrap();
                let body = format!(r#"{{"jsonrpc":"2.0","id":{},"result":"0x1"}}"#, call["id"]);
                write_frame(&mut stream, HEADERS, END_HEADERS, id, &[STATUS_200])?;
                write_frame(&mut stream, DATA, ACK_OR_END_STREAM, id, body.as_bytes())?;
                last_served = id;
            }
            _ => {}
        }
    }
}

fn write_frame(stream: &mut TcpStream, kind: u8, flags: u8, id: u32, payload: &[u8]) -> Result<()> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend_from_slice(&id.to_be_bytes());
    frame.extend_from_slice(payload);
    stream.write_all(&frame)
}
