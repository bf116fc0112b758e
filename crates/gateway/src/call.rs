//! A call on its way through the gateway: what is asked, what came back, and why it failed.

pub(crate) mod cache_status;
pub(crate) mod failure;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod response;
