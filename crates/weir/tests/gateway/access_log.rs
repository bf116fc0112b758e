//! Goal: the access log records what happened to each request, never delays a request, and
//! contains no secret; `weir logs` summarizes it correctly. Method: simulated nodes and the gateway
//! over real sockets. The tests read the log file and compare its lines and sums with the requests.

mod lines;
mod secrets;
mod sums;
