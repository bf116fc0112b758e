//! Values that describe a call on its way through the gateway.

pub(crate) mod cache_status;
