//! All metrics that are sampled, with unit and meaning: the one list from which `docs/measuring.md`
//! and exports take theirs. A `*` stands for the name of a device, process or thread.

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricFact {
    /// Its name in [`crate::results::run::HostSample::values`].
    pub name: &'static str,
    /// What it is counted in.
    pub unit: Unit,
    /// What it means, in one sentence without a full stop.
    pub meaning: &'static str,
}

/// What a metric is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A share, 0 to 1.
    Share,
    /// Cores: seconds of CPU per second.
    Cores,
    /// Seconds per second, summed over threads: may be above 1.
    SecondsPerSecond,
    /// Milliseconds.
    Milliseconds,
    /// Bytes.
    Bytes,
    /// Bytes per second.
    BytesPerSecond,
    /// A number of things at one time.
    Count,
    /// Events per second.
    PerSecond,
}

impl Unit {
    /// The unit in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Unit::Share => "share, 0 to 1",
            Unit::Cores => "cores",
            Unit::SecondsPerSecond => "s/s",
            Unit::Milliseconds => "ms",
            Unit::Bytes => "bytes",
            Unit::BytesPerSecond => "bytes/s",
            Unit::Count => "count",
            Unit::PerSecond => "1/s",
        }
    }
}

/// What is known of a metric by its name in a sample; none for a name that is not ours.
pub fn fact(name: &str) -> Option<&'static MetricFact> {
    METRICS.iter().find(|fact| matches(fact.name, name))
}

/// Whether a name fits a pattern in which each `*` stands for one or more characters. The names of
/// devices may hold dots, so the text between two stars is looked for and not the dots.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, between)) = parts.split_last() else { return rest.is_empty() };
    for part in between {
        let Some(place) = rest.find(part).filter(|place| *place > 0) else { return false };
        rest = &rest[place + part.len()..];
    }
    rest.strip_suffix(last).is_some_and(|star| !star.is_empty())
}

const fn fact_of(name: &'static str, unit: Unit, meaning: &'static str) -> MetricFact {
    MetricFact { name, unit, meaning }
}

