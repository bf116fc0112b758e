//! Facing clients: connections, HTTP, and the form of every answer.
//!
//! What a request means is `path.rs`. In reading order: `http1` (a connection;
//! `arrive` and `tls` before it, `peer` at its other end), `head`
//! (what is read), `caller` and `token` (who calls), `answer` (what is written), `compress`, `http2`
//! and `unread` (what its clients have not taken), `websocket`, `log` (access-log records).

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
