//! Goal: load balancing, coalescing, caching, retries and shutdown work as documented. Each test
//! checks one statement of the documentation. Method: simulated nodes and the gateway in this
//! process, over real sockets. Nodes count their calls. The tests compare the gateway's responses
//! with those of the nodes.
//!
//! A chain gets new blocks only if a test adds them, and most gateways poll only once. So only the
//! calls of clients increase a node's count.

mod balancing;
mod caching;
mod chains;
mod coalescing;
mod limits;
mod outage;
mod reloading;
mod repeating;
mod tls;
