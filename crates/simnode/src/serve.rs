//! HTTP/1.1 in front of a node, over TCP or any other stream: the requests' path is
//! `Node::serve`; here are connections, listening, going down and coming up again. On the same port a
//! request for a WebSocket gets one (`serve/websocket.rs`); a local socket is `serve/ipc.rs`.

mod body;
mod frame;
mod ipc;
mod many;
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

use self::body::ServedBody;
pub use self::ipc::{IpcListening, listen_ipc};
use self::socket::Socket;
use crate::node::{Node, Served};

/// The most open connections of one listener; further ones wait in the system's queue.
pub const CONNECTIONS_MAX: usize = 20_000;
/// The longest body, as in geth (`rpc` package, `defaultBodyLimit`).
pub const BODY_BYTES_MAX: usize = 5 * 1024 * 1024;
/// The length of the system's queue of connections.
const BACKLOG: u32 = 1_024;

/// Where and how to listen.
#[derive(Clone, Copy, Debug)]
pub struct ListenOptions {
    /// The address; port 0 picks a free one.
    pub addr: SocketAddr,
    /// Whether other listeners may share the port (`SO_REUSEPORT`), one per core.
    pub shared: bool,
}

/// A node that listens. Dropping it closes the port and all connections.
pub struct Listening {
    addr: SocketAddr,
    node: Arc<Node>,
    up: Arc<AtomicBool>,
    orders: mpsc::Sender<Order>,
}

enum Order {
    Down(oneshot::Sender<io::Result<()>>),
    Up(oneshot::Sender<io::Result<()>>),
}

/// The request was refused by breaking the connection.
#[derive(Debug, thiserror::Error)]
#[error("connection broken on purpose")]
struct Broken;

impl Node {
    /// Serves the node over TCP on an address; port 0 picks a free one. Runs on the current tokio
    /// runtime.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub fn listen(self: &Arc<Self>, addr: SocketAddr) -> io::Result<Listening> {
        self.listen_with(ListenOptions { addr, shared: false })
    }

    /// Serves the node over TCP as the options say.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub fn listen_with(self: &Arc<Self>, options: ListenOptions) -> io::Result<Listening> {
        let listener = bind(options)?;
        let addr = listener.local_addr()?;
        let up = Arc::new(AtomicBool::new(true));
        // One order at a time is on its way, as each waits for its answer.
        let (orders, inbox) = mpsc::channel(1);
        let again = ListenOptions { addr, ..options };
        tokio::spawn(run(Arc::clone(self), listener, again, Arc::clone(&up), inbox));
        Ok(Listening { addr, node: Arc::clone(self), up, orders })
    }
}

impl Listening {
    /// The address with the port that was picked.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Whether the port is open.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    /// Closes the port and resets every connection, as when the process is killed. Returns when it
    /// is done.
    pub async fn down(&self) {
        let (done, answer) = oneshot::channel();
        if self.orders.send(Order::Down(done)).await.is_ok() {
            // No answer means that the listener has ended, which is down as well.
            let _ = answer.await;
        }
    }

    /// Opens the same port again.
    ///
    /// # Errors
    /// The port was taken meanwhile, or the runtime ends.
    pub async fn up(&self) -> io::Result<()> {
        let (done, answer) = oneshot::channel();
        let ended = || io::Error::other("the listener has ended");
        self.orders.send(Order::Up(done)).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }
}

/// Serves one connection until it ends. Over a stream that is no TCP socket a reset looks like an
/// end.
pub async fn serve_connection<S>(node: Arc<Node>, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    serve_stream(node, stream, Arc::default()).await;
}

