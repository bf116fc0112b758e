//! Goal: the access log says what happened to each request, never delays one, and holds no secret;
//! `weir logs` sums it up rightly. Method: simulated nodes and the gateway over real sockets, the
//! file read back, sums compared with what was sent.

mod lines;
mod secrets;
mod sums;
