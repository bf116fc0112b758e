//! Numbers and sentences in words, for results and reports alike.

pub(crate) mod conclude;
pub(crate) mod difference;
pub(crate) mod number;