async fn serve_stream<S>(node: Arc<Node>, stream: S, reset: Arc<AtomicBool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let upgrade: Upgrade = Arc::default();
    let service = service_fn(|request| {
        respond(Arc::clone(&node), request, Arc::clone(&reset), Arc::clone(&upgrade))
    });
    // A connection that breaks, on purpose or by the client, concerns nobody else.
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

/// What a connection goes on as, once it was asked to be a WebSocket.
type Upgrade = Arc<Mutex<Option<OnUpgrade>>>;

async fn respond(
    node: Arc<Node>,
    mut request: Request<Incoming>,
    reset: Arc<AtomicBool>,
    upgrade: Upgrade,
) -> Result<Response<ServedBody>, Broken> {
    if let Some(accept) = websocket::accept(request.headers()) {
        *upgrade.lock() = Some(hyper::upgrade::on(&mut request));
        return Ok(websocket::accepted(&accept));
    }
    if request.method() != Method::POST {
        return Ok(plain(StatusCode::METHOD_NOT_ALLOWED, "method not allowed"));
    }
    let collected = Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await;
    let Ok(collected) = collected else {
        return Ok(plain(StatusCode::PAYLOAD_TOO_LARGE, "content length too large"));
    };
    match node.serve(&collected.to_bytes()).await {
        Served::Close => Err(Broken),
        Served::Reset => {
            reset.store(true, Ordering::Release);
            Err(Broken)
        }
        Served::Whole { status, content_type, retry_after_s, body } => {
            let mut response = Response::new(ServedBody::whole(body));
            *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
            if let Some(seconds) = retry_after_s {
                headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
            }
            Ok(response)
        }
        Served::Truncated(body) => Ok(announced(body.len(), ServedBody::truncated(body))),
        Served::Slow { body, bytes_per_second } => {
            Ok(announced(body.len(), ServedBody::slow(body, bytes_per_second)))
        }
    }
}

/// An answer that announces its length beforehand.
fn announced(length: usize, body: ServedBody) -> Response<ServedBody> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    response
}

fn plain(status: StatusCode, text: &'static str) -> Response<ServedBody> {
    let mut response = Response::new(ServedBody::whole(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}

/// Accepts connections and carries out orders until the [`Listening`] is dropped.
async fn run(
    node: Arc<Node>,
    listener: TcpListener,
    again: ListenOptions,
    up: Arc<AtomicBool>,
    mut inbox: mpsc::Receiver<Order>,
) {
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    let mut killed: Arc<AtomicBool> = Arc::default();
    loop {
        let room = connections.len() < CONNECTIONS_MAX;
        tokio::select! {
            order = inbox.recv() => match order {
                None => return,
                Some(Order::Down(done)) => {
                    listener = None;
                    up.store(false, Ordering::Release);
                    killed.store(true, Ordering::Release);
                    connections.shutdown().await;
                    // The asker may have given up waiting.
                    let _ = done.send(Ok(()));
                }
                Some(Order::Up(done)) => {
                    let bound = if listener.is_some() { Ok(()) } else {
                        bind(again).map(|bound| listener = Some(bound))
                    };
                    killed = Arc::default();
                    up.store(listener.is_some(), Ordering::Release);
                    let _ = done.send(bound);
                }
            },
            accepted = accept(listener.as_ref()), if room => {
                // A client that is gone before it is accepted, or no free descriptor: the next one.
                let Ok((stream, _)) = accepted else {
                    tokio::task::yield_now().await;
                    continue;
                };
                // Without it small answers would wait for an acknowledgement (Nagle).
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
    // The port must be free again at once when the node comes up after going down.
    socket.set_reuseaddr(true)?;
    if options.shared {
        socket.set_reuseport(true)?;
    }
    socket.bind(options.addr)?;
    socket.listen(BACKLOG)
}

/// Answers every request of a stream with a function; what the admin port is made of.
pub(crate) async fn serve_with<S, F, Fut>(stream: S, respond: F)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> Fut,
    Fut: Future<Output = Response<http_body_util::Full<Bytes>>>,
{
    let service = service_fn(move |request| {
        let answer = respond(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let _ = http1::Builder::new()
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

#[cfg(test)]
mod tests;
