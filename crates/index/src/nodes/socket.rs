//! Calls over a WebSocket, one message for each.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Instant;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, RootCertStore, StreamOwned};
use tungstenite::client::IntoClientRequest;
use tungstenite::http::{HeaderName, HeaderValue};
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Message, WebSocket};

use super::{ANSWER_BYTES_MAX, AskError, CONNECT_TIMEOUT, NodeUrl, TIMEOUT, shorten};

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// An open WebSocket.
pub(super) struct Socket {
    socket: WebSocket<Box<dyn Stream>>,
}

fn transport(error: impl std::fmt::Display) -> AskError {
    AskError::Transport(shorten(&error.to_string()))
}

impl Socket {
    pub(super) fn connect(node: &NodeUrl) -> Result<Socket, AskError> {
        let stream = tcp(node)?;
        let stream: Box<dyn Stream> =
            if node.tls() { Box::new(secured(node, stream)?) } else { Box::new(stream) };
        let url = node.with_scheme(if node.tls() { "wss" } else { "ws" });
        let mut request =
            url.into_client_request().map_err(|_| AskError::Transport("not a url".to_owned()))?;
        for (name, value) in node.headers() {
            let parsed = HeaderName::from_bytes(name.as_bytes()).ok();
            if let Some((name, value)) = parsed.zip(HeaderValue::from_str(value).ok()) {
                request.headers_mut().insert(name, value);
            }
        }
        let bytes = usize::try_from(ANSWER_BYTES_MAX).ok();
        let config = WebSocketConfig::default().max_message_size(bytes).max_frame_size(bytes);
        let (socket, _) = tungstenite::client::client_with_config(request, stream, Some(config))
            .map_err(|error| match error {
                tungstenite::HandshakeError::Failure(tungstenite::Error::Http(answer)) => {
                    AskError::Status {
                        status: answer.status().as_u16(),
                        retry_after: None,
                        text: String::new(),
                    }
                }
                other => transport(other),
            })?;
        Ok(Socket { socket })
    }

    pub(super) fn exchange(&mut self, message: &[u8]) -> Result<Vec<u8>, AskError> {
        let begun = Instant::now();
        let text = String::from_utf8_lossy(message).into_owned();
        self.socket.send(Message::text(text)).map_err(transport)?;
        loop {
            // A node that does not answer may ping for ever.
            if begun.elapsed() > TIMEOUT {
                return Err(AskError::Transport("timeout".to_owned()));
            }
            match self.socket.read().map_err(transport)? {
                Message::Text(text) => return Ok(text.as_bytes().to_vec()),
                Message::Binary(bytes) => return Ok(bytes.to_vec()),
                Message::Close(_) => {
                    return Err(AskError::Transport("the node closed the websocket".to_owned()));
                }
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }
}

fn tcp(node: &NodeUrl) -> Result<TcpStream, AskError> {
    let mut last = AskError::Transport(format!("{} has no address", node.host()));
    for address in (node.host(), node.port()).to_socket_addrs().map_err(transport)? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(transport)?;
                stream.set_read_timeout(Some(TIMEOUT)).map_err(transport)?;
                stream.set_write_timeout(Some(TIMEOUT)).map_err(transport)?;
                return Ok(stream);
            }
            Err(error) => last = transport(error),
        }
    }
    Err(last)
}

fn secured(
    node: &NodeUrl,
    stream: TcpStream,
) -> Result<StreamOwned<ClientConnection, TcpStream>, AskError> {
    let mut roots = RootCertStore::empty();
    match node.roots() {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(own) => {
            for root in own {
                roots.add(root.clone()).map_err(transport)?;
            }
        }
    }
    let config = crate::tls::trusting(roots).map_err(transport)?;
    let name = ServerName::try_from(node.host().to_owned()).map_err(transport)?;
    let connection = ClientConnection::new(Arc::new(config), name).map_err(transport)?;
    Ok(StreamOwned::new(connection, stream))
}
