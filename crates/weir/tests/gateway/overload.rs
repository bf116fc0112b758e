//! Goal: at a load of three times the nodes' capacity, goodput stays near the capacity. The latency
//! of high-priority calls and the memory do not grow, and rejections are immediate.
//!
//! Method: `load` sends an open-loop load to real processes. Its thresholds are coarse, because
//! other tests run on the same machine. `cargo xtask bench overload` measures precisely. `load`
//! also checks that its thresholds are violated without the concurrency limit. `answers` tests the
//! responses to single calls. `slower` tests nodes that become slow below their capacity.

mod answers;
mod load;
mod slower;
