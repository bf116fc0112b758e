//! Chains, groups and upstreams: their state, connections, health, heads, and attempts of calls.
//!
//! Nothing here imports the cache or anything above it. In reading order:
//!
//! | module | what |
//! |---|---|
//! | `registry`, `topology`, `chain`, `state` | state that all threads share, of the process, a configuration, a chain, an upstream |
//! | `thread` | what one thread has to itself |
//! | `fetch` | one call: choose, send, and what follows from the outcome |
//! | `overload` | permits for calls to the upstreams of a group |
//! | `balance` | a group's balancer on one thread |
//! | `race` | attempts at several upstreams at a time |
//! | `send` | one attempt at one upstream |
//! | `doubt` | whether its response may lack logs |
//! | `broadcast` | transactions that were sent twice |
//! | `gather`, `post` | calls that leave as one batch; one HTTP request |
//! | `http1`, `pool`, `http2` | connections that carry HTTP |
//! | `multiplex`, `trunk` | connections that carry many calls at a time: WebSocket, local socket |
//! | `dial`, `stream` | how a connection is opened, and its bytes |
//! | `watch` | polls heads and health, on a thread of its own, and reports `ChainEvent`s |

pub(crate) mod balance;
pub(crate) mod broadcast;
pub(crate) mod chain;
pub(crate) mod dial;
pub(crate) mod doubt;
pub(crate) mod fetch;
pub(crate) mod gather;
pub(crate) mod http1;
pub(crate) mod http2;
pub(crate) mod multiplex;
pub(crate) mod overload;
pub(crate) mod pool;
pub(crate) mod post;
pub(crate) mod race;
pub(crate) mod registry;
pub(crate) mod send;
pub(crate) mod state;
pub(crate) mod stream;
pub(crate) mod thread;
pub(crate) mod topology;
pub(crate) mod trunk;
pub(crate) mod watch;
