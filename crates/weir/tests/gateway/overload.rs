//! Goal: at three times the nodes' capacity goodput stays near the capacity, latency of
//! high-priority calls and memory stay flat, and rejections are immediate. Method: real processes
//! under open-loop load (`load`), with coarse thresholds because tests share their machine; the
//! bench is precise (`cargo xtask bench overload`). The check of `load` must fail for a gateway
//! without the limit. `answers` tests the responses of single calls, `slower` nodes that become
//! slow below their capacity.

mod answers;
mod load;
mod slower;
