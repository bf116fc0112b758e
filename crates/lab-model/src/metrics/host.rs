//! The metrics that are sampled on hosts, with unit and meaning. `docs/host-metrics.md` is printed
//! from the table.
//!
//! To add a metric, add an entry to [`METRICS`] and store its value where it is sampled. [`host!`]
//! looks up an entry at compile time, so an unknown metric does not compile.

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

    /// Finds the metric of a name in a sample.
    pub fn of_sample(name: &str) -> Option<&'static HostMetric> {
        METRICS.iter().find(|metric| matches(metric.name, name))
    }

    /// Returns the name in a sample for one device or process. The owner of a thread's metric is
    /// `PROCESS.thread.THREAD`.
    pub fn of(&self, owner: &str) -> HostName {
        HostName(match self.around_owner() {
            Some((prefix, suffix)) => format!("{prefix}{owner}{suffix}"),
            None => self.name.to_owned(),
        })
    }

    /// Returns the device, process or thread of a name in a sample, if the name belongs to this
    /// metric.
    pub fn owner<'a>(&self, name: &'a str) -> Option<&'a str> {
        let (prefix, suffix) = self.around_owner()?;
        let is_this_metric =
            HostMetric::of_sample(name).is_some_and(|metric| metric.name == self.name);
        is_this_metric.then(|| name.strip_prefix(prefix)?.strip_suffix(suffix))?
    }

    /// Splits the name into the text before its first `*` and the text after its last `*`.
    fn around_owner(&self) -> Option<(&str, &str)> {
        let (prefix, rest) = self.name.split_once('*')?;
        Some((prefix, rest.rsplit_once('*').map_or(rest, |(_, suffix)| suffix)))
    }
}

/// A metric's name in a sample.
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
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, between)) = parts.split_last() else { return rest.is_empty() };
    for part in between {
        let Some(offset) = rest.find(part).filter(|offset| *offset > 0) else { return false };
        rest = &rest[offset + part.len()..];
    }
    rest.strip_suffix(last).is_some_and(|matched| !matched.is_empty())
}

const fn metric(name: &'static str, unit: Unit, meaning: &'static str) -> HostMetric {
    HostMetric { name, unit, meaning }
}

