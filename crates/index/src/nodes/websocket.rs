//! Calls over a WebSocket, one message per exchange.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Instant;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use tungstenite::client::IntoClientRequest;
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Message, WebSocket};

use super::endpoint::Endpoint;
use super::{CONNECT_TIMEOUT, CallError, EXCHANGE_TIMEOUT, MESSAGE_BYTES_MAX, excerpt};

/// A TCP connection with or without TLS.
trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// An open WebSocket.
pub(super) struct WebSocketConnection {
    socket: WebSocket<Box<dyn Stream>>,
}

/// Maps an error of a library.
fn transport_error(error: impl std::fmt::Display) -> CallError {
    CallError::Transport(excerpt(&error.to_string()))
}

impl WebSocketConnection {
    /// Connects to a node and opens the WebSocket.
    pub(super) fn connect(node: &Endpoint) -> Result<WebSocketConnection, CallError> {
        let stream = connect_tcp(node)?;
        let stream: Box<dyn Stream> =
            if node.url.tls() { Box::new(connect_tls(node, stream)?) } else { Box::new(stream) };
        let url = node.with_scheme(if node.url.tls() { "wss" } else { "ws" });
        let mut request =
            url.into_client_request().map_err(|_| CallError::Transport("not a url".to_owned()))?;
        request.headers_mut().extend(node.headers.iter().cloned());
        let bytes_max = usize::try_from(MESSAGE_BYTES_MAX).ok();
        let config =
            WebSocketConfig::default().max_message_size(bytes_max).max_frame_size(bytes_max);
        let (socket, _) = tungstenite::client::client_with_config(request, stream, Some(config))
            .map_err(|error| match error {
                tungstenite::HandshakeError::Failure(tungstenite::Error::Http(response)) => {
                    let (status, text) = (response.status().as_u16(), String::new());
                    CallError::Status { status, retry_after: None, text }
                }
                other => transport_error(other),
            })?;
        Ok(WebSocketConnection { socket })
    }

    /// Sends a request as a message, and returns the next message as the response.
    pub(super) fn exchange(&mut self, message: &[u8]) -> Result<Vec<u8>, CallError> {
        let started = Instant::now();
        let text = String::from_utf8_lossy(message).into_owned();
        self.socket.send(Message::text(text)).map_err(transport_error)?;
        loop {
            // Each ping resets the read timeout, so a node that sends only pings would never time
            // out.
            if started.elapsed() > EXCHANGE_TIMEOUT {
                return Err(CallError::Transport("timeout".to_owned()));
            }
            match self.socket.read().map_err(transport_error)? {
                Message::Text(text) => return Ok(text.as_bytes().to_vec()),
                Message::Binary(bytes) => return Ok(bytes.to_vec()),
                Message::Close(_) => {
                    return Err(CallError::Transport("the node closed the websocket".to_owned()));
                }
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }
}

/// Connects to the first address of a node that accepts the connection.
fn connect_tcp(node: &Endpoint) -> Result<TcpStream, CallError> {
    let mut last_error = CallError::Transport(format!("{} has no address", node.url.host()));
    for address in (node.url.host(), node.url.port()).to_socket_addrs().map_err(transport_error)? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(transport_error)?;
                stream.set_read_timeout(Some(EXCHANGE_TIMEOUT)).map_err(transport_error)?;
                stream.set_write_timeout(Some(EXCHANGE_TIMEOUT)).map_err(transport_error)?;
                return Ok(stream);
            }
            Err(error) => last_error = transport_error(error),
        }
    }
    Err(last_error)
}

fn connect_tls(
    node: &Endpoint,
    stream: TcpStream,
) -> Result<StreamOwned<ClientConnection, TcpStream>, CallError> {
    let roots = match &node.roots {
        None => wire::tls::public_roots(),
        Some(certificates) => {
            wire::tls::build_roots(certificates.iter().cloned()).map_err(transport_error)?
        }
    };
    let config = wire::tls::build_client(roots).map_err(transport_error)?;
    let name = ServerName::try_from(node.url.host().to_owned()).map_err(transport_error)?;
    let connection = ClientConnection::new(Arc::new(config), name).map_err(transport_error)?;
    Ok(StreamOwned::new(connection, stream))
}
