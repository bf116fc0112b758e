//! Goal: the access log says what happened to each request, never delays one, and holds no secret;
//! `weir logs` sums it up rightly. Method: simulated nodes and the gateway over real sockets, the
//! file read back, sums compared with what was sent.

#![allow(clippy::unwrap_used)]

#[path = "access_log/lines.rs"]
mod lines;
#[path = "support/raw.rs"]
mod raw;
#[path = "support/running.rs"]
mod running;
#[path = "serving/scene.rs"]
#[allow(dead_code)] // Another file of tests uses the rest of it.
mod scene;
#[path = "access_log/secrets.rs"]
mod secrets;
#[path = "access_log/sums.rs"]
mod sums;
