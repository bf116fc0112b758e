//! Samples the whole machine: CPU by state, load, memory, and pressure. The pressure of a resource
//! is the share of time in which tasks waited for it. `disk.rs` and `network.rs` sample the
//! devices, and `process.rs` samples the processes.
//!
//! `host.rs` explains `host!`.

use std::time::{Duration, Instant};

use lab_model::metrics::host::{HostMetric, host};
use procfs::{CpuTime, CurrentSI, KernelStats};

use super::text::{self, StallMicros};
use super::values::{Values, float, rate, share};

/// The machine, with its counters at the last reading.
#[derive(Debug)]
pub(super) struct Machine {
    /// Time and counters of the last reading.
    previous: Option<(Instant, Counters)>,
    /// True if `/proc/pressure` can be read.
    pub(super) pressure: bool,
}

/// Counters of the machine.
#[derive(Debug)]
struct Counters {
    /// CPU time of all cores together.
    total: CpuTimes,
    /// CPU time of each logical core.
    cores: Vec<CpuTimes>,
    context_switches: f64,
    /// Total stall time of each resource, in the order of [`STALLS`]. `None` if the kernel does not
    /// report it.
    stalls: [Option<StallMicros>; 4],
    /// Bytes read from swap.
    swapped_in_bytes: f64,
    /// Bytes written to swap.
    swapped_out_bytes: f64,
    /// Page faults that needed a disk access.
    major_faults: f64,
}

/// Number of CPU states.
const STATES: usize = 8;
/// For each CPU state: its name in the node-exporter, and our metric.
const CPU_STATES: [(&str, &HostMetric); STATES] = [
    ("user", host!("cpu_user")),
    ("nice", host!("cpu_nice")),
    ("system", host!("cpu_system")),
    ("idle", host!("cpu_idle")),
    ("iowait", host!("cpu_iowait")),
    ("irq", host!("cpu_irq")),
    ("softirq", host!("cpu_softirq")),
    ("steal", host!("cpu_steal")),
];

/// CPU time by state. Only shares are computed, so the unit does not matter. User time includes
/// guest time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CpuTimes {
    /// The time of each state, in the order of [`CPU_STATES`].
    by_state: [f64; STATES],
}

impl CpuTimes {
    fn of(time: &CpuTime) -> CpuTimes {
        let (user, nice, system, idle) = (time.user, time.nice, time.system, time.idle);
        let [iowait, irq, softirq, steal] =
            [time.iowait, time.irq, time.softirq, time.steal].map(Option::unwrap_or_default);
        CpuTimes { by_state: [user, nice, system, idle, iowait, irq, softirq, steal].map(float) }
    }

    /// Sets the time of a state by its name in the node-exporter. Ignores unknown states.
    pub(super) fn set(&mut self, state: &str, time: f64) {
        if let Some(index) = CPU_STATES.iter().position(|(name, _)| *name == state) {
            self.by_state[index] = time;
        }
    }

    /// Returns the growth since `previous`, by state. If a counter decreased, as the kernel's
    /// iowait counter may do, its growth counts as 0.
    pub(super) fn since(&self, previous: &CpuTimes) -> CpuTimes {
        let growth = |state: usize| (self.by_state[state] - previous.by_state[state]).max(0.0);
        CpuTimes { by_state: std::array::from_fn(growth) }
    }

    /// Adds the CPU time of another core.
    pub(super) fn add(&mut self, other: &CpuTimes) {
        for (sum, time) in self.by_state.iter_mut().zip(other.by_state) {
            *sum += time;
        }
    }

    fn total(&self) -> f64 {
        self.by_state.iter().sum()
    }

    /// Returns the share of busy time. Time that the hypervisor stole counts as busy, because the
    /// core was not available. Time in which a core waited for IO counts as idle. Returns `None` if
    /// no time has passed.
    pub(super) fn busy(&self) -> Option<f64> {
        let [_, _, _, idle, iowait, ..] = self.by_state;
        Some(1.0 - share(idle + iowait, self.total())?)
    }

    /// Adds the shares of all states to `values`.
    pub(super) fn add_values(&self, values: &mut Values) {
        for ((_, metric), time) in CPU_STATES.iter().zip(self.by_state) {
            values.add(metric, share(time, self.total()));
        }
        values.add(host!("cpu_busy"), self.busy());
    }
}

