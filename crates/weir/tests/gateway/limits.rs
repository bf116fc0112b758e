//! Goal: request limits decide as nginx's `limit_req` does, and rejections are valid JSON-RPC
//! errors. Method: decisions from nginx's log replayed through the pure rule (`replay`); the same
//! arrivals sent to nginx and to the gateway (`beside`); the twelve settings of a public rate-limit
//! report (`report`); and responses over sockets (`answers`, `waits`).

mod answers;
mod arrivals;
mod beside;
mod http2;
mod nginx;
mod replay;
mod report;
mod waits;
