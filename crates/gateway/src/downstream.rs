//! Client connections: TLS, HTTP/1.1, HTTP/2, WebSocket, and the format of every response.
//!
//! `path.rs` serves the calls of a request. A module of this folder imports only from modules in
//! lower layers (`xtask/src/tidy/layers.rs`). In reading order:
//!
//! | module | what |
//! |---|---|
//! | `thread`, `connection` | one serving thread and its client connections |
//! | `accept`, `tls`, `peer` | starts a task per connection: PROXY header, TLS handshake, the client's address and certificate |
//! | `http1` | one HTTP/1.1 connection |
//! | `head`, `forwarded_header`, `parsed_heads` | HTTP heads (request line and headers): the parser, and a cache per thread |
//! | `exchange` | one request and its response over any protocol: authentication, calls, refusals |
//! | `explain` | the decisions about one request, without serving it |
//! | `answer` | HTTP and JSON-RPC form of a response |
//! | `compress` | content codings |
//! | `http2`, `frames`, `unread` | one HTTP/2 connection; detects floods and write stalls |
//! | `websocket` | one WebSocket |
//! | `log` | access-log records of requests |

pub(crate) mod accept;
pub(crate) mod answer;
pub(crate) mod compress;
mod connection;
mod exchange;
pub mod explain;
mod forwarded_header;
mod frames;
#[cfg(test)]
mod fuzz;
pub(crate) mod head;
pub(crate) mod http1;
pub(crate) mod http2;
pub(crate) mod log;
mod parsed_heads;
pub(crate) mod peer;
pub(crate) mod thread;
pub(crate) mod tls;
pub(crate) mod unread;
pub(crate) mod websocket;
