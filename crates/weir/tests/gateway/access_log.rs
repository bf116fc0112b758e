//! Goal: the access log records the outcome of each request, never delays a request, and contains
//! no secret. The command `weir logs` summarizes it correctly. Method: simulated nodes and the
//! gateway over real sockets. The tests compare the lines of the log, and the sums that `weir logs`
//! prints, with the requests.

mod lines;
mod secrets;
mod sums;
