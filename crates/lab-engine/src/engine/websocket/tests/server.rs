//! A WebSocket server whose messages a test writes. Each connection has a thread and a blocking
//! socket.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Returns the value of Sec-WebSocket-Accept for a request.
pub(crate) fn accept(request: &str) -> String {
    let (_, key) = request.split_once("Sec-WebSocket-Key: ").unwrap();
    let key = key.lines().next().unwrap();
    let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()))
}

/// Encodes an unmasked frame. Its first byte has the FIN bit (0x80) and the opcode (RFC 6455,
/// section 5.2).
pub(crate) fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let length = payload.len();
    let mut bytes = vec![first];
    match length {
        0..=125 => bytes.push(length as u8),
        126..=0xffff => {
            bytes.push(126);
            bytes.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            bytes.push(127);
            bytes.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(payload);
    bytes
}

/// Reads a masked frame: its first byte and its payload.
pub(crate) fn read_masked(stream: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut header = [0; 2];
    stream.read_exact(&mut header)?;
    assert!(header[1] & 0x80 != 0, "a client masks its frames");
    let mut extended = [0; 8];
    let length = match header[1] & 0x7f {
        126 => {
            stream.read_exact(&mut extended[6..])?;
            u64::from_be_bytes(extended)
        }
        127 => {
            stream.read_exact(&mut extended)?;
            u64::from_be_bytes(extended)
        }
        short => u64::from(short),
    };
    let mut key = [0; 4];
    stream.read_exact(&mut key)?;
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload)?;
    payload.iter_mut().zip(key.iter().cycle()).for_each(|(byte, key)| *byte ^= key);
    Ok((header[0], payload))
}

/// The server's side of a connection.
pub(crate) struct Peer {
    stream: TcpStream,
    /// Head of the request that opened the WebSocket.
    pub(crate) request: String,
    /// Number of the connection on this server, from 0.
    pub(crate) connection: usize,
}

impl Peer {
    /// Sends the response of an accepted handshake.
    pub(crate) fn open(&mut self) -> io::Result<()> {
        let accept = accept(&self.request);
        let head = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        );
        self.send(head.as_bytes())
    }

    /// Reads the next text message; an error if the client has closed the connection.
    pub(crate) fn read(&mut self) -> io::Result<String> {
        loop {
            match read_masked(&mut self.stream)? {
                (0x81, payload) => return Ok(String::from_utf8(payload).unwrap()),
                (0x88, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => {}
            }
        }
    }

    /// Reads the next frame: its first byte and its payload.
    pub(crate) fn read_frame(&mut self) -> io::Result<(u8, Vec<u8>)> {
        read_masked(&mut self.stream)
    }

    /// Ends the server's side of the connection.
    pub(crate) fn shut_down(&mut self) {
        // The client may have reset the connection.
        let _ignored = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Sends raw bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends a text message.
    pub(crate) fn text(&mut self, text: &str) -> io::Result<()> {
        self.send(&frame(0x81, text.as_bytes()))
    }

    /// Waits until the client closes the connection.
    pub(crate) fn wait(&mut self) {
        while read_masked(&mut self.stream).is_ok() {}
    }
}

/// A server on an unused port. Its threads end with the test process.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts a server that serves each connection with this function. An error ends the
    /// connection.
    pub(crate) fn new(
        serve: impl Fn(&mut Peer) -> io::Result<()> + Send + Sync + 'static,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serve = Arc::new(serve);
        std::thread::spawn(move || {
            for (connection, stream) in listener.incoming().enumerate() {
                let (serve, mut stream) = (Arc::clone(&serve), stream.unwrap());
                std::thread::spawn(move || {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let mut byte = [0];
                        if stream.read_exact(&mut byte).is_err() {
                            return;
                        }
                        head.push(byte[0]);
                    }
                    let request = String::from_utf8(head).unwrap();
                    // The client may end the connection at any time.
                    let _ended = serve(&mut Peer { stream, request, connection });
                });
            }
        });
        Server { address }
    }
}
