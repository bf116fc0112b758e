//! Goal: request limits decide as nginx's `limit_req` does, and rejections are valid JSON-RPC
//! errors. Method: replay decisions from nginx's log with the gateway's limit function (`replay`),
//! send the same requests to nginx and the gateway (`beside`), run the twelve settings of a public
//! report on rate limits (`report`), and check responses over sockets (`answers`, `waits`,
//! `http2`).

mod answers;
mod arrivals;
mod http2;
mod nginx;
mod replay;
mod report;
mod side_by_side;
mod waits;
