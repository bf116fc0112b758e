//! Helpers of several test modules: servers, clients, proxies and a stall detector.

pub(crate) mod authority;
pub(crate) mod disconnecting_proxy;
pub(crate) mod growing_chain;
pub(crate) mod harness;
pub(crate) mod open_loop;
pub(crate) mod redis_server;
pub(crate) mod stall_detector;
pub(crate) mod tampering_proxy;
pub(crate) mod tls_client;
pub(crate) mod websocket_client;
