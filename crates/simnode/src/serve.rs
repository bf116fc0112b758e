//! The server of a node: HTTP/1.1 over TCP or any other stream, WebSocket on the same port
//! (`serve/websocket.rs`) and a local socket (`serve/ipc.rs`). `Node::serve` processes the
//! requests; this module accepts connections, and closes and opens the port.

mod body;
mod dispatch;
mod frame;
mod ipc;
mod outgoing;
mod socket;
mod subscribe;
mod websocket;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use self::body::ResponseBody;
pub use self::ipc::{IpcServer, listen_ipc};
use self::socket::Socket;
use crate::node::{Delivery, Node};

/// Maximum number of open connections of one listener. Further connections wait in the system's
/// queue.
pub const CONNECTIONS_MAX: usize = 20_000;
/// Maximum number of bytes of a request body, as in geth (`rpc` package, `defaultBodyLimit`).
pub const BODY_BYTES_MAX: usize = 5 * 1024 * 1024;
/// Length of the system's queue of connections.
const BACKLOG: u32 = 1_024;

/// The options of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ListenOptions {
    /// The address. Port 0 picks a free port.
    pub addr: SocketAddr,
    /// True if other listeners may share the port (`SO_REUSEPORT`), one per core.
    pub shared: bool,
}

/// The server of a node. Dropping it closes the port and all connections.
pub struct NodeServer {
    addr: SocketAddr,
    node: Arc<Node>,
    /// True if the port is open.
    up: Arc<AtomicBool>,
    commands: mpsc::Sender<Command>,
}

/// A command to the listener's task. The task sends the result over the contained channel.
enum Command {
    Down(oneshot::Sender<io::Result<()>>),
    Up(oneshot::Sender<io::Result<()>>),
}

/// The error with which a fault makes hyper end a connection.
#[derive(Debug, thiserror::Error)]
#[error("connection broken on purpose")]
struct ConnectionBroken;

impl Node {
    /// Serves the node over TCP on the current tokio runtime. Port 0 picks a free port.
    ///
    /// # Errors
    /// Fails if the process cannot listen on the address.
    pub fn listen(self: &Arc<Self>, addr: SocketAddr) -> io::Result<NodeServer> {
        self.listen_with(ListenOptions { addr, shared: false })
    }

    /// Serves the node over TCP with options.
    ///
    /// # Errors
    /// Fails if the process cannot listen on the address.
    pub fn listen_with(self: &Arc<Self>, options: ListenOptions) -> io::Result<NodeServer> {
        let listener = bind(options)?;
        let addr = listener.local_addr()?;
        let up = Arc::new(AtomicBool::new(true));
        // A caller waits for the result of its command, so one command is usually in flight.
        let (commands, inbox) = mpsc::channel(1);
        // These options have the actual port, so that `NodeServer::open_port` opens the same port
        // again.
        let reopen_options = ListenOptions { addr, ..options };
        tokio::spawn(run(Arc::clone(self), listener, reopen_options, Arc::clone(&up), inbox));
        Ok(NodeServer { addr, node: Arc::clone(self), up, commands })
    }
}

impl NodeServer {
    /// Returns the address with its actual port.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the node.
    #[must_use]
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Returns true if the port is open.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    /// Closes the port and resets every connection, as when the process is killed. Returns when
    /// both are done.
    pub async fn close_port(&self) {
        let (reply_tx, reply_rx) = oneshot::channel();
        if self.commands.send(Command::Down(reply_tx)).await.is_ok() {
            // Without a reply, the listener has ended, so the port is closed in this case too.
            let _ = reply_rx.await;
        }
    }

    /// Opens the same port again.
    ///
    /// # Errors
    /// Fails if another process has taken the port, or if the runtime ends.
    pub async fn open_port(&self) -> io::Result<()> {
        let (reply_tx, reply_rx) = oneshot::channel();
        let ended_error = || io::Error::other("the listener has ended");
        self.commands.send(Command::Up(reply_tx)).await.map_err(|_| ended_error())?;
        reply_rx.await.map_err(|_| ended_error())?
    }
}

/// Serves one connection until it ends. A fault that would reset a TCP connection closes the stream
/// instead, because the stream may not be a TCP socket.
pub async fn serve_connection<S>(node: Arc<Node>, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    serve_stream(node, stream, Arc::default()).await;
}

/// Serves one connection until it ends. A fault sets `reset` if the connection must end with a TCP
/// reset.
async fn serve_stream<S>(node: Arc<Node>, stream: S, reset: Arc<AtomicBool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let upgrade: Upgrade = Arc::default();
    let service = service_fn(|request| {
        respond(Arc::clone(&node), request, Arc::clone(&reset), Arc::clone(&upgrade))
    });
    // If a fault or the client breaks this connection, the other connections are not affected.
    let _ = http1::Builder::new()
        .pipeline_flush(true)
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    let upgrade = upgrade.lock().take();
    if let Some(upgrade) = upgrade
        && let Ok(upgraded) = upgrade.await
    {
        websocket::serve(node, TokioIo::new(upgraded), reset).await;
    }
}