/// All metrics. Metrics of hosts come from this host and from a node-exporter. Metrics of
/// processes, cgroups and the target's sockets come only from this host.
pub const METRICS: &[HostMetric] = &[
    // The machine.
    metric("cores", Unit::Count, "logical cores (node-exporter only)"),
    metric("cpu_user", Unit::Share, "share of the CPU time that programs used, guests included"),
    metric("cpu_nice", Unit::Share, "share of the CPU time that programs of low priority used"),
    metric("cpu_system", Unit::Share, "share of the CPU time that the kernel used"),
    metric("cpu_idle", Unit::Share, "share of the CPU time in which cores had nothing to do"),
    metric(
        "cpu_iowait",
        Unit::Share,
        "idle time while some task waited for a disk; a hint only, the kernel calls it unreliable",
    ),
    metric("cpu_irq", Unit::Share, "share of the CPU time in hardware interrupts"),
    metric(
        "cpu_softirq",
        Unit::Share,
        "share of the CPU time in soft interrupts, such as the network's",
    ),
    metric(
        "cpu_steal",
        Unit::Share,
        "share of the CPU time that the hypervisor gave to other guests",
    ),
    metric("cpu_busy", Unit::Share, "share of the CPU time that is neither idle nor iowait"),
    metric("cpu_core_max", Unit::Share, "busy share of the busiest core"),
    metric("runnable", Unit::Count, "tasks that run or are ready to run"),
    metric("blocked", Unit::Count, "tasks that wait for a disk"),
    metric("load1", Unit::Count, "load average over one minute"),
    metric("switches", Unit::PerSecond, "context switches"),
    metric("psi_cpu_some", Unit::Share, "time in which some task waited for a core"),
    metric("psi_cpu_full", Unit::Share, "zero for a host by definition"),
    metric("psi_memory_some", Unit::Share, "time in which some task waited for memory"),
    metric("psi_memory_full", Unit::Share, "time in which all tasks waited for memory"),
    metric("psi_io_some", Unit::Share, "time in which some task waited for a disk"),
    metric("psi_io_full", Unit::Share, "time in which all tasks waited for a disk"),
    metric("psi_irq_some", Unit::Share, "zero: interrupts stop all tasks of a core"),
    metric("psi_irq_full", Unit::Share, "time that interrupts took from tasks"),
    metric("memory_bytes", Unit::Bytes, "memory of the host"),
    metric("memory_available_bytes", Unit::Bytes, "memory that programs can get without swapping"),
    metric("memory_available_share", Unit::Share, "available memory / memory of the host"),
    metric("swap_used_bytes", Unit::Bytes, "swap in use"),
    metric("swap_in_bytes", Unit::BytesPerSecond, "bytes read from swap"),
    metric("swap_out_bytes", Unit::BytesPerSecond, "bytes written to swap"),
    metric("major_faults", Unit::PerSecond, "page faults that had to read a disk"),
    metric("files_open", Unit::Count, "open files of the host"),
    metric("files_share", Unit::Share, "open files / the host's limit"),
    // Disks.
    metric(
        "disk.*.util",
        Unit::Share,
        "time with at least one request in flight; 1 is not a limit if the disk works in parallel",
    ),
    metric("disk.*.queue", Unit::Count, "mean number of requests in flight or waiting"),
    metric("disk.*.await_ms", Unit::Milliseconds, "mean time of a request, waiting included"),
    metric("disk.*.reads", Unit::PerSecond, "reads done"),
    metric("disk.*.writes", Unit::PerSecond, "writes done"),
    metric("disk.*.read_bytes", Unit::BytesPerSecond, "bytes read"),
    metric("disk.*.write_bytes", Unit::BytesPerSecond, "bytes written"),
    // Network.
    metric("net.*.rx_bytes", Unit::BytesPerSecond, "bytes received"),
    metric("net.*.tx_bytes", Unit::BytesPerSecond, "bytes sent"),
    metric("net.*.drops", Unit::PerSecond, "packets dropped or overrun, both directions"),
    metric("net.*.errors", Unit::PerSecond, "packets with errors, both directions"),
    metric(
        "net.*.util",
        Unit::Share,
        "rate of the busier direction / line rate, if the line rate is known",
    ),
    metric("tcp_retransmits", Unit::PerSecond, "retransmitted TCP segments"),
    metric("tcp_segments_sent", Unit::PerSecond, "TCP segments sent"),
    metric(
        "listen_overflows",
        Unit::PerSecond,
        "connections refused because an accept queue was full",
    ),
    metric("listen_drops", Unit::PerSecond, "connections refused by listeners for any reason"),
    metric("tcp_sockets", Unit::Count, "TCP sockets in use"),
    metric("tcp_orphans", Unit::Count, "TCP sockets that no process holds"),
    metric("tcp_time_wait", Unit::Count, "ended TCP connections that keep their port"),
    metric("tcp_memory_bytes", Unit::Bytes, "memory of TCP buffers"),
    metric("tcp_memory_share", Unit::Share, "memory of TCP buffers / the kernel's limit"),
    metric("ports_used", Unit::Count, "local ports in use by connections to the target"),
    metric("ports_share", Unit::Share, "ports_used / the ports that this host may use"),
    // Processes, grouped by name and role.
    metric("process.*.thread.*.cpu", Unit::Cores, "CPU of one busy thread, by name and id"),
    metric(
        "process.*.thread.*.delay",
        Unit::SecondsPerSecond,
        "time that the thread was ready to run without a core",
    ),
    metric("process.*.thread_max", Unit::Cores, "CPU of the busiest thread"),
    metric(
        "process.*.thread_max_delay",
        Unit::SecondsPerSecond,
        "time that the busiest thread was ready to run without a core",
    ),
    metric(
        "process.*.threads_blocked",
        Unit::Count,
        "threads that wait for a disk (state D), up to 64 threads",
    ),
    metric("process.*.threads", Unit::Count, "threads"),
    metric("process.*.cpu", Unit::Cores, "CPU of the processes, user and system"),
    metric("process.*.cpu_user", Unit::Cores, "CPU of the processes in user mode"),
    metric("process.*.cpu_system", Unit::Cores, "CPU of the processes in the kernel"),
    metric(
        "process.*.run_delay",
        Unit::SecondsPerSecond,
        "time that threads were ready to run without a core",
    ),
    metric("process.*.memory_bytes", Unit::Bytes, "resident memory"),
    metric("process.*.major_faults", Unit::PerSecond, "page faults that had to read a disk"),
    metric("process.*.read_bytes", Unit::BytesPerSecond, "read from disks"),
    metric("process.*.write_bytes", Unit::BytesPerSecond, "written to disks"),
    metric(
        "process.*.switches_voluntary",
        Unit::PerSecond,
        "times that threads waited for something, up to 64 threads",
    ),
    metric(
        "process.*.switches_involuntary",
        Unit::PerSecond,
        "times that threads were preempted, up to 64 threads",
    ),
    metric("process.*.files", Unit::Count, "open files"),
    metric("process.*.files_limit", Unit::Count, "maximum number of open files of one process"),
    // Cgroups of the processes.
    metric("cgroup.*.cpu", Unit::Cores, "CPU of all processes in the cgroup (version 2)"),
    metric(
        "cgroup.*.cpu_limit",
        Unit::Cores,
        "the lowest CPU quota of the cgroup and its ancestors",
    ),
    metric("cgroup.*.throttled_periods", Unit::Share, "periods of the quota in which it ran out"),
    metric(
        "cgroup.*.throttled",
        Unit::SecondsPerSecond,
        "time in which the quota stopped tasks, summed over cores",
    ),
    metric(
        "cgroup.*.memory_bytes",
        Unit::Bytes,
        "memory of the cgroup or ancestor that is nearest to its limit",
    ),
    metric("cgroup.*.memory_limit_bytes", Unit::Bytes, "memory limit of that cgroup or ancestor"),
    metric("cgroup.*.memory_limit_hits", Unit::PerSecond, "times that memory use reached a limit"),
    metric(
        "cgroup.*.io_util",
        Unit::Share,
        "the largest share of a disk limit (io.max) that is used",
    ),
    metric(
        "cgroup.*.psi_cpu_some",
        Unit::Share,
        "time in which some task of the cgroup waited for a core",
    ),
    metric(
        "cgroup.*.psi_cpu_full",
        Unit::Share,
        "time in which all tasks of the cgroup waited for a core",
    ),
    metric(
        "cgroup.*.psi_memory_some",
        Unit::Share,
        "time in which some task of the cgroup waited for memory",
    ),
    metric(
        "cgroup.*.psi_memory_full",
        Unit::Share,
        "time in which all tasks of the cgroup waited for memory",
    ),
    metric(
        "cgroup.*.psi_io_some",
        Unit::Share,
        "time in which some task of the cgroup waited for a disk",
    ),
    metric(
        "cgroup.*.psi_io_full",
        Unit::Share,
        "time in which all tasks of the cgroup waited for a disk",
    ),
    // The target's sockets.
    metric("target.accept_queue", Unit::Count, "connections that the target has not yet accepted"),
    metric(
        "target.accept_queue_max",
        Unit::Count,
        "maximum number of connections that may wait to be accepted",
    ),
    metric("target.connections_in", Unit::Count, "connections to the target"),
    metric(
        "target.unread_in",
        Unit::Count,
        "accepted connections with bytes that the target has not read",
    ),
    metric(
        "target.waiting_in",
        Unit::Count,
        "accepted connections on which a client waits for a response",
    ),
    metric(
        "target.unclear_in",
        Unit::Count,
        "accepted connections whose last send and last receive share a clock tick, so that a client may wait",
    ),
    metric("target.connections_out", Unit::Count, "connections of the target to servers behind it"),
    metric(
        "target.waiting_out",
        Unit::Count,
        "outgoing connections on which the target waits for a response",
    ),
    metric(
        "target.unclear_out",
        Unit::Count,
        "outgoing connections whose last send and last receive share a clock tick",
    ),
    metric(
        "target.waiting_out_max_ms",
        Unit::Milliseconds,
        "longest wait of the target for a response",
    ),
    metric("watch_cost", Unit::Share, "share of one core that the host sampler has used so far"),
];
