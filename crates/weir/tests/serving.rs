//! Goal: what the gateway promises about balancing, sharing, keeping, repeating and stopping, one
//! promise to a test. Method: simulated nodes and the gateway in this process, over real sockets;
//! what reached a node is counted at the node, and answers are compared with the node's own.
//!
//! Chains stand still unless a test moves them, and most gateways poll once and never again, so
//! that a node's count grows by what clients caused and nothing else.

#![allow(clippy::unwrap_used)]

#[path = "support/line.rs"]
#[allow(dead_code)] // A part of it is used here.
mod line;
#[path = "support/raw.rs"]
mod raw;
#[path = "support/running.rs"]
mod running;

#[path = "serving/balancing.rs"]
mod balancing;
#[path = "serving/caching.rs"]
mod caching;
#[path = "serving/chains.rs"]
mod chains;
#[path = "serving/coalescing.rs"]
mod coalescing;
#[path = "serving/limits.rs"]
mod limits;
#[path = "serving/outage.rs"]
mod outage;
#[path = "serving/reloading.rs"]
mod reloading;
#[path = "serving/repeating.rs"]
mod repeating;
#[path = "serving/scene.rs"]
mod scene;
#[path = "serving/tls.rs"]
mod tls;