/// The upgrade of a connection to a WebSocket, if the client has requested it.
type Upgrade = Arc<Mutex<Option<OnUpgrade>>>;

/// Responds to a WebSocket handshake, or to a POST request with calls. Sets `reset` if the
/// connection must end with a reset, and `upgrade` after a handshake.
async fn respond(
    node: Arc<Node>,
    mut request: Request<Incoming>,
    reset: Arc<AtomicBool>,
    upgrade: Upgrade,
) -> Result<Response<ResponseBody>, ConnectionBroken> {
    if let Some(accept) = websocket::accept(request.headers()) {
        *upgrade.lock() = Some(hyper::upgrade::on(&mut request));
        return Ok(websocket::upgrade_response(&accept));
    }
    if request.method() != Method::POST {
        return Ok(plain_response(StatusCode::METHOD_NOT_ALLOWED, "method not allowed"));
    }
    let collected = Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await;
    let Ok(collected) = collected else {
        return Ok(plain_response(StatusCode::PAYLOAD_TOO_LARGE, "content length too large"));
    };
    match node.serve(&collected.to_bytes()).await {
        Delivery::Close => Err(ConnectionBroken),
        Delivery::Reset => {
            reset.store(true, Ordering::Release);
            Err(ConnectionBroken)
        }
        Delivery::Whole { status, content_type, retry_after_s, body } => {
            let mut response = Response::new(ResponseBody::whole(body));
            *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
            if let Some(seconds) = retry_after_s {
                headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
            }
            Ok(response)
        }
        Delivery::Truncated(body) => {
            Ok(response_with_length(body.len(), ResponseBody::truncated(body)))
        }
        Delivery::Slow { body, bytes_per_second } => {
            Ok(response_with_length(body.len(), ResponseBody::slow(body, bytes_per_second)))
        }
    }
}

/// Returns a response whose body may be shorter than its `Content-Length`.
fn response_with_length(length: usize, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    response
}

fn plain_response(status: StatusCode, text: &'static str) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::whole(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}

/// Accepts connections and executes commands until the [`NodeServer`] is dropped.
async fn run(
    node: Arc<Node>,
    listener: TcpListener,
    reopen_options: ListenOptions,
    up: Arc<AtomicBool>,
    mut inbox: mpsc::Receiver<Command>,
) {
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    // All connections since the port was opened share this flag. If it is true, they end with a
    // reset.
    let mut killed: Arc<AtomicBool> = Arc::default();
    loop {
        let has_capacity = connections.len() < CONNECTIONS_MAX;
        tokio::select! {
            command = inbox.recv() => match command {
                None => return,
                Some(Command::Down(done)) => {
                    listener = None;
                    up.store(false, Ordering::Release);
                    killed.store(true, Ordering::Release);
                    connections.shutdown().await;
                    // The send fails if the caller no longer waits.
                    let _ = done.send(Ok(()));
                }
                Some(Command::Up(done)) => {
                    let bound = if listener.is_some() { Ok(()) } else {
                        bind(reopen_options).map(|bound| listener = Some(bound))
                    };
                    killed = Arc::default();
                    up.store(listener.is_some(), Ordering::Release);
                    let _ = done.send(bound);
                }
            },
            accepted = accept(listener.as_ref()), if has_capacity => {
                // `accept` fails if the client has disconnected, or if there is no free file
                // descriptor. The loop continues with the next connection.
                let Ok((stream, _)) = accepted else {
                    tokio::task::yield_now().await;
                    continue;
                };
                // Without this option, a small response may wait until the client has acknowledged
                // the previous one (Nagle's algorithm).
                let _ = stream.set_nodelay(true);
                let socket = Socket::new(stream, Arc::clone(&killed));
                let reset = socket.reset_flag();
                connections.spawn(serve_stream(Arc::clone(&node), socket, reset));
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<(tokio::net::TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

fn bind(options: ListenOptions) -> io::Result<TcpListener> {
    let socket = if options.addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // The node must be able to open its port again at once.
    socket.set_reuseaddr(true)?;
    if options.shared {
        socket.set_reuseport(true)?;
    }
    socket.bind(options.addr)?;
    socket.listen(BACKLOG)
}

/// Serves every request of a stream with a function. The admin port uses it.
pub(crate) async fn serve_with<S, F, Fut>(stream: S, respond: F)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> Fut,
    Fut: Future<Output = Response<http_body_util::Full<Bytes>>>,
{
    let service = service_fn(move |request| {
        let response = respond(request);
        async move { Ok::<_, Infallible>(response.await) }
    });
    let _ = http1::Builder::new()
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

#[cfg(test)]
mod tests;
