//! A WebSocket client: tungstenite over a blocking socket.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;
use tungstenite::client::IntoClientRequest;
use tungstenite::handshake::client::Response;
use tungstenite::http::{HeaderName, HeaderValue};
use tungstenite::protocol::WebSocketConfig;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{Message, WebSocket};

/// Read timeout: longer than any message takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A connected WebSocket client.
pub(crate) struct WebSocketClient(pub(crate) WebSocket<TcpStream>);

impl WebSocketClient {
    pub(crate) fn open(address: &str) -> WebSocketClient {
        WebSocketClient::try_open(address, "/", &[]).unwrap().0
    }

    /// Opens a WebSocket with further headers. Returns the HTTP status if the server refuses it.
    pub(crate) fn try_open(
        address: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<(WebSocketClient, Response), u16> {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut request = format!("ws://{}{path}", address).into_client_request().unwrap();
        for (name, value) in headers {
            let name: HeaderName = name.parse().unwrap();
            request.headers_mut().insert(name, HeaderValue::from_str(value).unwrap());
        }
        let config = WebSocketConfig::default();
        match tungstenite::client::client_with_config(request, stream, Some(config)) {
            Ok((socket, response)) => Ok((WebSocketClient(socket), response)),
            Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(refused))) => {
                Err(refused.status().as_u16())
            }
            Err(other) => panic!("{other}"),
        }
    }

    pub(crate) fn send(&mut self, message: &[u8]) {
        let text = std::str::from_utf8(message).unwrap().to_owned();
        self.0.send(Message::text(text)).unwrap();
    }

    /// Waits for the next text message. Skips pings and pongs.
    pub(crate) fn read_text(&mut self) -> String {
        loop {
            match self.0.read().unwrap() {
                Message::Text(text) => return text.to_string(),
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Sends a message and waits for the next text message.
    pub(crate) fn ask(&mut self, message: &[u8]) -> Value {
        self.send(message);
        serde_json::from_str(&self.read_text()).unwrap()
    }

    /// Waits for the server's close frame. Returns its close code and reason.
    pub(crate) fn read_close(&mut self) -> (CloseCode, String) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < deadline, "messages arrive, but the server does not close");
            match self.0.read() {
                Ok(Message::Close(Some(frame))) => {
                    let close = (frame.code, frame.reason.to_string());
                    // Further reads make tungstenite send its own close frame.
                    while self.0.read().is_ok() {}
                    return close;
                }
                Ok(Message::Close(None)) | Err(_) => panic!("closed without a close code"),
                Ok(_) => {}
            }
        }
    }
}
