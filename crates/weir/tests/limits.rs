//! Goal: request limits decide as nginx's `limit_req` does, and are told to clients as JSON-RPC
//! needs it. Method: nginx's own logged decisions replayed through the pure rule (`replay`); the same
//! arrivals sent to nginx and to the gateway side by side (`beside`); the twelve settings of a public
//! rate-limit report (`report`); and what clients see, over sockets (`answers`, `waits`).

#![allow(clippy::unwrap_used)]

#[path = "support/programs.rs"]
mod programs;
#[path = "support/raw.rs"]
mod raw;
#[path = "serving/scene.rs"]
#[allow(dead_code)] // A part of it is used here.
mod scene;
#[path = "support/stalls.rs"]
mod stalls;

#[path = "limits/answers.rs"]
mod answers;
#[path = "limits/arrivals.rs"]
mod arrivals;
#[path = "limits/beside.rs"]
mod beside;
#[path = "limits/http2.rs"]
mod http2;
#[path = "limits/nginx.rs"]
mod nginx;
#[path = "limits/replay.rs"]
mod replay;
#[path = "limits/report.rs"]
mod report;
#[path = "limits/waits.rs"]
mod waits;