/// The two metrics of a resource's pressure. The first is the share of time in which some task
/// waited for the resource. The second is the share in which all tasks waited.
pub(super) type StallMetrics = [&'static HostMetric; 2];

/// For each resource: its file of stall times in `/proc/pressure`, and the metrics of its pressure.
const STALLS: [(&str, StallMetrics); 4] = [
    ("cpu", [host!("psi_cpu_some"), host!("psi_cpu_full")]),
    ("memory", [host!("psi_memory_some"), host!("psi_memory_full")]),
    ("io", [host!("psi_io_some"), host!("psi_io_full")]),
    ("irq", [host!("psi_irq_some"), host!("psi_irq_full")]),
];

impl Machine {
    pub(super) fn new() -> Machine {
        let pressure = text::read("/proc/pressure/cpu").is_some();
        Machine { previous: None, pressure }
    }

    /// Adds the changes since the last call. The first call adds only values that are not rates.
    pub(super) fn sample(&mut self, now: Instant, values: &mut Values) {
        let Ok(kernel) = KernelStats::current() else { return };
        values.add(host!("runnable"), kernel.procs_running.map(f64::from));
        values.add(host!("blocked"), kernel.procs_blocked.map(f64::from));
        values.add(host!("load1"), read_load1());
        add_memory(values);
        let counters = self.read_counters(&kernel);
        if let Some((last_time, previous)) = &self.previous {
            counters.add_values(previous, now.saturating_duration_since(*last_time), values);
        }
        self.previous = Some((now, counters));
    }

    /// Reads all counters of the machine.
    fn read_counters(&self, kernel: &KernelStats) -> Counters {
        let vmstat = text::read("/proc/vmstat").unwrap_or_default();
        let count = |name: &str| text::find_value(&vmstat, name).unwrap_or(0.0);
        let page_bytes = float(procfs::page_size());
        let stalls = STALLS.map(|(file, _)| {
            if !self.pressure {
                return None;
            }
            text::parse_stalls(&text::read(format!("/proc/pressure/{file}"))?)
        });
        Counters {
            total: CpuTimes::of(&kernel.total),
            cores: kernel.cpu_time.iter().map(CpuTimes::of).collect(),
            context_switches: float(kernel.ctxt),
            stalls,
            swapped_in_bytes: count("pswpin") * page_bytes,
            swapped_out_bytes: count("pswpout") * page_bytes,
            major_faults: count("pgmajfault"),
        }
    }
}

impl Counters {
    /// Adds the changes since `previous`, which was read `elapsed` earlier.
    fn add_values(&self, previous: &Counters, elapsed: Duration, values: &mut Values) {
        self.total.since(&previous.total).add_values(values);
        let pairs = self.cores.iter().zip(&previous.cores);
        let busiest = pairs.filter_map(|(now, previous)| now.since(previous).busy());
        values.add(host!("cpu_core_max"), busiest.max_by(f64::total_cmp));
        let per_second = |now, previous| rate(now, previous, elapsed);
        let switches = per_second(self.context_switches, previous.context_switches);
        values.add(host!("switches"), switches);
        for (index, (_, metrics)) in STALLS.iter().enumerate() {
            if let Some((now, previous)) = self.stalls[index].zip(previous.stalls[index]) {
                add_stalls(values, *metrics, WHOLE_MACHINE, (now, previous), elapsed);
            }
        }
        let swapped_in = per_second(self.swapped_in_bytes, previous.swapped_in_bytes);
        let swapped_out = per_second(self.swapped_out_bytes, previous.swapped_out_bytes);
        values.add(host!("swap_in_bytes"), swapped_in);
        values.add(host!("swap_out_bytes"), swapped_out);
        values.add(host!("major_faults"), per_second(self.major_faults, previous.major_faults));
    }
}

/// Owner of the metrics of the whole machine, in [`add_stalls`].
pub(super) const WHOLE_MACHINE: &str = "";

/// Adds the shares of time in which tasks were stalled between two readings. A stalled task waits
/// for a resource. `owner` is the name of the process group whose cgroup was read, or
/// [`WHOLE_MACHINE`].
pub(super) fn add_stalls(
    values: &mut Values,
    [some, full]: StallMetrics,
    owner: &str,
    (now, previous): (StallMicros, StallMicros),
    elapsed: Duration,
) {
    // The kernel's totals are slightly inexact. Without the limit, the share could exceed 1 if
    // `elapsed` is short.
    let stalled = |now, previous| (rate(now, previous, elapsed) / 1e6).min(1.0);
    values.add_of(some, owner, stalled(now.some, previous.some));
    values.add_of(full, owner, stalled(now.full, previous.full));
}

/// Returns the load average of the last minute.
fn read_load1() -> Option<f64> {
    text::read("/proc/loadavg")?.split_whitespace().next()?.parse().ok()
}

/// Adds the sizes of memory and swap.
fn add_memory(values: &mut Values) {
    let Some(meminfo) = text::read("/proc/meminfo") else { return };
    let bytes = |name: &str| text::find_value(&meminfo, name).map(|kilobytes| kilobytes * 1_024.0);
    let (total, available) = (bytes("MemTotal"), bytes("MemAvailable"));
    values.add(host!("memory_bytes"), total);
    values.add(host!("memory_available_bytes"), available);
    let available_share =
        available.zip(total).and_then(|(available, total)| share(available, total));
    values.add(host!("memory_available_share"), available_share);
    let swap = bytes("SwapTotal").zip(bytes("SwapFree"));
    values.add(host!("swap_used_bytes"), swap.map(|(total, free)| total - free));
}

/// Returns the number of logical cores, or 1 if `/proc/stat` cannot be read.
pub(super) fn count_cores() -> f64 {
    let kernel = KernelStats::current();
    kernel.map_or(1.0, |kernel| float(kernel.cpu_time.len().max(1) as u64))
}

#[cfg(test)]
mod tests;
