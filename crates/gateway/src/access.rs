//! Authentication and authorization: addresses, keys, tokens, permissions.

pub(crate) mod caller;
pub(crate) mod permit;
pub(crate) mod token;
