//! Connections of clients: TLS, HTTP/1.1, HTTP/2, WebSocket, and the form of every response.
//!
//! `path.rs` serves the calls of a request. In reading order:
//!
//! | module | what |
//! |---|---|
//! | `thread` | the client connections of one serving thread |
//! | `arrive`, `tls`, `peer` | PROXY header and TLS handshake; the address and certificate at the other end |
//! | `http1` | one HTTP/1.1 connection |
//! | `head`, `parsed_heads` | HTTP heads: parsing, and those that the thread has parsed before |
//! | `exchange` | one exchange, the same over every protocol: sender, path, refusals |
//! | `answer` | HTTP and JSON-RPC form of a response |
//! | `compress` | content codings |
//! | `http2`, `frames`, `unread` | one HTTP/2 connection; clients that send only control frames or do not read |
//! | `websocket` | one WebSocket |
//! | `log` | access-log records of requests |

pub(crate) mod answer;
pub(crate) mod arrive;
pub(crate) mod compress;
mod exchange;
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
