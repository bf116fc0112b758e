//! Helpers of several test modules: servers, clients, proxies and a stall detector.

pub(crate) mod authority;
pub(crate) mod chain;
pub(crate) mod guest;
pub(crate) mod line;
pub(crate) mod open_loop;
pub(crate) mod redis_server;
pub(crate) mod relay;
pub(crate) mod scene;
pub(crate) mod socket;
pub(crate) mod stalls;
