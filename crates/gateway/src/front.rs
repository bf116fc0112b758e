//! Facing clients: connections, HTTP, and the form of every answer.
//!
//! What a request means is `path.rs`. In reading order: `http1` (a connection;
//! `arrive` and `tls` before it, `peer` at its other end), `head` and `body`
//! (what is read), `caller` and `token` (who calls), `answer` (what is written), `compress`, `http2`
//! and `unread` (what its clients have not taken), `websocket`, `log` (access-log records).

pub(crate) mod answer;
pub(crate) mod arrive;
pub(crate) mod body;
pub(crate) mod caller;
pub(crate) mod compress;
mod frames;
#[cfg(test)]
mod fuzz;
pub(crate) mod head;
pub(crate) mod http1;
pub(crate) mod http2;
pub(crate) mod log;
pub(crate) mod peer;
pub(crate) mod tls;
pub(crate) mod token;
pub(crate) mod unread;
pub(crate) mod websocket;
