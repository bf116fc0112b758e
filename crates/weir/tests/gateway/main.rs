//! The tests of the gateway, over real sockets. They are one program, because linking is slow.
//!
//! Each module states its goal and method at its top. `cargo test -p weir --test gateway limits::`
//! runs the tests of one module.

#![allow(clippy::unwrap_used)] // A failure fails the test.

mod support;

mod absence;
mod access;
mod access_log;
mod alerts;
mod bad_input;
mod causal;
mod chart;
mod check_connect;
mod client_address;
mod clients;
mod conformance;
mod cordon;
mod dashboard;
mod discover;
mod explain;
mod failover;
mod filters;
mod heads;
mod history;
mod image;
mod late_logs;
mod limits;
mod multiplexed;
mod old_logs;
mod overload;
mod packages;
mod providers;
mod quickstart;
mod ready;
mod redis;
mod regression;
mod reload;
mod roll;
mod serving;
mod shared_limits;
mod sim;
mod stalls;
mod status_page;
mod subscriptions;
mod tls;
mod top;
mod tracing;
mod traffic;
mod transparency;
mod unit;
mod websocket;
mod websocket_cases;
