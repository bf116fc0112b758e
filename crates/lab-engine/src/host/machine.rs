//! The whole machine: CPU by state, load, pressure, memory. `disk.rs` and `network.rs` have the
//! devices, `process.rs` the processes.

use std::time::{Duration, Instant};

use lab_model::metrics::host::{HostMetric, host};
use procfs::{CpuTime, CurrentSI, KernelStats};

use super::text::{self, StallMicros};
use super::values::{Values, float, rate, share};

/// Counters of the machine at the last reading.
#[derive(Debug)]
pub(super) struct Machine {
    /// Time and counters of the last reading.
    previous: Option<(Instant, Counters)>,
    /// True if `/proc/pressure` can be read.
    pub(super) pressure: bool,
}

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
    major_faults: f64,
}

/// CPU time by state, in ticks of USER_HZ. Only shares are computed, so the unit does not matter.
/// User time includes guest time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CpuTimes {
    pub(super) user: f64,
    pub(super) nice: f64,
    pub(super) system: f64,
    pub(super) idle: f64,
    pub(super) iowait: f64,
    pub(super) irq: f64,
    pub(super) softirq: f64,
    pub(super) steal: f64,
}

impl CpuTimes {
    fn of(time: &CpuTime) -> CpuTimes {
        let or_zero = |ticks: Option<u64>| float(ticks.unwrap_or(0));
        CpuTimes {
            user: float(time.user),
            nice: float(time.nice),
            system: float(time.system),
            idle: float(time.idle),
            iowait: or_zero(time.iowait),
            irq: or_zero(time.irq),
            softirq: or_zero(time.softirq),
            steal: or_zero(time.steal),
        }
    }

    /// Returns the growth since `previous`, by state. A counter that decreased (iowait can) counts
    /// as 0.
    pub(super) fn since(&self, previous: &CpuTimes) -> CpuTimes {
        let growth = |now: f64, previous: f64| (now - previous).max(0.0);
        CpuTimes {
            user: growth(self.user, previous.user),
            nice: growth(self.nice, previous.nice),
            system: growth(self.system, previous.system),
            idle: growth(self.idle, previous.idle),
            iowait: growth(self.iowait, previous.iowait),
            irq: growth(self.irq, previous.irq),
            softirq: growth(self.softirq, previous.softirq),
            steal: growth(self.steal, previous.steal),
        }
    }

    /// Adds the CPU time of another core.
    pub(super) fn add(&mut self, other: &CpuTimes) {
        self.user += other.user;
        self.nice += other.nice;
        self.system += other.system;
        self.idle += other.idle;
        self.iowait += other.iowait;
        self.irq += other.irq;
        self.softirq += other.softirq;
        self.steal += other.steal;
    }

    fn total(&self) -> f64 {
        let kernel = self.system + self.irq + self.softirq + self.steal;
        self.user + self.nice + kernel + self.idle + self.iowait
    }

    /// Returns the share of busy time. Stolen time is included, because the core was not available.
    /// Waiting for IO is idle time.
    pub(super) fn busy(&self) -> Option<f64> {
        Some(1.0 - share(self.idle + self.iowait, self.total())?)
    }

    /// Writes the shares of all states into `values`.
    pub(super) fn add_values(&self, values: &mut Values) {
        let total = self.total();
        for (metric, ticks) in [
            (host!("cpu_user"), self.user),
            (host!("cpu_nice"), self.nice),
            (host!("cpu_system"), self.system),
            (host!("cpu_idle"), self.idle),
            (host!("cpu_iowait"), self.iowait),
            (host!("cpu_irq"), self.irq),
            (host!("cpu_softirq"), self.softirq),
            (host!("cpu_steal"), self.steal),
        ] {
            values.add(metric, share(ticks, total));
        }
        values.add(host!("cpu_busy"), self.busy());
    }
}

/// The two metrics of a PSI file: the shares of time with some and with all tasks stalled.
pub(super) type StallMetrics = [&'static HostMetric; 2];

/// Each resource with its file in `/proc/pressure` and its metrics.
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
        values.add(host!("load1"), load1());
        add_memory(values);
        let counters = self.counters(&kernel);
        if let Some((last_time, previous)) = &self.previous {
            counters.add_values(previous, now.saturating_duration_since(*last_time), values);
        }
        self.previous = Some((now, counters));
    }

    fn counters(&self, kernel: &KernelStats) -> Counters {
        let vmstat = text::read("/proc/vmstat").unwrap_or_default();
        let count = |name: &str| text::value(&vmstat, name).unwrap_or(0.0);
        let page_bytes = float(procfs::page_size());
        let stalls = STALLS.map(|(file, _)| {
            let psi = self.pressure.then(|| text::read(format!("/proc/pressure/{file}")));
            text::parse_stalls(&psi.flatten()?)
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
        values.add(
            host!("switches"),
            rate(self.context_switches, previous.context_switches, elapsed),
        );
        for (index, (_, metrics)) in STALLS.iter().enumerate() {
            if let Some((now, previous)) = self.stalls[index].zip(previous.stalls[index]) {
                add_stalls(values, *metrics, WHOLE_MACHINE, (now, previous), elapsed);
            }
        }
        let per_second = |now, previous| rate(now, previous, elapsed);
        let swapped_in = per_second(self.swapped_in_bytes, previous.swapped_in_bytes);
        let swapped_out = per_second(self.swapped_out_bytes, previous.swapped_out_bytes);
        values.add(host!("swap_in_bytes"), swapped_in);
        values.add(host!("swap_out_bytes"), swapped_out);
        values.add(host!("major_faults"), per_second(self.major_faults, previous.major_faults));
    }
}

/// The owner of metrics that belong to the whole machine, in [`add_stalls`].
pub(super) const WHOLE_MACHINE: &str = "";

/// Adds the shares of the time between two readings during which tasks were stalled. `owner` is the
/// name of a cgroup's process, or [`WHOLE_MACHINE`].
pub(super) fn add_stalls(
    values: &mut Values,
    [some, full]: StallMetrics,
    owner: &str,
    (now, previous): (StallMicros, StallMicros),
    elapsed: Duration,
) {
    // The total is slightly inexact, so the share of a short time could exceed 1.
    let stalled = |now, previous| (rate(now, previous, elapsed) / 1e6).min(1.0);
    values.add_of(some, owner, stalled(now.some, previous.some));
    values.add_of(full, owner, stalled(now.full, previous.full));
}

/// Returns the load average of the last minute.
fn load1() -> Option<f64> {
    text::read("/proc/loadavg")?.split_whitespace().next()?.parse().ok()
}

fn add_memory(values: &mut Values) {
    let Some(meminfo) = text::read("/proc/meminfo") else { return };
    let bytes = |name: &str| text::value(&meminfo, name).map(|kilobytes| kilobytes * 1_024.0);
    let (total, available) = (bytes("MemTotal"), bytes("MemAvailable"));
    values.add(host!("memory_bytes"), total);
    values.add(host!("memory_available_bytes"), available);
    if let (Some(total), Some(available)) = (total, available) {
        values.add(host!("memory_available_share"), share(available, total));
    }
    let swap = bytes("SwapTotal").zip(bytes("SwapFree"));
    values.add(host!("swap_used_bytes"), swap.map(|(total, free)| total - free));
}

/// Returns the number of logical cores.
pub(super) fn cores() -> f64 {
    let kernel = KernelStats::current();
    kernel.map_or(1.0, |kernel| float(kernel.cpu_time.len().max(1) as u64))
}

#[cfg(test)]
mod tests;
