//! The metrics that are sampled on hosts, with unit and meaning. `docs/host-metrics.md` is printed
//! from [`METRICS`].
//!
//! To add a metric, add an entry to [`METRICS`], and add its value in a sampler
//! (`crates/lab-engine/src/host/`). [`host!`] looks up an entry at compile time, so an unknown name
//! does not compile.

use super::Unit;

#[cfg(test)]
mod tests;

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMetric {
    /// Name in [`crate::results::run::HostSample::values`]. A `*` stands for the name of a device,
    /// process or thread.
    pub name: &'static str,
    /// Unit.
    pub unit: Unit,
    /// Meaning, as one sentence without a full stop.
    pub meaning: &'static str,
}

/// Returns the entry of [`METRICS`] with this name.
#[macro_export]
macro_rules! host {
    ($name:literal) => {{
        const METRIC: &$crate::metrics::host::HostMetric =
            $crate::metrics::host::HostMetric::by_name($name);
        METRIC
    }};
}
pub use host;

impl HostMetric {
    /// Finds an entry for [`host!`]. An unknown name does not compile.
    ///
    /// # Panics
    /// Panics at compile time if there is no such entry.
    pub const fn by_name(name: &str) -> &'static HostMetric {
        let mut index = 0;
        while index < METRICS.len() {
            if equal(METRICS[index].name.as_bytes(), name.as_bytes()) {
                return &METRICS[index];
            }
            index += 1;
        }
        panic!("no host metric has this name")
    }

    /// Finds the metric to which a name in a sample belongs. Returns `None` if no metric has such
    /// names.
    pub fn of_sample(name: &str) -> Option<&'static HostMetric> {
        METRICS.iter().find(|metric| matches(metric.name, name))
    }

    /// Returns the metric's name in a sample. `owner` is the name of the device, process or thread,
    /// which replaces the `*`. For a metric of a thread, `owner` is `PROCESS.thread.THREAD`.
    pub fn of(&self, owner: &str) -> HostName {
        HostName(match self.around_owner() {
            Some((prefix, suffix)) => format!("{prefix}{owner}{suffix}"),
            None => self.name.to_owned(),
        })
    }

    /// Returns the owner that a name in a sample contains: the device, process or thread. Returns
    /// `None` if the name does not belong to this metric, or if the metric has no owner.
    pub fn owner<'a>(&self, name: &'a str) -> Option<&'a str> {
        let (prefix, suffix) = self.around_owner()?;
        let is_this_metric =
            HostMetric::of_sample(name).is_some_and(|metric| metric.name == self.name);
        if !is_this_metric {
            return None;
        }
        name.strip_prefix(prefix)?.strip_suffix(suffix)
    }

    /// Splits the name into the text before its first `*` and the text after its last `*`.
    fn around_owner(&self) -> Option<(&str, &str)> {
        let (prefix, after_star) = self.name.split_once('*')?;
        Some((prefix, after_star.rsplit_once('*').map_or(after_star, |(_, suffix)| suffix)))
    }
}

/// A metric's name in a sample, with the owner in place of the `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(String);

impl From<&HostMetric> for HostName {
    fn from(metric: &HostMetric) -> HostName {
        HostName(metric.name.to_owned())
    }
}

impl HostName {
    /// Returns the name as samples have it.
    pub fn into_string(self) -> String {
        self.0
    }
}

/// Returns true if both texts are equal. In a const function, `==` cannot compare slices.
const fn equal(left: &[u8], right: &[u8]) -> bool {
    let mut index = 0;
    while index < left.len() && index < right.len() && left[index] == right[index] {
        index += 1;
    }
    index == left.len() && index == right.len()
}

/// Returns true if a name matches a pattern in which each `*` stands for one or more characters.
/// Names of devices may contain dots, so the text between two stars is found by search.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut unmatched) = parts.next().and_then(|first| name.strip_prefix(first)) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle_parts)) = parts.split_last() else { return unmatched.is_empty() };
    for part in middle_parts {
        let Some(offset) = unmatched.find(part).filter(|offset| *offset > 0) else { return false };
        unmatched = &unmatched[offset + part.len()..];
    }
    unmatched.strip_suffix(last).is_some_and(|star_text| !star_text.is_empty())
}

