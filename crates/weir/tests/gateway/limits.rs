//! Goal: request limits decide as nginx's `limit_req` does, and rejections are valid JSON-RPC
//! errors. Method: `replay` repeats the decisions in nginx's log with the gateway's limit function.
//! `side_by_side` sends the same requests to nginx and to the gateway. `report` runs the twelve
//! settings of a public report on rate limits. `answers`, `waits` and `http2` check responses over
//! sockets.

mod answers;
mod arrivals;
mod http2;
mod nginx;
mod replay;
mod report;
mod side_by_side;
mod waits;
