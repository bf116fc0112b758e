//! The types of a call: request, response, and failure.

pub(crate) mod cache_status;
pub(crate) mod failure;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod response;
