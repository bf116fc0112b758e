//! Goal: a call over a WebSocket succeeds even if the server sends other frames before the
//! response, and a failed call returns a reason within the timeout. Method: a server whose frames
//! the test writes. The first argument of `frame` is the first byte of a frame: the FIN bit 0x80
//! and the opcode (0 continuation, 1 text, 8 close, 9 ping, 10 pong).

use lab_model::samples;

use super::*;
use crate::engine::websocket::tests::server::{Server, frame};

const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of a response.
const BYTES_MAX: usize = 1_000;

fn open(server: &Server, timeout: Duration) -> io::Result<OpenResult> {
    let mut target = samples::open(1.0, 1, &["m"]).target;
    target.point_at(&format!("ws://{}", server.address)).unwrap();
    BlockingWebSocket::open(&target, &Tls::default(), timeout)
}

fn opened(server: &Server) -> BlockingWebSocket {
    match open(server, TIMEOUT).unwrap() {
        OpenResult::Open(websocket) => websocket,
        OpenResult::Refused(status) => panic!("{status}"),
    }
}

/// Returns the error of a call. The server responds to it with these bytes and closes the
/// connection.
fn failed(bytes: Vec<u8>) -> io::Error {
    let server = Server::new(move |peer| {
        peer.open()?;
        peer.read()?;
        peer.send(&bytes)?;
        peer.shut_down();
        peer.wait();
        Ok(())
    });
    opened(&server).call(b"call", BYTES_MAX, TIMEOUT).unwrap_err()
}

#[test]
fn fragments_and_pings_are_read() {
    let server = Server::new(|peer| {
        peer.open()?;
        loop {
            let call = peer.read()?;
            peer.send(&[frame(0x01, b"re "), frame(0x89, b"p")].concat())?;
            assert_eq!(peer.read_frame()?, (0x8a, b"p".to_vec()));
            peer.send(&[frame(0x8a, b""), frame(0x80, call.as_bytes())].concat())?;
        }
    });
    let mut websocket = opened(&server);
    for call in ["first", "second"] {
        let response = websocket.call(call.as_bytes(), BYTES_MAX, TIMEOUT).unwrap();
        assert_eq!(response, format!("re {call}").into_bytes());
    }
}

#[test]
fn failures_have_a_reason() {
    let close = frame(0x88, &1008u16.to_be_bytes());
    assert_eq!(failed(close).to_string(), "the server closed the WebSocket: code 1008");
    assert_eq!(failed(vec![0xf1, 0]).to_string(), "invalid frame: reserved bit is set");
    assert_eq!(failed(frame(0x81, &[b'x'; BYTES_MAX + 1])).to_string(), "the message is too long");
    assert_eq!(failed(frame(0x01, b"half")).kind(), io::ErrorKind::UnexpectedEof);
    let refusing = Server::new(|peer| peer.send(b"HTTP/1.1 404 Not Found\r\n\r\n"));
    assert!(matches!(open(&refusing, TIMEOUT), Ok(OpenResult::Refused(404))));
}

#[test]
fn silence_and_pings_do_not_extend_the_timeout() {
    let timeout = Duration::from_millis(200);
    let silent = Server::new(|peer| {
        peer.wait();
        Ok(())
    });
    let error = open(&silent, timeout).err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    let pinging = Server::new(|peer| {
        peer.open()?;
        peer.read()?;
        loop {
            peer.send(&frame(0x89, b""))?;
        }
    });
    let error = opened(&pinging).call(b"call", BYTES_MAX, timeout).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
}
