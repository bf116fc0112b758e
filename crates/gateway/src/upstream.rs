//! Facing nodes: connections, calls, and what is known of each node.
//!
//! In reading order: `overload` (who may be under way at a group's nodes), `fetch` (asks until one answers), `balance` (a group's balancer on one
//! thread), `send` (one attempt of one call),
//! `doubt` (whether its response may lack something), `gather` (calls that leave as one batch), `post` (one
//! HTTP request), `pool`, `dial`, `stream`, `http1` and `http2` (the connection it goes over),
//! `multiplex` and `trunk` (one that carries many calls at a time), `broadcast` (transactions sent
//! twice), `watch` (heads and health, followed on a thread of their own).

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
