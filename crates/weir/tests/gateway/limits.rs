//! Goal: request limits decide as nginx's `limit_req` does, and are told to clients as JSON-RPC
//! needs it. Method: nginx's own logged decisions replayed through the pure rule (`replay`); the same
//! arrivals sent to nginx and to the gateway side by side (`beside`); the twelve settings of a public
//! rate-limit report (`report`); and what clients see, over sockets (`answers`, `waits`).

mod answers;
mod arrivals;
mod beside;
mod http2;
mod nginx;
mod replay;
mod report;
mod waits;