/// All of them. Those of a host come from this host and from a node-exporter alike; those of
/// processes, cgroups and the target's sockets only from this host.
pub const METRICS: &[MetricFact] = &[
    // The machine.
    fact_of("cores", Unit::Count, "logical cores (node-exporter only)"),
    fact_of("cpu_user", Unit::Share, "time of all cores in programs, guests included"),
    fact_of("cpu_nice", Unit::Share, "time of all cores in programs of low priority"),
    fact_of("cpu_system", Unit::Share, "time of all cores in the kernel"),
    fact_of("cpu_idle", Unit::Share, "time of all cores with nothing to do"),
    fact_of(
        "cpu_iowait",
        Unit::Share,
        "idle time while some task waited for a disk; a hint only, the kernel calls it unreliable",
    ),
    fact_of("cpu_irq", Unit::Share, "time of all cores in hardware interrupts"),
    fact_of(
        "cpu_softirq",
        Unit::Share,
        "time of all cores in soft interrupts, such as the network's",
    ),
    fact_of("cpu_steal", Unit::Share, "time of all cores that the hypervisor gave to others"),
    fact_of("cpu_busy", Unit::Share, "all of it but idle and iowait"),
    fact_of("cpu_core_max", Unit::Share, "busy share of the busiest core"),
    fact_of("runnable", Unit::Count, "tasks that run or are ready to"),
    fact_of("blocked", Unit::Count, "tasks that wait for a disk"),
    fact_of("load1", Unit::Count, "load average over one minute"),
    fact_of("switches", Unit::PerSecond, "context switches"),
    fact_of("psi_cpu_some", Unit::Share, "time in which some task waited for a core"),
    fact_of("psi_cpu_full", Unit::Share, "zero for a host by definition"),
    fact_of("psi_memory_some", Unit::Share, "time in which some task waited for memory"),
    fact_of("psi_memory_full", Unit::Share, "time in which all tasks waited for memory"),
    fact_of("psi_io_some", Unit::Share, "time in which some task waited for a disk"),
    fact_of("psi_io_full", Unit::Share, "time in which all tasks waited for a disk"),
    fact_of("psi_irq_some", Unit::Share, "zero: interrupts stop all tasks of a core"),
    fact_of("psi_irq_full", Unit::Share, "time that interrupts took from tasks"),
    fact_of("memory_bytes", Unit::Bytes, "memory of the host"),
    fact_of("memory_available_bytes", Unit::Bytes, "memory to be had without swapping"),
    fact_of("memory_available_share", Unit::Share, "the same by the memory of the host"),
    fact_of("swap_used_bytes", Unit::Bytes, "swap in use"),
    fact_of("swap_in_bytes", Unit::BytesPerSecond, "read from swap"),
    fact_of("swap_out_bytes", Unit::BytesPerSecond, "written to swap"),
    fact_of("major_faults", Unit::PerSecond, "page faults that had to read a disk"),
    fact_of("files_open", Unit::Count, "open files of the host"),
    fact_of("files_share", Unit::Share, "the same by the host's limit"),
    // Disks.
    fact_of(
        "disk.*.util",
        Unit::Share,
        "time with at least one request under way; no limit where a disk works in parallel",
    ),
    fact_of("disk.*.queue", Unit::Count, "mean number of requests under way or waiting"),
    fact_of("disk.*.await_ms", Unit::Milliseconds, "mean time of a request, waiting included"),
    fact_of("disk.*.reads", Unit::PerSecond, "reads done"),
    fact_of("disk.*.writes", Unit::PerSecond, "writes done"),
    fact_of("disk.*.read_bytes", Unit::BytesPerSecond, "read"),
    fact_of("disk.*.write_bytes", Unit::BytesPerSecond, "written"),
    // Network.
    fact_of("net.*.rx_bytes", Unit::BytesPerSecond, "received"),
    fact_of("net.*.tx_bytes", Unit::BytesPerSecond, "sent"),
    fact_of("net.*.drops", Unit::PerSecond, "packets dropped or overrun, both directions"),
    fact_of("net.*.errors", Unit::PerSecond, "packets with errors, both directions"),
    fact_of(
        "net.*.util",
        Unit::Share,
        "the busier direction by the line rate, where that is known",
    ),
    fact_of("tcp_retransmits", Unit::PerSecond, "TCP segments sent again"),
    fact_of("tcp_segments_sent", Unit::PerSecond, "TCP segments sent"),
    fact_of(
        "listen_overflows",
        Unit::PerSecond,
        "connections refused because an accept queue was full",
    ),
    fact_of("listen_drops", Unit::PerSecond, "connections refused by listeners for any reason"),
    fact_of("tcp_sockets", Unit::Count, "TCP sockets in use"),
    fact_of("tcp_orphans", Unit::Count, "TCP sockets that no process holds"),
    fact_of("tcp_time_wait", Unit::Count, "ended TCP connections that keep their port"),
    fact_of("tcp_memory_bytes", Unit::Bytes, "memory of TCP buffers"),
    fact_of("tcp_memory_share", Unit::Share, "the same by the kernel's limit"),
    fact_of("ports_used", Unit::Count, "local ports taken by connections to the target"),
    fact_of("ports_share", Unit::Share, "the same by the ports that this host may use"),
    // Processes of one name and role together.
    fact_of("process.*.thread.*.cpu", Unit::Cores, "CPU of one busy thread, by name and id"),
    fact_of(
        "process.*.thread.*.delay",
        Unit::SecondsPerSecond,
        "time that it was ready to run without a core",
    ),
    fact_of("process.*.thread_max", Unit::Cores, "CPU of the busiest thread"),
    fact_of(
        "process.*.thread_max_delay",
        Unit::SecondsPerSecond,
        "time that the busiest thread was ready to run without a core",
    ),
    fact_of(
        "process.*.threads_blocked",
        Unit::Count,
        "threads that wait for a disk (state D), up to 64 threads",
    ),
    fact_of("process.*.threads", Unit::Count, "threads"),
    fact_of("process.*.cpu", Unit::Cores, "CPU, user and system"),
    fact_of("process.*.cpu_user", Unit::Cores, "CPU in the program"),
    fact_of("process.*.cpu_system", Unit::Cores, "CPU in the kernel for it"),
    fact_of(
        "process.*.run_delay",
        Unit::SecondsPerSecond,
        "time that threads were ready to run without a core",
    ),
    fact_of("process.*.memory_bytes", Unit::Bytes, "resident memory"),
    fact_of("process.*.major_faults", Unit::PerSecond, "page faults that had to read a disk"),
    fact_of("process.*.read_bytes", Unit::BytesPerSecond, "read from disks"),
    fact_of("process.*.write_bytes", Unit::BytesPerSecond, "written to disks"),
    fact_of(
        "process.*.switches_voluntary",
        Unit::PerSecond,
        "times that threads waited for something, up to 64 threads",
    ),
    fact_of(
        "process.*.switches_involuntary",
        Unit::PerSecond,
        "times that threads were put off a core, up to 64 threads",
    ),
    fact_of("process.*.files", Unit::Count, "open files"),
    fact_of("process.*.files_limit", Unit::Count, "open files that one process may have"),
    // Their cgroups.
    fact_of("cgroup.*.cpu", Unit::Cores, "CPU of all in the cgroup (version 2)"),
    fact_of("cgroup.*.cpu_limit", Unit::Cores, "the tightest CPU quota at or above it"),
    fact_of("cgroup.*.throttled_periods", Unit::Share, "periods of the quota in which it ran out"),
    fact_of(
        "cgroup.*.throttled",
        Unit::SecondsPerSecond,
        "time that was taken away by the quota; summed over cores",
    ),
    fact_of("cgroup.*.memory_bytes", Unit::Bytes, "memory at the level nearest to its limit"),
    fact_of("cgroup.*.memory_limit_bytes", Unit::Bytes, "the limit of that level"),
    fact_of("cgroup.*.memory_limit_hits", Unit::PerSecond, "times that a memory limit was hit"),
    fact_of(
        "cgroup.*.io_util",
        Unit::Share,
        "the largest share of a disk limit (io.max) that is used",
    ),
    fact_of(
        "cgroup.*.psi_cpu_some",
        Unit::Share,
        "time in which some task of it waited for a core",
    ),
    fact_of(
        "cgroup.*.psi_cpu_full",
        Unit::Share,
        "time in which all tasks of it waited for a core",
    ),
    fact_of(
        "cgroup.*.psi_memory_some",
        Unit::Share,
        "time in which some task of it waited for memory",
    ),
    fact_of(
        "cgroup.*.psi_memory_full",
        Unit::Share,
        "time in which all tasks of it waited for memory",
    ),
    fact_of("cgroup.*.psi_io_some", Unit::Share, "time in which some task of it waited for a disk"),
    fact_of("cgroup.*.psi_io_full", Unit::Share, "time in which all tasks of it waited for a disk"),
    // The target's sockets.
    fact_of("target.accept_queue", Unit::Count, "connections that the target has not yet accepted"),
    fact_of("target.accept_queue_max", Unit::Count, "how many may wait to be accepted"),
    fact_of("target.connections_in", Unit::Count, "connections to the target"),
    fact_of(
        "target.unread_in",
        Unit::Count,
        "accepted connections with bytes that the target has not read",
    ),
    fact_of(
        "target.waiting_in",
        Unit::Count,
        "accepted connections on which the target owes an answer",
    ),
    fact_of(
        "target.unclear_in",
        Unit::Count,
        "accepted connections that sent and received last in the same tick: any of them may wait",
    ),
    fact_of(
        "target.connections_out",
        Unit::Count,
        "connections of the target to servers behind it",
    ),
    fact_of("target.waiting_out", Unit::Count, "those of them on which it waits for an answer"),
    fact_of(
        "target.unclear_out",
        Unit::Count,
        "those of them that sent and received last in the same tick",
    ),
    fact_of("target.waiting_out_max_ms", Unit::Milliseconds, "the longest of these waits"),
    fact_of("watch_cost", Unit::Share, "share of one core that watching took so far"),
];

#[cfg(test)]
mod tests;