/// Declares a list of metrics: name, unit and meaning.
macro_rules! host_metrics {
    ($($name:literal $unit:ident: $meaning:literal;)+) => {
        &[$(HostMetric { name: $name, unit: Unit::$unit, meaning: $meaning },)+]
    };
}

/// All metrics. Metrics of hosts come from the load generator's host, and from the target's host if
/// a node-exporter runs there. Metrics of processes, cgroups and the target's sockets come only
/// from the load generator's host.
pub const METRICS: &[HostMetric] = host_metrics! {
    // The machine.
    "cores" Count: "logical cores (node-exporter only)";
    "cpu_user" Share: "share of the CPU time that programs used, guests included";
    "cpu_nice" Share: "share of the CPU time that programs of low priority used";
    "cpu_system" Share: "share of the CPU time that the kernel used";
    "cpu_idle" Share: "share of the CPU time in which cores had nothing to do";
    "cpu_iowait" Share:
        "idle time while some task waited for a disk; a hint only, the kernel calls it unreliable";
    "cpu_irq" Share: "share of the CPU time in hardware interrupts";
    "cpu_softirq" Share: "share of the CPU time in soft interrupts, such as the network's";
    "cpu_steal" Share: "share of the CPU time that the hypervisor gave to other guests";
    "cpu_busy" Share: "share of the CPU time that is neither idle nor iowait";
    "cpu_core_max" Share: "busy share of the busiest core";
    "runnable" Count: "tasks that run or are ready to run";
    "blocked" Count: "tasks that wait for a disk";
    "load1" Count: "load average over one minute";
    "switches" PerSecond: "context switches";
    "psi_cpu_some" Share: "time in which some task waited for a core";
    "psi_cpu_full" Share: "zero for a host by definition";
    "psi_memory_some" Share: "time in which some task waited for memory";
    "psi_memory_full" Share: "time in which all tasks waited for memory";
    "psi_io_some" Share: "time in which some task waited for a disk";
    "psi_io_full" Share: "time in which all tasks waited for a disk";
    "psi_irq_some" Share: "zero: interrupts stop all tasks of a core";
    "psi_irq_full" Share: "time that interrupts took from tasks";
    "memory_bytes" Bytes: "memory of the host";
    "memory_available_bytes" Bytes: "memory that programs can get without swapping";
    "memory_available_share" Share: "available memory / memory of the host";
    "swap_used_bytes" Bytes: "swap in use";
    "swap_in_bytes" BytesPerSecond: "bytes read from swap";
    "swap_out_bytes" BytesPerSecond: "bytes written to swap";
    "major_faults" PerSecond: "page faults that had to read a disk";
    "files_open" Count: "open files of the host";
    "files_share" Share: "open files / the host's limit";
    // Disks.
    "disk.*.util" Share:
        "time with at least one request in flight; 1 is not a limit if the disk works in parallel";
    "disk.*.queue" Count: "mean number of requests in flight or waiting";
    "disk.*.await_ms" Milliseconds: "mean time of a request, waiting included";
    "disk.*.reads" PerSecond: "reads done";
    "disk.*.writes" PerSecond: "writes done";
    "disk.*.read_bytes" BytesPerSecond: "bytes read";
    "disk.*.write_bytes" BytesPerSecond: "bytes written";
    // Network.
    "net.*.rx_bytes" BytesPerSecond: "bytes received";
    "net.*.tx_bytes" BytesPerSecond: "bytes sent";
    "net.*.drops" PerSecond: "packets dropped or overrun, both directions";
    "net.*.errors" PerSecond: "packets with errors, both directions";
    "net.*.util" Share: "rate of the busier direction / line rate, if the line rate is known";
    "tcp_retransmits" PerSecond: "retransmitted TCP segments";
    "tcp_segments_sent" PerSecond: "TCP segments sent";
    "listen_overflows" PerSecond: "connections refused because an accept queue was full";
    "listen_drops" PerSecond: "connections refused by listeners for any reason";
    "tcp_sockets" Count: "TCP sockets in use";
    "tcp_orphans" Count: "TCP sockets that no process holds";
    "tcp_time_wait" Count: "ended TCP connections that keep their port";
    "tcp_memory_bytes" Bytes: "memory of TCP buffers";
    "tcp_memory_share" Share: "memory of TCP buffers / the kernel's limit";
    "ports_used" Count: "local ports in use by connections to the target";
    "ports_share" Share: "ports_used / the ports that this host may use";
    // Processes, grouped by name and role.
    "process.*.thread.*.cpu" Cores: "CPU of one busy thread, by name and id";
    "process.*.thread.*.delay" SecondsPerSecond:
        "time that the thread waited for a core";
    "process.*.thread_max" Cores: "CPU of the busiest thread";
    "process.*.thread_max_delay" SecondsPerSecond:
        "time that the busiest thread waited for a core";
    "process.*.threads_blocked" Count: "threads that wait for a disk (state D), up to 64 threads";
    "process.*.threads" Count: "threads";
    "process.*.cpu" Cores: "CPU of the processes, user and system";
    "process.*.cpu_user" Cores: "CPU of the processes in user mode";
    "process.*.cpu_system" Cores: "CPU of the processes in the kernel";
    "process.*.run_delay" SecondsPerSecond: "time that threads waited for a core";
    "process.*.memory_bytes" Bytes: "resident memory";
    "process.*.major_faults" PerSecond: "page faults that had to read a disk";
    "process.*.read_bytes" BytesPerSecond: "read from disks";
    "process.*.write_bytes" BytesPerSecond: "written to disks";
    "process.*.switches_voluntary" PerSecond:
        "times that threads waited for something, up to 64 threads";
    "process.*.switches_involuntary" PerSecond:
        "times that threads were preempted, up to 64 threads";
    "process.*.files" Count: "open files";
    "process.*.files_limit" Count: "maximum number of open files of one process";
    // Cgroups of the processes.
    "cgroup.*.cpu" Cores: "CPU of all processes in the cgroup (version 2)";
    "cgroup.*.cpu_limit" Cores: "the lowest CPU quota of the cgroup and its ancestors";
    "cgroup.*.throttled_periods" Share: "periods of the quota in which it ran out";
    "cgroup.*.throttled" SecondsPerSecond:
        "time in which the quota stopped tasks, summed over cores";
    "cgroup.*.memory_bytes" Bytes: "memory of the cgroup or ancestor that is nearest to its limit";
    "cgroup.*.memory_limit_bytes" Bytes: "memory limit of that cgroup or ancestor";
    "cgroup.*.memory_limit_hits" PerSecond: "times that memory use reached a limit";
    "cgroup.*.io_util" Share: "the largest share of a disk limit (io.max) that is used";
    "cgroup.*.psi_cpu_some" Share: "time in which some task of the cgroup waited for a core";
    "cgroup.*.psi_cpu_full" Share: "time in which all tasks of the cgroup waited for a core";
    "cgroup.*.psi_memory_some" Share: "time in which some task of the cgroup waited for memory";
    "cgroup.*.psi_memory_full" Share: "time in which all tasks of the cgroup waited for memory";
    "cgroup.*.psi_io_some" Share: "time in which some task of the cgroup waited for a disk";
    "cgroup.*.psi_io_full" Share: "time in which all tasks of the cgroup waited for a disk";
    // The target's sockets.
    "target.accept_queue" Count: "connections that the target has not yet accepted";
    "target.accept_queue_max" Count: "maximum number of connections that may wait to be accepted";
    "target.connections_in" Count: "connections to the target";
    "target.unread_in" Count: "accepted connections with bytes that the target has not read";
    "target.waiting_in" Count: "accepted connections on which a client waits for a response";
    "target.unclear_in" Count:
        "accepted connections whose last send and last receive share a clock tick, so that a client may wait";
    "target.unacknowledged_in" Count:
        "accepted connections on which the target has sent bytes that the client has not acknowledged";
    "target.round_trip_ms" Milliseconds:
        "mean round-trip time of the connections of this host to the target that were used in the last second";
    "target.connections_other" Count:
        "connections to the target of other clients than this load generator that were used in the last second";
    "target.connections_out" Count: "connections of the target to servers behind it";
    "target.waiting_out" Count: "outgoing connections on which the target waits for a response";
    "target.unclear_out" Count:
        "outgoing connections whose last send and last receive share a clock tick";
    "target.waiting_out_max_ms" Milliseconds: "longest wait of the target for a response";
    "watch_cost" Share: "share of one core that the host sampler has used so far";
};
