//! Goal: single calls over a WebSocket succeed whatever frames the server sends between, and fail
//! with a reason, in time. Method: a server whose frames the test writes.

use lab_model::samples;

use super::*;
use crate::engine::websocket::tests::server::{Server, frame};

const TIMEOUT: Duration = Duration::from_secs(10);

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

/// Returns the error of a call that the server answers with these bytes and a closed connection.
fn failed(bytes: Vec<u8>) -> io::Error {
    let server = Server::new(move |peer| {
        peer.open()?;
        peer.read()?;
        peer.send(&bytes)?;
        peer.shut_down();
        peer.wait();
        Ok(())
    });
    opened(&server).call(b"call", 1_000, TIMEOUT).unwrap_err()
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
        let response = websocket.call(call.as_bytes(), 1_000, TIMEOUT).unwrap();
        assert_eq!(response, format!("re {call}").into_bytes());
    }
}

#[test]
fn failures_have_a_reason() {
    let close = frame(0x88, &1008u16.to_be_bytes());
    assert_eq!(failed(close).to_string(), "the server closed the WebSocket: code 1008");
    assert_eq!(failed(vec![0xf1, 0]).to_string(), "invalid frame: reserved bit is set");
    assert_eq!(failed(frame(0x81, &[b'x'; 1_001])).to_string(), "the message is too long");
    assert_eq!(failed(frame(0x01, b"half")).kind(), io::ErrorKind::UnexpectedEof);
    let refusing = Server::new(|peer| peer.send(b"HTTP/1.1 404 Not Found\r\n\r\n"));
    assert!(matches!(open(&refusing, TIMEOUT), Ok(OpenResult::Refused(404))));
}

#[test]
fn a_server_that_sends_a_byte_at_a_time_does_not_extend_the_timeout() {
    let timeout = Duration::from_millis(200);
    let silent = Server::new(|peer| {
        peer.wait();
        Ok(())
    });
    let error = open(&silent, timeout).err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    let slow = Server::new(|peer| {
        peer.open()?;
        peer.read()?;
        loop {
            peer.send(&frame(0x89, b""))?;
        }
    });
    let error = opened(&slow).call(b"call", 1_000, timeout).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
}
