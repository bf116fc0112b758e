//! Goal: load balancing, coalescing, caching, retries and shutdown work as documented; each test
//! checks one statement. Method: simulated nodes and the gateway in this process, over real
//! sockets. Nodes count their calls, and responses are compared with the node's.
//!
//! Chains have no new blocks unless a test adds them, and most gateways poll only once, so that
//! only client calls increase a node's count.

mod balancing;
mod caching;
mod chains;
mod coalescing;
mod limits;
mod outage;
mod reloading;
mod repeating;
mod tls;
