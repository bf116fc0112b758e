//! Who calls, and what it may call: addresses, keys, tokens, permissions.

pub(crate) mod caller;
pub(crate) mod permit;
pub(crate) mod token;
