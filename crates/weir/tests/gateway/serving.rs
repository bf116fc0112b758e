//! Goal: what the gateway promises about balancing, sharing, keeping, repeating and stopping, one
//! promise to a test. Method: simulated nodes and the gateway in this process, over real sockets;
//! what reached a node is counted at the node, and answers are compared with the node's own.
//!
//! Chains stand still unless a test moves them, and most gateways poll once and never again, so
//! that a node's count grows by what clients caused and nothing else.

mod balancing;
mod caching;
mod chains;
mod coalescing;
mod limits;
mod outage;
mod reloading;
mod repeating;
mod tls;
